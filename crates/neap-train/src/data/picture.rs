//! Pictures of any size as the planes of an input.

use super::prepare::Planes;
use crate::error::{Result, bad, unreadable};
use image::imageops::FilterType;
use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageDecoder, ImageReader, Limits, RgbImage};
use std::path::Path;

/// What decoding one picture may take; see [`MEMORY_BYTES`].
const DECODE_BYTES: u64 = 128 << 20;

/// The most that reading a picture takes: what it decodes to, and the same again while it is turned or converted.
pub const MEMORY_BYTES: u64 = 2 * DECODE_BYTES;

/// Decodes a JPEG or PNG file, upright.
///
/// # Errors
/// It cannot be read or decoded.
pub fn read(path: &Path) -> Result<DynamicImage> {
    let mut reader = ImageReader::open(path)
        .and_then(ImageReader::with_guessed_format)
        .map_err(|e| unreadable(path, e))?;
    let mut limits = Limits::default();
    limits.max_alloc = Some(DECODE_BYTES);
    reader.limits(limits);
    let decoded = reader.into_decoder().and_then(|mut decoder| {
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut picture = DynamicImage::from_decoder(decoder)?;
        picture.apply_orientation(orientation);
        Ok(picture)
    });
    decoded.map_err(|e| unreadable(path, e))
}

/// A picture of raw pixels: rows of `channels` interleaved bytes.
///
/// # Errors
/// It has neither 1 nor 3 channels.
pub fn of_pixels(
    pixels: Vec<u8>,
    height: usize,
    width: usize,
    channels: usize,
) -> Result<DynamicImage> {
    let (h, w) = (height as u32, width as u32);
    let picture = match channels {
        1 => GrayImage::from_raw(w, h, pixels).map(DynamicImage::ImageLuma8),
        3 => RgbImage::from_raw(w, h, pixels).map(DynamicImage::ImageRgb8),
        _ => None,
    };
    picture.ok_or_else(|| bad(format!("{height}x{width}x{channels} are no pixels")))
}

/// The middle of a picture, resized to fill the planes; values 0 to 255. Grey becomes colour and the other way round.
pub fn fill(picture: &DynamicImage, planes: &Planes) -> Vec<f32> {
    let (width, height) = (planes.width as u32, planes.height as u32);
    let resized = if (picture.width(), picture.height()) == (width, height) {
        None
    } else {
        Some(picture.resize_to_fill(width, height, FilterType::Triangle))
    };
    let picture = resized.as_ref().unwrap_or(picture);
    let pixels = if planes.channels == 1 {
        picture.to_luma8().into_raw()
    } else {
        picture.to_rgb8().into_raw()
    };
    let mut values = vec![0.0; pixels.len()];
    for row in 0..planes.height {
        for column in 0..planes.width {
            for channel in 0..planes.channels {
                let from = (row * planes.width + column) * planes.channels + channel;
                values[planes.at(channel, row, column)] = f32::from(pixels[from]);
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planes(channels: usize, height: usize, width: usize, channels_last: bool) -> Planes {
        Planes {
            channels,
            height,
            width,
            channels_last,
        }
    }

    #[test]
    fn pixels_go_where_the_layout_wants_them() {
        let picture = of_pixels((0..12).collect(), 2, 2, 3).unwrap();
        let first = fill(&picture, &planes(3, 2, 2, false));
        assert_eq!(first, [0., 3., 6., 9., 1., 4., 7., 10., 2., 5., 8., 11.]);
        let last = fill(&picture, &planes(3, 2, 2, true));
        assert!(last.into_iter().eq((0..12).map(|v| v as f32)));
    }

    #[test]
    fn the_middle_of_a_wide_picture_fills_a_square() {
        let pixels = (0..4 * 12).map(|i| if (4..8).contains(&(i % 12)) { 200 } else { 0 });
        let picture = of_pixels(pixels.collect(), 4, 12, 1).unwrap();
        let values = fill(&picture, &planes(3, 4, 4, false));
        assert_eq!(values.len(), 48);
        assert!(values.iter().all(|&v| v == 200.0), "{values:?}");
        assert!(of_pixels(vec![0; 8], 2, 2, 2).is_err());
    }
}
