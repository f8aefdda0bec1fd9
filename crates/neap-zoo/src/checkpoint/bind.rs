//! The parameters of a graph, each bound to a place in a file.

use super::bad;
use super::file::{Stored, TensorFile};
use super::found::Found;
use super::names::{self, Part};
use crate::ZooError;
use crate::graph::{Attr, DType, Graph, Node, Tensor};
use crate::writer::{Seeded, Values};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Of bytes on their way.
const PIECE_BYTES: usize = 256 << 10;
/// Of a transposed tensor: few passes over the largest ones, and little memory.
const STRIP_BYTES: usize = 8 << 20;
/// Rows that are transposed together.
const ROWS: usize = 16;

/// Where the values of a graph's tensors are. Those that are no parameters follow from the graph.
pub(super) struct Bound {
    part: Part,
    /// By the tensor's name in the graph.
    places: BTreeMap<String, Place>,
}

struct Place {
    file: Arc<TensorFile>,
    stored: Stored,
    /// The name in the checkpoint.
    name: String,
    /// Rows and columns of the file, where the graph has them the other way round.
    transposed: Option<[usize; 2]>,
}

impl Bound {
    /// Gives the parameters the types that they are stored in.
    pub fn new(graph: &mut Graph, found: &Found) -> Result<Bound, ZooError> {
        let path = found.path().display();
        let Some(part) = Part::of(graph.name) else {
            return Err(bad(format!("{path}: there is no place for {}", graph.name)));
        };
        // Layers are stored output by output, and the graph multiplies with them from the right.
        let products = graph.nodes.iter().filter(|node| node.op == "MatMul");
        let multiplied: BTreeSet<String> = products
            .filter_map(|node| node.inputs.get(1).cloned())
            .collect();
        let mut places = BTreeMap::new();
        let mut missing = Vec::new();
        for tensor in graph.tensors.iter().filter(|tensor| tensor.is_parameter) {
            let name = names::of_graph(part, &tensor.name);
            let Some((file, stored)) = found.get(part, &name) else {
                missing.push(name);
                continue;
            };
            let transposed = match (multiplied.contains(&tensor.name), tensor.dims.as_slice()) {
                (true, &[inputs, outputs]) => Some([outputs, inputs]),
                _ => None,
            };
            let expected = match transposed {
                Some(sizes) => sizes.to_vec(),
                None => tensor.dims.clone(),
            };
            if without_ones(&stored.shape) != without_ones(&expected) {
                return Err(bad(format!(
                    "{}: '{name}' of {} has shape {:?}, and {expected:?} is needed",
                    file.path().display(),
                    part.folder(),
                    stored.shape
                )));
            }
            let (file, stored) = (file.clone(), stored.clone());
            let place = Place {
                file,
                stored,
                name,
                transposed,
            };
            places.insert(tensor.name.clone(), place);
        }
        if let Some(first) = missing.first() {
            let more = match missing.len() {
                1 => String::new(),
                count => format!(", and {} more", count - 1),
            };
            return Err(bad(format!(
                "{path}: '{first}' of {} is missing{more}",
                part.folder()
            )));
        }
        let bound = Bound { part, places };
        bound.set_types(graph)?;
        Ok(bound)
    }

    /// Weights stay what they are in the file, and nodes read them as floats. The engine sees through that, and streams what is stored.
    fn set_types(&self, graph: &mut Graph) -> Result<(), ZooError> {
        let float = graph.float();
        let mut read_as = HashMap::new();
        let mut casts = Vec::new();
        for tensor in &mut graph.tensors {
            let Some(place) = self.places.get(&tensor.name) else {
                continue;
            };
            tensor.dtype = place.stored.float().ok_or_else(|| {
                bad(format!(
                    "{}: '{}' is stored as {:?}: F32, F16 and BF16 are supported",
                    place.file.path().display(),
                    place.name,
                    place.stored.dtype
                ))
            })?;
            if tensor.dtype != float {
                let read = format!("{}.read", tensor.name);
                casts.push(cast(&tensor.name, &read, float));
                read_as.insert(tensor.name.clone(), read);
            }
        }
        let inputs = graph.nodes.iter_mut().flat_map(|node| &mut node.inputs);
        for input in inputs {
            if let Some(read) = read_as.get(input) {
                input.clone_from(read);
            }
        }
        graph.nodes.splice(0..0, casts);
        Ok(())
    }

