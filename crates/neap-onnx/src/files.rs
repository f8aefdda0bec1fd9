//! The model's files: the `.onnx` itself and external data inside its folder.

use crate::error::{OnnxError, shown};
use crate::extract::{Elsewhere, Extract, KeptFile, merged};
use crate::folder::ModelFolder;
use crate::open_file::OpenFile;
use crate::proto::TensorProto;
use crate::source::Source;
use crate::tensor;
use neap_ir::{FileId, FileRange, SourceFile};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) struct Files {
    model: Source,
    /// `None` for an extract.
    folder: Option<ModelFolder>,
    external: Vec<External>,
    by_location: HashMap<String, usize>,
    /// The external file that was read last has a window.
    window: Option<(usize, Source)>,
    /// External data were never written.
    is_bare: bool,
    /// What was read of external data.
    touched: Vec<FileRange>,
    /// In place of files.
    kept: Option<Kept>,
}

struct Kept {
    extract: Arc<Extract>,
    elsewhere: Box<dyn Elsewhere>,
}

struct External {
    /// `None` when it was never written.
    path: Option<PathBuf>,
    len: u64,
    /// `None` when it was never written, or an extract stands for it.
    file: Option<Arc<OpenFile>>,
}

impl Files {
    pub(crate) fn open(path: &Path) -> Result<Files, OnnxError> {
        let model = Source::of(Arc::new(OpenFile::open(path, 0)?));
        let folder = ModelFolder::of(path).map_err(|source| OnnxError::Open {
            path: path.display().to_string(),
            source,
        })?;
        Ok(Files {
            model,
            folder: Some(folder),
            external: Vec::new(),
            by_location: HashMap::new(),
            window: None,
            is_bare: false,
            touched: Vec::new(),
            kept: None,
        })
    }

    /// No files, only what was kept of them.
    pub(crate) fn of_extract(extract: Arc<Extract>, elsewhere: Box<dyn Elsewhere>) -> Files {
        let external = &extract.files()[1..];
        Files {
            model: Source::of_extract(extract.clone()),
            folder: None,
            external: external
                .iter()
                .map(|file| External {
                    path: Some(file.location.clone().into()),
                    len: file.len_bytes,
                    file: None,
                })
                .collect(),
            by_location: external
                .iter()
                .enumerate()
                .map(|(index, file)| (file.location.clone(), index))
                .collect(),
            window: None,
            is_bare: false,
            touched: Vec::new(),
            kept: Some(Kept { extract, elsewhere }),
        }
    }

    /// In the order of [`FileId`], as an extract names them.
    pub(crate) fn kept_files(&self) -> Vec<KeptFile> {
        let mut external = vec![String::new(); self.external.len()];
        for (location, &index) in &self.by_location {
            external[index].clone_from(location);
        }
        let external = external.into_iter().zip(&self.external);
        let external = external.map(|(location, file)| KeptFile {
            location,
            len_bytes: file.len,
        });
        let model = KeptFile {
            location: self.model.name().to_string(),
            len_bytes: self.model.len(),
        };
        std::iter::once(model).chain(external).collect()
    }

    /// All that has been read.
    pub(crate) fn touched(&self) -> Vec<FileRange> {
        let mut all = self.model.touched(FileId(0));
        all.extend(&self.touched);
        merged(all)
    }

    /// External data are not looked for from now on; they have whatever size is asked for.
    pub(crate) fn set_bare(&mut self, is_bare: bool) {
        self.is_bare = is_bare;
    }

    pub(crate) fn model(&self) -> &Source {
        &self.model
    }

    /// In the order of [`FileId`].
    pub(crate) fn sources(&self) -> Vec<SourceFile> {
        let external = self.external.iter().map(|e| match &e.path {
            Some(path) => SourceFile::At(path.display().to_string()),
            None => SourceFile::Absent,
        });
        std::iter::once(SourceFile::At(self.model.name().to_string()))
            .chain(external)
            .collect()
    }

    /// The open files, in the order of [`FileId`]; `None` for one that was never written, and for all of an extract.
    pub(crate) fn open_files(&self) -> Vec<Option<Arc<OpenFile>>> {
        let external = self.external.iter().map(|e| e.file.clone());
        std::iter::once(self.model.file().cloned())
            .chain(external)
            .collect()
    }

