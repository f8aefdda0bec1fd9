//! IDX files, as MNIST's and its relatives: a big-endian header of type, rank and sizes, then elements. Also gzipped.

use super::array::{Array, unpacked};
use crate::error::{Result, bad, unreadable};
use flate2::read::GzDecoder;
use neap_ir::DType;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Opens one; a gzipped file is unpacked into one without a name.
///
/// # Errors
/// It cannot be read or is no IDX file.
pub fn open(path: &Path) -> Result<Array> {
    let mut file = File::open(path).map_err(|e| unreadable(path, e))?;
    let mut magic = [0; 4];
    let is_whole = file.read_exact(&mut magic).is_ok();
    if is_whole && magic[..2] == [0x1f, 0x8b] {
        let packed = File::open(path).map_err(|e| unreadable(path, e))?;
        file = unpacked(path, &mut GzDecoder::new(packed))?;
    }
    let name = path.display().to_string();
    let broken = |_| bad(format!("{name} is no IDX file"));
    file.read_exact_at(&mut magic, 0).map_err(broken)?;
    let dtype = match magic {
        [0, 0, 0x08, _] => DType::U8,
        [0, 0, 0x09, _] => DType::I8,
        [0, 0, 0x0b, _] => DType::I16,
        [0, 0, 0x0c, _] => DType::I32,
        [0, 0, 0x0d, _] => DType::F32,
        [0, 0, 0x0e, _] => DType::F64,
        _ => return Err(bad(format!("{name} is no IDX file"))),
    };
    let rank = usize::from(magic[3]);
    let mut sizes = vec![0; 4 * rank];
    file.read_exact_at(&mut sizes, 4).map_err(broken)?;
    let sizes = sizes.as_chunks().0.iter();
    let shape = sizes.map(|&b| u32::from_be_bytes(b) as usize).collect();
    Array::new(file, name, 4 + 4 * rank as u64, dtype, true, shape)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn write(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn packed_and_unpacked_files_are_the_same() {
        let bytes = [
            0, 0, 0x0b, 2, 0, 0, 0, 2, 0, 0, 0, 3, 0, 1, 0, 2, 255, 255, 1, 0, 0, 5, 0, 6,
        ];
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(&bytes).unwrap();
        for file in [write(&bytes), write(&packed.finish().unwrap())] {
            let array = open(file.path()).unwrap();
            assert_eq!((array.count(), array.row_shape()), (2, &[3][..]));
            assert_eq!(array.integers(0, 6).unwrap(), [1, 2, -1, 256, 5, 6]);
            assert_eq!(array.floats(1).unwrap(), [256.0, 5.0, 6.0]);
        }
    }

    #[test]
    fn broken_files_are_refused() {
        let refused = |bytes: &[u8]| open(write(bytes).path()).unwrap_err().to_string();
        assert!(refused(b"").contains("no IDX"));
        assert!(refused(&[0, 0, 8, 3, 0]).contains("no IDX"));
        assert!(refused(&[0, 0, 7, 1, 0, 0, 0, 0]).contains("no IDX"));
        assert!(refused(&[0, 0, 8, 1, 0, 0, 0, 2, 1]).contains("shorter"));
        let huge = [
            0, 0, 14, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255,
        ];
        assert!(refused(&huge).contains("shorter"));
    }
}
