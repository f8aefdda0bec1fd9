//! From a picture of any size to one of an input's size.

use crate::orientation::Orientation;
use crate::recipe::{Recipe, Resize};
use crate::resample::{Pixels, Window, resample};
use crate::target::Target;

/// Crops keep this part of the resized picture.
const CROP: (usize, usize) = (224, 256);

/// Sides of a picture in between; no real one comes near.
const MOST_SIDE: usize = 1 << 20;

impl Recipe {
    /// The picture in the target's size, in grey where the target is, and in its own colours otherwise.
    ///
    /// # Errors
    /// It is so narrow that a side would become too long.
    pub fn fit(&self, pixels: &Pixels, target: &Target) -> Result<Pixels, String> {
        let (height, width) = (target.height, target.width);
        let window = match self.resize {
            Resize::Stretch => whole(height, width),
            Resize::Crop => covered(pixels, target, CROP)?,
            Resize::Fill => covered(pixels, target, (1, 1))?,
            Resize::Letterbox => {
                let inner = contained(pixels, target);
                let small = resample(pixels, &inner, self.filter);
                return Ok(framed(&small, target, self.pad));
            }
        };
        Ok(resample(pixels, &window, self.filter))
    }
}

fn whole(height: usize, width: usize) -> Window {
    Window {
        full: [height, width],
        top: 0,
        left: 0,
        height,
        width,
    }
}

/// The centre of the picture when it covers `margin` of the target.
fn covered(pixels: &Pixels, target: &Target, (part, of): (usize, usize)) -> Result<Window, String> {
    let grown = |n: usize| (n * of + part / 2) / part;
    let (h, w) = (grown(target.height), grown(target.width));
    // The picture covers both sides; the other one keeps the proportions.
    let full = if pixels.height * w >= pixels.width * h {
        [(w * pixels.height / pixels.width).max(h), w]
    } else {
        [h, (h * pixels.width / pixels.height).max(w)]
    };
    if full.iter().any(|&n| n > MOST_SIDE) {
        return Err("is too narrow for this input".into());
    }
    // Half a pixel is rounded to even.
    let half_even = |n: usize| n / 2 + usize::from(n % 4 == 3);
    Ok(Window {
        full,
        top: half_even(full[0] - target.height),
        left: half_even(full[1] - target.width),
        height: target.height,
        width: target.width,
    })
}

/// All of the picture, as large as the target holds.
fn contained(pixels: &Pixels, target: &Target) -> Window {
    let by = |side: usize, own: usize| side as f64 / own as f64;
    let scale = by(target.height, pixels.height).min(by(target.width, pixels.width));
    let scaled = |own: usize, most: usize| ((own as f64 * scale).round() as usize).clamp(1, most);
    whole(
        scaled(pixels.height, target.height),
        scaled(pixels.width, target.width),
    )
}

/// A picture in the centre of a plain background.
fn framed(small: &Pixels, target: &Target, pad: u8) -> Pixels {
    let mut out = Pixels {
        width: target.width,
        height: target.height,
        channels: small.channels,
        data: vec![pad; target.width * target.height * small.channels],
        stored: Orientation::Upright,
    };
    let top = (target.height - small.height) / 2;
    let left = (target.width - small.width) / 2 * small.channels;
    let row_bytes = small.width * small.channels;
    for (row, from) in small.data.chunks_exact(row_bytes).enumerate() {
        let at = (top + row) * target.width * small.channels + left;
        out.data[at..at + row_bytes].copy_from_slice(from);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wide: 200 in the middle third, 0 left and right of it.
    fn wide() -> Pixels {
        let row = |_| (0..12).map(|x| if (4..8).contains(&x) { 200 } else { 0 });
        Pixels::new(12, 4, 1, (0..4).flat_map(row).collect()).unwrap()
    }

    fn fitted(resize: Resize) -> Vec<u8> {
        let recipe = Recipe {
            resize,
            pad: 9,
            ..Recipe::default()
        };
        let target = Target::of(&[4, 4], None).unwrap();
        recipe.fit(&wide(), &target).unwrap().data
    }

    #[test]
    fn each_way_shows_another_part_of_a_wide_picture() {
        assert_eq!(fitted(Resize::Fill), [200; 16]);
        // One pixel of 4 rows is drawn from 12 columns, so the sides are dark.
        let stretched = fitted(Resize::Stretch);
        assert!(stretched[0] < 100 && stretched[1] > 100, "{stretched:?}");
        let boxed = fitted(Resize::Letterbox);
        // 4 x 12 becomes 1 x 4 in the second row.
        assert!(boxed[..4] == [9; 4] && boxed[8..] == [9; 8] && boxed[4] < 100);
        let cropped = fitted(Resize::Crop);
        assert_ne!(cropped, fitted(Resize::Stretch));
    }

    #[test]
    fn sides_that_fit_are_left_as_they_are() {
        let target = Target::of(&[4, 12], None).unwrap();
        for resize in [Resize::Fill, Resize::Stretch, Resize::Letterbox] {
            let recipe = Recipe {
                resize,
                ..Recipe::default()
            };
            assert_eq!(recipe.fit(&wide(), &target).unwrap(), wide(), "{resize:?}");
        }
    }

    #[test]
    fn a_line_is_too_narrow_to_cover_anything() {
        let line = Pixels::new(60_000, 1, 1, vec![0; 60_000]).unwrap();
        let target = Target::of(&[64, 64], None).unwrap();
        let fill = Recipe {
            resize: Resize::Fill,
            ..Recipe::default()
        };
        assert!(fill.fit(&line, &target).unwrap_err().contains("narrow"));
        let boxed = Recipe {
            resize: Resize::Letterbox,
            ..Recipe::default()
        };
        assert_eq!(boxed.fit(&line, &target).unwrap().data.len(), 64 * 64);
    }
}
