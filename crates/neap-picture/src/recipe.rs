//! How a picture becomes numbers. Written into a model's metadata as JSON, and read back.

use crate::resample::Pixels;
use crate::target::Target;
use serde::{Deserialize, Serialize};

/// `(value * scale - mean) / std`, by channel of the input, of the resized picture's values from 0 to 255.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Recipe {
    pub resize: Resize,
    pub filter: Filter,
    /// Height and width of the input that it was used for.
    pub size: Option<[usize; 2]>,
    /// `None` is 1/255.
    pub scale: Option<f32>,
    /// One for all channels, or one for each; none is 0.
    pub mean: Vec<f32>,
    /// One for all channels, or one for each; none is 1.
    pub std: Vec<f32>,
    pub channel_order: ChannelOrder,
    /// `None`: as the input's shape suggests.
    pub layout: Option<Layout>,
    /// With [`Resize::Letterbox`], the value around the picture.
    pub pad: u8,
}

/// How a picture gets the input's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resize {
    /// Its shorter side to 256/224 of the size, then the centre, as classifiers are evaluated.
    #[default]
    Crop,
    /// As small as covers the size, then the centre.
    Fill,
    /// Both sides to the size.
    Stretch,
    /// All of it, as large as fits, in the centre of a plain background.
    Letterbox,
}

/// What resized values are made of; all but the last look at each pixel of the picture when it shrinks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    #[default]
    Bilinear,
    Bicubic,
    Nearest,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChannelOrder {
    #[default]
    Rgb,
    Bgr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Channels first.
    Nchw,
    /// Channels last.
    Nhwc,
}

/// What bytes are multiplied by, unless a recipe says otherwise.
pub const OF_BYTES: f32 = 1.0 / 255.0;

/// The grey that detectors are trained with around a picture.
const GREY: u8 = 114;

impl Default for Recipe {
    /// As classifiers are evaluated, with values from 0 to 1.
    fn default() -> Recipe {
        Recipe {
            resize: Resize::default(),
            filter: Filter::default(),
            size: None,
            scale: None,
            mean: Vec::new(),
            std: Vec::new(),
            channel_order: ChannelOrder::default(),
            layout: None,
            pad: GREY,
        }
    }
}

impl Recipe {
    /// Its name among a model's metadata.
    pub const KEY: &'static str = "neaptide.picture";

    /// What a model's metadata say.
    ///
    /// # Errors
    /// They are not understood.
    pub fn of_metadata(metadata: &[(String, String)]) -> Result<Option<Recipe>, String> {
        let found = metadata.iter().find(|(key, _)| key == Recipe::KEY);
        let Some((_, text)) = found else {
            return Ok(None);
        };
        let recipe: Recipe = serde_json::from_str(text).map_err(|e| {
            format!(
                "the model's metadata '{}' are not understood: {e}",
                Recipe::KEY
            )
        })?;
        Ok(Some(recipe))
    }

