//! What a packed file says of the model that it was packed from, and whether that still is the same.
//!
//! The file's table of contents ends with an [`Origin`], which names the content of the source. Its stamp names the
//! identities of the source's files (size, times, inode, device), so that an unchanged source need not be read.

use crate::error::{Error, Result};
use crate::pack::{Progress, Work};
use neap_ir::FileRange;
use neap_onnx::{ModelFolder, OnnxError, OpenFile};
use neap_store::{FileIdentity, Stamp};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Of files whose identities say nothing of their content.
const NO_STAMP: Stamp = [0; 32];

/// Held while a source is hashed.
const HASH_BUFFER_BYTES: usize = 256 << 10;

/// A file that is written again and again is looked at so often, for 5 seconds where this process is not stopped meanwhile.
const MOST_TURNS: u32 = 5_000;
const TURN: Duration = Duration::from_millis(1);

/// BLAKE3.
pub(crate) type Digest = [u8; 32];

/// What a model was packed from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// Of the sizes of all files, of the content of the model, and of what it uses of the others.
    pub digest: Digest,
    pub external: Vec<External>,
}

/// A file with external data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct External {
    /// From the model's folder.
    pub path: Vec<u8>,
    /// The parts that tensors are in. Large files may hold more than one model's.
    pub used: Vec<Range<u64>>,
}

impl Origin {
    /// Puts the origin and its length at the end of a table of contents.
    pub fn append_to(&self, toc: Vec<u8>) -> Result<Vec<u8>> {
        let start = toc.len();
        let mut toc = postcard::to_extend(self, toc)
            .map_err(|e| Error::Defect(format!("cannot encode the origin: {e}")))?;
        let len = (toc.len() - start) as u32;
        toc.extend(len.to_le_bytes());
        Ok(toc)
    }

    /// That at the end of a table of contents; `None` where there is none.
    pub fn read(toc: &[u8]) -> Option<Origin> {
        let (rest, len) = toc.split_last_chunk::<4>()?;
        let start = rest.len().checked_sub(u32::from_le_bytes(*len) as usize)?;
        postcard::from_bytes(&rest[start..]).ok()
    }
}

/// A model's path, and the folder that its data are looked for in.
#[derive(Debug, Clone)]
pub(crate) struct Home(ModelFolder);

impl Home {
    /// # Errors
    /// [`Error::BadInput`] where there is no such file.
    pub fn of(model: &Path) -> Result<Home> {
        let home = ModelFolder::of(model)
            .map_err(|e| Error::BadInput(format!("cannot open {}: {e}", model.display())))?;
        if !home.model().is_file() {
            let what = format!("{} is not a file", model.display());
            return Err(Error::BadInput(what));
        }
        Ok(Home(home))
    }

    pub fn model(&self) -> &Path {
        self.0.model()
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    /// `None` where one is missing.
    fn paths(&self, external: &[External]) -> Option<Vec<PathBuf>> {
        let model = std::iter::once(Some(self.model().to_path_buf()));
        let find = |file: &External| self.0.find(Path::new(OsStr::from_bytes(&file.path))).ok();
        model.chain(external.iter().map(find)).collect()
    }

    /// The stamp that a packed file would have if its source were as it is now; `None` where a file is missing.
    pub fn stamp(&self, external: &[External]) -> Option<Stamp> {
        let paths = self.paths(external)?.into_iter();
        let identities = paths.map(|path| FileIdentity::of(&path).ok());
        Some(stamp(identities.collect::<Option<Vec<_>>>()?))
    }

    /// Reads all of the source that the model uses; `None` where a file is missing.
    ///
    /// # Errors
    /// [`Error::BadInput`] when a file cannot be read, or changes meanwhile.
    pub fn content(
        &self,
        external: &[External],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Option<Content>> {
        let Some(paths) = self.paths(external) else {
            return Ok(None);
        };
        let open = || {
            let open = |(index, path): (usize, &PathBuf)| OpenFile::open(path, index).map(Arc::new);
            let files = paths.iter().enumerate().map(open);
            files.collect::<std::result::Result<Vec<_>, _>>()
        };
        let files = settled(open, |files| fresh(files))?;
        Content::of(&files, external.to_vec(), progress).map(Some)
    }

    /// Of the files that were packed, as an [`Origin`] has them.
    fn external(&self, files: &[Arc<OpenFile>], used: &[FileRange]) -> Result<Vec<External>> {
        let each = files.iter().enumerate().skip(1);
        let external = each.map(|(index, file)| match self.0.location(file.path()) {
            Some(path) => Ok(External {
                path: path.as_os_str().as_bytes().to_vec(),
                used: (used.iter().filter(|range| range.file.index() == index))
                    .map(|range| range.offset..range.offset + range.bytes)
                    .collect(),
            }),
            None => Err(changed(file)),
        });
        external.collect()
    }
}

/// A source as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub digest: Digest,
    pub external: Vec<External>,
    pub stamp: Stamp,
}

impl Content {
    fn of(
        files: &[Arc<OpenFile>],
        external: Vec<External>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Content> {
        let digest = digest(files, &external, progress)?;
        files.iter().try_for_each(|file| file.check_unchanged())?;
        Ok(Content {
            digest,
            external,
            stamp: stamp_of(files),
        })
    }
}

/// What a packed file is to say of its source.
#[derive(Debug, Clone)]
pub(crate) struct Provenance {
    pub home: Home,
    /// Known where the source was read before.
    pub content: Option<Content>,
    /// Of the files beside the model.
    pub used: Vec<FileRange>,
}

impl Provenance {
    /// Of the files that were packed.
    ///
    /// # Errors
    /// [`Error::BadInput`] when they cannot be read, or changed since they were opened.
    pub fn seal(
        &self,
        files: &[Arc<OpenFile>],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Origin, Stamp)> {
        let external = self.home.external(files, &self.used)?;
        let known = self.content.as_ref().filter(|known| {
            known.stamp != NO_STAMP && known.stamp == stamp_of(files) && known.external == external
        });
        let content = match known {
            Some(known) => known.clone(),
            None => Content::of(files, external, progress)?,
        };
        let origin = Origin {
            digest: content.digest,
            external: content.external,
        };
        Ok((origin, content.stamp))
    }
}

/// Whether a packed file with this stamp is of the source whose stamp would be `now`.
pub(crate) fn is_trusted(stamp: Option<Stamp>, now: Option<Stamp>) -> bool {
    stamp.is_some() && stamp == now && stamp != Some(NO_STAMP)
}

/// Opens files until none was written so shortly before that a later write could leave no trace.
///
/// # Errors
/// Those of `open`, and [`OnnxError::Changed`] for a file that is written all the time.
pub(crate) fn settled<T>(
    mut open: impl FnMut() -> std::result::Result<T, OnnxError>,
    fresh: impl Fn(&T) -> Option<&OpenFile>,
) -> std::result::Result<T, OnnxError> {
    let mut turns = 0;
    loop {
        let opened = open()?;
        match fresh(&opened) {
            None => return Ok(opened),
            Some(_) if turns < MOST_TURNS => turns += 1,
            Some(file) => {
                let path = file.path().display().to_string();
                return Err(OnnxError::Changed { path });
            }
        }
        std::thread::sleep(TURN);
    }
}

/// One of the files, if any, that was written just before it was opened.
pub(crate) fn fresh<'f>(
    files: impl IntoIterator<Item = &'f Arc<OpenFile>>,
) -> Option<&'f OpenFile> {
    files
        .into_iter()
        .map(|file| &**file)
        .find(|file| file.was_fresh())
}

