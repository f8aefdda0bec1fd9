//! Models that are several networks in a folder, with the files around them.

pub(crate) mod settings;
#[cfg(test)]
mod tests;
mod tokenizer;

use crate::ZooError;
use crate::graph::{Batch, Graph};
use crate::nets::diffusion::{self, Family, Model, Vae};
use crate::writer::{self, Seeded, Values, Weights};
use std::fs;
use std::path::{Path, PathBuf};
use tokenizer::{json, tokenizer};

/// A model that is a folder.
#[derive(Debug)]
#[non_exhaustive]
pub struct FolderEntry {
    /// The name that [`write_folder`] takes.
    pub name: &'static str,
    /// One line for a person.
    pub summary: &'static str,
    model: Model<'static>,
    weights: Weights,
}

static FOLDERS: &[FolderEntry] = &[
    FolderEntry {
        name: "sd_tiny",
        summary: "a small Stable Diffusion 1: a folder of four networks, a tokenizer and their settings",
        model: Model::StableDiffusion(diffusion::SD_TINY),
        weights: Weights::Inline,
    },
    FolderEntry {
        name: "sd_15",
        summary: "Stable Diffusion 1.5 at full size, but for the vocabulary: 4.3 GB of weights beside four networks",
        model: Model::StableDiffusion(diffusion::SD_15),
        // A model of more than 2 GiB is no file, and `optimum` names its data so.
        weights: Weights::External("_data"),
    },
    FolderEntry {
        name: "sdxl_tiny",
        summary: "a small SDXL: a folder of five networks, two tokenizers and their settings",
        model: Model::StableDiffusion(diffusion::SDXL_TINY),
        weights: Weights::Inline,
    },
    FolderEntry {
        name: "sdxl",
        summary: "SDXL at full size, but for the vocabulary: 13.9 GB of weights beside five networks",
        model: Model::StableDiffusion(diffusion::SDXL),
        weights: Weights::External("_data"),
    },
    FolderEntry {
        name: "pixart_tiny",
        summary: "a small PixArt: its transformer and VAE decoder, without a text encoder",
        model: Model::PixArt(diffusion::PIXART_TINY),
        weights: Weights::Inline,
    },
    FolderEntry {
        name: "pixart",
        summary: "PixArt-alpha at full size for 512x512: its transformer and VAE decoder, 2.6 GB of weights, without a text encoder",
        model: Model::PixArt(diffusion::PIXART),
        weights: Weights::External("_data"),
    },
];

/// How to write a folder.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderOptions {
    /// Seed of all weights.
    pub seed: u64,
    /// Networks in half floats, inputs and outputs as well.
    pub half: bool,
}

/// All models that are folders.
pub fn folders() -> &'static [FolderEntry] {
    FOLDERS
}

/// Writes the model `name` as a new folder, under a temporary name until it is complete. Returns the bytes of its weights.
/// `progress` hears how many of them are written, and their total.
///
/// # Errors
/// [`ZooError`] where there is no such model, the folder is there already, or it cannot be written.
pub fn write_folder(
    name: &str,
    path: &Path,
    options: &FolderOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, ZooError> {
    let Some(entry) = FOLDERS.iter().find(|entry| entry.name == name) else {
        return Err(ZooError::UnknownName { name: name.into() });
    };
    whole(path, |partial| {
        write_files(entry, partial, options, progress)
    })
}

/// Makes a new folder, under a temporary name until `write` has written all of it.
pub(crate) fn whole<T>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<T, ZooError>,
) -> Result<T, ZooError> {
    let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut all| all.next().is_none());
    if path.symlink_metadata().is_ok() && !is_empty(path) {
        let source = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        return Err(io(path)(source));
    }
    let Some(file_name) = path.file_name() else {
        return Err(ZooError::BadPath { path: path.into() });
    };
    let mut partial = file_name.to_os_string();
    partial.push(format!(".{}.partial", std::process::id()));
    let partial = Partial(path.with_file_name(partial));
    let written = write(&partial.0)?;
    fs::rename(&partial.0, path).map_err(io(path))?;
    Ok(written)
}

/// What is not complete goes away.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // Renamed, or nothing more can be done about it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> ZooError + '_ {
    move |source| ZooError::Io {
        path: path.into(),
        source,
    }
}

pub(crate) fn networks(model: &Model, vocabulary: usize, is_half: bool) -> Vec<Graph> {
    let network = |name, build: &dyn Fn(&mut Graph)| {
        let mut graph = Graph::new(name, Batch::Dynamic);
        graph.is_half = is_half;
        build(&mut graph);
        graph.finish()
    };
    let decoder = |vae: &Vae| network("vae_decoder", &|g| diffusion::vae_decoder(g, vae));
    let family = match model {
        Model::StableDiffusion(family) => family,
        Model::PixArt(sizes) => {
            let transformer = network("transformer", &|g| diffusion::pixart(g, sizes));
            return vec![transformer, decoder(&sizes.vae)];
        }
    };
    let text = |name, text| network(name, &|g| diffusion::text_encoder(g, text, vocabulary));
    let Family { unet, vae, .. } = family;
    let mut networks = vec![text("text_encoder", &family.text)];
    networks.extend((family.second_text.as_ref()).map(|second| text("text_encoder_2", second)));
    networks.extend([
        network("unet", &|g| diffusion::unet(g, unet, family.text_width())),
        decoder(vae),
        network("vae_encoder", &|g| diffusion::vae_encoder(g, vae)),
    ]);
    networks
}

fn write_files(
    entry: &FolderEntry,
    folder: &Path,
    options: &FolderOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, ZooError> {
    let (vocabulary, merges) = tokenizer();
    let graphs = networks(&entry.model, vocabulary.len(), options.half);
    let graphs = graphs
        .into_iter()
        .map(|graph| (graph, Seeded(options.seed)));
    let total = write_networks(folder, graphs.collect(), entry.weights, progress)?;
    let mut files = settings::files(&entry.model);
    for name in settings::tokenizers(&entry.model) {
        files.push((format!("{name}/vocab.json"), json(&vocabulary)));
        files.push((format!("{name}/merges.txt"), merges.clone()));
    }
    write_texts(folder, files)?;
    Ok(total)
}

/// Each with where its values come from. Returns the bytes of all weights.
pub(crate) fn write_networks<V: Values>(
    folder: &Path,
    networks: Vec<(Graph, V)>,
    weights: Weights,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, ZooError> {
    let total = networks.iter().map(|(graph, _)| graph.weight_bytes()).sum();
    let mut done = 0;
    for (graph, values) in networks {
        let folder = folder.join(graph.name);
        fs::create_dir_all(&folder).map_err(io(&folder))?;
        let path = folder.join("model.onnx");
        writer::write(&graph, &values, &path, weights, &mut |bytes, _| {
            // The model is counted there, too.
            progress(done + bytes.min(graph.weight_bytes()), total);
        })?;
        done += graph.weight_bytes();
    }
    Ok(total)
}

/// Names in the folder, and what they say.
pub(crate) fn write_texts(folder: &Path, files: Vec<(String, String)>) -> Result<(), ZooError> {
    for (name, text) in files {
        let path = folder.join(name);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all);
        written
            .and_then(|()| fs::write(&path, text))
            .map_err(io(&path))?;
    }
    Ok(())
}