    /// For a model's metadata.
    pub fn text(&self) -> String {
        // Numbers, names and lists of them can always be written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether numbers are made of values at all.
    pub fn is_plain(&self) -> bool {
        self.mean.is_empty() && self.std.is_empty() && self.scale.is_none()
    }

    /// # Errors
    /// Numbers that do not fit so many channels, with the name of the option.
    pub fn check(&self, channels: usize) -> Result<(), String> {
        for (what, values) in [("mean", &self.mean), ("std", &self.std)] {
            if values.len() > 1 && values.len() != channels {
                return Err(format!(
                    "--{what} has {} values for {channels} channels",
                    values.len()
                ));
            }
        }
        match self.std.iter().all(|s| s.is_normal()) {
            true => Ok(()),
            false => Err("--std must not be zero".into()),
        }
    }

    /// The number for a value of the input's `channel`; `scale` is for values without a scale of their own.
    pub fn number(&self, value: f32, channel: usize, scale: f32) -> f32 {
        let of = |list: &[f32], default: f32| match list {
            [] => default,
            [one] => *one,
            all => all.get(channel).copied().unwrap_or(default),
        };
        let scale = self.scale.unwrap_or(scale);
        (value * scale - of(&self.mean, 0.0)) / of(&self.std, 1.0)
    }

    /// Calls `put` with each place of the input, its channel, and the value from 0 to 255 that belongs there.
    pub fn each(&self, pixels: &Pixels, target: &Target, mut put: impl FnMut(usize, usize, u8)) {
        let swaps = self.channel_order == ChannelOrder::Bgr && target.channels == 3;
        for row in 0..target.height {
            for column in 0..target.width {
                let pixel = &pixels.data[(row * target.width + column) * pixels.channels..];
                for channel in 0..target.channels {
                    let from = match (pixels.channels, swaps) {
                        // Grey becomes colour.
                        (1, _) => 0,
                        (_, true) => 2 - channel,
                        (_, false) => channel,
                    };
                    put(target.at(channel, row, column), channel, pixel[from]);
                }
            }
        }
    }

    /// The input's numbers as 32-bit floats, of a picture that has its size.
    ///
    /// # Errors
    /// The recipe does not fit the channels.
    pub fn floats(&self, pixels: &Pixels, target: &Target) -> Result<Vec<f32>, String> {
        self.check(target.channels)?;
        let mut out = vec![0.0; target.elements()];
        self.each(pixels, target, |place, channel, value| {
            out[place] = self.number(f32::from(value), channel, OF_BYTES);
        });
        Ok(out)
    }

    /// The input as bytes.
    ///
    /// # Errors
    /// The recipe would make other numbers of them.
    pub fn bytes(&self, pixels: &Pixels, target: &Target) -> Result<Vec<u8>, String> {
        if !self.is_plain() {
            return Err("is uint8 and takes no --mean, --std or --scale".into());
        }
        let mut out = vec![0; target.elements()];
        self.each(pixels, target, |place, _, value| out[place] = value);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_pixel(data: &[u8]) -> Pixels {
        Pixels::new(1, 1, data.len(), data.into()).unwrap()
    }

    #[test]
    fn what_is_written_is_read_back_to_the_bit() {
        let recipe = Recipe {
            resize: Resize::Letterbox,
            filter: Filter::Bicubic,
            size: Some([224, 225]),
            scale: Some(1.0 / 255.0),
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229],
            channel_order: ChannelOrder::Bgr,
            layout: Some(Layout::Nhwc),
            pad: 7,
        };
        let metadata = vec![(Recipe::KEY.to_string(), recipe.text())];
        assert_eq!(Recipe::of_metadata(&metadata), Ok(Some(recipe)));
        assert_eq!(Recipe::of_metadata(&[]), Ok(None));
        for wrong in [
            "{\"resize\":\"maybe\"}",
            "{\"blur\":2}",
            "[",
            "{\"pad\":999}",
        ] {
            let metadata = vec![(Recipe::KEY.to_string(), wrong.to_string())];
            let refused = Recipe::of_metadata(&metadata).unwrap_err();
            assert!(refused.contains("not understood"), "{refused}");
        }
    }

    #[test]
    fn channels_are_normalised_and_ordered() {
        let recipe = Recipe {
            mean: vec![0.5, 0.0, 0.0],
            std: vec![0.5, 0.1, 1.0],
            ..Recipe::default()
        };
        let target = Target::of(&[3, 1, 1], None).unwrap();
        let pixel = one_pixel(&[255, 51, 0]);
        let values = recipe.floats(&pixel, &target).unwrap();
        assert!(values[0] == 1.0 && (values[1] - 2.0).abs() < 1e-6 && values[2] == 0.0);
        let bgr = Recipe {
            channel_order: ChannelOrder::Bgr,
            ..Recipe::default()
        };
        assert_eq!(bgr.bytes(&pixel, &target).unwrap(), [0, 51, 255]);
        assert!(recipe.bytes(&pixel, &target).unwrap_err().contains("uint8"));
        let grey = bgr.bytes(&one_pixel(&[9]), &target).unwrap();
        assert_eq!(grey, [9, 9, 9]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        let two = Recipe {
            mean: vec![0.1, 0.2],
            ..Recipe::default()
        };
        assert!(two.check(3).unwrap_err().contains("2 values"));
        let zero = Recipe {
            std: vec![0.0],
            ..Recipe::default()
        };
        assert!(zero.check(3).unwrap_err().contains("zero"));
    }
}
