//! A model's file, opened: its sizes, where its matrices lie, and its small vectors, which are read at once.

use crate::{Config, Error, Result};
use neap_blocks::{BlockType, widen_row};
use neap_gguf::{Header, Tensor};
use neap_store::BlockReader;
use std::io::{Read, Seek, SeekFrom};
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
    Gate,
    Up,
    /// Both in one matrix, in that order.
    GateUp,
    Down,
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
    /// Of what attention adds.
    pub after_attention_norm: Vec<f32>,
    pub inner_norm: Vec<f32>,
    /// Of what the inner layer adds.
    pub after_inner_norm: Vec<f32>,
}

/// A model file whose header was read.
#[derive(Debug, Clone)]
pub struct Model {
    pub path: PathBuf,
    pub header: Header,
    pub config: Config,
    /// In the order of a pass.
    pub matrices: Vec<(usize, Role, Matrix)>,
    pub layers: Vec<Vectors>,
    pub last_norm: Vec<f32>,
    /// Divisors of rotary frequencies, for short and long contexts.
    pub rotary_factors: [Vec<f32>; 2],
    pub embedding: Matrix,
}

impl Model {
    /// # Errors
    /// [`Error`] where the file cannot be read, is damaged, or is of a kind that does not run.
    pub fn open(path: &Path) -> Result<Model> {
        let mut reader = BlockReader::open(path)?;
        let len = reader.len_bytes();
        let of_file = |source| Error::Gguf {
            path: path.to_owned(),
            source,
        };
        let header = Header::read(&mut reader, len).map_err(of_file)?;
        let config = Config::of(&header)?;
        let mut file = File {
            reader,
            header: &header,
            path,
        };
        let mut matrices = Vec::new();
        let mut layers = Vec::new();
        for layer in 0..config.layers {
            matrices.extend(file.matrices(&config, layer)?.map(|(r, m)| (layer, r, m)));
            layers.push(file.vectors(&config, layer)?);
        }
        let embedding = file.matrix("token_embd.weight", config.vocabulary, config.width)?;
        let logits = match header.tensor("output.weight") {
            Some(_) => file.matrix("output.weight", config.vocabulary, config.width)?,
            None => embedding,
        };
        matrices.push((config.layers, Role::Logits, logits));
        let last_norm = file.vector("output_norm.weight", config.width)?;
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
            path: path.to_owned(),
            rotary_factors: [short, long],
            last_norm,
            matrices,
            layers,
            embedding,
            config,
            header,
        })
    }

    /// Bytes of vectors in memory.
    #[must_use]
    pub fn matrix_bytes(&self) -> u64 {
        let bytes = |(_, _, m): &(usize, Role, Matrix)| (m.rows * m.row_bytes()) as u64;
        self.matrices.iter().map(bytes).sum()
    }
}

struct File<'a> {
    reader: BlockReader,
    header: &'a Header,
    path: &'a Path,
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
        if self.header.tensor(&name("attn_qkv")).is_some() {
            take(Role::QueryKeyValue, "attn_qkv", query + 2 * key, width)?;
        } else {
            take(Role::Query, "attn_q", query, width)?;
            take(Role::Key, "attn_k", key, width)?;
            take(Role::Value, "attn_v", key, width)?;
        }
        take(Role::Output, "attn_output", width, query)?;
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
        let mut take = |part: &str, len| self.maybe_vector(&format!("blk.{layer}.{part}"), len);
        let vectors = Vectors {
            attention_norm: take("attn_norm.weight", width)?,
            query_bias: take("attn_q.bias", query)?,
            key_bias: take("attn_k.bias", key)?,
            value_bias: take("attn_v.bias", key)?,
            query_norm: take("attn_q_norm.weight", head)?,
            key_norm: take("attn_k_norm.weight", head)?,
            output_bias: take("attn_output.bias", width)?,
            after_attention_norm: take("post_attention_norm.weight", width)?,
            inner_norm: take("ffn_norm.weight", width)?,
            after_inner_norm: take("post_ffw_norm.weight", width)?,
        };
        let is_whole = !vectors.attention_norm.is_empty() && !vectors.inner_norm.is_empty();
        is_whole
            .then_some(vectors)
            .ok_or_else(|| Error::Model(format!("layer {layer} lacks a norm")))
    }

    fn tensor(&self, name: &str) -> Result<&Tensor> {
        let found = self.header.tensor(name);
        found.ok_or_else(|| Error::Model(format!("it has no tensor '{name}'")))
    }

    fn matrix(&self, name: &str, rows: usize, k: usize) -> Result<Matrix> {
        let tensor = self.tensor(name)?;
        if tensor.sizes != [k as u64, rows as u64] {
            return Err(Error::Model(format!(
                "tensor '{name}' has sizes {:?} instead of [{k}, {rows}]",
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
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = self.reader.seek(SeekFrom::Start(range.start));
        let read = read.and_then(|_| self.reader.read_exact(&mut bytes));
        read.map_err(|source| Error::File {
            path: self.path.to_owned(),
            source,
        })?;
        let mut vector = vec![0.0; len];
        widen_row(ty, &bytes, &mut vector);
        Ok(vector)
    }
}
