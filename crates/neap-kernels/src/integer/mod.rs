//! Layers computed in integers: 8-bit steps times 8-bit panels, summed in 32 bits.
//!
//! ```text
//!   sum over k of (x - zero) * (w - zero of w)                    exact, on every instruction set
//!   * scale * scale of w + bias [-> rounded to steps] [+ residual] -> activation -> floats, or steps
//! ```
//! Panels are [`Format::I8`], as packed. A task brings the panels that it computes into the order of its instruction set,
//! in its worker's scratch, and computes all rows with them. Zero points are corrected by sums over weights and rows.

#[cfg(target_arch = "x86_64")]
mod amx;
mod beside;
mod blocks;
mod conv;
mod cut;
mod depthwise;
mod dot;
mod drive;
mod finish;
mod first_layer;
mod lanes;
mod linear;
#[cfg(target_arch = "x86_64")]
mod pieces;
mod pool;
mod ready;
mod tile;
mod tiled;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub use blocks::{rounded_linear, rounded_scratch_bytes, takes_blocks};
pub use conv::{conv_scratch_bytes, integer_conv, integer_conv_band, takes_conv};
pub use depthwise::{
    depthwise_scratch_bytes, integer_depthwise, integer_depthwise_band, takes_depthwise,
};
pub use first_layer::{first_layer_scratch_bytes, integer_first_layer, takes_first_layer};
pub use linear::{integer_linear, linear_scratch_bytes};
pub use pool::max_pool_of_steps;

use crate::epilogue::Activation;
use crate::error::{KernelError, check_len};
use finish::Target;

/// Most k of a layer: no sum overflows.
pub const MOST_K: usize = i32::MAX as usize / (255 * 255);

/// Most taps of a convolution's window.
pub const MOST_TAPS: usize = drive::MAX_TAPS;

/// Unsigned bytes that stand for `(step - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Steps {
    pub scale: f32,
    pub zero: u8,
}

/// To the nearest step and back: `(clip(round(x / scale) + zero, low, high) - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rounding {
    pub scale: f32,
    pub zero: f32,
    pub low: f32,
    pub high: f32,
}

/// A tensor of the output's shape and layout that is added before the activation.
#[derive(Debug, Clone, Copy, Default)]
pub enum Added<'a> {
    #[default]
    None,
    Floats(&'a [f32]),
    Steps(&'a [u8], Steps),
    /// The output holds it: floats, or these steps. It is of the output's kind.
    InPlace(Option<Steps>),
}

/// What is done to sums.
#[derive(Debug, Clone, Copy, Default)]
pub struct Finish<'a> {
    /// Applied before the residual is added.
    pub before: Option<Rounding>,
    pub residual: Added<'a>,
    pub activation: Activation,
}

/// Where results go.
pub enum Results<'a> {
    Floats(&'a mut [f32]),
    /// The steps of the activation, which is [`Activation::Requantize`] to whole steps of 0 to 255.
    Steps(&'a mut [u8]),
}

impl Results<'_> {
    /// Checks output and residual, of so many elements each, and says where rows and panels lie.
    fn target(
        &mut self,
        finish: &Finish<'_>,
        elements: Option<usize>,
        row_elements: usize,
        panel_elements: usize,
    ) -> Result<Target, KernelError> {
        let (out, given, gives_steps) = match self {
            Results::Floats(out) => (out.as_mut_ptr().cast(), out.len(), false),
            Results::Steps(out) => (out.as_mut_ptr(), out.len(), true),
        };
        check_len("output", given, elements)?;
        let is_byte = |x: f32| (0.0..=255.0).contains(&x) && x.fract() == 0.0;
        if gives_steps {
            match finish.activation {
                Activation::Requantize {
                    zero, low, high, ..
                } if [zero, low, high].into_iter().all(is_byte) => {}
                _ => return Err(KernelError::Invalid("steps without a rounding to bytes")),
            }
        }
        let (residual, residual_steps) = match finish.residual {
            Added::None => (std::ptr::null(), None),
            Added::Floats(from) => {
                check_len("residual", from.len(), elements)?;
                (from.as_ptr().cast(), None)
            }
            Added::Steps(from, steps) => {
                check_len("residual", from.len(), elements)?;
                (from.as_ptr(), Some(steps))
            }
            Added::InPlace(steps) => {
                if steps.is_some() != gives_steps {
                    return Err(KernelError::Invalid("a residual in place of another kind"));
                }
                (out.cast_const(), steps)
            }
        };
        Ok(Target {
            out,
            gives_steps,
            residual,
            residual_steps,
            row_elements,
            panel_elements,
            before: finish.before,
            activation: finish.activation,
        })
    }
}
