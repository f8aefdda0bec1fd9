//! Reads constants of the source model: ranges of its files, widened to `f32` where halves are stored.

use half::{bf16, f16};
use neap_ir::{Const, DType, FileId, FileRange, Graph, Literal, SourceFile, TensorType, ValueId};
use neap_onnx::{OnnxError, OpenFile};
use neap_rewrite::ConstReader;
use std::sync::Arc;

/// Open source files, by `FileId`; `None` for one that was never written.
pub(crate) struct SourceFiles {
    files: Vec<Option<Arc<OpenFile>>>,
    /// What the rewriter looked at.
    read: Vec<FileRange>,
}

impl SourceFiles {
    /// Those that a graph was read from.
    pub fn of(files: Vec<Option<Arc<OpenFile>>>) -> SourceFiles {
        SourceFiles {
            files,
            read: Vec::new(),
        }
    }

    /// Those that a graph names.
    pub fn open(graph: &Graph) -> Result<SourceFiles, OnnxError> {
        let open = |(index, file): (usize, &SourceFile)| match file {
            SourceFile::Absent => Ok(None),
            SourceFile::At(path) => OpenFile::open(path.as_ref(), index).map(|f| Some(f.into())),
        };
        let files = graph.files.iter().enumerate().map(open);
        Ok(SourceFiles::of(files.collect::<Result<_, _>>()?))
    }

    /// Those that were written.
    pub fn present(&self) -> Vec<Arc<OpenFile>> {
        self.files.iter().flatten().cloned().collect()
    }

    /// Whether what was read is of one state of each file.
    pub fn check_unchanged(&self) -> Result<(), OnnxError> {
        self.files
            .iter()
            .flatten()
            .try_for_each(|f| f.check_unchanged())
    }

    /// What the rewriter looked at.
    pub fn take_read(&mut self) -> Vec<FileRange> {
        std::mem::take(&mut self.read)
    }

    /// Bytes of a file as they stand there; zeros of one that was never written.
    pub fn read_range(&self, file: FileId, offset: u64, out: &mut [u8]) -> Result<(), String> {
        let Some(Some(file)) = self.files.get(file.index()) else {
            out.fill(0);
            return Ok(());
        };
        file.read_exact_at(out, offset)
            .map_err(|e| format!("cannot read weights: {e}"))?;
        file.drop_cached(offset, out.len() as u64);
        Ok(())
    }

    /// Reads `elements` of the constant `value` from element `start` on, as little-endian bytes of
    /// its stored dtype, and drops them from the page cache, which is charged to the budget too.
    fn read_stored(
        &self,
        graph: &Graph,
        value: ValueId,
        start: usize,
        raw: &mut [u8],
    ) -> Result<DType, String> {
        match graph.constant(value) {
            Some(Const::Inline(literal)) => {
                let offset = start * literal.dtype().size_bytes();
                let bytes = literal.bytes().get(offset..offset + raw.len());
                raw.copy_from_slice(bytes.ok_or("constant is shorter than its shape")?);
                Ok(literal.dtype())
            }
            Some(Const::Stored {
                range,
                stored_dtype,
            }) => {
                let offset = range.offset + (start * stored_dtype.size_bytes()) as u64;
                if offset + raw.len() as u64 > range.offset + range.bytes {
                    return Err("constant is shorter than its shape".into());
                }
                self.read_range(range.file, offset, raw)?;
                Ok(*stored_dtype)
            }
            _ => Err("has no data".into()),
        }
    }

    pub fn stored_dtype(graph: &Graph, value: ValueId) -> DType {
        match graph.constant(value) {
            Some(Const::Stored { stored_dtype, .. }) => *stored_dtype,
            _ => graph.ty(value).dtype,
        }
    }

    /// `out.len()` elements of an f32-valued constant from element `start` on. `raw` is scratch.
    pub fn read_f32(
        &self,
        graph: &Graph,
        value: ValueId,
        start: usize,
        raw: &mut Vec<u8>,
        out: &mut [f32],
    ) -> Result<(), String> {
        let stored = SourceFiles::stored_dtype(graph, value);
        raw.resize(out.len() * stored.size_bytes(), 0);
        self.read_stored(graph, value, start, raw)?;
        widen(stored, raw, out)
    }

    /// Elements as bytes of type `wanted`: the stored type, or `F32` of floats.
    pub fn read_bytes(
        &self,
        graph: &Graph,
        value: ValueId,
        start: usize,
        elements: usize,
        wanted: DType,
        raw: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let stored = SourceFiles::stored_dtype(graph, value);
        out.clear();
        if stored == wanted {
            out.resize(elements * wanted.size_bytes(), 0);
            return self.read_stored(graph, value, start, out).map(|_| ());
        }
        if wanted != DType::F32 {
            return Err(format!("stored as {stored}, wanted as {wanted}"));
        }
        let mut floats = vec![0.0f32; elements];
        self.read_f32(graph, value, start, raw, &mut floats)?;
        out.extend(floats.iter().flat_map(|x| x.to_le_bytes()));
        Ok(())
    }
}

impl ConstReader for SourceFiles {
    fn read(&mut self, graph: &Graph, value: ValueId) -> Result<Literal, String> {
        if let Some(&Const::Stored { range, .. }) = graph.constant(value) {
            self.read.push(range);
        }
        let ty = graph.ty(value);
        let (mut raw, mut bytes) = (Vec::new(), Vec::new());
        let wanted = ty.dtype;
        self.read_bytes(graph, value, 0, ty.elements(), wanted, &mut raw, &mut bytes)?;
        Literal::from_bytes(ty.dtype, &ty.shape, &bytes).ok_or_else(|| "has the wrong size".into())
    }
}

/// A constant of type `ty` from its stored bytes.
pub(crate) fn literal(stored: DType, raw: &[u8], ty: &TensorType) -> Result<Literal, String> {
    let wrong_size = || "has the wrong size".to_string();
    if stored == ty.dtype {
        return Literal::from_bytes(ty.dtype, &ty.shape, raw).ok_or_else(wrong_size);
    }
    if ty.dtype != DType::F32 {
        return Err(format!("stored as {stored}, wanted as {}", ty.dtype));
    }
    let mut floats = vec![0.0; ty.elements()];
    widen(stored, raw, &mut floats)?;
    Ok(Literal::from_f32(&ty.shape, &floats))
}

fn widen(stored: DType, raw: &[u8], out: &mut [f32]) -> Result<(), String> {
    match stored {
        DType::F32 => {
            for (x, b) in out.iter_mut().zip(raw.chunks_exact(4)) {
                *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        DType::F16 => {
            for (x, b) in out.iter_mut().zip(raw.chunks_exact(2)) {
                *x = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::BF16 => {
            for (x, b) in out.iter_mut().zip(raw.chunks_exact(2)) {
                *x = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::F64 => {
            for (x, b) in out.iter_mut().zip(raw.chunks_exact(8)) {
                *x = f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32;
            }
        }
        DType::I8 => {
            for (x, &b) in out.iter_mut().zip(raw) {
                *x = f32::from(b as i8);
            }
        }
        DType::U8 => {
            for (x, &b) in out.iter_mut().zip(raw) {
                *x = f32::from(b);
            }
        }
        other => {
            return Err(format!(
                "weights of type {other} cannot be widened to float32"
            ));
        }
    }
    Ok(())
}
