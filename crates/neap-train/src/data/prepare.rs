//! Numbers of a sample as the model wants them: scaled, normalised, and changed a little at random.

use crate::error::{Result, bad};
use crate::random::Draw;
use neap_ir::{DType, TensorType};

/// How values become inputs: `(value * scale - mean) / std`, by channel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Normalisation {
    /// `None`: 1/255 for bytes and pictures, else 1.
    pub scale: Option<f32>,
    /// One for all channels, or one for each; none is 0.
    pub mean: Vec<f32>,
    /// One for all channels, or one for each; none is 1.
    pub std: Vec<f32>,
}

/// Random changes of pictures that leave their class as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Augmentation {
    /// Left and right exchanged, half of the time.
    pub flip: bool,
    /// Moved by up to an eighth of each side; black follows.
    pub shift: bool,
}

/// Where channel, row and column of a picture lie in an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planes {
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    pub channels_last: bool,
}

impl Planes {
    /// As the input's shape without the batch suggests: `CxHxW`, `HxWxC` or `HxW`.
    pub fn of(shape: &[usize]) -> Option<Planes> {
        let (channels, height, width, channels_last) = match *shape {
            [c @ (1 | 3), h, w] => (c, h, w, false),
            [h, w, c @ (1 | 3)] => (c, h, w, true),
            [h, w] => (1, h, w, false),
            _ => return None,
        };
        let planes = Planes {
            channels,
            height,
            width,
            channels_last,
        };
        (height * width > 1).then_some(planes)
    }

    /// Place of a value.
    pub fn at(&self, channel: usize, row: usize, column: usize) -> usize {
        if self.channels_last {
            (row * self.width + column) * self.channels + channel
        } else {
            (channel * self.height + row) * self.width + column
        }
    }
}

/// Writes inputs of one type.
#[derive(Debug)]
pub struct Prepare {
    planes: Option<Planes>,
    normalisation: Normalisation,
    augmentation: Augmentation,
}

impl Prepare {
    /// # Errors
    /// The input takes no floating-point numbers, or the options do not fit its channels.
    pub fn new(
        input: &TensorType,
        normalisation: &Normalisation,
        augmentation: Augmentation,
    ) -> Result<Prepare> {
        if input.dtype != DType::F32 {
            return Err(bad(format!(
                "the model's input is {}, these data become float32",
                input.dtype
            )));
        }
        let planes = Planes::of(&input.shape);
        let channels = planes.map_or(1, |p| p.channels);
        for (what, values) in [("mean", &normalisation.mean), ("std", &normalisation.std)] {
            if values.len() > 1 && values.len() != channels {
                return Err(bad(format!(
                    "--{what} has {} values for {channels} channels",
                    values.len()
                )));
            }
        }
        if normalisation.std.iter().any(|s| !s.is_normal()) {
            return Err(bad("--std must not be zero"));
        }
        if planes.is_none() && augmentation != Augmentation::default() {
            return Err(bad(
                "--augment is for pictures: the model's input is none of CxHxW, HxWxC and HxW",
            ));
        }
        Ok(Prepare {
            planes,
            normalisation: normalisation.clone(),
            augmentation,
        })
    }

    pub fn planes(&self) -> Option<&Planes> {
        self.planes.as_ref()
    }

    /// Writes an input of `values`, which lie as the input's do. `scale` is for values without a scale of their own.
    pub fn write(&self, values: &[f32], scale: f32, draw: Option<Draw>, out: &mut [u8]) {
        let out = out.as_chunks_mut::<4>().0;
        let n = &self.normalisation;
        let scale = n.scale.unwrap_or(scale);
        let of = |list: &[f32], channel: usize, default: f32| match list {
            [] => default,
            [one] => *one,
            all => all[channel],
        };
        let normal = |value: f32, channel: usize| {
            let (mean, std) = (of(&n.mean, channel, 0.0), of(&n.std, channel, 1.0));
            ((value * scale - mean) / std).to_le_bytes()
        };
        let Some(planes) = self.planes else {
            for (out, &value) in out.iter_mut().zip(values) {
                *out = normal(value, 0);
            }
            return;
        };
        let change = draw.map_or(Change::NONE, |d| {
            Change::draw(self.augmentation, &planes, d)
        });
        for channel in 0..planes.channels {
            for row in 0..planes.height {
                for column in 0..planes.width {
                    let value = match change.source(&planes, row, column) {
                        Some((row, column)) => values[planes.at(channel, row, column)],
                        None => 0.0,
                    };
                    out[planes.at(channel, row, column)] = normal(value, channel);
                }
            }
        }
    }
}

