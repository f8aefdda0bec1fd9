//! A model's file, opened: its sizes, where its matrices lie, and its small vectors, which are read at once.

use crate::parts::Parts;
use crate::{Config, Error, Result};
use neap_blocks::{BlockType, widen_row};
use neap_gguf::{Header, Tensor};
use std::path::{Path, PathBuf};

/// Most bytes of a vector that is kept in memory: more is no norm and no bias.
const MOST_VECTOR_BYTES: u64 = 1 << 20;

/// A matrix as it lies in the file: rows of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Matrix {
    pub ty: BlockType,
    /// Elements of its result.
    pub rows: usize,
    /// Elements of what it multiplies.
    pub k: usize,
    pub offset: u64,
}

impl Matrix {
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.k)
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        (self.rows * self.row_bytes()) as u64
    }

    /// Where another of its kind begins, of those that lie one behind the other.
    #[must_use]
    pub fn offset_of(&self, index: usize) -> u64 {
        self.offset + index as u64 * self.bytes()
    }
}

/// The experts of a layer: where the first lies; the others follow it.
#[derive(Debug, Clone, PartialEq)]
pub struct Expert {
    /// Gate, up and down.
    pub matrices: [Matrix; 3],
    /// Of these.
    pub biases: Option<[Matrix; 3]>,
}

impl Expert {
    /// All that an expert computes with.
    pub fn pieces(&self) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().chain(self.biases.iter().flatten())
    }
}

/// What a matrix of a layer computes, in the order of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Query,
    Key,
    Value,
    /// The three above in one matrix, in that order.
    QueryKeyValue,
    Output,
    /// What a convolution takes: gates of its inputs, of its results, and inputs, in that order.
    ConvolutionIn,
    ConvolutionOut,
    Gate,
    Up,
    /// Both in one matrix, in that order.
    GateUp,
    Down,
    /// From a row to the scores of experts.
    Router,
    /// From the last layer's result to the vocabulary.
    Logits,
}

/// Vectors of one layer. Empty: the model has none.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vectors {
    pub attention_norm: Vec<f32>,
    pub query_bias: Vec<f32>,
    pub key_bias: Vec<f32>,
    pub value_bias: Vec<f32>,
    /// Of each head.
    pub query_norm: Vec<f32>,
    pub key_norm: Vec<f32>,
    pub output_bias: Vec<f32>,
    /// Of each head: the score of a position without a value.
    pub sinks: Vec<f32>,
    /// Taps of each element, the oldest first.
    pub taps: Vec<f32>,
    pub router_bias: Vec<f32>,
    /// Of what attention adds.
    pub after_attention_norm: Vec<f32>,
    pub inner_norm: Vec<f32>,
    /// Of what the inner layer adds.
    pub after_inner_norm: Vec<f32>,
}

/// A model file whose header was read.
#[derive(Debug, Clone)]
pub struct Model {
    /// In their order; the first has all but tensors.
    pub files: Vec<PathBuf>,
    pub header: Header,
    pub config: Config,
    /// In the order of a pass.
    pub matrices: Vec<(usize, Role, Matrix)>,
    pub layers: Vec<Vectors>,
    /// By layer, of a mixture.
    pub experts: Vec<Expert>,
    pub last_norm: Vec<f32>,
    /// Divisors of rotary frequencies, for short and long contexts.
    pub rotary_factors: [Vec<f32>; 2],
    pub embedding: Matrix,
}

