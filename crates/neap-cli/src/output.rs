//! Results as `.npy` files named after the model's outputs.

use crate::atomic;
use crate::failure::{Outcome, bad};
use crate::names;
use neaptide::{DType, TensorInfo};
use serde::Serialize;
use std::collections::HashSet;
use std::io::Write;
use std::path::Path;

/// One output, as reports tell of it.
#[derive(Debug, Serialize)]
pub struct Written {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    /// `None` when outputs were not to be written.
    pub file: Option<String>,
    /// The least and the greatest number, where there are any but those that are not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[f64; 2]>,
    /// How many numbers are not finite.
    #[serde(skip_serializing_if = "is_none")]
    pub not_finite: usize,
    /// The largest numbers of an output that has one for each class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<Top>,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none(count: &usize) -> bool {
    *count == 0
}

/// One of the largest numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Top {
    pub index: usize,
    pub value: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// How many of them are told.
const TOP: usize = 5;

impl std::fmt::Display for Top {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.label {
            Some(label) => write!(
                f,
                "{} ({}) {:.4}",
                names::shown(label),
                self.index,
                self.value
            ),
            None => write!(f, "{} {:.4}", self.index, self.value),
        }
    }
}

/// The largest of 32-bit floats, with the names of their places.
pub fn top(floats: &[u8], labels: &[String]) -> Vec<Top> {
    let numbers = floats
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b));
    let mut found: Vec<(usize, f32)> = Vec::with_capacity(TOP + 1);
    for (index, value) in numbers.enumerate().filter(|(_, value)| !value.is_nan()) {
        let at = found.iter().position(|(_, other)| value > *other);
        match at {
            Some(at) => found.insert(at, (index, value)),
            None => found.push((index, value)),
        }
        found.truncate(TOP);
    }
    let named = |(index, value): (usize, f32)| Top {
        index,
        value,
        label: labels.get(index).cloned(),
    };
    found.into_iter().map(named).collect()
}

/// The least and greatest finite number, and how many are not finite.
fn range(info: &TensorInfo, tensor: &[u8]) -> (Option<[f64; 2]>, usize) {
    let size = info.ty.dtype.size_bytes();
    let (mut found, mut not_finite) = (None, 0);
    for element in tensor.chunks_exact(size) {
        let value = number(info.ty.dtype, element);
        if !value.is_finite() {
            not_finite += 1;
            continue;
        }
        let [least, most] = found.unwrap_or([value; 2]);
        found = Some([value.min(least), value.max(most)]);
    }
    (found, not_finite)
}

fn number(dtype: DType, element: &[u8]) -> f64 {
    let mut wide = [0; 8];
    wide[..element.len()].copy_from_slice(element);
    let bits = u64::from_le_bytes(wide);
    match dtype {
        DType::F32 => f32::from_bits(bits as u32).into(),
        DType::F64 => f64::from_bits(bits),
        DType::F16 => half::f16::from_bits(bits as u16).into(),
        DType::BF16 => half::bf16::from_bits(bits as u16).into(),
        dtype if dtype.is_signed_int() => {
            let unused = 64 - 8 * element.len() as u32;
            (((bits << unused) as i64) >> unused) as f64
        }
        _ => bits as f64,
    }
}

/// Whether an output of one sample has a number for each class.
fn has_classes(info: &TensorInfo) -> bool {
    let large = info.ty.shape.iter().filter(|&&size| size > 1).count();
    info.ty.dtype == DType::F32 && large == 1 && info.ty.shape.first() != Some(&0)
}

/// Makes the folder, so that a run does not end in a surprise.
pub fn prepare(folder: &Path) -> Outcome {
    std::fs::create_dir_all(folder)
        .map_err(|e| bad(format!("cannot create {}: {e}", folder.display())))
}