    /// Tensors of the checkpoint that are used.
    pub fn names(&self) -> impl Iterator<Item = (Part, &str)> {
        let names = self.places.values().map(|place| place.name.as_str());
        names.map(|name| (self.part, name))
    }
}

fn cast(from: &str, to: &str, float: DType) -> Node {
    Node {
        op: "Cast",
        name: format!("/{from}/Cast"),
        inputs: vec![from.into()],
        output_names: vec![to.into()],
        attrs: vec![("to", Attr::Int(float.onnx_code() as i64))],
    }
}

/// Convolutions of one place are layers, and scales of channels are scales of images.
fn without_ones(mut shape: &[usize]) -> &[usize] {
    while let [rest @ .., 1] = shape {
        shape = rest;
    }
    shape
}

impl Values for Bound {
    fn generate(
        &self,
        tensor: &Tensor,
        emit: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Result<bool, ZooError> {
        match self.places.get(&tensor.name) {
            None => Seeded(0).generate(tensor, emit),
            Some(place) => place.read(tensor.dtype, emit),
        }
    }
}

impl Place {
    fn read(&self, dtype: DType, emit: &mut dyn FnMut(Vec<u8>) -> bool) -> Result<bool, ZooError> {
        match (self.transposed, dtype) {
            (Some(sizes), DType::F32) => self.transposed::<4>(sizes, emit),
            (Some(sizes), _) => self.transposed::<2>(sizes, emit),
            (None, _) => self.plain(emit),
        }
    }

    fn plain(&self, emit: &mut dyn FnMut(Vec<u8>) -> bool) -> Result<bool, ZooError> {
        for at in (0..self.stored.bytes).step_by(PIECE_BYTES) {
            let left = self.stored.bytes - at;
            let mut piece = vec![0; left.min(PIECE_BYTES as u64) as usize];
            self.file.read(self.stored.at + at, &mut piece)?;
            if !emit(piece) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Some columns at a time become rows.
    fn transposed<const BYTES: usize>(
        &self,
        [rows, columns]: [usize; 2],
        emit: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Result<bool, ZooError> {
        let at_once = (STRIP_BYTES / (rows * BYTES)).clamp(1, columns);
        let mut strip = vec![[0; BYTES]; at_once * rows];
        let mut read = vec![0; ROWS * at_once * BYTES];
        for first in (0..columns).step_by(at_once) {
            let width = at_once.min(columns - first);
            for row in (0..rows).step_by(ROWS) {
                let height = ROWS.min(rows - row);
                let segments = read.chunks_exact_mut(width * BYTES).take(height);
                for (at, segment) in segments.enumerate() {
                    let before = ((row + at) * columns + first) * BYTES;
                    self.file.read(self.stored.at + before as u64, segment)?;
                }
                let elements = read.as_chunks::<BYTES>().0;
                for column in 0..width {
                    let to = &mut strip[column * rows + row..][..height];
                    for (at, to) in to.iter_mut().enumerate() {
                        *to = elements[at * width + column];
                    }
                }
            }
            let done = strip[..width * rows].as_flattened();
            for piece in done.chunks(PIECE_BYTES) {
                if !emit(piece.to_vec()) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// All bytes of a tensor with rows and columns exchanged.
#[cfg(test)]
pub(super) fn transposed_of(
    file: TensorFile,
    stored: Stored,
    sizes: [usize; 2],
) -> Result<Vec<u8>, ZooError> {
    let dtype = stored.float().ok_or_else(|| bad("no floats"))?;
    let place = Place {
        file: Arc::new(file),
        stored,
        name: String::new(),
        transposed: Some(sizes),
    };
    let mut bytes = Vec::new();
    place.read(dtype, &mut |piece| {
        bytes.extend(piece);
        true
    })?;
    Ok(bytes)
}
