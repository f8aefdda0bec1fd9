//! Which elements of a plane the taps of some positions read: rows of the unfolded plane, forward and backward.

use super::AXES;
use crate::window::Axis;

/// Positions along one axis. Tap `j` of position `i` reads `i * step + offset + j * offset_step`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    /// Elements of what is read.
    pub input: usize,
    pub positions: usize,
    pub step: usize,
    pub taps: usize,
    pub offset: isize,
    pub offset_step: isize,
    /// Tap `j` is the kernel's tap `first_tap + j * tap_step`.
    pub first_tap: usize,
    pub tap_step: usize,
    /// Result `i` belongs at `out_first + i * out_step` of `output`.
    pub output: usize,
    pub out_first: usize,
    pub out_step: usize,
}

impl Line {
    /// Results of a window that slides over inputs.
    pub fn forward(axis: &Axis) -> Line {
        Line {
            input: axis.input,
            positions: axis.output,
            step: axis.stride,
            taps: axis.kernel,
            offset: -(axis.pad as isize),
            offset_step: axis.dilation as isize,
            first_tap: 0,
            tap_step: 1,
            output: axis.output,
            out_first: 0,
            out_step: 1,
        }
    }

    /// Inputs `phase`, `phase + stride`, ... of a window, which read the results whose taps lie on them.
    pub fn backward(axis: &Axis, phase: usize) -> Line {
        let (stride, dilation) = (axis.stride, axis.dilation);
        // Tap k lies on input i * stride + phase for result i + (phase + pad - k * dilation) / stride.
        let reach = |tap: usize| (phase + axis.pad) as isize - (tap * dilation) as isize;
        let fits = |tap: &usize| reach(*tap) % stride as isize == 0;
        let first_tap = (0..axis.kernel.min(stride)).find(fits);
        let tap_step = stride / greatest_divisor(stride, dilation);
        let taps = first_tap.map_or(0, |first| (axis.kernel - first).div_ceil(tap_step));
        let first_tap = first_tap.unwrap_or(0);
        Line {
            input: axis.output,
            positions: axis.input.saturating_sub(phase).div_ceil(stride),
            step: 1,
            taps,
            offset: reach(first_tap).div_euclid(stride as isize),
            offset_step: -((tap_step * dilation / stride) as isize),
            first_tap,
            tap_step,
            output: axis.input,
            out_first: phase,
            out_step: stride,
        }
    }

    /// From what tap `tap` reads of position 0.
    pub fn shift(&self, tap: usize) -> isize {
        self.offset + tap as isize * self.offset_step
    }

    fn source(&self, at: usize, tap: usize) -> Option<usize> {
        let from = (at * self.step).checked_add_signed(self.shift(tap))?;
        (from < self.input).then_some(from)
    }

    /// Positions for which a tap with this shift is inside.
    fn inside(&self, shift: isize) -> std::ops::Range<usize> {
        let first = shift.min(0).unsigned_abs().div_ceil(self.step);
        let room = (self.input as isize - shift).max(0) as usize;
        let last = room.div_ceil(self.step).min(self.positions);
        first.min(last)..last
    }
}

fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 {
        a
    } else {
        greatest_divisor(b, a % b)
    }
}

/// Positions of a plane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grid {
    pub lines: [Line; AXES],
}

impl Grid {
    pub fn positions(&self) -> usize {
        self.lines.iter().map(|line| line.positions).product()
    }

    pub fn taps(&self) -> usize {
        self.lines.iter().map(|line| line.taps).product()
    }

    /// Elements of the plane that is read.
    pub fn input(&self) -> usize {
        self.lines.iter().map(|line| line.input).product()
    }

    /// Elements of the plane that results are part of.
    pub fn output(&self) -> usize {
        self.lines.iter().map(|line| line.output).product()
    }

    /// Whether position `i` reads element `i`, and nothing else.
    pub fn is_identity(&self) -> bool {
        let same = |line: &Line| {
            line.taps == 1 && line.step == 1 && line.offset == 0 && line.positions == line.input
        };
        self.lines.iter().all(same)
    }

    /// Whether results follow each other without gaps.
    pub fn is_whole(&self) -> bool {
        self.lines.iter().all(|line| line.out_step == 1)
    }

    /// The taps along each axis of a flat one.
    pub fn tap(&self, flat: usize) -> [usize; AXES] {
        let [_, y, x] = self.lines;
        [
            flat / (y.taps * x.taps),
            flat / x.taps % y.taps,
            flat % x.taps,
        ]
    }

    /// Which of the kernel's taps a flat one is.
    pub fn kernel_tap(&self, flat: usize, kernel: &[usize; AXES]) -> usize {
        let at = self.tap(flat);
        let of = |axis: usize| self.lines[axis].first_tap + at[axis] * self.lines[axis].tap_step;
        (of(0) * kernel[1] + of(1)) * kernel[2] + of(2)
    }

    /// Calls `f(z, y, first x, length)` for the runs of some positions.
    pub fn each_run(
        &self,
        first: usize,
        count: usize,
        mut f: impl FnMut(usize, usize, usize, usize),
    ) {
        let [_, y, x] = self.lines;
        let (mut done, mut column) = (0, first % x.positions.max(1));
        let line = first / x.positions.max(1);
        let (mut row, mut slice) = (line % y.positions.max(1), line / y.positions.max(1));
        while done < count {
            let run = (x.positions - column).min(count - done);
            f(slice, row, column, run);
            done += run;
            column = 0;
            row += 1;
            if row == y.positions {
                (row, slice) = (0, slice + 1);
            }
        }
    }

    /// What tap `tap` of the positions from `first` on reads of a plane; zeros outside of it.
    pub fn unfold(&self, plane: &[f32], tap: usize, first: usize, to: &mut [f32]) {
        let [tap_z, tap_y, tap_x] = self.tap(tap);
        let [z_line, y_line, x_line] = self.lines;
        let shift = x_line.shift(tap_x);
        let inside = x_line.inside(shift);
        let mut done = 0;
        self.each_run(first, to.len(), |z, y, x, run| {
            let part = &mut to[done..done + run];
            done += run;
            let sources = (z_line.source(z, tap_z), y_line.source(y, tap_y));
            let (Some(z), Some(y)) = sources else {
                part.fill(0.0);
                return;
            };
            let from = inside.start.clamp(x, x + run);
            let end = inside.end.clamp(from, x + run);
            part[..from - x].fill(0.0);
            part[end - x..].fill(0.0);
            let line = &plane[(z * y_line.input + y) * x_line.input..][..x_line.input];
            let part = &mut part[from - x..end - x];
            if part.is_empty() {
                return;
            }
            let start = (from * x_line.step).wrapping_add_signed(shift);
            match x_line.step {
                1 => part.copy_from_slice(&line[start..][..part.len()]),
                step => {
                    let values = line[start..].iter().step_by(step);
                    part.iter_mut().zip(values).for_each(|(to, v)| *to = *v);
                }
            }
        });
    }
}