/// One sample's random change.
#[derive(Clone, Copy)]
struct Change {
    flip: bool,
    down: isize,
    right: isize,
}

impl Change {
    const NONE: Change = Change {
        flip: false,
        down: 0,
        right: 0,
    };

    fn draw(augmentation: Augmentation, planes: &Planes, mut draw: Draw) -> Change {
        let mut change = Change::NONE;
        if augmentation.flip {
            change.flip = draw.below(2) == 1;
        }
        if augmentation.shift {
            let mut by = |side: usize| {
                let most = side / 8;
                draw.below(2 * most + 1) as isize - most as isize
            };
            (change.down, change.right) = (by(planes.height), by(planes.width));
        }
        change
    }

    /// Where a place's value comes from; `None` outside of the picture.
    fn source(self, planes: &Planes, row: usize, column: usize) -> Option<(usize, usize)> {
        let row = row.checked_add_signed(-self.down)?;
        let column = column.checked_add_signed(-self.right)?;
        if row >= planes.height || column >= planes.width {
            return None;
        }
        let column = if self.flip {
            planes.width - 1 - column
        } else {
            column
        };
        Some((row, column))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    fn prepare(shape: &[usize], normalisation: &Normalisation, a: Augmentation) -> Prepare {
        Prepare::new(&TensorType::new(DType::F32, shape), normalisation, a).unwrap()
    }

    fn written(prepare: &Prepare, values: &[f32], draw: Option<Draw>) -> Vec<f32> {
        let mut out = vec![0; values.len() * 4];
        prepare.write(values, 1.0, draw, &mut out);
        let out = out.as_chunks().0.iter();
        out.map(|&b| f32::from_le_bytes(b)).collect()
    }

    #[test]
    fn channels_have_their_own_mean_wherever_they_lie() {
        let normalisation = Normalisation {
            scale: Some(2.0),
            mean: vec![1.0, 2.0, 3.0],
            std: vec![0.5],
        };
        let none = Augmentation::default();
        let first = prepare(&[3, 1, 2], &normalisation, none);
        let values = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0];
        assert_eq!(
            written(&first, &values, None),
            [2.0, 6.0, 0.0, 4.0, -2.0, 2.0]
        );
        let last = prepare(&[2, 1, 3], &normalisation, none);
        let values = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0];
        assert_eq!(
            written(&last, &values, None),
            [2.0, 0.0, -2.0, 6.0, 4.0, 2.0]
        );
    }

    #[test]
    fn shifts_and_flips_are_all_there_and_nothing_else() {
        let both = Augmentation {
            flip: true,
            shift: true,
        };
        let prepare = prepare(&[8, 8], &Normalisation::default(), both);
        let values: Vec<f32> = (1..=64).map(|v| v as f32).collect();
        let planes = prepare.planes.unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for sample in 0..400 {
            let draw = Draw::new(Purpose::Augment, 1, 1, sample);
            let out = written(&prepare, &values, Some(draw));
            let mut all = Vec::new();
            for flip in [false, true] {
                for down in -1..=1 {
                    for right in -1..=1 {
                        let change = Change { flip, down, right };
                        let mut expected = vec![0.0; 64];
                        for (i, place) in expected.iter_mut().enumerate() {
                            if let Some((row, column)) = change.source(&planes, i / 8, i % 8) {
                                *place = values[row * 8 + column];
                            }
                        }
                        all.push(expected);
                    }
                }
            }
            let which = all.iter().position(|e| *e == out);
            seen.insert(which.expect("one of the changes"));
        }
        assert_eq!(seen.len(), 18);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let try_new = |shape: &[usize], mean: &[f32], std: &[f32], flip| {
            let n = Normalisation {
                scale: None,
                mean: mean.to_vec(),
                std: std.to_vec(),
            };
            let a = Augmentation { flip, shift: false };
            Prepare::new(&TensorType::new(DType::F32, shape), &n, a).is_ok()
        };
        assert!(try_new(&[3, 8, 8], &[0.1, 0.2, 0.3], &[1.0], true));
        assert!(!try_new(&[1, 8, 8], &[0.1, 0.2, 0.3], &[], false));
        assert!(!try_new(&[1, 8, 8], &[], &[0.0], false));
        assert!(!try_new(&[100], &[], &[], true));
        let ints = TensorType::new(DType::I64, &[8, 8]);
        assert!(Prepare::new(&ints, &Normalisation::default(), Augmentation::default()).is_err());
    }
}