/// Describes the outputs and writes them into `folder`, if there is one.
pub fn write(
    folder: Option<&Path>,
    infos: &[TensorInfo],
    tensors: &[Vec<u8>],
    labels: &[String],
) -> Outcome<Vec<Written>> {
    let files = file_names(infos.iter().map(|i| i.name.as_str()));
    let mut written = Vec::with_capacity(infos.len());
    for ((info, tensor), file) in infos.iter().zip(tensors).zip(files) {
        let path = folder.map(|folder| folder.join(file + ".npy"));
        if let Some(path) = &path {
            let header = npy_header(info.ty.dtype, &info.ty.shape);
            atomic::write(path, |out| {
                out.write_all(&header)?;
                out.write_all(tensor)
            })?;
        }
        let (range, not_finite) = range(info, tensor);
        written.push(Written {
            range,
            not_finite,
            top: match has_classes(info) {
                true => top(tensor, labels),
                false => Vec::new(),
            },
            name: info.name.clone(),
            dtype: info.ty.dtype.name(),
            shape: info.ty.shape.clone(),
            file: path.map(|p| p.display().to_string()),
        });
    }
    Ok(written)
}

/// A different, path-safe file name for each name; those that would be the same get a number.
fn file_names<'a>(given: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut used = HashSet::new();
    given
        .map(|name| {
            let base = names::for_file(name);
            let mut file = base.clone();
            let mut number = 1;
            while !used.insert(file.clone()) {
                file = format!("{base}_{number}");
                number += 1;
            }
            file
        })
        .collect()
}

/// Version 1.0, padded so that the data begins at a multiple of 64.
fn npy_header(dtype: DType, shape: &[usize]) -> Vec<u8> {
    let descr = match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        // numpy has no such type; two bytes each.
        DType::BF16 => "|V2",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::Bool => "|b1",
    };
    let dims: Vec<String> = shape.iter().map(usize::to_string).collect();
    let shape = match &dims[..] {
        [one] => format!("({one},)"),
        all => format!("({})", all.join(", ")),
    };
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    let unpadded = 10 + text.len() + 1;
    let padding = unpadded.next_multiple_of(64) - unpadded;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.into_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_and_different() {
        let names = ["a/b", "a_b", "..", "", "758", "../x", "a b", "y.1-z"];
        assert_eq!(
            file_names(names.into_iter()),
            ["a_b", "a_b_1", "_..", "_", "758", ".._x", "a_b_2", "y.1-z"]
        );
    }

    #[test]
    fn the_largest_numbers_are_told_with_their_names() {
        let values = [0.5f32, f32::NAN, 3.0, -1.0, 3.0, f32::INFINITY, 0.0, 0.25];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let names = ["a", "b", "c"].map(str::to_string);
        let found = top(&bytes, &names);
        let indices: Vec<usize> = found.iter().map(|t| t.index).collect();
        assert_eq!(indices, [5, 2, 4, 0, 7]);
        assert_eq!(found[1].to_string(), "c (2) 3.0000");
        assert_eq!(found[2].to_string(), "4 3.0000");
        let info = TensorInfo::new("y", DType::F32, &[1, 8]);
        assert_eq!(range(&info, &bytes), (Some([-1.0, 3.0]), 2));
        let ints = TensorInfo::new("y", DType::I16, &[2]);
        let bytes = [(-5i16).to_le_bytes(), 7i16.to_le_bytes()].concat();
        assert_eq!(range(&ints, &bytes), (Some([-5.0, 7.0]), 0));
    }

    #[test]
    fn headers_are_what_numpy_writes() {
        let header = npy_header(DType::F32, &[1, 1000]);
        assert_eq!(header.len() % 64, 0);
        let text = String::from_utf8_lossy(&header[10..]).into_owned();
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1000), }"));
        assert!(text.ends_with(" \n"));
        let header = npy_header(DType::I64, &[7]);
        assert!(String::from_utf8_lossy(&header).contains("(7,)"));
        let header = npy_header(DType::Bool, &[]);
        assert!(String::from_utf8_lossy(&header).contains("()"));
    }
}