impl Model {
    /// # Errors
    /// [`Error`] where the file cannot be read, is damaged, or is of a kind that does not run.
    pub fn open(path: &Path) -> Result<Model> {
        let (parts, header) = Parts::open(path)?;
        let config = Config::of(&header)?;
        let mut file = File {
            parts,
            header: &header,
        };
        let mut matrices = Vec::new();
        let (mut layers, mut experts) = (Vec::new(), Vec::new());
        for layer in 0..config.layers {
            matrices.extend(file.matrices(&config, layer)?.map(|(r, m)| (layer, r, m)));
            layers.push(file.vectors(&config, layer)?);
            experts.extend(file.experts(&config, layer)?);
        }
        let embedding = file.matrix("token_embd.weight", config.vocabulary, config.width)?;
        let logits = match header.tensor("output.weight") {
            Some(_) => file.matrix("output.weight", config.vocabulary, config.width)?,
            None => embedding,
        };
        matrices.push((config.layers, Role::Logits, logits));
        let last_norm = match header.tensor("token_embd_norm.weight") {
            Some(_) if config.architecture == "lfm2" => "token_embd_norm.weight",
            _ => "output_norm.weight",
        };
        let last_norm = file.vector(last_norm, config.width)?;
        let half = config.rotary.dims / 2;
        let long = match header.tensor("rope_freqs.weight") {
            Some(_) => file.vector("rope_freqs.weight", half)?,
            None => file.maybe_vector("rope_factors_long.weight", half)?,
        };
        let short = match header.tensor("rope_freqs.weight") {
            Some(_) => long.clone(),
            None => file.maybe_vector("rope_factors_short.weight", half)?,
        };
        if last_norm.is_empty() {
            return Err(Error::Model("it has no vector 'output_norm.weight'".into()));
        }
        Ok(Model {
            files: file.parts.paths,
            rotary_factors: [short, long],
            last_norm,
            matrices,
            layers,
            experts,
            embedding,
            config,
            header,
        })
    }

    /// The file that was named, or the first of several.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.files[0]
    }

    /// Bytes of matrices in the file, experts included.
    #[must_use]
    pub fn matrix_bytes(&self) -> u64 {
        self.all_matrices()
            .map(|(matrix, count)| matrix.bytes() * count)
            .sum()
    }

    /// Every matrix, and how many of its kind lie there.
    pub(crate) fn all_matrices(&self) -> impl Iterator<Item = (&Matrix, u64)> {
        let count = self.config.experts.as_ref().map_or(0, |e| e.count as u64);
        let experts = self.experts.iter().flat_map(|expert| &expert.matrices);
        let matrices = self.matrices.iter().map(|(_, _, matrix)| (matrix, 1));
        matrices.chain(experts.map(move |matrix| (matrix, count)))
    }
}

struct File<'a> {
    parts: Parts,
    header: &'a Header,
}

