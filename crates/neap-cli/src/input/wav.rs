//! Sound in `.wav` files: samples from -1 to 1, the channels' mean.
//!
//! ```text
//!   RIFF size WAVE  (name size bytes)…      fmt: how samples are written; data: the samples
//! ```
//! Rates are not changed: a model takes the rate that it was trained with.

use super::Trouble;
use neaptide::{DType, Declared, DeclaredDim, TensorInfo, shape_text};
use std::io::{Read, Seek, SeekFrom};

/// How samples are written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// 8 bits are without a sign.
    Integer,
    Float,
}

/// What the file says before its samples, which come next.
struct Head {
    kind: Kind,
    channels: usize,
    rate: u32,
    sample_bytes: usize,
    /// Samples of each channel.
    len: usize,
}

/// Chunks that are looked through for the samples.
const MOST_CHUNKS: usize = 64;
const MOST_CHANNELS: usize = 64;

/// Read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// The tensor, and what to say of the file.
pub fn read(
    file: impl Read + Seek,
    info: &TensorInfo,
) -> Result<(Vec<u8>, Option<String>), Trouble> {
    let mut file = file;
    let head = Head::read(&mut file)?;
    if info.ty.dtype != DType::F32 {
        return Err(format!("sound is float32, the input is {}", info.ty.dtype).into());
    }
    if head.len != info.ty.elements() {
        let (len, shape) = (head.len, shape_text(&info.ty.shape));
        let elements = info.ty.elements();
        return Err(format!("has {len} samples, {shape} has {elements}").into());
    }
    let mut tensor = super::room(info.len_bytes())?;
    let frame = head.channels * head.sample_bytes;
    let mut piece = vec![0; (PIECE_BYTES / frame).max(1) * frame];
    let mut left = head.len;
    while left > 0 {
        let frames = left.min(piece.len() / frame);
        let piece = &mut piece[..frames * frame];
        file.read_exact(piece).map_err(|e| e.to_string())?;
        for frame in piece.chunks_exact(frame) {
            let samples = frame.chunks_exact(head.sample_bytes);
            let sum: f64 = samples.map(|sample| head.kind.value(sample)).sum();
            tensor.extend(((sum / head.channels as f64) as f32).to_le_bytes());
        }
        left -= frames;
    }
    let channels = match head.channels {
        1 => "one channel".into(),
        n => format!("the mean of {n} channels"),
    };
    let rate = head.rate;
    Ok((tensor, Some(format!("{rate} samples a second, {channels}"))))
}

/// The shape that a file gives to an input that leaves dimensions open: its samples in the last of them, 1 in the others.
pub fn shape(file: impl Read + Seek, input: &Declared) -> Option<Vec<usize>> {
    let mut file = file;
    let len = Head::read(&mut file).ok()?.len;
    let dims = input.dims.as_deref()?;
    let last = dims.len().checked_sub(1)?;
    let size = |(at, dim): (usize, &DeclaredDim)| match dim {
        DeclaredDim::Fixed(size) => *size,
        _ if at == last => len,
        _ => 1,
    };
    Some(dims.iter().enumerate().map(size).collect())
}

impl Head {
    fn read(file: &mut (impl Read + Seek)) -> Result<Head, String> {
        let mut mark = [0; 12];
        let cut = |e: std::io::Error| format!("is no whole .wav: {e}");
        file.read_exact(&mut mark).map_err(cut)?;
        if &mark[..4] != b"RIFF" || &mark[8..] != b"WAVE" {
            return Err("is no .wav: it does not begin with RIFF and WAVE".into());
        }
        let mut format = None;
        for _ in 0..MOST_CHUNKS {
            let mut chunk = [0; 8];
            file.read_exact(&mut chunk).map_err(cut)?;
            let bytes = u32::from_le_bytes([chunk[4], chunk[5], chunk[6], chunk[7]]);
            match &chunk[..4] {
                b"fmt " if bytes >= 16 => {
                    let mut fields = [0; 40];
                    let wanted = (bytes as usize).min(fields.len());
                    file.read_exact(&mut fields[..wanted]).map_err(cut)?;
                    format = Some(Head::of_fields(&fields)?);
                    skip(
                        file,
                        u64::from(bytes) - wanted as u64 + u64::from(bytes & 1),
                    )
                }
                b"data" => {
                    let mut head = format.ok_or("has samples before it says what they are")?;
                    head.len = bytes as usize / (head.channels * head.sample_bytes);
                    let here = file.stream_position().map_err(cut)?;
                    let end = file.seek(SeekFrom::End(0)).map_err(cut)?;
                    if end - here < u64::from(bytes) {
                        return Err(format!(
                            "is cut off: {bytes} bytes of samples are announced, {} are there",
                            end - here
                        ));
                    }
                    file.seek(SeekFrom::Start(here)).map_err(cut)?;
                    return Ok(head);
                }
                _ => skip(file, u64::from(bytes) + u64::from(bytes & 1)),
            }
            .map_err(cut)?;
        }
        Err("has no samples".into())
    }

