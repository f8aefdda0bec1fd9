//! Layers of a chain that are computed in integers: rows of bytes, in line buffers of a quarter of the size.

use super::{Call, LayerWeights, Stage};
use crate::OpError;
use crate::error::Named;
use crate::layer::activation;
use neap_ir::bands::BandLayer;
use neap_ir::op::Activation;
use neap_ir::panel::{Epilogue, StepSize};
use neap_kernels::depthwise::Depthwise;
use neap_kernels::integer::{
    Added, Finish, Results, Rounding, Steps, conv_scratch_bytes, depthwise_scratch_bytes,
    integer_conv_band, integer_depthwise_band,
};

/// Scratch of a layer's kernel, in bytes.
pub(super) fn scratch_bytes(layer: &BandLayer, stage: &Stage, workers: usize) -> usize {
    let rows = 0..stage.most_rows;
    match layer {
        BandLayer::Conv(conv) => conv_scratch_bytes(&stage.conv_shape(conv, &rows), workers),
        BandLayer::Depthwise(depthwise) => {
            let shape = Depthwise {
                batch: 1,
                channels: depthwise.channels,
                window: stage.band(stage.window.input[0], &rows),
            };
            depthwise_scratch_bytes(&shape, workers)
        }
        BandLayer::Pool { .. } => 0,
    }
}

pub(super) fn steps_of(size: StepSize) -> Steps {
    Steps {
        scale: size.scale,
        zero: size.zero,
    }
}

/// What is done to a layer's sums.
pub(super) fn finish<'a>(epilogue: &Epilogue, residual: Added<'a>) -> Finish<'a> {
    let before = epilogue.integers.map(|integers| integers.before_residual);
    Finish {
        before: match before {
            Some(Activation::Requantize {
                scale,
                zero,
                low,
                high,
                ..
            }) => Some(Rounding {
                scale,
                zero,
                low,
                high,
            }),
            _ => None,
        },
        residual,
        activation: activation(epilogue.activation),
    }
}

impl Call<'_> {
    pub(super) fn run_in_steps(
        self,
        layer: &BandLayer,
        input: &[u8],
        output: Results<'_>,
        residual: Added<'_>,
        scratch: &mut [u8],
        op: &'static str,
    ) -> Result<(), OpError> {
        let (isa, par, planes, stage) = (self.isa, self.par, self.planes, self.stage);
        let steps = layer.integers().and_then(|integers| integers.input_steps);
        let (Some(steps), LayerWeights::Panels(weights)) = (steps.map(steps_of), self.weights)
        else {
            return Err(OpError::operand(op, "a layer has no weights or no steps"));
        };
        match layer {
            BandLayer::Conv(conv) => {
                let mut shape = stage.conv_shape(conv, &self.rows);
                shape.window.input[0] = self.under.len();
                let (panels, finish) = (0..shape.panels(), finish(&conv.epilogue, residual));
                integer_conv_band(
                    isa, par, &shape, planes, panels, weights, input, steps, output, finish,
                    scratch,
                )
            }
            BandLayer::Depthwise(depthwise) => {
                let shape = Depthwise {
                    batch: 1,
                    channels: depthwise.channels,
                    window: stage.band(self.under.len(), &self.rows),
                };
                let finish = finish(&depthwise.epilogue, residual);
                let panels = 0..stage.out_blocks();
                integer_depthwise_band(
                    isa, par, &shape, planes, panels, weights, input, steps, output, finish,
                    scratch,
                )
            }
            BandLayer::Pool { .. } => return Err(OpError::operand(op, "is not of integers")),
        }
        .named(op)
    }
}
