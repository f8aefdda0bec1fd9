//! Streams a [`Graph`] into an ONNX file without ever holding a whole tensor.
//!
//! Every length is known before a value is generated, so the file is written front to back:
//! one thread generates values, the caller's thread writes them, and at most a few chunks are
//! in flight. Files get their final names only when complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::ZooError;
use crate::graph::{Attr, BATCH_PARAM, DType, Dim, Graph, Node, Port, Small, Tensor};
use crate::init::generate;
use crate::protobuf as pb;
use half::f16;

/// ONNX opset of every model here.
pub(crate) const OPSET: u64 = 17;
const IR_VERSION: u64 = 8;
/// Written as the producer's version; changes when the same name and seed give other bytes.
const GENERATION: &str = "1";
/// Smaller tensors (shape constants and such) stay in the model even when weights are external:
/// readers want them at hand for shape inference.
const MIN_EXTERNAL_BYTES: u64 = 1024;
/// External tensors start at multiples of this, so that they can be mapped or read directly.
const EXTERNAL_ALIGNMENT_BYTES: u64 = 4096;
/// In the metadata of a model without weights: readers need not look for them.
const WEIGHTS_KEY: &[u8] = b"neaptide.weights";
const WEIGHTS_ABSENT: &[u8] = b"absent";
/// What most names of external data end in.
pub(crate) const DATA_ENDING: &str = ".data";
/// A protobuf message cannot be larger.
const MAX_MODEL_BYTES: u64 = i32::MAX as u64;

/// Where the values of large tensors go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    Inline,
    /// Into a file beside the model, of the model's name and this ending.
    External(&'static str),
    /// Nowhere: the file beside the model has their size and no content.
    Absent,
}

/// What was written.
pub(crate) struct Files {
    pub model_bytes: u64,
    pub external: Option<(PathBuf, u64)>,
}