fn changed(file: &OpenFile) -> Error {
    let path = file.path().display().to_string();
    OnnxError::Changed { path }.into()
}

fn stamp_of(files: &[Arc<OpenFile>]) -> Stamp {
    if files.iter().all(|file| file.has_change_times()) {
        stamp(files.iter().map(|file| file.identity()))
    } else {
        NO_STAMP
    }
}

fn stamp(identities: impl IntoIterator<Item = FileIdentity>) -> Stamp {
    let mut hasher = blake3::Hasher::new();
    for identity in identities {
        hasher.update(&identity.size_bytes.to_le_bytes());
        hasher.update(&identity.modified_ns.to_le_bytes());
        hasher.update(&identity.changed_ns.to_le_bytes());
        hasher.update(&identity.inode.to_le_bytes());
        hasher.update(&identity.device.to_le_bytes());
    }
    hasher.finalize().into()
}

/// Reads files through a small buffer and drops their pages, which are charged to the budget too.
fn digest(
    files: &[Arc<OpenFile>],
    external: &[External],
    progress: &mut dyn FnMut(Progress),
) -> Result<Digest> {
    let of_model = files.first().into_iter();
    let of_model = of_model.map(|file| std::iter::once(0..file.len_bytes()).collect());
    let of_external = external.iter().map(|file| file.used.clone());
    let parts: Vec<_> = of_model.chain(of_external).collect();
    let total_bytes = parts.iter().flatten().map(|part| part.end - part.start);
    let total_bytes = total_bytes.sum();
    let mut done_bytes = 0;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; HASH_BUFFER_BYTES];
    for (file, parts) in files.iter().zip(&parts) {
        hasher.update(&file.len_bytes().to_le_bytes());
        for part in parts {
            hasher.update(&part.start.to_le_bytes());
            let mut offset = part.start;
            while offset < part.end {
                let len = (part.end - offset).min(HASH_BUFFER_BYTES as u64);
                let piece = &mut buffer[..len as usize];
                file.read_exact_at(piece, offset)
                    .map_err(|e| match e.kind() {
                        std::io::ErrorKind::UnexpectedEof => changed(file),
                        _ => {
                            let path = file.path().display();
                            Error::BadInput(format!("cannot read '{path}': {e}"))
                        }
                    })?;
                file.drop_cached(offset, len);
                hasher.update(piece);
                offset += len;
                done_bytes += len;
                progress(Progress {
                    work: Work::Hashing,
                    done_bytes,
                    total_bytes,
                });
            }
        }
    }
    Ok(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_read_from_the_end_of_a_table() {
        let origin = Origin {
            digest: [1; 32],
            external: [&b"weights.bin"[..], &[0xff, b'/', b'x']]
                .map(|path| External {
                    path: path.to_vec(),
                    used: vec![64..128, 1 << 33..1 << 34],
                })
                .to_vec(),
        };
        let toc = origin.append_to(b"programs".to_vec()).expect("encodes");
        assert_eq!(Origin::read(&toc), Some(origin));
        for end in 0..toc.len() {
            // Cut short, lengths point elsewhere.
            assert_eq!(Origin::read(&toc[..end]), None, "{end}");
        }
        assert_eq!(Origin::read(&[0xff; 64]), None);
    }
}
