//! Photos as inputs: options that say how they are prepared, over what the model says of itself.

use super::has_extension;
use crate::failure::{Outcome, bad};
use clap::{Args, ValueEnum};
use half::f16;
use neap_picture::{ENDINGS, Head, Recipe, Refusal, Target, prepare};
use neaptide::{Bytes, DType, TensorInfo, shape_text};
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;

/// How pixels become a tensor.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Photos as inputs")]
pub struct ImageOptions {
    /// Subtracted per channel, after --scale [default: as the model says, or 0]
    #[arg(
        long,
        value_name = "A,B,C",
        value_delimiter = ',',
        allow_hyphen_values = true, value_parser = crate::numbers::finite_f32)]
    pub mean: Vec<f32>,
    /// Divided by per channel, after --mean [default: as the model says, or 1]
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', value_parser = crate::numbers::finite_f32)]
    pub std: Vec<f32>,
    /// Multiplied with values 0 to 255 [default: as the model says, or 1/255]
    #[arg(long, value_name = "X", value_parser = crate::numbers::finite_f32)]
    pub scale: Option<f32>,
    /// How the model lays out pixels [default: as the model says, or as the input's shape suggests]
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<PixelLayout>,
    /// How a photo gets the input's size [default: as the model says, or crop; fill while training]
    #[arg(long, value_name = "HOW")]
    pub resize: Option<Resize>,
    /// What resized pixels are made of [default: as the model says, or bilinear]
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<Filter>,
    /// With --resize letterbox, the value around the photo, from 0 to 255 [default: as the model says, or 114]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u8>(0..=255))]
    pub pad: Option<u8>,
    /// Order of the colour channels in the input [default: as the model says, or rgb]
    #[arg(long, value_name = "ORDER")]
    pub channel_order: Option<ChannelOrder>,
}

impl ImageOptions {
    /// Refuses options that would say nothing: none of the files of `--input` is a photo.
    pub fn check(&self, files: &[OsString]) -> Outcome {
        // A name that stands before the path changes nothing about its ending.
        let is_photo = |file: &OsString| {
            let path = super::name_and_file(file).map_or(Path::new(file), |(_, path)| path);
            has_extension(path, ENDINGS) || path.is_dir() || Path::new(file).is_dir()
        };
        match self.first_given().filter(|_| !files.iter().any(is_photo)) {
            None => Ok(()),
            Some(option) => Err(bad(format!(
                "{option} is for photos: give --input FILE with one of the endings .{}, or leave {option} out",
                ENDINGS.join(", .")
            ))),
        }
    }

