//! Checkpoints as their users have them, written as the folder of networks that `neap imagine` takes.
//!
//! ```text
//!   headers of the files (file) ─► names as diffusers has them (names, found) ─► sizes, by the tensors' shapes (sizes)
//!     ─► the zoo's graph of these sizes ─► each parameter bound to its place in a file (bind) ─► streamed by the writer
//! ```
//!
//! Weights are copied. External data that names the checkpoint would be lost when it is moved, and a hard link would change when a
//! trainer writes the same file again. Most weights are transposed on the way, too, so no file system could share their bytes.
//! A copy stays what it is, and the checkpoint may be removed.

mod bind;
mod file;
mod found;
mod names;
mod settings;
mod sizes;
#[cfg(test)]
mod tests;

use crate::ZooError;
use crate::folders;
use crate::nets::diffusion::Model;
use crate::writer::Weights;
use bind::Bound;
use found::Found;
use settings::Settings;
use std::path::Path;

/// What [`import`] has written.
#[derive(Debug)]
#[non_exhaustive]
pub struct Imported {
    /// Of all networks.
    pub weight_bytes: u64,
    /// One line each: what of the checkpoint is not used.
    pub remarks: Vec<String>,
}

fn bad(text: impl Into<String>) -> ZooError {
    ZooError::Checkpoint { text: text.into() }
}

/// Writes the networks of Stable Diffusion with the weights of a checkpoint as a new folder, under a temporary name until it is
/// complete. The checkpoint is a folder of `diffusers`, or a file of the original layout. `settings` is a folder of `diffusers`, whose
/// weights are not looked at, for what the checkpoint itself does not have. `progress` hears how many bytes of weights are written,
/// and their total.
///
/// # Errors
/// [`ZooError`] where the checkpoint is damaged, incomplete or of another kind, the folder is there already, or it cannot be written.
pub fn import(
    checkpoint: &Path,
    folder: &Path,
    settings: Option<&Path>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Imported, ZooError> {
    let found = Found::open(checkpoint)?;
    let is_folder = checkpoint.is_dir().then_some(checkpoint);
    let settings = Settings::read(settings.or(is_folder))?;
    let sizes = sizes::of(&found, &settings)?;
    let family = sizes.family();
    settings.check_files(&family)?;
    let model = Model::StableDiffusion(family);
    let networks = folders::networks(&model, 0, false);
    let mut bound = Vec::new();
    for mut graph in networks {
        let values = Bound::new(&mut graph, &found)?;
        bound.push((graph, values));
    }
    let used = bound.iter().flat_map(|(_, values)| values.names());
    let remarks = found.remarks(&used.collect());
    folders::whole(folder, |partial| {
        let weight_bytes =
            folders::write_networks(partial, bound, Weights::External("_data"), progress)?;
        folders::write_texts(partial, folders::settings::files(&model))?;
        settings.copy_files(partial)?;
        Ok(Imported {
            weight_bytes,
            remarks,
        })
    })
}
