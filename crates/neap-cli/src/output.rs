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
        written.push(Written {
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
