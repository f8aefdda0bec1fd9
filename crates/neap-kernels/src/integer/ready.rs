//! How numbers become steps of a quantised tensor, and back.

use super::Rounding;
use super::dot::Dot;

/// A rounding, and what is computed of it once.
#[derive(Clone, Copy)]
pub(super) struct Ready {
    pub rounding: Rounding,
    pub inverse: f32,
    /// Bounds of the step, less the zero point.
    pub least: f32,
    pub most: f32,
}

impl Ready {
    pub(super) fn new(rounding: Rounding) -> Ready {
        Ready {
            rounding,
            inverse: 1.0 / rounding.scale,
            least: rounding.low - rounding.zero,
            most: rounding.high - rounding.zero,
        }
    }

    /// Of what is not rounded.
    pub(super) fn none() -> Ready {
        Ready::new(Rounding {
            scale: 1.0,
            zero: 0.0,
            low: 0.0,
            high: 0.0,
        })
    }

    /// Whether steps are whole numbers that floats add without rounding.
    pub(super) fn is_whole(&self) -> bool {
        const MOST: f32 = 65536.0;
        let Rounding {
            zero, low, high, ..
        } = self.rounding;
        [zero, low, high]
            .iter()
            .all(|x| x.abs() <= MOST && x.fract() == 0.0)
    }

    /// The step of a number. Multiplied with the inverse of the scale, as other engines do where they requantise sums.
    #[inline(always)]
    pub(super) fn step<D: Dot>(&self, d: D, v: D::V) -> D::V {
        let r = &self.rounding;
        let step = d.round(d.mul(v, d.splat(self.inverse)));
        let step = d.add(step, d.splat(r.zero));
        // What is no number becomes the lowest step.
        d.min(d.max(step, d.splat(r.low)), d.splat(r.high))
    }

    /// The number of the step of a number.
    #[inline(always)]
    pub(super) fn rounded<D: Dot>(&self, d: D, v: D::V) -> D::V {
        let less = d.sub(self.step(d, v), d.splat(self.rounding.zero));
        d.mul(less, d.splat(self.rounding.scale))
    }

    /// [`Ready::rounded`] where steps are whole. A zero may have the other sign.
    #[inline(always)]
    pub(super) fn rounded_whole<D: Dot>(&self, d: D, v: D::V) -> D::V {
        let less = d.round(d.mul(v, d.splat(self.inverse)));
        let less = d.min(d.max(less, d.splat(self.least)), d.splat(self.most));
        d.mul(less, d.splat(self.rounding.scale))
    }
}
