//! A text and its cache in a file, so that a later process goes on where this one ended.
//!
//! ```text
//!   magic │ length of the head │ head, as JSON │ tokens │ blocks of the cache │ BLAKE3 of all that is before
//! ```
//! Whatever changes a bit of the cache is in the head: the model's bytes, the type of the cache, this version, the processor's kind.
//! A file that does not agree is refused, and nothing of it is used.

use crate::Runner;
use neap_llm::Sequence;
use neap_store::{BlockReader, FileIdentity, Sighting, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use thiserror::Error;

const MAGIC: &[u8; 16] = b"neaptide text 1\n";

/// A longer head is no head.
const MOST_HEAD_BYTES: u32 = 16 << 20;

const DIGEST_BYTES: usize = blake3::OUT_LEN;

/// Why a saved text cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("is not a saved session")]
    Other,
    #[error("is damaged")]
    Damaged,
    #[error("is of another model")]
    Model,
    /// Both as they are told of an engine.
    #[error("does not fit: it was saved with {saved}, and this is {now}")]
    Differs { saved: String, now: String },
    #[error("has {positions} positions, and the context is {context}")]
    TooLong { positions: usize, context: usize },
    #[error(transparent)]
    Failed(#[from] crate::Error),
}

#[derive(Serialize, Deserialize)]
struct Head {
    /// BLAKE3 of the bytes of the model's files, one after the other.
    model: String,
    /// By which the same files are known without reading them.
    identities: Option<Vec<Identity>>,
    /// [`neap_llm::Engine::cache_key`].
    key: String,
    tokens: u32,
    /// Whoever saved it has its own use for this.
    note: Value,
}

/// As [`FileIdentity`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    size: u64,
    modified_ns: i128,
    changed_ns: i128,
    inode: u64,
    device: u64,
}

impl From<FileIdentity> for Identity {
    fn from(of: FileIdentity) -> Identity {
        Identity {
            size: of.size_bytes,
            modified_ns: of.modified_ns,
            changed_ns: of.changed_ns,
            inode: of.inode,
            device: of.device,
        }
    }
}

/// The model's files: which they are, and what is in them once somebody asked.
#[derive(Debug)]
pub(crate) struct Content {
    identities: Option<Vec<Identity>>,
    digest: Option<String>,
}

impl Content {
    pub fn of(files: &[PathBuf]) -> io::Result<Content> {
        let seen = files.iter().map(|path| Sighting::of(File::open(path)?));
        let seen: Vec<Sighting> = seen.collect::<io::Result<_>>()?;
        let known = |seen: &Sighting| (!seen.is_fresh).then(|| seen.identity.into());
        Ok(Content {
            identities: seen.iter().map(known).collect(),
            digest: None,
        })
    }

    fn digest(&mut self, files: &[PathBuf]) -> io::Result<&str> {
        let digest = match self.digest.take() {
            Some(digest) => digest,
            None => {
                let mut hasher = blake3::Hasher::new();
                let other = |error: StoreError| io::Error::other(error.to_string());
                for path in files {
                    io::copy(&mut BlockReader::open(path).map_err(other)?, &mut hasher)?;
                }
                hasher.finalize().to_hex().to_string()
            }
        };
        Ok(self.digest.insert(digest))
    }
}

/// Passes bytes on, and hashes them.
struct Hashed<T> {
    inner: T,
    hasher: blake3::Hasher,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        self.hasher.update(&out[..read]);
        Ok(read)
    }
}

