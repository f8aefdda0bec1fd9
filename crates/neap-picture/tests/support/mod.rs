//! Files of every kind.
#![allow(dead_code)]

use neap_picture::{MOST_BYTES, Pixels, Target, decode};
use std::fs::File;
use std::io::{Seek, Write};

pub fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file
}

/// A picture that is not even anywhere, and compresses badly.
pub fn noise(width: usize, height: usize, channels: usize) -> Vec<u8> {
    let mut state = 7u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..width * height * channels).map(next).collect()
}

pub fn png_of(width: usize, height: usize, color: png::ColorType, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(data).unwrap();
    writer.finish().unwrap();
    out
}

pub struct Jpeg {
    pub progressive: bool,
    pub color: jpeg_encoder::ColorType,
    pub sampling: jpeg_encoder::SamplingFactor,
    pub exif: Option<u8>,
}

pub const PLAIN: Jpeg = Jpeg {
    progressive: false,
    color: jpeg_encoder::ColorType::Rgb,
    sampling: jpeg_encoder::SamplingFactor::F_2_2,
    exif: None,
};

impl Jpeg {
    pub fn of(&self, width: usize, height: usize, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = jpeg_encoder::Encoder::new(&mut out, 95);
        encoder.set_progressive(self.progressive);
        encoder.set_sampling_factor(self.sampling);
        if let Some(number) = self.exif {
            let mut exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
            exif.extend([number, 0, 0, 0, 0, 0, 0]);
            encoder.add_app_segment(1, &exif).unwrap();
        }
        encoder
            .encode(data, width as u16, height as u16, self.color)
            .unwrap();
        out
    }
}

/// Rows from the bottom, blue first, each a multiple of four bytes.
pub fn bmp_of(width: usize, height: usize, rgb: &[u8]) -> Vec<u8> {
    let row = (width * 3).next_multiple_of(4);
    let mut out = b"BM".to_vec();
    out.extend((54 + row * height).to_le_bytes()[..4].iter());
    out.extend([0, 0, 0, 0, 54, 0, 0, 0, 40, 0, 0, 0]);
    out.extend((width as u32).to_le_bytes());
    out.extend((height as u32).to_le_bytes());
    out.extend([1, 0, 24, 0]);
    out.extend([0; 24]);
    for line in rgb.chunks_exact(width * 3).rev() {
        let mut stored: Vec<u8> = line
            .chunks_exact(3)
            .flat_map(|p| [p[2], p[1], p[0]])
            .collect();
        stored.resize(row, 0);
        out.extend(stored);
    }
    out
}

pub fn webp_of(width: usize, height: usize, rgb: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let encoder = image_webp::WebPEncoder::new(&mut out);
    let (w, h) = (width as u32, height as u32);
    encoder
        .encode(rgb, w, h, image_webp::ColorType::Rgb8)
        .unwrap();
    out
}

pub fn colour() -> Target {
    Target::of(&[3, 8, 8], None).unwrap()
}

pub fn decoded(bytes: &[u8]) -> Pixels {
    decode(&file(bytes), &colour(), MOST_BYTES).unwrap()
}

/// Files of all kinds, by name, each of `width` x `height`.
pub fn kinds(width: usize, height: usize) -> Vec<(&'static str, Vec<u8>)> {
    let rgb = noise(width, height, 3);
    let rgba = noise(width, height, 4);
    let luma = noise(width, height, 1);
    let jpeg = |jpeg: Jpeg, data: &[u8]| jpeg.of(width, height, data);
    let grey = jpeg_encoder::ColorType::Luma;
    let whole = jpeg_encoder::SamplingFactor::F_1_1;
    vec![
        ("jpeg", jpeg(PLAIN, &rgb)),
        (
            "jpeg, 4:4:4",
            jpeg(
                Jpeg {
                    sampling: whole,
                    ..PLAIN
                },
                &rgb,
            ),
        ),
        (
            "grey jpeg",
            jpeg(
                Jpeg {
                    color: grey,
                    ..PLAIN
                },
                &luma,
            ),
        ),
        (
            "progressive jpeg",
            jpeg(
                Jpeg {
                    progressive: true,
                    ..PLAIN
                },
                &rgb,
            ),
        ),
        (
            "turned jpeg",
            jpeg(
                Jpeg {
                    exif: Some(6),
                    ..PLAIN
                },
                &rgb,
            ),
        ),
        ("png", png_of(width, height, png::ColorType::Rgb, &rgb)),
        (
            "grey png",
            png_of(width, height, png::ColorType::Grayscale, &luma),
        ),
        (
            "png with alpha",
            png_of(width, height, png::ColorType::Rgba, &rgba),
        ),
        ("webp", webp_of(width, height, &rgb)),
        ("bmp", bmp_of(width, height, &rgb)),
    ]
}

pub fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/");
    ["lossy.webp", "lossy_alpha.webp"]
        .map(|name| (name, std::fs::read(format!("{folder}{name}")).unwrap()))
        .to_vec()
}
