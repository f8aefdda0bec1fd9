//! `Dataflow`: what is searched over. Operators with costs, tensors with sizes, and who must run before whom.
//!
//! ```text
//!   W1 ─┐        W2 ─┐           parameters: at first in backing memory, dropped for nothing
//!   A0 ─► op 1 ─► A1 ─► op 2 ─► A2     activations: made by operators, written back when they must leave
//!          └──────────────► op 3
//! ```
//!
//! Operators are given in some order that works. Any other topological order works too, and the search
//! looks for a better one.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Index into [`Dataflow::operators`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(pub u32);

/// Index into [`Dataflow::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

impl OpId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl TensorId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorKind {
    /// In backing memory at first; may stay in fast memory from one run to the next.
    Parameter,
    /// In backing memory at first, another one in each run.
    Input,
    /// Made and used within a run.
    Activation,
    /// Made in a run, and wanted after it.
    /// Made in a run, and wanted after it.
    Output,
    /// In memory of its own, always: it says who must come before whom, and takes no part in anything else.
    Apart,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    pub bytes: u64,
    pub kind: TensorKind,
}

/// Runs start to end with all of its tensors in fast memory. One that is read and written is changed in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    pub name: String,
    pub compute_ns: u64,
    pub reads: Vec<TensorId>,
    pub writes: Vec<TensorId>,
}

/// What a dataflow is made of, as it is read and written; [`Dataflow::new`] checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataflowSpec {
    pub name: String,
    pub operators: Vec<Operator>,
    pub tensors: Vec<Tensor>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DataflowError {
    #[error("operator '{op}' names tensor {tensor}, and there are {tensors}")]
    NoTensor {
        op: String,
        tensor: u32,
        tensors: usize,
    },
    #[error("operator '{op}' reads tensor {tensor} before any operator has written it")]
    ReadTooEarly { op: String, tensor: u32 },
    #[error("the sizes or times of the dataflow add up to more than 2^62")]
    TooLarge,
}

/// One of an operator's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    pub tensor: TensorId,
    /// What it holds already is needed.
    pub reads: bool,
    pub writes: bool,
}

/// A checked [`DataflowSpec`] with what a search asks for again and again.
#[derive(Clone, Debug)]
pub struct Dataflow {
    spec: DataflowSpec,
    touches: Vec<Touch>,
    touches_of: Vec<u32>,
    after: Vec<OpId>,
    after_of: Vec<u32>,
    /// How many operators each waits for.
    waits: Vec<u32>,
    sizes: Vec<u64>,
    size_of: Vec<u32>,
    uses: Vec<u32>,
    written: Vec<bool>,
}

