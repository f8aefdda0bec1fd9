//! A lowered model: what the packed file's table of contents holds and the runtime interprets.

use crate::panel::PanelElement;
use crate::recipe::{Packed, PackedForm};
use crate::{Const, Graph, GraphError, Layout, NodeId, Op, State, ValueId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Graph after rewriting, with every value's place decided relative to its buffer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Program {
    pub graph: Graph,
    /// Nodes that compute something, in order; the rest (reshapes, in-place concats) only name memory.
    pub steps: Vec<NodeId>,
    pub packed: Vec<Packed>,
    /// Where each value lives, by [`ValueId`].
    pub storage: Vec<Storage>,
    pub buffers: Vec<Buffer>,
    /// Of the source model and the shapes it was bound to.
    pub digest: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Storage {
    /// Never materialised (dead, or a constant folded into something else).
    None,
    /// Caller's memory, by position in `graph.inputs`; read only.
    Input(u32),
    /// Inline constant of the graph.
    Inline,
    /// An extent loaded from the packed file by the steps that read it.
    Packed,
    Buffer {
        buffer: u32,
        offset_bytes: u64,
    },
}

/// Memory shared by values that alias: in-place results, reshapes, parts of a concat.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Buffer {
    pub bytes: u64,
    /// Half-open range of indices into `steps`: first that writes it, one past the last that uses it.
    pub live: Range<u32>,
}

impl Program {
    /// Checks that every index, size and type is right. A program read from disk passes here first.
    ///
    /// # Errors
    /// [`GraphError`] names the first index, size or type that is wrong.
    pub fn check(&self) -> Result<(), GraphError> {
        self.graph.check()?;
        self.graph.check_types()?;
        let malformed = |what: String| Err(GraphError::Malformed(what));
        if self.storage.len() != self.graph.values.len() {
            return malformed("storage table has the wrong length".into());
        }
        for window in self.steps.windows(2) {
            if window[0] >= window[1] {
                return malformed("steps are not in schedule order".into());
            }
        }
        if self
            .steps
            .last()
            .is_some_and(|n| n.index() >= self.graph.nodes.len())
        {
            return malformed("a step names a node that does not exist".into());
        }
        let mut total_bytes = 0u64;
        for buffer in &self.buffers {
            total_bytes = total_bytes.saturating_add(buffer.bytes);
            if total_bytes > MAX_BUFFER_BYTES {
                return malformed("its buffers are impossibly large".into());
            }
            if buffer.live.start >= buffer.live.end || buffer.live.end as usize > self.steps.len() {
                return malformed("a buffer's live range is empty or too long".into());
            }
        }
        for (i, storage) in self.storage.iter().enumerate() {
            let value = &self.graph.values[i];
            match *storage {
                Storage::Input(n)
                    if self.graph.inputs.get(n as usize) != Some(&ValueId(i as u32)) =>
                {
                    return malformed(format!("value '{}' is not input {n}", value.name));
                }
                Storage::Buffer {
                    buffer,
                    offset_bytes,
                } => {
                    let end = offset_bytes.checked_add(value.len_bytes() as u64);
                    let fits = self
                        .buffers
                        .get(buffer as usize)
                        .zip(end)
                        .is_some_and(|(b, end)| end <= b.bytes);
                    if !fits {
                        return malformed(format!(
                            "value '{}' lies outside its buffer",
                            value.name
                        ));
                    }
                }
                Storage::Inline if !matches!(self.graph.constant(ValueId(i as u32)), Some(Const::Inline(l)) if l.ty() == value.ty) =>
                {
                    return malformed(format!("value '{}' is no inline constant", value.name));
                }
                Storage::Packed => match self.graph.constant(ValueId(i as u32)) {
                    Some(Const::Packed(id)) => {
                        // Panels too may be read as a tensor, whole.
                        let whole = self
                            .packed
                            .get(id.index())
                            .is_some_and(|p| p.bytes == value.len_bytes() as u64);
                        if !whole {
                            return malformed(format!(
                                "value '{}' has no extent of its size",
                                value.name
                            ));
                        }
                    }
                    _ => return malformed(format!("value '{}' is not packed", value.name)),
                },
                _ => {}
            }
        }
        self.check_states()?;
        for (i, &step) in self.steps.iter().enumerate() {
            let node = &self.graph.nodes[step.index()];
            for id in node.present_inputs().chain(node.present_outputs()) {
                match self.storage[id.index()] {
                    Storage::None => {
                        return malformed(format!(
                            "node '{}' uses a value without storage",
                            node.name
                        ));
                    }
                    Storage::Buffer { buffer, .. }
                        if !self.buffers[buffer as usize].live.contains(&(i as u32)) =>
                    {
                        return malformed(format!("node '{}' uses a dead buffer", node.name));
                    }
                    _ => {}
                }
            }
            for id in node.present_outputs() {
                if !matches!(self.storage[id.index()], Storage::Buffer { .. }) {
                    return malformed(format!("node '{}' writes outside the arena", node.name));
                }
            }
            self.check_weights(node)?;
        }
        Ok(())
    }

    /// Whether a layer's rows are rounded to 8 bits, because its panels are in blocks.
    pub fn is_rounded(&self, node: &crate::Node) -> bool {
        matches!(&node.op, Op::PanelLinear(layer) if layer.rounds.is_some())
            && self.has_blocks(node)
    }

    /// Whether a layer of rows has its panels in blocks.
    pub fn has_blocks(&self, node: &crate::Node) -> bool {
        let packed = node.panels.and_then(|id| self.packed.get(id.index()));
        matches!(node.op, Op::PanelLinear(_))
            && matches!(packed.map(|p| &p.form), Some(PackedForm::Panels { format, .. }) if format.has_blocks())
    }