    pub(crate) fn read(&mut self, range: FileRange, out: &mut [u8]) -> Result<(), OnnxError> {
        if let Some(kept) = &mut self.kept {
            return kept.read(range, out);
        }
        let Some(index) = range.file.index().checked_sub(1) else {
            return self.model.read(range.offset, out);
        };
        let Some(file) = &self.external[index].file else {
            out.fill(0);
            return Ok(());
        };
        if self.window.as_ref().is_none_or(|(i, _)| *i != index) {
            self.window = Some((index, Source::of(file.clone())));
        }
        self.touched.push(range);
        match &self.window {
            Some((_, source)) => source.read(range.offset, out),
            None => Ok(()),
        }
    }

    /// The bytes that a tensor's `external_data` entries name, checked against the file.
    pub(crate) fn external(
        &mut self,
        tensor: &str,
        entries: &[(String, String)],
        expected_bytes: u64,
    ) -> Result<FileRange, OnnxError> {
        let get = |key: &str| {
            entries
                .iter()
                .find(|(k, _)| k == key)
                .map(|(_, v)| v.as_str())
        };
        let location = get("location").unwrap_or_default();
        let bad = |reason: String| OnnxError::External {
            name: shown(tensor),
            path: shown(location),
            reason,
        };
        let number = |key: &str| match get(key).filter(|v| !v.is_empty()) {
            None => Ok(None),
            Some(text) => text
                .parse::<u64>()
                .map(Some)
                .map_err(|_| bad(format!("its {key} is not a number"))),
        };
        let offset = number("offset")?.unwrap_or(0);
        if let Some(len) = number("length")?
            && len != expected_bytes
        {
            return Err(bad(format!(
                "its length is {len} bytes, but its shape needs {expected_bytes}"
            )));
        }
        let index = self.locate(location).map_err(bad)?;
        let len = self.external[index].len;
        if offset
            .checked_add(expected_bytes)
            .is_none_or(|end| end > len)
        {
            return Err(bad(format!(
                "the file is too short ({len} bytes, {expected_bytes} are needed from {offset})"
            )));
        }
        Ok(FileRange {
            file: FileId(index as u32 + 1),
            offset,
            bytes: expected_bytes,
        })
    }

    fn locate(&mut self, location: &str) -> Result<usize, String> {
        if let Some(&index) = self.by_location.get(location) {
            return Ok(index);
        }
        if self.kept.is_some() {
            return Err("it was not kept when the model was packed".into());
        }
        let found = if self.is_bare {
            External {
                path: None,
                len: u64::MAX,
                file: None,
            }
        } else {
            let file = self.find(location)?;
            External {
                path: Some(file.path().to_path_buf()),
                len: file.len_bytes(),
                file: Some(Arc::new(file)),
            }
        };
        self.external.push(found);
        let index = self.external.len() - 1;
        self.by_location.insert(location.to_string(), index);
        Ok(index)
    }

    fn find(&self, location: &str) -> Result<OpenFile, String> {
        let folder = self.folder.as_ref().filter(|_| !location.contains('\0'));
        let folder = folder.ok_or("the path leaves the model's folder")?;
        let path = folder.find(Path::new(location))?;
        OpenFile::open(&path, self.external.len() + 1).map_err(|e| e.to_string())
    }

    /// The part of its file that a tensor is, if that file was opened.
    pub(crate) fn named(&self, tensor: &TensorProto) -> Option<FileRange> {
        let get = |key: &str| tensor.external.iter().find(|(k, _)| k == key);
        let number = |key: &str| get(key).and_then(|(_, v)| v.parse::<u64>().ok());
        let &index = self.by_location.get(&get("location")?.1)?;
        let len = self.external[index].len;
        let offset = number("offset").unwrap_or(0).min(len);
        let bytes = number("length").unwrap_or_else(|| tensor::most_bytes(tensor));
        Some(FileRange {
            file: FileId(index as u32 + 1),
            offset,
            bytes: bytes.min(len - offset),
        })
    }
}

impl Kept {
    fn read(&mut self, range: FileRange, out: &mut [u8]) -> Result<(), OnnxError> {
        if self.extract.read(range, out) {
            return Ok(());
        }
        let path = || self.extract.files()[range.file.index()].location.clone();
        match self.elsewhere.read(range, out) {
            Ok(true) => Ok(()),
            Ok(false) => Err(OnnxError::NotKept {
                path: path(),
                offset: range.offset,
            }),
            Err(source) => Err(OnnxError::Read {
                path: path(),
                source,
            }),
        }
    }
}