impl Dataflow {
    /// Checks `spec`. Dependencies are those of running its operators one after another in the given order:
    /// who reads or writes a tensor does so after who wrote it, and who writes it after who read it.
    ///
    /// # Errors
    /// See [`DataflowError`].
    pub fn new(spec: DataflowSpec) -> Result<Self, DataflowError> {
        const MOST: u64 = 1 << 62;
        let bytes = spec.tensors.iter().map(|t| t.bytes);
        let times = spec.operators.iter().map(|o| o.compute_ns);
        let within = |mut parts: Box<dyn Iterator<Item = u64> + '_>| {
            parts
                .try_fold(0u64, |sum, part| sum.checked_add(part))
                .is_some_and(|sum| sum < MOST)
        };
        if !within(Box::new(bytes)) || !within(Box::new(times)) {
            return Err(DataflowError::TooLarge);
        }
        let count = spec.tensors.len();
        let mut last_writer: Vec<Option<u32>> = vec![None; count];
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); count];
        let mut edges: Vec<(u32, u32)> = Vec::new();
        let mut touches = Vec::new();
        let mut touches_of = vec![0u32];
        let mut uses = vec![0u32; count];
        for (i, op) in spec.operators.iter().enumerate() {
            let i = i as u32;
            let first = touches.len();
            let all = op.reads.iter().map(|&t| (t, true));
            for (tensor, reads) in all.chain(op.writes.iter().map(|&t| (t, false))) {
                let Some(kind) = spec.tensors.get(tensor.index()).map(|t| t.kind) else {
                    return Err(DataflowError::NoTensor {
                        op: op.name.clone(),
                        tensor: tensor.0,
                        tensors: count,
                    });
                };
                let is_there =
                    is_always(kind) || last_writer[tensor.index()].is_some_and(|w| w != i);
                if reads && !is_there {
                    return Err(DataflowError::ReadTooEarly {
                        op: op.name.clone(),
                        tensor: tensor.0,
                    });
                }
                let known = touches[first..]
                    .iter()
                    .position(|t: &Touch| t.tensor == tensor);
                let touch = match known {
                    Some(at) => &mut touches[first + at],
                    None => {
                        uses[tensor.index()] += 1;
                        touches.push(Touch {
                            tensor,
                            reads: false,
                            writes: false,
                        });
                        touches.last_mut().expect("just pushed")
                    }
                };
                // A part written later must not lose the parts before.
                touch.reads |= reads || is_there;
                touch.writes |= !reads;
            }
            for touch in &touches[first..] {
                let t = touch.tensor.index();
                edges.extend(last_writer[t].map(|w| (w, i)));
                if touch.writes {
                    edges.extend(readers[t].drain(..).map(|r| (r, i)));
                }
            }
            for touch in &touches[first..] {
                let t = touch.tensor.index();
                if touch.writes {
                    last_writer[t] = Some(i);
                } else {
                    readers[t].push(i);
                }
            }
            // Those apart have said who waits for whom, and are no concern of anything else.
            let mut kept = first;
            for at in first..touches.len() {
                let tensor = touches[at].tensor.index();
                if spec.tensors[tensor].kind != TensorKind::Apart {
                    touches.swap(kept, at);
                    kept += 1;
                } else {
                    uses[tensor] -= 1;
                }
            }
            touches.truncate(kept);
            touches_of.push(touches.len() as u32);
        }
        edges.sort_unstable();
        edges.dedup();
        let ops = spec.operators.len();
        let mut waits = vec![0u32; ops];
        let mut after_of = vec![0u32; ops + 1];
        for &(from, to) in &edges {
            waits[to as usize] += 1;
            after_of[from as usize + 1] += 1;
        }
        for i in 0..ops {
            after_of[i + 1] += after_of[i];
        }
        let planned = spec.tensors.iter().filter(|t| t.kind != TensorKind::Apart);
        let mut sizes: Vec<u64> = planned.map(|t| t.bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let size_of = spec
            .tensors
            .iter()
            .map(|t| sizes.partition_point(|&size| size < t.bytes) as u32);
        Ok(Self {
            size_of: size_of.collect(),
            written: last_writer.iter().map(Option::is_some).collect(),
            after: edges.into_iter().map(|(_, to)| OpId(to)).collect(),
            spec,
            touches,
            touches_of,
            after_of,
            waits,
            sizes,
            uses,
        })
    }

    pub fn spec(&self) -> &DataflowSpec {
        &self.spec
    }

    pub fn operators(&self) -> &[Operator] {
        &self.spec.operators
    }

    pub fn tensors(&self) -> &[Tensor] {
        &self.spec.tensors
    }

    /// Each of the operator's tensors once.
    pub fn touches(&self, op: OpId) -> &[Touch] {
        &self.touches
            [self.touches_of[op.index()] as usize..self.touches_of[op.index() + 1] as usize]
    }

    /// Operators that must come after this one.
    pub fn after(&self, op: OpId) -> &[OpId] {
        &self.after[self.after_of[op.index()] as usize..self.after_of[op.index() + 1] as usize]
    }

    /// By operator, how many others it must come after.
    pub fn waits(&self) -> &[u32] {
        &self.waits
    }

    /// TS of the paper: all tensor sizes, ascending.
    pub fn sizes(&self) -> &[u64] {
        &self.sizes
    }

    /// Index of the tensor's size in [`Dataflow::sizes`].
    pub fn size_index(&self, tensor: TensorId) -> usize {
        self.size_of[tensor.index()] as usize
    }

    /// By tensor, how many operators touch it.
    pub fn uses(&self) -> &[u32] {
        &self.uses
    }

    /// Whether any operator writes the tensor.
    pub fn is_written(&self, tensor: TensorId) -> bool {
        self.written[tensor.index()]
    }

    /// The order in which operators were given.
    pub fn given_order(&self) -> Vec<OpId> {
        (0..self.spec.operators.len() as u32).map(OpId).collect()
    }

    /// Whether `order` holds each operator once, none before one that it waits for.
    pub fn is_topological(&self, order: &[OpId]) -> bool {
        let mut waits = self.waits.clone();
        let mut seen = vec![false; waits.len()];
        order.len() == waits.len()
            && order.iter().all(|&op| {
                let fresh = waits.get(op.index()) == Some(&0) && !seen[op.index()];
                if fresh {
                    seen[op.index()] = true;
                    self.after(op).iter().for_each(|a| waits[a.index()] -= 1);
                }
                fresh
            })
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.spec.tensors.iter().map(|t| t.bytes).sum()
    }

    pub fn parameter_bytes(&self) -> u64 {
        let all = self.spec.tensors.iter();
        all.filter(|t| t.kind == TensorKind::Parameter)
            .map(|t| t.bytes)
            .sum()
    }

    /// Time of all operators when nothing is waited for: the paper's ideal, with memory without end.
    pub fn ideal_ns(&self) -> u64 {
        self.spec.operators.iter().map(|o| o.compute_ns).sum()
    }

    /// Most bytes that one operator touches: no memory smaller than that will do.
    pub fn largest_operator_bytes(&self) -> u64 {
        let bytes = |t: &Touch| self.spec.tensors[t.tensor.index()].bytes;
        (0..self.spec.operators.len() as u32)
            .map(|op| self.touches(OpId(op)).iter().map(bytes).sum())
            .max()
            .unwrap_or(0)
    }
}

/// Whether a tensor of the kind may be read before anything has written it.
fn is_always(kind: TensorKind) -> bool {
    match kind {
        TensorKind::Parameter | TensorKind::Input | TensorKind::Apart => true,
        TensorKind::Activation | TensorKind::Output => false,
    }
}
