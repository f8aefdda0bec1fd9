//! Numbers of a sample as the model wants them: scaled, normalised, and changed a little at random.

use crate::error::{Result, bad};
use crate::random::Draw;
use neap_ir::{DType, TensorType};
use neap_picture::{OF_BYTES, Pixels, Recipe, Target};

/// Random changes of pictures that leave their class as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Augmentation {
    /// Left and right exchanged, half of the time.
    pub flip: bool,
    /// Moved by up to an eighth of each side; black follows.
    pub shift: bool,
}

/// Writes inputs of one type.
#[derive(Debug)]
pub struct Prepare {
    target: Option<Target>,
    recipe: Recipe,
    augmentation: Augmentation,
}

impl Prepare {
    /// # Errors
    /// The input takes no floating-point numbers, or the options do not fit its channels.
    pub fn new(input: &TensorType, recipe: &Recipe, augmentation: Augmentation) -> Result<Prepare> {
        if input.dtype != DType::F32 {
            return Err(bad(format!(
                "the model's input is {}, these data become float32",
                input.dtype
            )));
        }
        let target = match (Target::of(&input.shape, recipe.layout), recipe.layout) {
            // One pixel is no picture.
            (Ok(target), _) => Some(target).filter(|t| t.height * t.width > 1),
            (Err(why), Some(_)) => return Err(bad(format!("--layout: {why}"))),
            (Err(_), None) => None,
        };
        recipe
            .check(target.map_or(1, |t| t.channels))
            .map_err(bad)?;
        if target.is_none() && augmentation != Augmentation::default() {
            return Err(bad(
                "--augment is for pictures: the model's input is none of CxHxW, HxWxC and HxW",
            ));
        }
        Ok(Prepare {
            target,
            recipe: recipe.clone(),
            augmentation,
        })
    }

    /// Where a picture lies in the input; `None` where it takes none.
    pub fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// How pictures are prepared, with all that is not left to chance: what a model that was trained so says of itself.
    pub fn told(&self) -> Option<Recipe> {
        let target = self.target?;
        Some(Recipe {
            size: Some([target.height, target.width]),
            scale: Some(self.recipe.scale.unwrap_or(OF_BYTES)),
            layout: Some(target.layout),
            ..self.recipe.clone()
        })
    }

    /// Writes the input of a picture of any size.
    ///
    /// # Errors
    /// It does not fit the model.
    pub fn write_picture(&self, pixels: &Pixels, draw: Option<Draw>, out: &mut [u8]) -> Result<()> {
        let target = self
            .target
            .ok_or_else(|| bad("the model takes no pictures"))?;
        let resized;
        let pixels = match (pixels.width, pixels.height) == (target.width, target.height) {
            true => pixels,
            false => {
                resized = self.recipe.fit(pixels, &target).map_err(bad)?;
                &resized
            }
        };
        let mut values = vec![0.0; target.elements()];
        self.recipe.each(pixels, &target, |place, _, value| {
            values[place] = f32::from(value)
        });
        self.write(&values, OF_BYTES, draw, out);
        Ok(())
    }

    /// Writes an input of `values`, which lie as the input's do. `scale` is for values without a scale of their own.
    pub fn write(&self, values: &[f32], scale: f32, draw: Option<Draw>, out: &mut [u8]) {
        let out = out.as_chunks_mut::<4>().0;
        let normal =
            |value: f32, channel: usize| self.recipe.number(value, channel, scale).to_le_bytes();
        let Some(planes) = self.target else {
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

    fn draw(augmentation: Augmentation, planes: &Target, mut draw: Draw) -> Change {
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
    fn source(self, planes: &Target, row: usize, column: usize) -> Option<(usize, usize)> {
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

    fn prepare(shape: &[usize], recipe: &Recipe, a: Augmentation) -> Prepare {
        Prepare::new(&TensorType::new(DType::F32, shape), recipe, a).unwrap()
    }

    fn written(prepare: &Prepare, values: &[f32], draw: Option<Draw>) -> Vec<f32> {
        let mut out = vec![0; values.len() * 4];
        prepare.write(values, 1.0, draw, &mut out);
        let out = out.as_chunks().0.iter();
        out.map(|&b| f32::from_le_bytes(b)).collect()
    }

    #[test]
    fn channels_have_their_own_mean_wherever_they_lie() {
        let recipe = Recipe {
            scale: Some(2.0),
            mean: vec![1.0, 2.0, 3.0],
            std: vec![0.5],
            ..Recipe::default()
        };
        let none = Augmentation::default();
        let first = prepare(&[3, 1, 2], &recipe, none);
        let values = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0];
        assert_eq!(
            written(&first, &values, None),
            [2.0, 6.0, 0.0, 4.0, -2.0, 2.0]
        );
        let last = prepare(&[2, 1, 3], &recipe, none);
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
        let prepare = prepare(&[8, 8], &Recipe::default(), both);
        let values: Vec<f32> = (1..=64).map(|v| v as f32).collect();
        let planes = prepare.target.unwrap();
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
            let n = Recipe {
                mean: mean.to_vec(),
                std: std.to_vec(),
                ..Recipe::default()
            };
            let a = Augmentation { flip, shift: false };
            Prepare::new(&TensorType::new(DType::F32, shape), &n, a).is_ok()
        };
        assert!(try_new(&[3, 8, 8], &[0.1, 0.2, 0.3], &[1.0], true));
        assert!(!try_new(&[1, 8, 8], &[0.1, 0.2, 0.3], &[], false));
        assert!(!try_new(&[1, 8, 8], &[], &[0.0], false));
        assert!(!try_new(&[100], &[], &[], true));
        let ints = TensorType::new(DType::I64, &[8, 8]);
        assert!(Prepare::new(&ints, &Recipe::default(), Augmentation::default()).is_err());
    }
}
