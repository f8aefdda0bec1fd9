//! Where a sliding window looks: offsets of the taps of one output position, in up to three axes.

use super::over;
use neap_ir::op;
use neap_kernels::window::Window;

/// Most spatial axes.
pub(crate) const MAX_SPATIAL: usize = 3;

/// A window over at most three axes, seen as three.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taps {
    pub window: Window<MAX_SPATIAL>,
}

impl Taps {
    /// `None` when there are more than three spatial axes.
    pub fn of(window: &op::Window, input: &[usize], output: &[usize]) -> Option<Taps> {
        let window = over(window, input, output);
        (input.len() <= MAX_SPATIAL).then_some(Taps { window })
    }

    pub fn in_positions(&self) -> usize {
        self.window.input.iter().product()
    }

    pub fn out_positions(&self) -> usize {
        self.window.output.iter().product()
    }

    pub fn taps(&self) -> usize {
        self.window.taps()
    }

    /// Coordinates of a flat output position.
    pub fn position(&self, flat: usize) -> [usize; MAX_SPATIAL] {
        let [_, h, w] = self.window.output;
        [flat / (h * w), flat / w % h, flat % w]
    }

    /// The input coordinate that tap `tap` of output `at` reads along one axis, if it is inside.
    pub fn source(&self, axis: usize, at: usize, tap: usize) -> Option<usize> {
        let from = at * self.window.strides[axis] + tap * self.window.dilations[axis];
        from.checked_sub(self.window.pads_begin[axis])
            .filter(|&i| i < self.window.input[axis])
    }

    /// Calls `f(tap, flat input position)` for every tap that is inside, in order.
    pub fn each(&self, at: [usize; MAX_SPATIAL], mut f: impl FnMut(usize, usize)) {
        let [_, kh, kw] = self.window.kernel;
        for d in 0..self.window.kernel[0] {
            let Some(z) = self.source(0, at[0], d) else {
                continue;
            };
            for r in 0..kh {
                let Some(y) = self.source(1, at[1], r) else {
                    continue;
                };
                for c in 0..kw {
                    if let Some(x) = self.source(2, at[2], c) {
                        let from = (z * self.window.input[1] + y) * self.window.input[2] + x;
                        f((d * kh + r) * kw + c, from);
                    }
                }
            }
        }
    }

    /// Taps inside the input and its padding: what an average that counts padding divides by.
    pub fn padded_count(&self, at: [usize; MAX_SPATIAL]) -> usize {
        (0..MAX_SPATIAL)
            .map(|axis| {
                let room = self.window.input[axis]
                    + self.window.pads_begin[axis]
                    + self.window.pads_end[axis];
                let room = room.saturating_sub(at[axis] * self.window.strides[axis]);
                room.div_ceil(self.window.dilations[axis])
                    .min(self.window.kernel[axis])
            })
            .product()
    }
}
