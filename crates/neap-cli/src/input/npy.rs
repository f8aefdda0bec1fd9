//! Reading `.npy`: magic, version, a Python dictionary as text, elements.

use super::convert::Converter;
use super::hints::Glance;
use neaptide::{DType, Literal, TensorInfo, shape_text};
use std::io::Read;

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// numpy writes a few hundred at most.
const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Elements are converted in pieces of so many bytes; a multiple of every element size.
const PIECE_BYTES: usize = 32 * 1024;

#[derive(Debug, PartialEq)]
struct Header {
    dtype: DType,
    big_endian: bool,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// Reads an array that must be what `info` says, or widens to it; then a remark says so.
pub fn read(
    reader: &mut impl Read,
    info: &TensorInfo,
) -> Result<(Vec<u8>, Option<String>), String> {
    let header = read_header(reader)?;
    if header.shape != info.ty.shape {
        return Err(format!(
            "has shape {}, the model wants {}",
            shape_text(&header.shape),
            shape_text(&info.ty.shape)
        ));
    }
    let (from, to) = (header.dtype, info.ty.dtype);
    let converter = Converter::new(from, to, header.big_endian).ok_or_else(|| {
        format!("is {from}, the model wants {to}: convert it first, such as with numpy's astype")
    })?;
    let tensor = elements(reader, &header, info, &converter)?;
    let remark = converter
        .widens()
        .then(|| format!("{from} values were widened to {to}"));
    Ok((tensor, remark))
}

/// The shape of an array, and its value where that has no more than `max_bytes`.
pub fn glance(reader: &mut impl Read, max_bytes: usize) -> Result<Glance, String> {
    let header = read_header(reader)?;
    let elements_bytes =
        (header.shape.iter()).try_fold(header.dtype.size_bytes(), |n, &d| n.checked_mul(d));
    let value = if elements_bytes.is_some_and(|n| n <= max_bytes) {
        let info = TensorInfo::new("", header.dtype, &header.shape);
        let converter = Converter::new(header.dtype, header.dtype, header.big_endian)
            .ok_or("cannot be read")?;
        let bytes = elements(reader, &header, &info, &converter)?;
        Literal::from_bytes(header.dtype, &header.shape, &bytes)
    } else {
        None
    };
    Ok(Glance {
        shape: header.shape,
        value,
    })
}

/// What follows the header, row-major.
fn elements(
    reader: &mut impl Read,
    header: &Header,
    info: &TensorInfo,
    converter: &Converter,
) -> Result<Vec<u8>, String> {
    let from = header.dtype;
    let mut left = info.ty.elements() * from.size_bytes();
    let mut tensor = super::room(info.len_bytes())?;
    let mut piece = vec![0; PIECE_BYTES];
    while left > 0 {
        let piece = &mut piece[..left.min(PIECE_BYTES)];
        reader
            .read_exact(piece)
            .map_err(|e| format!("is shorter than its shape: {e}"))?;
        left -= piece.len();
        if !converter.append(piece, &mut tensor) {
            return Err("has a bool that is neither 0 nor 1".into());
        }
    }
    if reader.read(&mut [0]).map_err(|e| e.to_string())? != 0 {
        return Err("is longer than its shape".into());
    }
    if header.fortran_order {
        tensor = row_major(&tensor, &header.shape, info.ty.dtype.size_bytes());
    }
    Ok(tensor)
}

fn read_header(reader: &mut impl Read) -> Result<Header, String> {
    let short = |_| "is no .npy file".to_string();
    let mut start = [0u8; 8];
    reader.read_exact(&mut start).map_err(short)?;
    if start[..6] != *MAGIC {
        return Err("is no .npy file".into());
    }
    let len = match start[6] {
        1 => {
            let mut len = [0u8; 2];
            reader.read_exact(&mut len).map_err(short)?;
            usize::from(u16::from_le_bytes(len))
        }
        2 | 3 => {
            let mut len = [0u8; 4];
            reader.read_exact(&mut len).map_err(short)?;
            u32::from_le_bytes(len) as usize
        }
        version => return Err(format!("has .npy version {version}, which is not known")),
    };
    if len > MAX_HEADER_BYTES {
        return Err(format!("has an .npy header of {len} bytes"));
    }
    let mut text = vec![0; len];
    reader.read_exact(&mut text).map_err(short)?;
    let text = String::from_utf8(text).map_err(|_| "has an .npy header that is no text")?;
    parse_header(&text)
}

/// `{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }`
fn parse_header(text: &str) -> Result<Header, String> {
    let broken = || format!("has an .npy header that is not understood: {}", text.trim());
    let after = |key: &str| -> Option<&str> {
        let at = [format!("'{key}'"), format!("\"{key}\"")]
            .iter()
            .find_map(|k| text.find(k.as_str()).map(|at| at + k.len()))?;
        text[at..]
            .trim_start()
            .strip_prefix(':')
            .map(str::trim_start)
    };
    let descr = after("descr").ok_or_else(broken)?;
    let quote = descr.chars().next().ok_or_else(broken)?;
    if quote == '[' {
        return Err("holds records, not numbers".into());
    }
    let descr = descr[quote.len_utf8()..]
        .split_once(quote)
        .ok_or_else(broken)?
        .0;
    let (dtype, big_endian) =
        parse_descr(descr).ok_or_else(|| format!("holds elements of type '{descr}'"))?;

    let order = after("fortran_order").ok_or_else(broken)?;
    let fortran_order = match order {
        o if o.starts_with("True") => true,
        o if o.starts_with("False") => false,
        _ => return Err(broken()),
    };
    let shape = after("shape")
        .and_then(|s| s.strip_prefix('('))
        .and_then(|s| s.split_once(')'))
        .ok_or_else(broken)?
        .0;
    let shape = shape
        .split(',')
        .map(str::trim)
        .filter(|d| !d.is_empty())
        .map(|d| d.trim_end_matches('L').parse().map_err(|_| broken()))
        .collect::<Result<_, _>>()?;
    Ok(Header {
        dtype,
        big_endian,
        fortran_order,
        shape,
    })
}

/// `<f4` and its relatives: element type, and whether the bytes are big-endian.
fn parse_descr(descr: &str) -> Option<(DType, bool)> {
    let mut chars = descr.chars();
    let (order, kind) = match chars.next()? {
        c @ ('<' | '>' | '|' | '=') => (c, chars.as_str()),
        _ => ('=', descr),
    };
    let dtype = match kind {
        "f4" => DType::F32,
        "f8" => DType::F64,
        "f2" => DType::F16,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "b1" | "?" => DType::Bool,
        _ => return None,
    };
    let big = order == '>' || (order == '=' && cfg!(target_endian = "big"));
    Some((dtype, big && dtype.size_bytes() > 1))
}

/// Column-major elements in row-major order.
fn row_major(tensor: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = size;
    for &dim in shape {
        strides.push(stride);
        stride *= dim;
    }
    let mut result = Vec::with_capacity(tensor.len());
    let mut index = vec![0usize; shape.len()];
    while result.len() < tensor.len() {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        result.extend_from_slice(&tensor[at..at + size]);
        for (i, &dim) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < dim {
                break;
            }
            *i = 0;
        }
    }
    result
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn info(dtype: &str, shape: &[usize]) -> TensorInfo {
        crate::input::random::tests::info(dtype, shape)
    }

