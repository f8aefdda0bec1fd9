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
//! arithmetic is that of the layer by itself. Layers in integers hand each other steps, so that their line buffers are a quarter
//! as large; a chain has only such layers, or none.
//!
//! Inputs of the operator: x, then the panels of each layer that has weights, in order, each a
//! constant `[panels, 1 + k, 16]`, or bytes `[panels, bytes of a panel]` where they are not `f32`; then the residual of
//! the last layer if it has one.

use crate::attributes::{Pool, Window};
use crate::panel::{
    Epilogue, Integers, PanelConv, PanelDepthwise, PanelFormat, StepSize, panel_count,
};
use crate::tensor::LANES;
use crate::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// Most layers of a chain: tables of them need no allocation.
pub const MAX_LAYERS: usize = 16;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Bands {
    pub layers: Vec<BandLayer>,
    /// Of the layers that have weights, in order.
    pub formats: Vec<PanelFormat>,
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
    pub fn window(&self) -> &Window {
        match self {
            BandLayer::Conv(conv) => &conv.window,
            BandLayer::Depthwise(depthwise) => &depthwise.window,
            BandLayer::Pool { window, .. } => window,
        }
    }

    pub fn has_residual(&self) -> bool {
        self.epilogue().is_some_and(|epilogue| epilogue.residual)
    }

    fn epilogue(&self) -> Option<&Epilogue> {
        match self {
            BandLayer::Conv(conv) => Some(&conv.epilogue),
            BandLayer::Depthwise(depthwise) => Some(&depthwise.epilogue),
            BandLayer::Pool { .. } => None,
        }
    }

    /// Of a layer that is computed in integers.
    pub fn integers(&self) -> Option<&Integers> {
        self.epilogue()?.integers.as_ref()
    }

    /// The same layer in integers, with the steps of its input.
    #[must_use]
    pub fn with_input_steps(mut self, steps: StepSize) -> BandLayer {
        let epilogue = match &mut self {
            BandLayer::Conv(conv) => Some(&mut conv.epilogue),
            BandLayer::Depthwise(depthwise) => Some(&mut depthwise.epilogue),
            BandLayer::Pool { .. } => None,
        };
        if let Some(integers) = epilogue.and_then(|e| e.integers.as_mut()) {
            integers.input_steps = Some(steps);
        }
        self
    }

    pub fn has_weights(&self) -> bool {
        !matches!(self, BandLayer::Pool { .. })
    }

    /// The panels as a tensor; `None` where sizes overflow, and for a layer without any.
    pub fn weight_type(&self, format: PanelFormat) -> Option<TensorType> {
        let (channels, c_out) = match self {
            BandLayer::Conv(conv) => (conv.c_in.checked_div(conv.groups)?, conv.c_out),
            BandLayer::Depthwise(depthwise) => (1, depthwise.channels),
            BandLayer::Pool { .. } => return None,
        };
        let mut kernel = self.window().kernel.iter();
        let k = kernel.try_fold(channels, |k, &size| k.checked_mul(size))?;
        let panels = panel_count(c_out);
        if format == PanelFormat::default() {
            return Some(TensorType::new(
                DType::F32,
                &[panels, k.checked_add(1)?, LANES],
            ));
        }
        let bytes = usize::try_from(format.panel_bytes(k as u128)?).ok()?;
        panels.checked_mul(bytes)?;
        Some(TensorType::new(DType::U8, &[panels, bytes]))
    }
}

impl Bands {
    /// Whether its layers are computed in integers: all of them, or none.
    pub fn is_in_integers(&self) -> bool {
        self.layers.first().is_some_and(|l| l.integers().is_some())
    }

    /// Position of the residual among the inputs.
    pub fn residual_input(&self) -> Option<usize> {
        let last = self.layers.last()?;
        let weights = self.layers.iter().filter(|l| l.has_weights()).count();
        last.has_residual().then_some(1 + weights)
    }
}
