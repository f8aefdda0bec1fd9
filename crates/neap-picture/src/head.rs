//! What a picture's file says of itself before it is decoded: its size, and so what decoding takes; and whether the file
//! goes on to its end.

use crate::orientation::Orientation;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Endings of pictures' files.
pub const ENDINGS: &[&str] = &["jpg", "jpeg", "png", "webp", "bmp"];

/// Whether a file's ending is one of [`ENDINGS`].
pub fn is_picture(path: &Path) -> bool {
    let ending = path.extension();
    ending.is_some_and(|e| ENDINGS.iter().any(|known| e.eq_ignore_ascii_case(known)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Jpeg,
    Png,
    WebP,
    Bmp,
}

/// The head of a picture's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    pub format: Format,
    /// As stored, before it is turned upright.
    pub width: usize,
    pub height: usize,
    pub(crate) orientation: Orientation,
    /// Beside pixels and the file: coefficients, planes and the like.
    decoder_bytes: u64,
    file_bytes: u64,
}

/// Tables, rows and buffers of any decoder.
const FIXED_BYTES: u64 = 256 << 10;

const CUT_SHORT: &str = "is cut short: its end is missing";

impl Head {
    /// Reads the head, and leaves the file at its start.
    ///
    /// # Errors
    /// It is no picture that is known, or is cut short.
    pub fn of(file: &File) -> Result<Head, String> {
        let file_bytes = file.metadata().map_err(|e| e.to_string())?.len();
        let mut reader = BufReader::with_capacity(16 << 10, file);
        let head = read(&mut reader, file_bytes);
        reader.rewind().map_err(|e| e.to_string())?;
        let head = head?;
        match head.width == 0 || head.height == 0 {
            true => Err("holds no pixels".into()),
            false => Ok(head),
        }
    }

    /// Width and height of the upright picture.
    pub fn upright(&self) -> (usize, usize) {
        match self.orientation.exchanges_sides() {
            true => (self.height, self.width),
            false => (self.width, self.height),
        }
    }

    /// The most that is in memory while the picture is decoded and resized to be `width` wide.
    pub fn bytes(&self, width: usize) -> u64 {
        let pixels = (self.width as u64).saturating_mul(self.height as u64);
        let decoded = pixels.saturating_mul(match self.format {
            Format::Jpeg | Format::Png => 3,
            Format::WebP | Format::Bmp => 4,
        });
        let decoding = decoded
            .saturating_add(self.decoder_bytes)
            .saturating_add(self.file_bytes);
        let rows = (self.upright().1 as u64).saturating_mul(width as u64);
        let resizing = decoded.saturating_add(rows.saturating_mul(3));
        decoding.max(resizing).saturating_add(FIXED_BYTES)
    }
}

type Source<'f> = BufReader<&'f File>;

fn read(reader: &mut Source, file_bytes: u64) -> Result<Head, String> {
    if file_bytes == 0 {
        return Err("is empty".into());
    }
    let mut magic = [0; 12];
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::UnexpectedEof => CUT_SHORT.to_string(),
        _ => e.to_string(),
    };
    let known = reader.fill_buf().map_err(failed)?;
    let len = known.len().min(12);
    magic[..len].copy_from_slice(&known[..len]);
    let head = match magic {
        [0xff, 0xd8, ..] => jpeg(reader, file_bytes),
        [0x89, b'P', b'N', b'G', ..] => png(reader, file_bytes),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P'] => webp(reader, file_bytes),
        [b'B', b'M', ..] => bmp(reader, file_bytes),
        _ => return Err("is no JPEG, PNG, WebP or BMP".into()),
    };
    head.map_err(failed)?.ok_or_else(|| CUT_SHORT.into())
}

type Found = std::io::Result<Option<Head>>;

fn refused(why: &str) -> std::io::Error {
    std::io::Error::other(why.to_string())
}

fn skip(reader: &mut Source, bytes: u64) -> std::io::Result<()> {
    reader.seek_relative(i64::try_from(bytes).map_err(|_| refused("is damaged"))?)
}

fn short(reader: &mut Source) -> std::io::Result<u16> {
    let mut bytes = [0; 2];
    reader.read_exact(&mut bytes)?;
    Ok(u16::from_be_bytes(bytes))
}

/// The next marker; other bytes before it, of which there should be none, are passed over, as decoders do.
fn marker(reader: &mut Source) -> std::io::Result<u8> {
    loop {
        while first(reader)? != 0xff {}
        let mut second = 0xff;
        while second == 0xff {
            second = first(reader)?;
        }
        if second != 0 {
            return Ok(second);
        }
    }
}