/// Where the values of tensors come from.
pub(crate) trait Values: Sync {
    /// Hands out the bytes of a tensor, in its own type and in order, a bounded piece at a time. Stops early, returning false, when `emit`
    /// does.
    fn generate(
        &self,
        tensor: &Tensor,
        emit: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Result<bool, ZooError>;
}

/// Values that follow from a seed.
pub(crate) struct Seeded(pub u64);

/// Writes `graph` to `path`, reporting bytes done and in total.
pub(crate) fn write(
    graph: &Graph,
    values: &dyn Values,
    path: &Path,
    weights: Weights,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Files, ZooError> {
    let file_name = path
        .file_name()
        .and_then(|n| n.to_str())
        .ok_or_else(|| ZooError::BadPath {
            path: path.to_path_buf(),
        })?;
    let ending = match weights {
        Weights::External(ending) => ending,
        Weights::Inline | Weights::Absent => DATA_ENDING,
    };
    let data_name = format!("{file_name}{ending}");
    let plan = Plan::new(graph, weights, &data_name);
    if plan.model_bytes > MAX_MODEL_BYTES {
        return Err(ZooError::TooLarge {
            size_bytes: plan.model_bytes,
        });
    }
    let total = plan.model_bytes + plan.external_bytes;
    let mut done = 0;
    let mut count = |bytes: u64| {
        done += bytes;
        progress(done, total);
    };

    let mut model = TempFile::create(path)?;
    let data_path = path.with_file_name(&data_name);
    let mut data = match weights {
        Weights::Inline => None,
        Weights::External(_) | Weights::Absent => Some(TempFile::create(&data_path)?),
    };
    model.write(&plan.prefix)?;
    if let (Weights::Absent, Some(data)) = (weights, &mut data) {
        data.set_len(plan.external_bytes)?;
        write_small_tensors(graph, values, &plan, &mut model)?;
    } else {
        stream_tensors(graph, values, &plan, &mut model, data.as_mut(), &mut count)?;
    }
    model.write(&plan.suffix)?;
    debug_assert_eq!(model.written, plan.model_bytes);
    // Data first: a model that is there is complete.
    let written = match data {
        Some(data) => {
            data.finish()?;
            Some((data_path, plan.external_bytes))
        }
        None => None,
    };
    model.finish()?;
    progress(total, total);
    Ok(Files {
        model_bytes: plan.model_bytes,
        external: written,
    })
}

/// Everything of the file but the values: encoded pieces and where they go.
struct Plan {
    prefix: Vec<u8>,
    /// The encoded start of each initializer; inline values follow directly.
    tensor_heads: Vec<Vec<u8>>,
    suffix: Vec<u8>,
    /// Where each initializer's values start in the external file; none for inline ones.
    offsets: Vec<Option<u64>>,
    model_bytes: u64,
    external_bytes: u64,
}

impl Plan {
    /// `data_name` is that of the file beside the model, if there is one.
    fn new(graph: &Graph, weights: Weights, data_name: &str) -> Plan {
        let external = (weights != Weights::Inline).then_some(data_name);
        let mut graph_prefix = Vec::new();
        for node in &graph.nodes {
            pb::bytes(&mut graph_prefix, 1, &encode_node(node));
        }
        pb::bytes(&mut graph_prefix, 2, graph.name.as_bytes());

        let mut tensor_heads = Vec::with_capacity(graph.tensors.len());
        let mut offsets = Vec::with_capacity(graph.tensors.len());
        let mut external_bytes: u64 = 0;
        let mut inline_bytes: u64 = 0;
        for tensor in &graph.tensors {
            let size = tensor.size_bytes();
            let mut body = encode_tensor_head(tensor);
            let follows = match external {
                Some(location) if size >= MIN_EXTERNAL_BYTES => {
                    let offset = external_bytes.next_multiple_of(EXTERNAL_ALIGNMENT_BYTES);
                    external_bytes = offset + size;
                    offsets.push(Some(offset));
                    for (key, value) in [
                        ("location", location),
                        ("offset", &offset.to_string()),
                        ("length", &size.to_string()),
                    ] {
                        let mut entry = Vec::new();
                        pb::bytes(&mut entry, 1, key.as_bytes());
                        pb::bytes(&mut entry, 2, value.as_bytes());
                        pb::bytes(&mut body, 13, &entry);
                    }
                    pb::varint(&mut body, 14, 1);
                    0
                }
                _ => {
                    offsets.push(None);
                    pb::length(&mut body, 9, size);
                    size
                }
            };
            let mut head = Vec::new();
            pb::length(&mut head, 5, body.len() as u64 + follows);
            head.extend(body);
            tensor_heads.push(head);
            inline_bytes += follows;
        }

        let mut graph_suffix = Vec::new();
        for port in &graph.inputs {
            pb::bytes(&mut graph_suffix, 11, &encode_port(port));
        }
        for port in &graph.outputs {
            pb::bytes(&mut graph_suffix, 12, &encode_port(port));
        }

        let heads: u64 = tensor_heads.iter().map(|h| h.len() as u64).sum();
        let graph_len =
            graph_prefix.len() as u64 + heads + inline_bytes + graph_suffix.len() as u64;
        let mut prefix = Vec::new();
        pb::varint(&mut prefix, 1, IR_VERSION);
        pb::bytes(&mut prefix, 2, b"neap-zoo");
        pb::bytes(&mut prefix, 3, GENERATION.as_bytes());
        pb::length(&mut prefix, 7, graph_len);
        let head_len = prefix.len() as u64;
        prefix.extend(graph_prefix);

        let mut opset = Vec::new();
        pb::bytes(&mut opset, 1, b"");
        pb::varint(&mut opset, 2, OPSET);
        let mut suffix = graph_suffix;
        let graph_suffix_len = suffix.len();
        pb::bytes(&mut suffix, 8, &opset);
        if weights == Weights::Absent {
            let mut entry = Vec::new();
            pb::bytes(&mut entry, 1, WEIGHTS_KEY);
            pb::bytes(&mut entry, 2, WEIGHTS_ABSENT);
            pb::bytes(&mut suffix, 14, &entry);
        }
        let tail_len = (suffix.len() - graph_suffix_len) as u64;

        Plan {
            prefix,
            tensor_heads,
            suffix,
            offsets,
            model_bytes: head_len + graph_len + tail_len,
            external_bytes,
        }
    }
}

/// Generates all tensors on a second thread and writes them here, in order: each initializer's
/// head to the model, its values behind it or to the external `data`.
fn stream_tensors(
    graph: &Graph,
    values: &dyn Values,
    plan: &Plan,
    model: &mut TempFile,
    mut data: Option<&mut TempFile>,
    count: &mut dyn FnMut(u64),
) -> Result<(), ZooError> {
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<(usize, Vec<u8>)>(4);
        let made = scope.spawn(move || {
            for (i, tensor) in graph.tensors.iter().enumerate() {
                let mut emit = |chunk| sender.send((i, chunk)).is_ok();
                if !values.generate(tensor, &mut emit)? {
                    break; // the writer has failed and says why
                }
            }
            Ok(())
        });
        let mut started = 0;
        for (i, chunk) in receiver {
            let begins = i == started;
            if begins {
                model.write(&plan.tensor_heads[i])?;
                started += 1;
            }
            match (plan.offsets[i], &mut data) {
                (Some(offset), Some(data)) => {
                    if begins {
                        data.pad_to(offset)?;
                    }
                    data.write(&chunk)?;
                }
                _ => model.write(&chunk)?,
            }
            count(chunk.len() as u64);
        }
        match made.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// All heads, and the values that are in the model itself.
fn write_small_tensors(
    graph: &Graph,
    values: &dyn Values,
    plan: &Plan,
    model: &mut TempFile,
) -> Result<(), ZooError> {
    for (i, tensor) in graph.tensors.iter().enumerate() {
        model.write(&plan.tensor_heads[i])?;
        if plan.offsets[i].is_none() {
            let mut bytes = Vec::new();
            values.generate(tensor, &mut |chunk| {
                bytes.extend(chunk);
                true
            })?;
            model.write(&bytes)?;
        }
    }
    Ok(())
}

impl Values for Seeded {
    fn generate(
        &self,
        tensor: &Tensor,
        emit: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Result<bool, ZooError> {
        let is_half = tensor.dtype == DType::F16;
        let mut narrowed = |chunk: Vec<u8>| match is_half {
            true => {
                let singles = chunk.as_chunks::<4>().0.iter();
                let halves = singles.map(|&single| f16::from_f32(f32::from_le_bytes(single)));
                emit(halves.flat_map(f16::to_le_bytes).collect())
            }
            false => emit(chunk),
        };
        let (name, elements) = (&tensor.name, tensor.elements());
        Ok(generate(
            self.0,
            name,
            elements,
            &tensor.init,
            &mut narrowed,
        ))
    }
}

fn encode_node(node: &Node) -> Vec<u8> {
    let mut out = Vec::new();
    for input in &node.inputs {
        pb::bytes(&mut out, 1, input.as_bytes());
    }
    for output in &node.output_names {
        pb::bytes(&mut out, 2, output.as_bytes());
    }
    pb::bytes(&mut out, 3, node.name.as_bytes());
    pb::bytes(&mut out, 4, node.op.as_bytes());
    for (name, attr) in &node.attrs {
        let mut a = Vec::new();
        pb::bytes(&mut a, 1, name.as_bytes());
        let kind = match attr {
            Attr::Float(v) => {
                pb::float(&mut a, 2, *v);
                1
            }
            Attr::Int(v) => {
                pb::int64(&mut a, 3, *v);
                2
            }
            Attr::Str(v) => {
                pb::bytes(&mut a, 4, v.as_bytes());
                3
            }
            Attr::Tensor(v) => {
                pb::bytes(&mut a, 5, &encode_small(v));
                4
            }
            Attr::Ints(v) => {
                for &i in v {
                    pb::int64(&mut a, 8, i);
                }
                7
            }
        };
        pb::varint(&mut a, 20, kind);
        pb::bytes(&mut out, 5, &a);
    }
    out
}

fn encode_small(value: &Small) -> Vec<u8> {
    let (dims, dtype, raw): (&[i64], DType, Vec<u8>) = match value {
        Small::F32Scalar(v) => (&[], DType::F32, v.to_le_bytes().to_vec()),
        Small::F16Scalar(v) => (&[], DType::F16, v.to_le_bytes().to_vec()),
        Small::I64Scalar(v) => (&[], DType::I64, v.to_le_bytes().to_vec()),
        Small::I64s(v) => (
            &[v.len() as i64],
            DType::I64,
            v.iter().flat_map(|i| i.to_le_bytes()).collect(),
        ),
    };
    let mut out = Vec::new();
    for &d in dims {
        pb::int64(&mut out, 1, d);
    }
    pb::varint(&mut out, 2, dtype.onnx_code());
    pb::bytes(&mut out, 9, &raw);
    out
}

fn encode_tensor_head(tensor: &Tensor) -> Vec<u8> {
    let mut out = Vec::new();
    for &d in &tensor.dims {
        pb::int64(&mut out, 1, d as i64);
    }
    pb::varint(&mut out, 2, tensor.dtype.onnx_code());
    pb::bytes(&mut out, 8, tensor.name.as_bytes());
    out
}

fn encode_port(port: &Port) -> Vec<u8> {
    let mut shape = Vec::new();
    for dim in &port.dims {
        let mut d = Vec::new();
        match dim {
            Dim::Fixed(v) => pb::int64(&mut d, 1, *v),
            Dim::Batch => pb::bytes(&mut d, 2, BATCH_PARAM.as_bytes()),
            Dim::Named(name) => pb::bytes(&mut d, 2, name.as_bytes()),
        }
        pb::bytes(&mut shape, 1, &d);
    }
    let mut tensor_type = Vec::new();
    pb::varint(&mut tensor_type, 1, port.dtype.onnx_code());
    pb::bytes(&mut tensor_type, 2, &shape);
    let mut type_proto = Vec::new();
    pb::bytes(&mut type_proto, 1, &tensor_type);
    let mut out = Vec::new();
    pb::bytes(&mut out, 1, port.name.as_bytes());
    pb::bytes(&mut out, 2, &type_proto);
    out
}

/// A file under a temporary name beside its final one; removed again unless finished.
struct TempFile {
    out: Option<BufWriter<File>>,
    temp_path: PathBuf,
    final_path: PathBuf,
    written: u64,
}

impl TempFile {
    fn create(final_path: &Path) -> Result<TempFile, ZooError> {
        let mut name = final_path.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.partial", std::process::id()));
        let temp_path = final_path.with_file_name(name);
        let file = File::create(&temp_path).map_err(|source| ZooError::Io {
            path: temp_path.clone(),
            source,
        })?;
        Ok(TempFile {
            out: Some(BufWriter::with_capacity(256 * 1024, file)),
            temp_path,
            final_path: final_path.to_path_buf(),
            written: 0,
        })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ZooError> {
        if let Some(out) = &mut self.out {
            out.write_all(bytes).map_err(|source| self.error(source))?;
            self.written += bytes.len() as u64;
        }
        Ok(())
    }

    /// Zeroes up to the offset `target`, which is at most one alignment away.
    fn pad_to(&mut self, target: u64) -> Result<(), ZooError> {
        let gap = target
            .saturating_sub(self.written)
            .min(EXTERNAL_ALIGNMENT_BYTES) as usize;
        self.write(&[0u8; EXTERNAL_ALIGNMENT_BYTES as usize][..gap])
    }

    /// Gives the file its size without writing it.
    fn set_len(&mut self, bytes: u64) -> Result<(), ZooError> {
        match &self.out {
            Some(out) => out.get_ref().set_len(bytes).map_err(|e| self.error(e)),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<(), ZooError> {
        if let Some(out) = self.out.take() {
            let flushed = out.into_inner().map_err(|e| e.into_error());
            // Dropping `self` on failure removes the temporary file.
            if let Err(source) = flushed.and_then(|_| fs::rename(&self.temp_path, &self.final_path))
            {
                self.out = None;
                let _ = fs::remove_file(&self.temp_path);
                return Err(self.error(source));
            }
        }
        Ok(())
    }

    fn error(&self, source: io::Error) -> ZooError {
        ZooError::Io {
            path: self.final_path.clone(),
            source,
        }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            // Best effort: the error that brought us here is the one worth reporting.
            let _ = fs::remove_file(&self.temp_path);
        }
    }
}
