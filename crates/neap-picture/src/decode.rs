//! From a file to pixels, in no more memory than was said.

use crate::head::{Format, Head};
use crate::orientation::Orientation;
use crate::resample::Pixels;
use crate::target::Target;
use std::fmt::Debug;
use std::fs::File;
use std::io::{BufReader, Read};
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;

/// Why a picture is not decoded.
#[derive(Debug, Clone, PartialEq)]
pub enum Refusal {
    Bad(String),
    /// Decoding it takes more than it may.
    TooLarge {
        width: usize,
        height: usize,
        bytes: u64,
    },
}

impl From<String> for Refusal {
    fn from(text: String) -> Refusal {
        Refusal::Bad(text)
    }
}

/// Decodes the picture in `file` within `limit_bytes`, in grey where the target is; leaves the file somewhere.
///
/// # Errors
/// [`Refusal`]; nothing of the picture was decoded where it is too large.
pub fn decode(file: &File, target: &Target, limit_bytes: u64) -> Result<Pixels, Refusal> {
    let head = Head::of(file)?;
    let bytes = head.bytes(target.width);
    let (width, height) = head.upright();
    if bytes > limit_bytes {
        return Err(Refusal::TooLarge {
            width,
            height,
            bytes,
        });
    }
    let mut pixels = match head.format {
        Format::Jpeg => jpeg(file)?,
        Format::Png => png(file, &head)?,
        Format::WebP => webp(file)?,
        Format::Bmp => bmp(file)?,
    };
    if (pixels.width, pixels.height) != (head.width, head.height) {
        return Err(Refusal::Bad("was changed while it was read".into()));
    }
    if target.channels == 1 {
        grey(&mut pixels);
    }
    Ok(Pixels {
        width,
        height,
        stored: head.orientation,
        ..pixels
    })
}

fn unreadable(error: impl Debug) -> String {
    format!("cannot be decoded: {error:?}")
}

fn whole(mut file: &File) -> Result<Vec<u8>, String> {
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    let mut bytes = Vec::with_capacity(len as usize);
    file.read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    Ok(bytes)
}

/// Interleaved bytes of 1 to 4 channels as pixels of 1 or 3: what is see-through counts as opaque.
fn pixels(
    width: usize,
    height: usize,
    channels: usize,
    mut data: Vec<u8>,
) -> Result<Pixels, String> {
    if data.len() != width * height * channels {
        return Err(unreadable("it has another size"));
    }
    let kept = if channels < 3 { 1 } else { 3 };
    if kept != channels {
        for pixel in 0..width * height {
            data.copy_within(pixel * channels..pixel * channels + kept, pixel * kept);
        }
        data.truncate(width * height * kept);
    }
    Ok(Pixels {
        width,
        height,
        channels: kept,
        data,
        stored: Orientation::Upright,
    })
}

/// Luma as Pillow's, where the colours were.
fn grey(pixels: &mut Pixels) {
    if pixels.channels == 1 {
        return;
    }
    let count = pixels.width * pixels.height;
    for pixel in 0..count {
        let [r, g, b] = [0, 1, 2].map(|c| u32::from(pixels.data[pixel * 3 + c]));
        pixels.data[pixel] = ((r * 19_595 + g * 38_470 + b * 7_471 + 0x8000) >> 16) as u8;
    }
    pixels.data.truncate(count);
    pixels.channels = 1;
}

fn options() -> DecoderOptions {
    DecoderOptions::default()
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
}

fn jpeg(file: &File) -> Result<Pixels, String> {
    let bytes = whole(file)?;
    let options = options().set_strict_mode(false);
    let cursor = ZCursor::new(bytes.as_slice());
    let mut decoder = zune_jpeg::JpegDecoder::new_with_options(cursor, options);
    decoder.decode_headers().map_err(unreadable)?;
    let wanted = match decoder.input_colorspace() {
        Some(ColorSpace::Luma) => ColorSpace::Luma,
        _ => ColorSpace::RGB,
    };
    decoder.set_options(options.jpeg_set_out_colorspace(wanted));
    let (width, height) = decoder.dimensions().ok_or("holds no pixels")?;
    let mut data = vec![0; width * height * wanted.num_components()];
    decoder.decode_into(&mut data).map_err(unreadable)?;
    pixels(width, height, wanted.num_components(), data)
}

fn png(file: &File, head: &Head) -> Result<Pixels, String> {
    let limits = png::Limits { bytes: usize::MAX };
    let mut decoder = png::Decoder::new_with_limits(BufReader::new(file), limits);
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().map_err(unreadable)?;
    let channels = reader.output_color_type().0.samples();
    let info = reader.info();
    let (width, height) = (info.width as usize, info.height as usize);
    if (width, height) != (head.width, head.height) {
        return Err("was changed while it was read".into());
    }
    if info.interlaced {
        let mut data = vec![0; width * height * channels];
        reader.next_frame(&mut data).map_err(unreadable)?;
        return pixels(width, height, channels, data);
    }
    let kept = if channels < 3 { 1 } else { 3 };
    let mut data = Vec::with_capacity(width * height * kept);
    while let Some(row) = reader.next_row().map_err(unreadable)? {
        for pixel in row.data().chunks_exact(channels) {
            data.extend_from_slice(&pixel[..kept]);
        }
    }
    pixels(width, height, kept, data)
}

fn webp(file: &File) -> Result<Pixels, String> {
    let mut decoder = image_webp::WebPDecoder::new(BufReader::new(file)).map_err(unreadable)?;
    let (width, height) = decoder.dimensions();
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let (width, height) = (width as usize, height as usize);
    let mut data = vec![0; width * height * channels];
    decoder.read_image(&mut data).map_err(unreadable)?;
    pixels(width, height, channels, data)
}

fn bmp(file: &File) -> Result<Pixels, String> {
    let bytes = whole(file)?;
    let cursor = ZCursor::new(bytes.as_slice());
    let mut decoder = zune_bmp::BmpDecoder::new_with_options(cursor, options());
    decoder.decode_headers().map_err(unreadable)?;
    let (width, height) = decoder.dimensions().ok_or("holds no pixels")?;
    let space = decoder.colorspace().ok_or("holds no pixels")?;
    let mut data = vec![0; width * height * space.num_components()];
    decoder.decode_into(&mut data).map_err(unreadable)?;
    pixels(width, height, space.num_components(), data)
}
