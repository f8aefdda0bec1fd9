//! A sliding window; and of one axis, which taps fall inside the input, and for which outputs all do.

use std::ops::Range;

use crate::error::KernelError;

/// A window that slides over some axes. Of two, index 0 is height and 1 is width; what has only a width has height 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window<const AXES: usize = 2> {
    pub input: [usize; AXES],
    pub output: [usize; AXES],
    pub kernel: [usize; AXES],
    pub strides: [usize; AXES],
    pub dilations: [usize; AXES],
    /// Padding above and to the left.
    pub pads_begin: [usize; AXES],
    /// Padding below and to the right. Only averages that count padding look at it: elsewhere what is needed follows
    /// from the sizes.
    pub pads_end: [usize; AXES],
}

impl<const AXES: usize> Default for Window<AXES> {
    /// Of nothing over nothing.
    fn default() -> Self {
        Window {
            input: [0; AXES],
            output: [0; AXES],
            kernel: [0; AXES],
            strides: [0; AXES],
            dilations: [0; AXES],
            pads_begin: [0; AXES],
            pads_end: [0; AXES],
        }
    }
}

impl<const AXES: usize> Window<AXES> {
    /// Taps of one output.
    #[must_use]
    pub fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    pub(crate) fn axis(&self, i: usize) -> Axis {
        Axis {
            input: self.input[i],
            output: self.output[i],
            kernel: self.kernel[i],
            stride: self.strides[i],
            dilation: self.dilations[i],
            pad: self.pads_begin[i],
        }
    }
}

/// Output `o`'s tap `k` reads input `o * stride + k * dilation - pad`, where that is inside the input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axis {
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub pad: usize,
}

impl Axis {
    /// Refuses what the arithmetic below cannot handle.
    pub(crate) fn check(&self) -> Result<(), KernelError> {
        const MOST: usize = isize::MAX as usize / 4;
        if self.kernel == 0 || self.stride == 0 || self.dilation == 0 {
            return Err(KernelError::Invalid("kernel, stride or dilation of zero"));
        }
        let reach = (self.kernel.checked_mul(self.dilation))
            .zip(self.output.checked_mul(self.stride))
            .and_then(|(a, b)| a.checked_add(b))
            .and_then(|sum| sum.checked_add(self.pad));
        if reach.is_none_or(|reach| reach > MOST) || self.input > MOST {
            return Err(KernelError::Invalid("a size overflows"));
        }
        Ok(())
    }

    /// The taps of output `o` that fall inside the input.
    #[inline]
    pub(crate) fn taps(&self, o: usize) -> Range<usize> {
        let at = o * self.stride;
        let before = self.pad.saturating_sub(at);
        // Tap k is below the end while at + k*dilation < input + pad.
        let room = (self.input + self.pad).saturating_sub(at);
        // This is asked often, and divisions are slow.
        let (first, last) = match self.dilation {
            1 => (before, room),
            d => (before.div_ceil(d), room.div_ceil(d)),
        };
        let first = first.min(self.kernel);
        first..last.min(self.kernel).max(first)
    }

    /// The outputs all of whose taps fall inside the input.
    pub(crate) fn interior(&self) -> Range<usize> {
        let first = self.pad.div_ceil(self.stride).min(self.output);
        let reach = (self.kernel - 1) * self.dilation + 1;
        let room = (self.input + self.pad + 1).saturating_sub(reach);
        let last = room.div_ceil(self.stride).min(self.output);
        first..last.max(first)
    }

    /// The input index that tap `k` of output `o` reads; only for taps that [`Axis::taps`] names.
    #[inline]
    pub(crate) fn at(&self, o: usize, k: usize) -> usize {
        o * self.stride + k * self.dilation - self.pad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_counting() {
        for input in [1, 2, 3, 7, 8] {
            for kernel in [1, 2, 3, 5] {
                for stride in [1, 2, 3] {
                    for dilation in [1, 2, 3] {
                        for pad in [0, 1, 2, 4] {
                            let axis = Axis {
                                input,
                                output: 9,
                                kernel,
                                stride,
                                dilation,
                                pad,
                            };
                            let inside = |o: usize, k: usize| {
                                let i = (o * stride + k * dilation) as isize - pad as isize;
                                (0..input as isize).contains(&i)
                            };
                            let mut full = Vec::new();
                            for o in 0..9 {
                                let want: Vec<usize> =
                                    (0..kernel).filter(|&k| inside(o, k)).collect();
                                assert_eq!(axis.taps(o).collect::<Vec<_>>(), want, "{axis:?} {o}");
                                if want.len() == kernel {
                                    full.push(o);
                                }
                            }
                            assert_eq!(axis.interior().collect::<Vec<_>>(), full, "{axis:?}");
                        }
                    }
                }
            }
        }
    }
}