impl Runner {
    /// Whether there is a text that [`Runner::save`] can write.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.kept.newest().is_some()
    }

    /// Writes the text that was over last, its cache, and a note. The first time, the model's file is read for its digest.
    ///
    /// # Errors
    /// Of the writer, or of the model's file. [`io::ErrorKind::NotFound`] where no text is over.
    pub fn save(&mut self, out: &mut dyn Write, note: Value) -> io::Result<()> {
        let files = self.model().files.clone();
        let identities = self.content.identities.clone();
        let model = self.content.digest(&files)?.to_owned();
        let (sequence, tokens) = self.kept.newest().ok_or(io::ErrorKind::NotFound)?;
        let head = Head {
            model,
            identities,
            key: self.engine.cache_key(),
            tokens: tokens.len() as u32,
            note,
        };
        let head = serde_json::to_vec(&head)?;
        let mut out = Hashed {
            inner: out,
            hasher: blake3::Hasher::new(),
        };
        out.write_all(MAGIC)?;
        out.write_all(&(head.len() as u32).to_le_bytes())?;
        out.write_all(&head)?;
        for token in tokens {
            out.write_all(&token.to_le_bytes())?;
        }
        for block in self.engine.cache_of(sequence) {
            out.write_all(block)?;
        }
        let digest = out.hasher.finalize();
        out.inner.write_all(digest.as_bytes())
    }

    /// Takes what [`Runner::save`] wrote as a text that is over, and gives its note.
    ///
    /// # Errors
    /// [`LoadError`]: nothing of it was taken.
    pub fn load(&mut self, from: &mut dyn Read) -> Result<Value, LoadError> {
        let mut from = Hashed {
            inner: from,
            hasher: blake3::Hasher::new(),
        };
        let mut magic = [0; MAGIC.len()];
        match from.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error.into()),
            _ => return Err(LoadError::Other),
        }
        let head: Head = read_head(&mut from)?;
        self.check(&head)?;
        let mut tokens = Vec::new();
        for _ in 0..head.tokens {
            tokens.push(number(&mut from)?);
        }
        let fill = &mut |block: &mut [u8]| from.read_exact(block);
        let restored = self.engine.restore(tokens.len(), fill);
        let sequence = restored.map_err(|error| match error {
            neap_llm::Error::File { source, .. } => broken(source),
            other => LoadError::Failed(other.into()),
        })?;
        if let Err(error) = self.ended(from, &tokens) {
            self.engine.end(sequence);
            return Err(error);
        }
        self.keep(sequence, tokens);
        Ok(head.note)
    }

    /// Whether a head is of this model, opened as it is.
    fn check(&mut self, head: &Head) -> Result<(), LoadError> {
        let files = self.model().files.clone();
        let content = &mut self.content;
        if content.identities.is_some() && content.identities == head.identities {
            content.digest = Some(head.model.clone());
        } else if content.digest(&files)? != head.model {
            return Err(LoadError::Model);
        }
        let now = self.engine.cache_key();
        if head.key != now {
            let saved = head.key.clone();
            return Err(LoadError::Differs { saved, now });
        }
        let (positions, context) = (head.tokens as usize, self.context());
        if positions > context {
            return Err(LoadError::TooLong { positions, context });
        }
        Ok(())
    }

    /// Whether the digest is right and the last, and the tokens are of the vocabulary.
    fn ended<R: Read>(&self, mut from: Hashed<R>, tokens: &[u32]) -> Result<(), LoadError> {
        let digest = from.hasher.finalize();
        let mut rest = Vec::new();
        let limit = DIGEST_BYTES as u64 + 1;
        from.inner.by_ref().take(limit).read_to_end(&mut rest)?;
        let vocabulary = self.model().config.vocabulary;
        let is_right = rest == digest.as_bytes()
            && !tokens.is_empty()
            && tokens.iter().all(|&token| (token as usize) < vocabulary);
        is_right.then_some(()).ok_or(LoadError::Damaged)
    }

    fn keep(&mut self, sequence: Sequence, tokens: Vec<u32>) {
        let most = self.most_kept;
        self.kept.put(&mut self.engine, sequence, tokens, most);
    }
}

fn read_head(from: &mut dyn Read) -> Result<Head, LoadError> {
    let len = number(from)?;
    if len > MOST_HEAD_BYTES {
        return Err(LoadError::Damaged);
    }
    let mut head = Vec::new();
    from.take(len.into()).read_to_end(&mut head)?;
    serde_json::from_slice(&head).map_err(|_| LoadError::Damaged)
}

fn number(from: &mut dyn Read) -> Result<u32, LoadError> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes).map_err(broken)?;
    Ok(u32::from_le_bytes(bytes))
}

/// A file that ends early is damaged.
fn broken(error: io::Error) -> LoadError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => LoadError::Damaged,
        _ => LoadError::Read(error),
    }
}
