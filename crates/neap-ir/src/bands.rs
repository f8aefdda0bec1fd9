//! Row bands: a chain of convolutions and poolings computed depth-first, so that its intermediate
//! tensors are never whole in memory.
//!
//! ```text
//!   x            conv          conv          pool           y
//!  ┌─────┐      ┌─────┐       ┌─────┐                     ┌──┐
//!  │     │      │ kept│ halo  │     │                     │▓▓│ bands done
//!  │▓▓▓▓▓│ ───► │▓▓▓▓▓│ ────► │▓▓▓▓▓│ ──────────────────► │░░│ this band
//!  │     │      └─────┘       └─────┘                     │  │
//!  └─────┘      line buffers in the step's workspace      └──┘
//! ```
//! Each layer computes just the rows that the next one needs for a band of the last one's rows, and
//! keeps those that the next band needs again: nothing is computed twice. Every element's
//! arithmetic is that of the layer by itself.
//!
//! Inputs of the operator: x, then the panels of each layer that has weights, in order, each a
//! constant `[panels, 1 + k, 16]`; then the residual of the last layer if it has one.

use crate::graph::LANES;
use crate::infer::output_types;
use crate::op::{Pool, Window};
use crate::panel::{PanelConv, PanelDepthwise, panel_count};
use crate::{DType, Op, TensorType};
use serde::{Deserialize, Serialize};

/// Most layers of a chain: tables of them need no allocation.
pub const MAX_LAYERS: usize = 16;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bands {
    pub layers: Vec<BandLayer>,
    /// Rows of the last layer in the first band, which must look further ahead, and in the others.
    pub first_rows: usize,
    pub band_rows: usize,
}

/// A layer of a chain; 2-D. Only the last may have a residual.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum BandLayer {
    Conv(PanelConv),
    Depthwise(PanelDepthwise),
    Pool {
        kind: Pool,
        window: Window,
        output_spatial: Vec<usize>,
    },
}

impl BandLayer {
    /// Of an operator that can be a layer of a chain.
    pub fn of(op: &Op) -> Option<BandLayer> {
        Some(match op {
            Op::PanelConv(conv) => BandLayer::Conv(conv.clone()),
            Op::PanelDepthwise(depthwise) => BandLayer::Depthwise(depthwise.clone()),
            Op::Pool {
                kind,
                window,
                output_spatial,
            } => BandLayer::Pool {
                kind: *kind,
                window: window.clone(),
                output_spatial: output_spatial.clone(),
            },
            _ => return None,
        })
    }

    /// The layer by itself.
    pub fn op(&self) -> Op {
        match self {
            BandLayer::Conv(conv) => Op::PanelConv(conv.clone()),
            BandLayer::Depthwise(depthwise) => Op::PanelDepthwise(depthwise.clone()),
            BandLayer::Pool {
                kind,
                window,
                output_spatial,
            } => Op::Pool {
                kind: *kind,
                window: window.clone(),
                output_spatial: output_spatial.clone(),
            },
        }
    }

    pub fn window(&self) -> &Window {
        match self {
            BandLayer::Conv(conv) => &conv.window,
            BandLayer::Depthwise(depthwise) => &depthwise.window,
            BandLayer::Pool { window, .. } => window,
        }
    }

    pub fn has_residual(&self) -> bool {
        match self {
            BandLayer::Conv(conv) => conv.epilogue.residual,
            BandLayer::Depthwise(depthwise) => depthwise.epilogue.residual,
            BandLayer::Pool { .. } => false,
        }
    }

    pub fn has_weights(&self) -> bool {
        !matches!(self, BandLayer::Pool { .. })
    }

    /// Shape of the panels as a tensor; `None` where sizes overflow, and for a layer without any.
    pub fn weight_shape(&self) -> Option<[usize; 3]> {
        let (channels, c_out) = match self {
            BandLayer::Conv(conv) => (conv.c_in.checked_div(conv.groups)?, conv.c_out),
            BandLayer::Depthwise(depthwise) => (1, depthwise.channels),
            BandLayer::Pool { .. } => return None,
        };
        let mut kernel = self.window().kernel.iter();
        let k = kernel.try_fold(channels, |k, &size| k.checked_mul(size))?;
        Some([panel_count(c_out), k.checked_add(1)?, LANES])
    }
}

impl Bands {
    /// Position of the residual among the inputs.
    pub fn residual_input(&self) -> Option<usize> {
        let last = self.layers.last()?;
        let weights = self.layers.iter().filter(|l| l.has_weights()).count();
        last.has_residual().then_some(1 + weights)
    }

    /// Output types of all layers for these inputs; an error says what does not fit.
    pub fn layer_types(&self, inputs: &[Option<TensorType>]) -> Result<Vec<TensorType>, String> {
        if !(1..=MAX_LAYERS).contains(&self.layers.len()) {
            return Err(format!("has {} layers", self.layers.len()));
        }
        let (&Some(Some(x)), last) = (&inputs.first().map(Option::as_ref), self.layers.len() - 1)
        else {
            return Err("input 0 is missing".into());
        };
        if x.shape.len() != 4 || x.shape.contains(&0) {
            return Err("takes images of rank 4 that are not empty".into());
        }
        let mut types: Vec<TensorType> = Vec::with_capacity(self.layers.len());
        let mut next_input = 1;
        for (index, layer) in self.layers.iter().enumerate() {
            let mut operands = vec![Some(types.last().unwrap_or(x).clone())];
            if layer.has_weights() {
                let shape = layer.weight_shape().ok_or("sizes overflow")?;
                let fits = inputs
                    .get(next_input)
                    .and_then(Option::as_ref)
                    .is_some_and(|weights| weights.dtype == DType::F32 && weights.shape == shape);
                if !fits {
                    return Err(format!("the weights of layer {index} have another shape"));
                }
                next_input += 1;
            }
            if layer.has_residual() {
                if index != last {
                    return Err("an inner layer has a residual".into());
                }
                operands.push(inputs.get(next_input).cloned().flatten());
                next_input += 1;
            }
            let found = output_types(&layer.op(), &operands, 1).map_err(|e| e.to_string())?;
            types.extend(found);
        }
        if inputs.len() != next_input {
            return Err(format!(
                "has {} inputs where its layers need {next_input}",
                inputs.len()
            ));
        }
        let rows = types[last].shape[2];
        if types[last].shape.contains(&0) {
            return Err("gives nothing".into());
        }
        if self.first_rows == 0 || self.first_rows > self.band_rows || self.band_rows > rows {
            return Err(format!(
                "bands of {} and {} rows do not fit an output of {rows}",
                self.first_rows, self.band_rows
            ));
        }
        Ok(types)
    }
}
