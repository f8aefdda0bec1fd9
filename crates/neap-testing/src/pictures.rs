//! Files of pictures, for tests that read some.

fn pixels(width: u16, height: u16, at: impl Fn(u16, u16) -> [u8; 3]) -> Vec<u8> {
    (0..height)
        .flat_map(|y| (0..width).map(move |x| (x, y)))
        .flat_map(|(x, y)| at(x, y))
        .collect()
}

/// A PNG of which a function gives each pixel, by column and row.
pub fn png(width: u16, height: u16, at: impl Fn(u16, u16) -> [u8; 3]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width.into(), height.into());
    encoder.set_color(png::ColorType::Rgb);
    let mut writer = encoder.write_header().expect("a head in memory");
    let data = pixels(width, height, at);
    writer.write_image_data(&data).expect("pixels in memory");
    writer.finish().expect("an end in memory");
    out
}

/// The same as a JPEG.
pub fn jpeg(width: u16, height: u16, at: impl Fn(u16, u16) -> [u8; 3]) -> Vec<u8> {
    let mut out = Vec::new();
    let data = pixels(width, height, at);
    jpeg_encoder::Encoder::new(&mut out, 95)
        .encode(&data, width, height, jpeg_encoder::ColorType::Rgb)
        .expect("pixels in memory");
    out
}