    pub fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        bytes.extend(data);
        bytes
    }

    const HEADER: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  \n";

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn a_plain_file() {
        let data = floats(&[1., 2., 3., 4., 5., 6.]);
        let (tensor, remark) = read(
            &mut file(HEADER, &data).as_slice(),
            &info("float32", &[2, 3]),
        )
        .unwrap();
        assert_eq!((tensor, remark), (data, None));
    }

    #[test]
    fn column_major_becomes_row_major() {
        let header = HEADER.replace("False", "True");
        let data = floats(&[1., 4., 2., 5., 3., 6.]);
        let (tensor, _) = read(
            &mut file(&header, &data).as_slice(),
            &info("float32", &[2, 3]),
        )
        .unwrap();
        assert_eq!(tensor, floats(&[1., 2., 3., 4., 5., 6.]));
    }

    #[test]
    fn widening_is_remarked() {
        let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2,)}";
        let data: Vec<u8> = [7i32, -1].iter().flat_map(|v| v.to_le_bytes()).collect();
        let (tensor, remark) =
            read(&mut file(header, &data).as_slice(), &info("int64", &[2])).unwrap();
        let expected: Vec<u8> = [7i64, -1].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(tensor, expected);
        assert!(remark.unwrap().contains("int32"));
    }

    #[test]
    fn wrong_files_are_told_apart() {
        let data = floats(&[0.; 6]);
        let wanted = info("float32", &[2, 3]);
        let complaint = |bytes: &[u8]| read(&mut &bytes[..], &wanted).unwrap_err();
        assert!(complaint(b"").contains("no .npy"));
        assert!(complaint(b"PK\x03\x04aaaaaaaaaaaa").contains("no .npy"));
        assert!(complaint(&file(HEADER, &data[1..])).contains("shorter"));
        assert!(complaint(&file(HEADER, &[&data[..], &[0]].concat())).contains("longer"));
        assert!(complaint(&file(&HEADER.replace("2, 3", "3, 2"), &data)).contains("3x2"));
        assert!(complaint(&file(&HEADER.replace("<f4", "<f8"), &data)).contains("float64"));
        assert!(complaint(&file(&HEADER.replace("<f4", "<U7"), &data)).contains("<U7"));
        assert!(
            complaint(&file(&HEADER.replace("'<f4'", "[('a', '<f4')]"), &data)).contains("records")
        );
        assert!(complaint(&file("{}", &data)).contains("not understood"));
        assert!(complaint(&file("{'shape': (", &data)).contains("not understood"));
        assert!(
            complaint(&file(&HEADER.replace("2, 3", "-2, 3"), &data)).contains("not understood")
        );
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let good = file(HEADER, &floats(&[0.; 6]));
        let wanted = info("float32", &[2, 3]);
        for at in 0..good.len() {
            for value in [0, 1, b'\'', b'(', 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                // Either way is fine here.
                let _ = read(&mut bytes.as_slice(), &wanted);
                let _ = read(&mut &bytes[..at], &wanted);
            }
        }
    }
}