    /// By buffer, the output whose memory may be had instead of it: where one output lies in it and, perhaps, parts or earlier
    /// contents of it.
    pub fn outputs_in_place(&self) -> Vec<Option<u32>> {
        let graph = &self.graph;
        let mut of_buffer = vec![None; self.buffers.len()];
        let mut is_out = vec![false; self.buffers.len()];
        for (index, &output) in graph.outputs.iter().enumerate() {
            if let Storage::Buffer {
                buffer,
                offset_bytes,
            } = self.storage[output.index()]
            {
                let buffer = buffer as usize;
                let is_first = of_buffer[buffer].replace(index as u32).is_none();
                is_out[buffer] |= !is_first || offset_bytes != 0;
            }
        }
        // Whatever else lies in the buffer must find room in the caller's tensor.
        for (value, storage) in graph.values.iter().zip(&self.storage) {
            if let &Storage::Buffer {
                buffer,
                offset_bytes,
            } = storage
                && let Some(output) = of_buffer[buffer as usize]
            {
                let result = graph.ty(graph.outputs[output as usize]);
                let end = offset_bytes.saturating_add(value.len_bytes() as u64);
                let element_bytes = value.ty.dtype.size_bytes();
                // The caller's memory is aligned to the result's elements, and not more.
                let is_aligned = element_bytes <= result.dtype.size_bytes()
                    && offset_bytes.is_multiple_of(element_bytes as u64);
                let fits = end <= result.len_bytes() as u64;
                is_out[buffer as usize] |= !fits || !is_aligned || value.layout != Layout::Plain;
            }
        }
        let places = of_buffer.into_iter().zip(is_out);
        places
            .map(|(output, is_out)| output.filter(|_| !is_out))
            .collect()
    }

    /// The buffer of a state of the graph; `None` where it has none.
    pub fn buffer_of(&self, state: &State) -> Option<u32> {
        match self.storage[state.value.index()] {
            Storage::Buffer { buffer, .. } => Some(buffer),
            _ => None,
        }
    }

    /// Each state has a buffer of its own that lives always, and what replaces it ends up there.
    fn check_states(&self) -> Result<(), GraphError> {
        let steps = self.steps.len() as u32;
        let mut taken = vec![false; self.buffers.len()];
        for state in &self.graph.states {
            let at = self.storage[state.value.index()];
            let stays = state
                .next
                .is_none_or(|next| self.storage[next.index()] == at);
            let fits = match at {
                Storage::Buffer {
                    buffer,
                    offset_bytes: 0,
                } => {
                    let spec = &self.buffers[buffer as usize];
                    let is_alone = !std::mem::replace(&mut taken[buffer as usize], true);
                    is_alone && spec.live == (0..steps)
                }
                _ => false,
            };
            if !fits || !stays {
                let name = &self.graph.value(state.value).name;
                return Err(GraphError::Malformed(format!(
                    "state '{name}' has no place of its own"
                )));
            }
        }
        Ok(())
    }

    /// Sizes come from the file too, so they are compared in a type that cannot overflow.
    fn check_weights(&self, node: &crate::Node) -> Result<(), GraphError> {
        let taps = |window: &crate::op::Window| {
            let sizes = window.kernel.iter().map(|&k| k as u128);
            sizes.fold(1u128, u128::saturating_mul)
        };
        let expected = match &node.op {
            Op::PanelConv(conv) => {
                let c_in = (conv.c_in / conv.groups.max(1)) as u128;
                Some((taps(&conv.window).saturating_mul(c_in), conv.c_out))
            }
            Op::PanelDepthwise(depthwise) => Some((taps(&depthwise.window), depthwise.channels)),
            Op::PanelLinear(linear) => Some((linear.k as u128, linear.n)),
            _ => None,
        };
        let found = node.panels.and_then(|id| self.packed.get(id.index()));
        let fits = match (expected, found.map(|p| &p.form), found) {
            (None, None, _) => node.panels.is_none(),
            (
                Some((k, n)),
                Some(&PackedForm::Panels {
                    panels,
                    panel_bytes,
                    format,
                }),
                Some(packed),
            ) => {
                panels > 0
                    && panels as usize == crate::panel::panel_count(n)
                    && format.is_known()
                    && (!format.has_blocks() || matches!(node.op, Op::PanelLinear(_)))
                    && (format.element == PanelElement::I8 && !format.has_blocks()
                        || !node.op.is_in_integers())
                    && Some(panel_bytes) == format.panel_bytes(k)
                    && u128::from(packed.bytes) == u128::from(panel_bytes) * u128::from(panels)
            }
            _ => false,
        };
        let rows_fit = match node.op {
            Op::GatherRows {
                table,
                rows,
                row_elements,
                stored,
            } => self.packed.get(table.index()).is_some_and(|p| {
                let elements = (rows as u128).saturating_mul(row_elements as u128);
                matches!(p.form, PackedForm::Raw)
                    && elements > 0
                    && Some(u128::from(p.bytes))
                        == elements.checked_mul(stored.size_bytes() as u128)
            }),
            _ => true,
        };
        if fits && rows_fit {
            return Ok(());
        }
        Err(GraphError::BadNode {
            node: node.name.clone(),
            op: node.op.name(),
            reason: "its packed weights have the wrong size".into(),
        })
    }
}

/// No machine has as much; sums of a few such sizes do not overflow.
const MAX_BUFFER_BYTES: u64 = 1 << 56;
