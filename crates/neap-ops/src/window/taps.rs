//! Where a sliding window looks: offsets of the taps of one output position, in up to three axes.

use neap_ir::op::Window;

/// Most spatial axes.
pub(crate) const MAX_SPATIAL: usize = 3;

/// A window over `rank` axes, seen as three (leading ones of size 1).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taps {
    pub input: [usize; MAX_SPATIAL],
    pub output: [usize; MAX_SPATIAL],
    pub kernel: [usize; MAX_SPATIAL],
    pub strides: [usize; MAX_SPATIAL],
    pub dilations: [usize; MAX_SPATIAL],
    pub pads_begin: [usize; MAX_SPATIAL],
    pub pads_end: [usize; MAX_SPATIAL],
}

impl Taps {
    /// `None` when there are more than three spatial axes.
    pub fn of(window: &Window, input: &[usize], output: &[usize]) -> Option<Taps> {
        if input.len() > MAX_SPATIAL {
            return None;
        }
        let three = |v: &[usize], absent: usize| {
            let mut axes = [absent; MAX_SPATIAL];
            axes[MAX_SPATIAL - v.len()..].copy_from_slice(v);
            axes
        };
        Some(Taps {
            input: three(input, 1),
            output: three(output, 1),
            kernel: three(&window.kernel, 1),
            strides: three(&window.strides, 1),
            dilations: three(&window.dilations, 1),
            pads_begin: three(&window.pads_begin, 0),
            pads_end: three(&window.pads_end, 0),
        })
    }

    pub fn in_positions(&self) -> usize {
        self.input.iter().product()
    }

    pub fn out_positions(&self) -> usize {
        self.output.iter().product()
    }

    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Coordinates of a flat output position.
    pub fn position(&self, flat: usize) -> [usize; MAX_SPATIAL] {
        let [_, h, w] = self.output;
        [flat / (h * w), flat / w % h, flat % w]
    }

    /// The input coordinate that tap `tap` of output `at` reads along one axis, if it is inside.
    pub fn source(&self, axis: usize, at: usize, tap: usize) -> Option<usize> {
        let from = at * self.strides[axis] + tap * self.dilations[axis];
        from.checked_sub(self.pads_begin[axis])
            .filter(|&i| i < self.input[axis])
    }

    /// Calls `f(tap, flat input position)` for every tap that is inside, in order.
    pub fn each(&self, at: [usize; MAX_SPATIAL], mut f: impl FnMut(usize, usize)) {
        let [_, kh, kw] = self.kernel;
        for d in 0..self.kernel[0] {
            let Some(z) = self.source(0, at[0], d) else {
                continue;
            };
            for r in 0..kh {
                let Some(y) = self.source(1, at[1], r) else {
                    continue;
                };
                for c in 0..kw {
                    if let Some(x) = self.source(2, at[2], c) {
                        let from = (z * self.input[1] + y) * self.input[2] + x;
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
                let room = self.input[axis] + self.pads_begin[axis] + self.pads_end[axis];
                let room = room.saturating_sub(at[axis] * self.strides[axis]);
                room.div_ceil(self.dilations[axis]).min(self.kernel[axis])
            })
            .product()
    }
}