    fn of_fields(fields: &[u8; 40]) -> Result<Head, String> {
        let two = |at: usize| u16::from_le_bytes([fields[at], fields[at + 1]]);
        // An extended header has the kind further on.
        let kind = match two(0) {
            0xfffe => two(24),
            kind => kind,
        };
        let (channels, bits) = (usize::from(two(2)), two(14));
        let kind = match (kind, bits) {
            (1, 8 | 16 | 24 | 32) => Kind::Integer,
            (3, 32 | 64) => Kind::Float,
            (kind, bits) => {
                return Err(format!(
                    "has samples of kind {kind} in {bits} bits: integers of 8, 16, 24 or 32 bits and floats are read"
                ));
            }
        };
        if channels == 0 || channels > MOST_CHANNELS {
            return Err(format!("has {channels} channels"));
        }
        Ok(Head {
            kind,
            channels,
            rate: u32::from_le_bytes([fields[4], fields[5], fields[6], fields[7]]),
            sample_bytes: usize::from(bits / 8),
            len: 0,
        })
    }
}

fn skip(file: &mut impl Seek, bytes: u64) -> std::io::Result<()> {
    file.seek(SeekFrom::Current(bytes as i64)).map(drop)
}

impl Kind {
    /// From -1 to 1, of little-endian bytes.
    fn value(self, sample: &[u8]) -> f64 {
        match (self, sample) {
            (Kind::Float, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            (Kind::Float, sample) => sample.try_into().map_or(0.0, f64::from_le_bytes),
            (Kind::Integer, &[byte]) => (f64::from(byte) - 128.0) / 128.0,
            (Kind::Integer, sample) => {
                let mut wide = [0; 4];
                wide[4 - sample.len()..].copy_from_slice(sample);
                f64::from(i32::from_le_bytes(wide)) / f64::from(1u32 << 31)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn file(kind: u16, channels: u16, bits: u16, samples: &[u8]) -> Vec<u8> {
        let mut bytes = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x10\0\0\0".to_vec();
        bytes.extend(kind.to_le_bytes());
        bytes.extend(channels.to_le_bytes());
        bytes.extend(16_000u32.to_le_bytes());
        bytes.extend([0; 6]);
        bytes.extend(bits.to_le_bytes());
        bytes.extend(b"data");
        bytes.extend((samples.len() as u32).to_le_bytes());
        bytes.extend(samples);
        bytes
    }

    fn values(bytes: &[u8], len: usize) -> Vec<f32> {
        let info = TensorInfo::new("x", DType::F32, &[1, len]);
        let (tensor, _) = read(Cursor::new(bytes), &info).unwrap();
        let floats = tensor.as_chunks::<4>().0.iter();
        floats.map(|&b| f32::from_le_bytes(b)).collect()
    }

    #[test]
    fn samples_are_from_minus_one_to_one() {
        assert_eq!(values(&file(1, 1, 8, &[0, 128, 192]), 3), [-1.0, 0.0, 0.5]);
        let samples = [0, 0x80, 0, 0x40];
        assert_eq!(values(&file(1, 1, 16, &samples), 2), [-1.0, 0.5]);
        assert_eq!(values(&file(1, 2, 16, &samples), 1), [-0.25]);
        assert_eq!(values(&file(1, 1, 24, &[0, 0, 0xc0]), 1), [-0.5]);
        assert_eq!(values(&file(1, 1, 32, &[0, 0, 0, 0x20]), 1), [0.25]);
        assert_eq!(values(&file(3, 1, 32, &0.3f32.to_le_bytes()), 1), [0.3]);
        assert_eq!(values(&file(3, 1, 64, &0.3f64.to_le_bytes()), 1), [0.3]);
    }

    #[test]
    fn other_files_are_refused() {
        let info = TensorInfo::new("x", DType::F32, &[2]);
        let fails = |bytes: &[u8], says: &str| match read(Cursor::new(bytes), &info) {
            Err(Trouble::Bad(text)) => assert!(text.contains(says), "{text}"),
            _ => panic!("'{says}' is not refused"),
        };
        let good = file(1, 1, 16, &[0; 4]);
        fails(&good[..good.len() - 1], "is cut off");
        fails(&good[..30], "no whole .wav");
        fails(b"RIFF....AVI ....", "RIFF and WAVE");
        fails(&file(2, 1, 4, &[0; 4]), "kind 2 in 4 bits");
        fails(&file(1, 0, 16, &[0; 4]), "0 channels");
        fails(&file(1, 1, 16, &[0; 6]), "has 3 samples, 2 has 2");
    }
}