    /// The first option that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--mean", !self.mean.is_empty()),
            ("--std", !self.std.is_empty()),
            ("--scale", self.scale.is_some()),
            ("--layout", self.layout.is_some()),
            ("--resize", self.resize.is_some()),
            ("--filter", self.filter.is_some()),
            ("--pad", self.pad.is_some()),
            ("--channel-order", self.channel_order.is_some()),
        ];
        let first = given.iter().find(|(_, is_given)| *is_given);
        first.map(|(option, _)| *option)
    }

    /// What the options say, and `base` where they say nothing.
    pub fn over(&self, base: Recipe) -> Recipe {
        let list = |given: &Vec<f32>, own: Vec<f32>| match given.is_empty() {
            true => own,
            false => given.clone(),
        };
        Recipe {
            resize: self.resize.map_or(base.resize, Resize::meant),
            filter: self.filter.map_or(base.filter, Filter::meant),
            size: base.size,
            scale: self.scale.or(base.scale),
            mean: list(&self.mean, base.mean),
            std: list(&self.std, base.std),
            channel_order: (self.channel_order).map_or(base.channel_order, ChannelOrder::meant),
            layout: self.layout.map(PixelLayout::meant).or(base.layout),
            pad: self.pad.unwrap_or(base.pad),
        }
    }

    /// What the options say, and the model's metadata where they say nothing.
    pub fn of_model(&self, metadata: &[(String, String)]) -> Outcome<Recipe> {
        let own = Recipe::of_metadata(metadata).map_err(bad)?;
        Ok(self.over(own.unwrap_or_default()))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PixelLayout {
    /// Channels first
    Nchw,
    /// Channels last
    Nhwc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Resize {
    /// Shorter side to 256/224 of the size, then the centre, as classifiers are evaluated
    Crop,
    /// As small as covers the size, then the centre
    #[value(alias = "cover", alias = "fit")]
    Fill,
    /// Both sides to the size
    Stretch,
    /// All of it, as large as fits, on a plain background
    #[value(alias = "contain")]
    Letterbox,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Filter {
    Bilinear,
    Bicubic,
    Nearest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChannelOrder {
    Rgb,
    Bgr,
}

impl PixelLayout {
    fn meant(self) -> neap_picture::Layout {
        match self {
            PixelLayout::Nchw => neap_picture::Layout::Nchw,
            PixelLayout::Nhwc => neap_picture::Layout::Nhwc,
        }
    }
}

impl Resize {
    fn meant(self) -> neap_picture::Resize {
        match self {
            Resize::Crop => neap_picture::Resize::Crop,
            Resize::Fill => neap_picture::Resize::Fill,
            Resize::Stretch => neap_picture::Resize::Stretch,
            Resize::Letterbox => neap_picture::Resize::Letterbox,
        }
    }
}

impl Filter {
    fn meant(self) -> neap_picture::Filter {
        match self {
            Filter::Bilinear => neap_picture::Filter::Bilinear,
            Filter::Bicubic => neap_picture::Filter::Bicubic,
            Filter::Nearest => neap_picture::Filter::Nearest,
        }
    }
}

impl ChannelOrder {
    fn meant(self) -> neap_picture::ChannelOrder {
        match self {
            ChannelOrder::Rgb => neap_picture::ChannelOrder::Rgb,
            ChannelOrder::Bgr => neap_picture::ChannelOrder::Bgr,
        }
    }
}

/// Reads a photo as one sample of an input, whose first of four axes counts samples.
pub fn read(
    file: &File,
    info: &TensorInfo,
    recipe: &Recipe,
    limit_bytes: Option<u64>,
) -> Result<Vec<u8>, super::Trouble> {
    let target = target(info, recipe)?;
    let limit = limit_bytes.unwrap_or(neap_picture::MOST_BYTES);
    let pixels = prepare(file, &target, recipe, limit).map_err(|refusal| match refusal {
        Refusal::Bad(why) => super::Trouble::Bad(why),
        Refusal::TooLarge {
            width,
            height,
            bytes,
        } => {
            let (needed, left) = (Bytes(bytes), Bytes(limit));
            let why = format!("{width}x{height} pixels take {needed} to decode");
            match limit_bytes {
                None => super::Trouble::Bad(format!(
                    "{why}, more than {left}: scale the photo down first"
                )),
                Some(_) => super::Trouble::TooLarge(format!(
                    "{why}, and the budget leaves {left}: scale the photo down first, or give a larger budget"
                )),
            }
        }
    })?;
    let floats = |to: &dyn Fn(f32) -> Vec<u8>| -> Result<Vec<u8>, String> {
        Ok(recipe
            .floats(&pixels, &target)?
            .into_iter()
            .flat_map(to)
            .collect())
    };
    Ok(match info.ty.dtype {
        DType::F32 => floats(&|v| v.to_le_bytes().to_vec())?,
        DType::F16 => floats(&|v| f16::from_f32(v).to_le_bytes().to_vec())?,
        DType::U8 => recipe.bytes(&pixels, &target)?,
        dtype => return Err(format!("is {dtype}, a photo gives float32, float16 or uint8").into()),
    })
}

/// Height and width of a photo as it is seen.
pub fn size(path: &Path) -> Option<(usize, usize)> {
    let (width, height) = Head::of(&super::open_file(path).ok()?).ok()?.upright();
    Some((height, width))
}

/// Where a photo lies in an input, whose first of four axes counts photos.
fn target(info: &TensorInfo, recipe: &Recipe) -> Result<Target, String> {
    let shape = &info.ty.shape;
    let image = match shape[..] {
        [_, a, b, c] => vec![a, b, c],
        _ => shape.clone(),
    };
    Target::of(&image, recipe.layout).map_err(|_| {
        format!(
            "a photo does not fit the shape {}: images of 1 or 3 channels are wanted",
            shape_text(shape)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::random::tests::info;

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    #[test]
    fn options_stand_above_what_the_model_says() {
        let own = Recipe {
            resize: neap_picture::Resize::Fill,
            mean: vec![0.5],
            std: vec![0.2],
            ..Recipe::default()
        };
        let metadata = vec![(Recipe::KEY.to_string(), own.text())];
        let nothing = ImageOptions::default();
        assert_eq!(nothing.of_model(&metadata).unwrap(), own);
        let some = ImageOptions {
            std: vec![1.0],
            resize: Some(Resize::Letterbox),
            ..ImageOptions::default()
        };
        let found = some.of_model(&metadata).unwrap();
        assert_eq!((found.mean, found.std), (vec![0.5], vec![1.0]));
        assert_eq!(found.resize, neap_picture::Resize::Letterbox);
        let wrong = vec![(Recipe::KEY.to_string(), "no".to_string())];
        assert!(nothing.of_model(&wrong).is_err());
    }

    #[test]
    fn inputs_of_any_layout_take_photos() {
        let of = |shape: &[usize]| target(&info("float32", shape), &Recipe::default());
        assert_eq!(of(&[4, 3, 8, 9]).unwrap().width, 9);
        assert_eq!(of(&[1, 8, 9, 3]).unwrap().width, 9);
        assert_eq!(of(&[1, 8, 9]).unwrap().height, 8);
        assert!(of(&[1, 4, 8, 8]).unwrap_err().contains("1x4x8x8"));
        assert!(of(&[1, 1000, 7, 7]).is_err());
    }

    /// Photos prepared elsewhere, where they are at hand. Decoders differ by a pixel value here and there.
    #[test]
    fn photos_are_prepared_as_for_training() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
        if !folder.exists() {
            return neap_testing::absent("the photos are not there");
        }
        let settings = Recipe {
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
            ..Recipe::default()
        };
        let wanted = info("float32", &[1, 3, 224, 224]);
        // The third photo's margins are odd, which these tensors round down and torchvision to even.
        for photo in ["chelsea", "coffee"] {
            let open = |name: String| File::open(folder.join(name)).unwrap();
            let ours = read(&open(format!("{photo}.jpg")), &wanted, &settings, None).unwrap();
            let mut theirs = open(format!("mobilenet_v2_imagenet.{photo}.in.npy"));
            let (theirs, _) = crate::input::npy::read(&mut theirs, &wanted).unwrap();
            // In steps of one pixel value.
            let steps: Vec<f32> = floats(&ours)
                .iter()
                .zip(&floats(&theirs))
                .enumerate()
                .map(|(i, (a, b))| (a - b).abs() * settings.std[i / (224 * 224)] * 255.0)
                .collect();
            let mean = steps.iter().sum::<f32>() / steps.len() as f32;
            let most = steps.iter().copied().fold(0.0, f32::max);
            assert!(
                mean < 0.3 && most < 4.0,
                "{photo}: {mean} pixel values off, at most {most}"
            );
        }
    }
}
