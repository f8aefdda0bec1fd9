//! Photos as inputs: decoded, turned upright, resized, normalised, in the model's layout.

use super::resample::{Pixels, Window, resample};
use super::{PHOTOS, has_extension};
use crate::failure::{Outcome, bad};
use clap::{Args, ValueEnum};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader};
use neaptide::{Bytes, DType, TensorInfo, shape_text};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::Path;

/// How pixels become a tensor. Options of `neap run`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Photos as inputs")]
pub struct ImageOptions {
    /// Subtracted per channel, after --scale [default: 0]
    #[arg(
        long,
        value_name = "A,B,C",
        value_delimiter = ',',
        allow_hyphen_values = true, value_parser = crate::numbers::finite_f32)]
    pub mean: Vec<f32>,
    /// Divided by per channel, after --mean [default: 1]
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', value_parser = crate::numbers::finite_f32)]
    pub std: Vec<f32>,
    /// Multiplied with values 0 to 255 [default: 1/255]
    #[arg(long, value_name = "X", value_parser = crate::numbers::finite_f32)]
    pub scale: Option<f32>,
    /// How the model lays out pixels [default: as the input's shape suggests]
    #[arg(long, value_name = "LAYOUT")]
    pub layout: Option<PixelLayout>,
    /// How a photo gets the input's size [default: crop]
    #[arg(long, value_name = "HOW")]
    pub resize: Option<Resize>,
    /// Order of the colour channels in the input [default: rgb]
    #[arg(long, value_name = "ORDER")]
    pub channel_order: Option<ChannelOrder>,
}

impl ImageOptions {
    /// Refuses options that would say nothing: none of the files of `--input` is a photo.
    pub fn check(&self, files: &[OsString]) -> Outcome {
        // A name that stands before the path changes nothing about its ending.
        let has_photo = files.iter().any(|f| has_extension(Path::new(f), PHOTOS));
        match self.first_given().filter(|_| !has_photo) {
            None => Ok(()),
            Some(option) => Err(bad(format!(
                "{option} is for photos: give --input NAME=FILE with a .jpg or .png, or leave {option} out"
            ))),
        }
    }

    fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--mean", !self.mean.is_empty()),
            ("--std", !self.std.is_empty()),
            ("--scale", self.scale.is_some()),
            ("--layout", self.layout.is_some()),
            ("--resize", self.resize.is_some()),
            ("--channel-order", self.channel_order.is_some()),
        ];
        let first = given.iter().find(|(_, is_given)| *is_given);
        first.map(|(option, _)| *option)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PixelLayout {
    /// Channels first
    Nchw,
    /// Channels last
    Nhwc,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Resize {
    /// Shorter side to 256/224 of the size, then the centre, as classifiers are evaluated
    #[default]
    Crop,
    /// Both sides to the size
    Stretch,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ChannelOrder {
    #[default]
    Rgb,
    Bgr,
}

/// Crops keep this part of the resized picture.
const CROP: (usize, usize) = (224, 256);

/// Without a budget. Small files can claim to hold very large pictures.
const MAX_DECODE_BYTES: u64 = 1 << 30;

/// Channels, height and width of the tensor, and its layout.
#[derive(Debug, PartialEq)]
struct Target {
    channels: usize,
    height: usize,
    width: usize,
    layout: PixelLayout,
}

/// Reads a photo for an input of one image.
pub fn read(
    file: &File,
    info: &TensorInfo,
    options: &ImageOptions,
    limit_bytes: Option<u64>,
) -> Result<Vec<u8>, String> {
    let target = target(info, options.layout)?;
    let normalise = Normalise::new(info, &target, options)?;
    let pixels = decode(file, target.channels, limit_bytes)?;
    let window = window(&pixels, &target, options.resize.unwrap_or_default())?;
    Ok(normalise.tensor(&resample(&pixels, &window), &target))
}

/// Height and width of a photo as it is seen.
pub fn size(path: &Path) -> Option<(usize, usize)> {
    let file = super::open_file(path).ok()?;
    let reader = ImageReader::new(BufReader::new(file));
    let mut decoder = reader.with_guessed_format().ok()?.into_decoder().ok()?;
    let (width, height) = decoder.dimensions();
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let is_turned = matches!(
        orientation,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    );
    let sides = (height as usize, width as usize);
    let (height, width) = if is_turned { (sides.1, sides.0) } else { sides };
    (height > 0 && width > 0).then_some((height, width))
}

fn target(info: &TensorInfo, layout: Option<PixelLayout>) -> Result<Target, String> {
    let shape = &info.ty.shape;
    let image = match shape[..] {
        [1, a, b, c] | [a, b, c] => [a, b, c],
        _ => {
            return Err(format!(
                "a photo does not fit the shape {}: one image of 1 or 3 channels is wanted",
                shape_text(shape)
            ));
        }
    };
    let colours = |n: usize| n == 1 || n == 3;
    let layout = match layout {
        Some(layout) => layout,
        None => match (colours(image[0]), colours(image[2])) {
            (true, false) => PixelLayout::Nchw,
            (false, true) => PixelLayout::Nhwc,
            (true, true) => return Err("say with --layout which axis holds the channels".into()),
            (false, false) => {
                return Err(format!(
                    "a photo does not fit the shape {}: neither side has 1 or 3 channels",
                    shape_text(shape)
                ));
            }
        },
    };
    let [channels, height, width] = match layout {
        PixelLayout::Nchw => image,
        PixelLayout::Nhwc => [image[2], image[0], image[1]],
    };
    if !colours(channels) || height == 0 || width == 0 {
        return Err(format!(
            "a photo does not fit {channels} channels of {height}x{width}"
        ));
    }
    Ok(Target {
        channels,
        height,
        width,
        layout,
    })
}

fn decode(file: &File, channels: usize, limit_bytes: Option<u64>) -> Result<Pixels, String> {
    let factor = if is_progressive_jpeg(file)? {
        3.0
    } else {
        1.25
    };
    let unreadable = |e: image::ImageError| format!("cannot be decoded: {e}");
    let mut decoder = ImageReader::new(BufReader::new(file))
        .with_guessed_format()
        .map_err(|e| e.to_string())?
        .into_decoder()
        .map_err(unreadable)?;
    let (width, height) = decoder.dimensions();
    let needed = (decoder.total_bytes() as f64 * factor) as u64;
    let limit = limit_bytes.unwrap_or(MAX_DECODE_BYTES);
    if needed > limit {
        return Err(format!(
            "{width}x{height} pixels take {} to decode, more than the {} that may be used: scale the photo down first",
            Bytes(needed),
            Bytes(limit)
        ));
    }
    if width == 0 || height == 0 {
        return Err("holds no pixels".into());
    }
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut picture = DynamicImage::from_decoder(decoder).map_err(unreadable)?;
    picture.apply_orientation(orientation);
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let data = match channels {
        1 => picture.into_luma8().into_raw(),
        _ => picture.into_rgb8().into_raw(),
    };
    Ok(Pixels {
        width,
        height,
        channels,
        data,
    })
}

/// Progressive files take coefficients of the whole picture beside its pixels. Leaves the file at its start.
fn is_progressive_jpeg(mut file: &File) -> Result<bool, String> {
    let walk = || -> std::io::Result<bool> {
        let mut reader = BufReader::with_capacity(4096, file);
        let mut marker = [0u8; 2];
        reader.read_exact(&mut marker)?;
        if marker != [0xff, 0xd8] {
            return Ok(false);
        }
        loop {
            reader.read_exact(&mut marker)?;
            match marker {
                [0xff, 0xc2] => return Ok(true),
                // Scan data, or not a marker at all: the decoder will say what is wrong.
                [0xff, 0xda] | [0..0xff, _] => return Ok(false),
                _ => {}
            }
            let mut len = [0u8; 2];
            reader.read_exact(&mut len)?;
            reader.seek_relative(i64::from(u16::from_be_bytes(len)).max(2) - 2)?;
        }
    };
    let progressive = walk().unwrap_or(false);
    file.rewind().map_err(|e| e.to_string())?;
    Ok(progressive)
}

fn window(pixels: &Pixels, target: &Target, resize: Resize) -> Result<Window, String> {
    let (height, width) = (target.height, target.width);
    let full = match resize {
        Resize::Stretch => [height, width],
        Resize::Crop => {
            let grown = |n: usize| (n * CROP.1 + CROP.0 / 2) / CROP.0;
            let (h, w) = (grown(height), grown(width));
            // The picture covers both sides; the other one keeps the proportions.
            if pixels.height * w >= pixels.width * h {
                [(w * pixels.height / pixels.width).max(h), w]
            } else {
                [h, (h * pixels.width / pixels.height).max(w)]
            }
        }
    };
    if full.iter().any(|&n| n > 1 << 20) {
        return Err("is too narrow for this input".into());
    }
    // Half a pixel is rounded to even.
    let half_even = |n: usize| n / 2 + usize::from(n % 4 == 3);
    Ok(Window {
        full,
        top: half_even(full[0] - height),
        left: half_even(full[1] - width),
        height,
        width,
    })
}

/// `(pixel * scale - mean) / std` per channel of the input; bytes stay bytes.
#[derive(Debug)]
struct Normalise {
    scale: f32,
    mean: Vec<f32>,
    std: Vec<f32>,
    swap: bool,
    dtype: DType,
}

impl Normalise {
    fn new(
        info: &TensorInfo,
        target: &Target,
        options: &ImageOptions,
    ) -> Result<Normalise, String> {
        let dtype = info.ty.dtype;
        let plain = options.mean.is_empty() && options.std.is_empty() && options.scale.is_none();
        match dtype {
            DType::F32 => {}
            DType::U8 if plain => {}
            DType::U8 => return Err("is uint8 and takes no --mean, --std or --scale".into()),
            _ => return Err(format!("is {dtype}, a photo gives float32 or uint8")),
        }
        let per_channel = |what: &str, values: &[f32], default: f32| match values {
            [] => Ok(vec![default; target.channels]),
            [one] => Ok(vec![*one; target.channels]),
            all if all.len() == target.channels => Ok(all.to_vec()),
            all => Err(format!(
                "--{what} has {} values for {} channels",
                all.len(),
                target.channels
            )),
        };
        let std = per_channel("std", &options.std, 1.0)?;
        if std.iter().any(|s| !s.is_normal()) {
            return Err("--std must not be zero".into());
        }
        Ok(Normalise {
            scale: options.scale.unwrap_or(1.0 / 255.0),
            mean: per_channel("mean", &options.mean, 0.0)?,
            std,
            swap: options.channel_order == Some(ChannelOrder::Bgr) && target.channels == 3,
            dtype,
        })
    }

    fn tensor(&self, pixels: &Pixels, target: &Target) -> Vec<u8> {
        let count = pixels.width * pixels.height;
        let mut tensor = Vec::with_capacity(pixels.data.len() * self.dtype.size_bytes());
        let mut push = |pixel: usize, channel: usize| {
            let from = if self.swap { 2 - channel } else { channel };
            let value = pixels.data[pixel * pixels.channels + from];
            if self.dtype == DType::U8 {
                tensor.push(value);
                return;
            }
            let value = (f32::from(value) * self.scale - self.mean[channel]) / self.std[channel];
            tensor.extend(value.to_le_bytes());
        };
        match target.layout {
            PixelLayout::Nchw => {
                (0..target.channels).for_each(|c| (0..count).for_each(|pixel| push(pixel, c)))
            }
            PixelLayout::Nhwc => {
                (0..count).for_each(|pixel| (0..target.channels).for_each(|c| push(pixel, c)))
            }
        }
        tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::random::tests::info;

    fn options() -> ImageOptions {
        ImageOptions {
            mean: Vec::new(),
            std: Vec::new(),
            scale: None,
            layout: None,
            resize: Some(Resize::Crop),
            channel_order: Some(ChannelOrder::Rgb),
        }
    }

    fn png(width: u32, height: u32, at: impl Fn(u32, u32) -> [u8; 3]) -> File {
        let picture = image::RgbImage::from_fn(width, height, |x, y| image::Rgb(at(x, y)));
        let mut file = tempfile::tempfile().unwrap();
        picture
            .write_to(&mut file, image::ImageFormat::Png)
            .unwrap();
        file.rewind().unwrap();
        file
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect()
    }

    #[test]
    fn layouts_follow_the_shape() {
        let layout = |shape: &[usize]| target(&info("float32", shape), None).map(|t| t.layout);
        assert_eq!(layout(&[1, 3, 8, 9]), Ok(PixelLayout::Nchw));
        assert_eq!(layout(&[1, 8, 9, 3]), Ok(PixelLayout::Nhwc));
        assert_eq!(layout(&[1, 8, 9]), Ok(PixelLayout::Nchw));
        assert!(layout(&[1, 3, 8, 3]).unwrap_err().contains("--layout"));
        assert!(layout(&[2, 3, 8, 8]).is_err());
        assert!(layout(&[1, 4, 8, 8]).is_err());
        assert!(layout(&[1, 1000]).is_err());
    }

    #[test]
    fn channels_are_normalised_and_ordered() {
        let file = png(4, 4, |_, _| [255, 51, 0]);
        let settings = ImageOptions {
            mean: vec![0.5, 0.0, 0.0],
            std: vec![0.5, 0.1, 1.0],
            resize: Some(Resize::Stretch),
            ..options()
        };
        let values =
            floats(&read(&file, &info("float32", &[1, 3, 2, 2]), &settings, None).unwrap());
        assert_eq!(&values[..4], [1.0; 4]);
        assert!((values[4] - 2.0).abs() < 1e-6 && values[8] == 0.0);

        let bgr = ImageOptions {
            channel_order: Some(ChannelOrder::Bgr),
            ..options()
        };
        let values = read(&file, &info("uint8", &[1, 2, 2, 3]), &bgr, None).unwrap();
        assert_eq!(values[..3], [0, 51, 255]);
    }

    #[test]
    fn a_crop_is_the_centre() {
        // A wide picture: dark left, bright right, one grey band in the middle.
        let file = png(400, 100, |x, _| {
            if (150..250).contains(&x) {
                [128; 3]
            } else {
                [0; 3]
            }
        });
        let values = read(&file, &info("uint8", &[1, 56, 56, 3]), &options(), None).unwrap();
        assert!(values.iter().all(|&v| v == 128), "only the band is seen");
    }

    #[test]
    fn wrong_photos_and_options() {
        let complaint = |file: &File, shape: &[usize], o: &ImageOptions, limit| {
            read(file, &info("float32", shape), o, limit).unwrap_err()
        };
        let file = png(64, 64, |_, _| [1; 3]);
        let two = ImageOptions {
            mean: vec![0.1, 0.2],
            ..options()
        };
        assert!(complaint(&file, &[1, 3, 8, 8], &two, None).contains("2 values"));
        let zero = ImageOptions {
            std: vec![0.0],
            ..options()
        };
        assert!(complaint(&file, &[1, 3, 8, 8], &zero, None).contains("zero"));
        assert!(complaint(&file, &[1, 3, 8, 8], &options(), Some(1000)).contains("may be used"));
        let mut broken = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut broken, b"\xff\xd8\xff\xe0nonsense").unwrap();
        broken.rewind().unwrap();
        assert!(complaint(&broken, &[1, 3, 8, 8], &options(), None).contains("decoded"));
    }

    /// Photos prepared elsewhere, where they are at hand. Decoders differ by a pixel value here and there.
    #[test]
    fn photos_are_prepared_as_for_training() {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/models");
        if !folder.exists() {
            return neap_testing::absent("the photos are not there");
        }
        let settings = ImageOptions {
            mean: vec![0.485, 0.456, 0.406],
            std: vec![0.229, 0.224, 0.225],
            ..options()
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