impl File<'_> {
    fn matrices(
        &self,
        config: &Config,
        layer: usize,
    ) -> Result<impl Iterator<Item = (Role, Matrix)> + use<>> {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let (width, inner) = (config.width, config.inner_width);
        let (query, key) = (config.query_width(), config.key_width());
        let mut found = Vec::with_capacity(7);
        let mut take = |role, part: &str, rows, k| -> Result<()> {
            found.push((role, self.matrix(&name(part), rows, k)?));
            Ok(())
        };
        if config.is_convolution(layer) {
            take(Role::ConvolutionIn, "shortconv.in_proj", 3 * width, width)?;
            take(Role::ConvolutionOut, "shortconv.out_proj", width, width)?;
        } else if self.header.tensor(&name("attn_qkv")).is_some() {
            take(Role::QueryKeyValue, "attn_qkv", query + 2 * key, width)?;
        } else {
            take(Role::Query, "attn_q", query, width)?;
            take(Role::Key, "attn_k", key, width)?;
            take(Role::Value, "attn_v", key, width)?;
        }
        if !config.is_convolution(layer) {
            take(Role::Output, "attn_output", width, query)?;
        }
        if let Some(experts) = &config.experts {
            take(Role::Router, "ffn_gate_inp", experts.count, width)?;
            return Ok(found.into_iter());
        }
        if self.header.tensor(&name("ffn_gate")).is_some() {
            take(Role::Gate, "ffn_gate", inner, width)?;
            take(Role::Up, "ffn_up", inner, width)?;
        } else {
            take(Role::GateUp, "ffn_up", 2 * inner, width)?;
        }
        take(Role::Down, "ffn_down", width, inner)?;
        Ok(found.into_iter())
    }

    fn vectors(&mut self, config: &Config, layer: usize) -> Result<Vectors> {
        let (width, head) = (config.width, config.head_width);
        let (query, key) = (config.query_width(), config.key_width());
        // Some norm whole projections, most each head.
        let (query_norm, key_norm) = match config.architecture.as_str() {
            "olmoe" => (query, key),
            _ => (head, head),
        };
        // What some call the norm after attention comes before the inner layer all the same.
        let (after_attention, before_inner) = match config.architecture.as_str() {
            "gpt-oss" => ("", "post_attention_norm.weight"),
            _ => ("post_attention_norm.weight", "ffn_norm.weight"),
        };
        let experts = config.experts.as_ref().map_or(0, |experts| experts.count);
        let taps = config.convolution.as_ref().map_or(0, |c| c.taps * width);
        let mut take = |part: &str, len| self.maybe_vector(&format!("blk.{layer}.{part}"), len);
        let vectors = Vectors {
            attention_norm: take("attn_norm.weight", width)?,
            query_bias: take("attn_q.bias", query)?,
            key_bias: take("attn_k.bias", key)?,
            value_bias: take("attn_v.bias", key)?,
            query_norm: take("attn_q_norm.weight", query_norm)?,
            key_norm: take("attn_k_norm.weight", key_norm)?,
            output_bias: take("attn_output.bias", width)?,
            sinks: take("attn_sinks.weight", config.heads)?,
            taps: take("shortconv.conv.weight", taps)?,
            router_bias: take("ffn_gate_inp.bias", experts)?,
            after_attention_norm: take(after_attention, width)?,
            inner_norm: take(before_inner, width)?,
            after_inner_norm: take("post_ffw_norm.weight", width)?,
        };
        let is_whole = !vectors.attention_norm.is_empty() && !vectors.inner_norm.is_empty();
        is_whole
            .then_some(vectors)
            .ok_or_else(|| Error::Model(format!("layer {layer} lacks a norm")))
    }

    /// `None` of a model without.
    fn experts(&self, config: &Config, layer: usize) -> Result<Option<Expert>> {
        let Some(experts) = &config.experts else {
            return Ok(None);
        };
        let (width, inner, count) = (config.width, config.inner_width, experts.count);
        let name = |part: &str, what| format!("blk.{layer}.ffn_{part}_exps.{what}");
        let weight = |part, rows, k| self.matrix_of(&name(part, "weight"), rows, k, Some(count));
        let matrices = [
            weight("gate", inner, width)?,
            weight("up", inner, width)?,
            weight("down", width, inner)?,
        ];
        // A bias is a row for each expert.
        let bias = |part, len| -> Result<Matrix> {
            let rows = self.matrix(&name(part, "bias"), count, len)?;
            Ok(Matrix { rows: 1, ..rows })
        };
        let biases = match self.header.tensor(&name("gate", "bias")) {
            Some(_) => Some([
                bias("gate", inner)?,
                bias("up", inner)?,
                bias("down", width)?,
            ]),
            None => None,
        };
        Ok(Some(Expert { matrices, biases }))
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        let found = self.header.tensor(name);
        found.ok_or_else(|| Error::Model(format!("it has no tensor '{name}'")))
    }

    fn matrix(&self, name: &str, rows: usize, k: usize) -> Result<Matrix> {
        self.matrix_of(name, rows, k, None)
    }

    /// The first of so many that lie one behind the other.
    fn matrix_of(&self, name: &str, rows: usize, k: usize, count: Option<usize>) -> Result<Matrix> {
        let tensor = self.tensor(name)?;
        let sizes = [k, rows].into_iter().chain(count).map(|size| size as u64);
        let sizes: Vec<u64> = sizes.collect();
        if tensor.sizes != sizes {
            return Err(Error::Model(format!(
                "tensor '{name}' has sizes {:?} instead of {sizes:?}",
                tensor.sizes
            )));
        }
        let ty = BlockType::of_kind(tensor.kind).ok_or_else(|| {
            Error::Unsupported(format!("tensor '{name}' is of type {}", tensor.kind))
        })?;
        Ok(Matrix {
            ty,
            rows,
            k,
            offset: tensor.range.start,
        })
    }

    /// Empty where there is none.
    fn maybe_vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        match self.header.tensor(name) {
            Some(_) => self.vector(name, len),
            None => Ok(Vec::new()),
        }
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        let (kind, range) = (tensor.kind, tensor.range.clone());
        if tensor.elements() != len as u64 || range.end - range.start > MOST_VECTOR_BYTES {
            return Err(Error::Model(format!(
                "tensor '{name}' has {} elements instead of {len}",
                tensor.elements()
            )));
        }
        let ty = BlockType::of_kind(kind)
            .ok_or_else(|| Error::Unsupported(format!("tensor '{name}' is of type {kind}")))?;
        let bytes = self.parts.read(range)?;
        let mut vector = vec![0.0; len];
        widen_row(ty, &bytes, &mut vector);
        Ok(vector)
    }
}
