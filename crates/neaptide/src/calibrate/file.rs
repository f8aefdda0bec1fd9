//! The cache: one file with the profiles of a few machines, the newest last.
//!
//! ```text
//!   "NEAPCAL" version | BLAKE3 of the rest | profiles, postcard
//! ```
//! Nothing in it is believed before it was checked; a file that is not what it should be is as good as
//! none, with a remark. It is replaced whole.

use super::profile::{Machine, Profile};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"NEAPCAL\x05";
const HASH_BYTES: usize = 32;
const MOST_BYTES: u64 = 1 << 20;
const MOST_PROFILES: usize = 8;

pub(super) const FILE_NAME: &str = "calibration.bin";

/// What the file says, and why it says nothing where that is worth a word.
pub(super) struct Cached {
    pub profiles: Vec<Profile>,
    pub remark: Option<String>,
}

pub(super) fn read(path: &Path) -> Cached {
    match try_read(path) {
        Ok(profiles) => Cached {
            profiles,
            remark: None,
        },
        Err(reason) => Cached {
            profiles: Vec::new(),
            remark: reason.map(|reason| format!("{} is ignored: {reason}", path.display())),
        },
    }
}

/// The newest profile of a machine.
pub(super) fn find(profiles: Vec<Profile>, machine: &Machine) -> Option<Profile> {
    profiles.into_iter().rev().find(|p| p.machine == *machine)
}

/// `Err(None)`: there is no such file.
fn try_read(path: &Path) -> Result<Vec<Profile>, Option<String>> {
    let reason = |e: io::Error| match e.kind() {
        io::ErrorKind::NotFound => None,
        _ => Some(e.to_string()),
    };
    // Opening something else might wait for ever.
    let meta = fs::metadata(path).map_err(reason)?;
    if !meta.is_file() {
        return Err(Some("it is not a file".into()));
    }
    if meta.len() > MOST_BYTES {
        return Err(Some("it is too large".into()));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    let file = File::open(path).map_err(reason)?;
    file.take(MOST_BYTES)
        .read_to_end(&mut bytes)
        .map_err(reason)?;
    decode(&bytes).map_err(|text| Some(text.into()))
}

fn decode(bytes: &[u8]) -> Result<Vec<Profile>, &'static str> {
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or("it is cut short")?;
    if magic != MAGIC {
        return Err("it was written by another version, or is something else");
    }
    let (hash, payload) = rest
        .split_first_chunk::<HASH_BYTES>()
        .ok_or("it is cut short")?;
    if blake3::hash(payload) != blake3::Hash::from_bytes(*hash) {
        return Err("it is damaged");
    }
    let profiles: Vec<Profile> = postcard::from_bytes(payload).map_err(|_| "it is not readable")?;
    if profiles.len() > MOST_PROFILES || !profiles.iter().all(Profile::is_sane) {
        return Err("its numbers make no sense");
    }
    Ok(profiles)
}

fn encode(profiles: &[Profile]) -> io::Result<Vec<u8>> {
    let payload = postcard::to_stdvec(profiles).map_err(io::Error::other)?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend(blake3::hash(&payload).as_bytes());
    bytes.extend(payload);
    Ok(bytes)
}

/// Adds `profile`, in place of an older one of the same machine.
pub(super) fn write(path: &Path, profile: &Profile) -> io::Result<()> {
    let mut profiles = read(path).profiles;
    profiles.retain(|p| p.machine != profile.machine);
    let excess = (profiles.len() + 1).saturating_sub(MOST_PROFILES);
    profiles.drain(..excess);
    profiles.push(profile.clone());
    let mut bytes = encode(&profiles)?;
    while bytes.len() as u64 > MOST_BYTES && profiles.len() > 1 {
        profiles.remove(0);
        bytes = encode(&profiles)?;
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = Partial(path.with_extension(format!("{}.partial", std::process::id())));
    let mut file = File::create(&partial.0)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(&partial.0, path)
}

/// Removed when it was not renamed.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // After the renaming there is nothing to remove.
        let _ = fs::remove_file(&self.0);
    }
}
