//! numpy's files: `.npy`, and `.npz`, a zip archive of them.

use super::array::{Array, unpacked};
use crate::error::{Result, bad, unreadable};
use neap_ir::DType;
use npyz::{DType as NpyType, Endianness, NpyHeader, Order, TypeChar};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use zip::{CompressionMethod, ZipArchive};

/// Opens a `.npy` file.
///
/// # Errors
/// It cannot be read, or holds something else than numbers in row-major order.
pub fn open(path: &Path) -> Result<Array> {
    let file = File::open(path).map_err(|e| unreadable(path, e))?;
    array(file, path.display().to_string(), 0)
}

/// Names of the arrays in a `.npz` file.
///
/// # Errors
/// It cannot be read or is no such archive.
pub fn members(path: &Path) -> Result<Vec<String>> {
    let archive = archive(path)?;
    let names = archive.file_names().filter_map(|name| name.ok());
    let names = names.map(|name| name.strip_suffix(".npy").unwrap_or(&name).to_string());
    let mut names: Vec<String> = names.collect();
    names.sort();
    Ok(names)
}

/// Opens one array of a `.npz` file. A compressed one is unpacked into a file without a name.
///
/// # Errors
/// As [`open`].
pub fn member(path: &Path, name: &str) -> Result<Array> {
    let mut archive = archive(path)?;
    let shown = format!("{}: array '{name}'", path.display());
    let mut entry = archive
        .by_name(&format!("{name}.npy"))
        .map_err(|e| bad(format!("{shown}: {e}")))?;
    if entry.compression() == CompressionMethod::Stored
        && let Some(start) = entry.data_start()
    {
        let file = File::open(path).map_err(|e| unreadable(path, e))?;
        return array(file, shown, start);
    }
    let file = unpacked(path, &mut entry)?;
    array(file, shown, 0)
}

fn archive(path: &Path) -> Result<ZipArchive<BufReader<File>>> {
    let file = File::open(path).map_err(|e| unreadable(path, e))?;
    ZipArchive::new(BufReader::new(file))
        .map_err(|e| bad(format!("{} is no .npz file: {e}", path.display())))
}

fn array(mut file: File, name: String, start: u64) -> Result<Array> {
    let broken = |e: std::io::Error| bad(format!("{name} is no .npy file: {e}"));
    file.seek(SeekFrom::Start(start)).map_err(broken)?;
    // The header's own length is checked by whoever made it; this bounds what a wrong one may ask for.
    let mut head = file.try_clone().map_err(broken)?.take(1 << 20);
    let header = NpyHeader::from_reader(&mut head).map_err(broken)?;
    let offset = start + ((1 << 20) - head.limit());
    if header.order() == Order::Fortran && header.shape().len() > 1 {
        return Err(bad(format!(
            "{name} is in column-major order: store numpy.ascontiguousarray of it"
        )));
    }
    let NpyType::Plain(ty) = header.dtype() else {
        return Err(bad(format!("{name} holds records, not numbers")));
    };
    let dtype = match (ty.type_char(), ty.size_field()) {
        (TypeChar::Float, 2) => DType::F16,
        (TypeChar::Float, 4) => DType::F32,
        (TypeChar::Float, 8) => DType::F64,
        (TypeChar::Int, 1) => DType::I8,
        (TypeChar::Int, 2) => DType::I16,
        (TypeChar::Int, 4) => DType::I32,
        (TypeChar::Int, 8) => DType::I64,
        (TypeChar::Uint, 1) => DType::U8,
        (TypeChar::Uint, 2) => DType::U16,
        (TypeChar::Uint, 4) => DType::U32,
        (TypeChar::Uint, 8) => DType::U64,
        (TypeChar::Bool, _) => DType::Bool,
        _ => return Err(bad(format!("{name} holds elements of type '{ty}'"))),
    };
    let shape = header.shape().iter().map(|&d| d as usize).collect();
    let big = ty.endianness() == Endianness::Big;
    Array::new(file, name, offset, dtype, big, shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.bytes());
        bytes.extend(data);
        bytes
    }

    const HEADER: &str = "{'descr': '>i2', 'fortran_order': False, 'shape': (2, 2), }\n";
    const DATA: [u8; 8] = [0, 1, 0, 2, 255, 255, 1, 0];

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn arrays_of_archives_are_read_where_they_lie() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut zip = ZipWriter::new(file.reopen().unwrap());
        for (name, method) in [
            ("x.npy", CompressionMethod::Stored),
            ("y.npy", CompressionMethod::Deflated),
        ] {
            let options = SimpleFileOptions::default().compression_method(method);
            zip.start_file(name, options).unwrap();
            zip.write_all(&npy(HEADER, &DATA)).unwrap();
        }
        zip.finish().unwrap();
        assert_eq!(members(file.path()).unwrap(), ["x", "y"]);
        let alone = written(&npy(HEADER, &DATA));
        let arrays = ["x", "y"].map(|name| member(file.path(), name).unwrap());
        for array in arrays.into_iter().chain([open(alone.path()).unwrap()]) {
            assert_eq!(array.row_shape(), [2]);
            assert_eq!(array.integers(0, 4).unwrap(), [1, 2, -1, 256]);
        }
        assert!(member(file.path(), "z").is_err());
    }

    #[test]
    fn broken_files_are_refused() {
        let refused = |bytes: &[u8]| open(written(bytes).path()).unwrap_err().to_string();
        assert!(refused(b"").contains("no .npy"));
        assert!(refused(&npy(HEADER, &DATA[1..])).contains("shorter"));
        assert!(refused(&npy(&HEADER.replace("False", "True"), &DATA)).contains("column-major"));
        assert!(refused(&npy(&HEADER.replace(">i2", "<U1"), &DATA)).contains("elements"));
        for at in 0..60 {
            let mut bytes = npy(HEADER, &DATA);
            bytes[at] ^= 0x15;
            // Either way is fine here; it must not panic.
            let _ = open(written(&bytes).path());
        }
    }
}