/// Segments up to the scan, and the marker at the end.
fn jpeg(reader: &mut Source, file_bytes: u64) -> Found {
    let mut orientation = Orientation::Upright;
    let mut frame = None;
    short(reader)?;
    loop {
        let marker = marker(reader)?;
        if marker == 0xd9 {
            return Err(refused("is damaged: it ends before its pixels"));
        }
        let len = u64::from(short(reader)?);
        let inner = len.checked_sub(2).ok_or_else(|| refused("is damaged"))?;
        match marker {
            0xe1 => {
                let mut data = vec![0; inner as usize];
                reader.read_exact(&mut data)?;
                if let Some(exif) = data.strip_prefix(b"Exif\0\0") {
                    orientation = Orientation::of_exif(exif);
                }
            }
            // Frames: baseline, extended and progressive; the decoder refuses others.
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                let mut data = vec![0; inner as usize];
                reader.read_exact(&mut data)?;
                frame = Some(Frame::of(&data, marker == 0xc2)?);
            }
            0xda => {
                let components = usize::from(first(reader)?);
                skip(reader, inner.saturating_sub(1))?;
                let frame: Frame = frame.ok_or_else(|| refused("is damaged: it has no frame"))?;
                if !has_end(reader, file_bytes)? {
                    return Ok(None);
                }
                // What comes in several scans is kept whole until the last of them.
                let keeps = frame.is_progressive || components < frame.components;
                return Ok(Some(Head {
                    format: Format::Jpeg,
                    width: frame.width,
                    height: frame.height,
                    orientation,
                    decoder_bytes: frame.row_bytes
                        + if keeps { frame.coefficient_bytes } else { 0 },
                    file_bytes,
                }));
            }
            _ => skip(reader, inner)?,
        }
    }
}

fn first(reader: &mut Source) -> std::io::Result<u8> {
    let mut byte = [0];
    reader.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// A JPEG's frame.
struct Frame {
    width: usize,
    height: usize,
    components: usize,
    is_progressive: bool,
    coefficient_bytes: u64,
    /// Of a row of blocks, in several forms.
    row_bytes: u64,
}

impl Frame {
    fn of(data: &[u8], is_progressive: bool) -> std::io::Result<Frame> {
        let damaged = || refused("is damaged: its frame is not readable");
        let [_, h0, h1, w0, w1, components, sampling @ ..] = data else {
            return Err(damaged());
        };
        let height = usize::from(u16::from_be_bytes([*h0, *h1]));
        let width = usize::from(u16::from_be_bytes([*w0, *w1]));
        let components = usize::from(*components);
        let samples: Vec<(u64, u64)> = (sampling.chunks_exact(3).take(components))
            .map(|c| (u64::from(c[1] >> 4).max(1), u64::from(c[1] & 15).max(1)))
            .collect();
        if samples.len() != components || components == 0 {
            return Err(damaged());
        }
        let most = |of: fn(&(u64, u64)) -> u64| samples.iter().map(of).max().unwrap_or(1);
        let (across, down) = (most(|s| s.0), most(|s| s.1));
        let units = |side: usize, by: u64| (side as u64).div_ceil(8 * by);
        let (columns, rows) = (units(width, across), units(height, down));
        let blocks: u64 = samples.iter().map(|(h, v)| h * v).sum();
        // 64 coefficients of two bytes each.
        let of_row = columns * blocks * 64 * 2;
        Ok(Frame {
            width,
            height,
            components,
            is_progressive,
            coefficient_bytes: of_row * rows,
            row_bytes: of_row * 6,
        })
    }
}

/// Where the end of a JPEG's data is looked for first.
const TAIL_BYTES: u64 = 64 << 10;

/// Whether the marker of the end comes after the scan in which the reader stands. In a scan's data no other `ff d9` can be.
fn has_end(reader: &mut Source, file_bytes: u64) -> std::io::Result<bool> {
    let scan = reader.stream_position()?;
    let tail = file_bytes.saturating_sub(TAIL_BYTES).max(scan);
    reader.seek(SeekFrom::Start(tail))?;
    if finds_end(reader)? {
        return Ok(true);
    }
    // Behind the end of the picture there may be more, such as a film.
    reader.seek(SeekFrom::Start(scan))?;
    Ok(tail > scan && finds_end(reader)?)
}

fn finds_end(reader: &mut Source) -> std::io::Result<bool> {
    let mut before = 0;
    loop {
        let bytes = reader.fill_buf()?;
        let Some(&last) = bytes.last() else {
            return Ok(false);
        };
        let starts = before == 0xff && bytes[0] == 0xd9;
        if starts || bytes.windows(2).any(|pair| pair == [0xff, 0xd9]) {
            return Ok(true);
        }
        before = last;
        let len = bytes.len();
        reader.consume(len);
    }
}

/// Chunks, up to the one that ends the file.
fn png(reader: &mut Source, file_bytes: u64) -> Found {
    skip(reader, 8)?;
    let mut head: Option<Head> = None;
    let mut at = 8;
    while at < file_bytes {
        let mut start = [0; 8];
        reader.read_exact(&mut start)?;
        let [a, b, c, d, kind @ ..] = start;
        let len = u32::from_be_bytes([a, b, c, d]);
        at += u64::from(len) + 12;
        if at > file_bytes {
            return Ok(None);
        }
        let mut left = u64::from(len) + 4;
        match (&kind, &mut head) {
            (b"IHDR", None) if len >= 13 => {
                let mut data = [0; 13];
                reader.read_exact(&mut data)?;
                left -= 13;
                let side = |at: usize| {
                    let bytes = [data[at], data[at + 1], data[at + 2], data[at + 3]];
                    u32::from_be_bytes(bytes) as usize
                };
                let (width, height) = (side(0), side(4));
                // Rows as they are stored and unpacked; all of them where the picture comes in passes.
                let rows = if data[12] == 0 { 8 } else { height as u64 };
                head = Some(Head {
                    format: Format::Png,
                    width,
                    height,
                    orientation: Orientation::Upright,
                    decoder_bytes: (width as u64).saturating_mul(8).saturating_mul(rows),
                    file_bytes: 0,
                });
            }
            (b"eXIf", Some(head)) if len < 1 << 16 => {
                let mut data = vec![0; len as usize];
                reader.read_exact(&mut data)?;
                left -= u64::from(len);
                head.orientation = Orientation::of_exif(&data);
            }
            (b"IEND", Some(_)) => return Ok(head),
            (_, None) => return Err(refused("is damaged: it does not begin with its size")),
            _ => {}
        }
        skip(reader, left)?;
    }
    Ok(None)
}

fn webp(reader: &mut Source, file_bytes: u64) -> Found {
    let mut start = [0; 8];
    reader.read_exact(&mut start)?;
    let [_, _, _, _, a, b, c, d] = start;
    if u64::from(u32::from_le_bytes([a, b, c, d])) + 8 > file_bytes {
        return Ok(None);
    }
    reader.rewind()?;
    let failed = |e: image_webp::DecodingError| refused(&format!("is damaged: {e}"));
    let mut decoder = image_webp::WebPDecoder::new(reader).map_err(failed)?;
    decoder.set_memory_limit(1 << 16);
    let (width, height) = decoder.dimensions();
    let exif = decoder.exif_metadata().ok().flatten();
    let pixels = u64::from(width) * u64::from(height);
    Ok(Some(Head {
        format: Format::WebP,
        width: width as usize,
        height: height as usize,
        orientation: exif.map_or(Orientation::Upright, |exif| Orientation::of_exif(&exif)),
        // Another picture of four bytes where it is lossless or moves, or planes; and what a pixel's code is made of.
        decoder_bytes: pixels.saturating_mul(if decoder.is_animated() { 8 } else { 5 }),
        file_bytes,
    }))
}

fn bmp(reader: &mut Source, file_bytes: u64) -> Found {
    let mut start = [0; 34];
    reader.read_exact(&mut start)?;
    let long = |at: usize| {
        let bytes = [start[at], start[at + 1], start[at + 2], start[at + 3]];
        u32::from_le_bytes(bytes)
    };
    let word = |at: usize| u16::from_le_bytes([start[at], start[at + 1]]);
    let (data, size) = (long(10), long(14));
    let (width, height, bits, compression) = match size {
        12 => (u32::from(word(18)), u32::from(word(20)), word(24), 0),
        // Rows from the top have a height below zero.
        _ => (
            long(18).cast_signed().unsigned_abs(),
            long(22).cast_signed().unsigned_abs(),
            word(28),
            long(30),
        ),
    };
    let row = (u64::from(width) * u64::from(bits)).div_ceil(32) * 4;
    let is_whole = matches!(compression, 0 | 3 | 6);
    if is_whole && u64::from(data).saturating_add(row.saturating_mul(height.into())) > file_bytes {
        return Ok(None);
    }
    let pixels = u64::from(width) * u64::from(height);
    Ok(Some(Head {
        format: Format::Bmp,
        width: width as usize,
        height: height as usize,
        orientation: Orientation::Upright,
        decoder_bytes: if is_whole { row * 2 } else { pixels },
        file_bytes,
    }))
}
