//! Models that are several networks in a folder, with the files around them.

use crate::ZooError;
use crate::graph::{Batch, Graph};
use crate::nets::diffusion::{self, Family};
use crate::writer::{self, Weights};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// A model that is a folder.
#[derive(Debug)]
#[non_exhaustive]
pub struct FolderEntry {
    /// The name that [`write_folder`] takes.
    pub name: &'static str,
    /// One line for a person.
    pub summary: &'static str,
    family: Family,
    weights: Weights,
}

static FOLDERS: &[FolderEntry] = &[
    FolderEntry {
        name: "sd_tiny",
        summary: "a small Stable Diffusion 1: a folder of four networks, a tokenizer and their settings",
        family: diffusion::SD_TINY,
        weights: Weights::Inline,
    },
    FolderEntry {
        name: "sd_15",
        summary: "Stable Diffusion 1.5 at full size, but for the vocabulary: 4.3 GB of weights beside four networks",
        family: diffusion::SD_15,
        // A model of more than 2 GiB is no file, and `optimum` names its data so.
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

/// Words of the small vocabulary, beside all bytes.
const WORDS: [&str; 10] = [
    "a", "photo", "of", "the", "sea", "cat", "dog", "house", "red", "boat",
];

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
    let bytes = write_files(entry, &partial.0, options, progress)?;
    fs::rename(&partial.0, path).map_err(io(path))?;
    Ok(bytes)
}

/// What is not complete goes away.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // Renamed, or nothing more can be done about it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> ZooError + '_ {
    move |source| ZooError::Io {
        path: path.into(),
        source,
    }
}

fn networks(family: &Family, vocabulary: usize, is_half: bool) -> [Graph; 4] {
    let network = |name, build: &dyn Fn(&mut Graph)| {
        let mut graph = Graph::new(name, Batch::Dynamic);
        graph.is_half = is_half;
        build(&mut graph);
        graph.finish()
    };
    let Family { text, unet, vae } = family;
    [
        network("text_encoder", &|g| {
            diffusion::text_encoder(g, text, vocabulary)
        }),
        network("unet", &|g| diffusion::unet(g, unet, text.width)),
        network("vae_decoder", &|g| diffusion::vae_decoder(g, vae)),
        network("vae_encoder", &|g| diffusion::vae_encoder(g, vae)),
    ]
}

fn write_files(
    entry: &FolderEntry,
    folder: &Path,
    options: &FolderOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64, ZooError> {
    let (vocabulary, merges) = tokenizer();
    let family = &entry.family;
    let graphs = networks(family, vocabulary.len(), options.half);
    let total = graphs.iter().map(Graph::weight_bytes).sum();
    let mut done = 0;
    for graph in graphs {
        let folder = folder.join(graph.name);
        fs::create_dir_all(&folder).map_err(io(&folder))?;
        let path = folder.join("model.onnx");
        writer::write(
            &graph,
            options.seed,
            &path,
            entry.weights,
            &mut |bytes, _| {
                // The model is counted there, too.
                progress(done + bytes.min(graph.weight_bytes()), total);
            },
        )?;
        done += graph.weight_bytes();
    }
    let channels = diffusion::LATENT_CHANNELS;
    let levels = |levels: &[usize]| {
        let texts: Vec<String> = levels.iter().map(usize::to_string).collect();
        texts.join(", ")
    };
    let vae = format!(
        "{{\n  \"_class_name\": \"AutoencoderKL\",\n  \"block_out_channels\": [{}],\n  \"latent_channels\": {channels},\n  \"scaling_factor\": {}\n}}\n",
        levels(family.vae.levels),
        family.vae.scaling
    );
    let unet = format!(
        "{{\n  \"_class_name\": \"UNet2DConditionModel\",\n  \"block_out_channels\": [{}],\n  \"in_channels\": {channels},\n  \"sample_size\": {}\n}}\n",
        levels(family.unet.levels),
        family.unet.sample_size
    );
    let tokenizer = format!(
        "{{\n  \"model_max_length\": {},\n  \"pad_token\": \"<|endoftext|>\",\n  \"tokenizer_class\": \"CLIPTokenizer\"\n}}\n",
        diffusion::PLACES
    );
    for (name, text) in [
        ("unet/config.json", unet.as_str()),
        ("vae_decoder/config.json", &vae),
        ("vae_encoder/config.json", &vae),
        ("tokenizer/tokenizer_config.json", &tokenizer),
        ("tokenizer/vocab.json", &json(&vocabulary)),
        ("tokenizer/merges.txt", &merges),
        ("scheduler/scheduler_config.json", SCHEDULER),
        ("model_index.json", INDEX),
    ] {
        let path = folder.join(name);
        let written = path.parent().map_or(Ok(()), fs::create_dir_all);
        written
            .and_then(|()| fs::write(&path, text))
            .map_err(io(&path))?;
    }
    Ok(total)
}

/// As Stable Diffusion 1.5 has it.
const SCHEDULER: &str = r#"{
  "_class_name": "PNDMScheduler",
  "beta_end": 0.012,
  "beta_schedule": "scaled_linear",
  "beta_start": 0.00085,
  "clip_sample": false,
  "num_train_timesteps": 1000,
  "set_alpha_to_one": false,
  "skip_prk_steps": true,
  "steps_offset": 1,
  "trained_betas": null
}
"#;

const INDEX: &str = r#"{
  "_class_name": "StableDiffusionPipeline",
  "scheduler": ["diffusers", "PNDMScheduler"],
  "text_encoder": ["optimum", "ORTModelTextEncoder"],
  "tokenizer": ["transformers", "CLIPTokenizer"],
  "unet": ["optimum", "ORTModelUnet"],
  "vae_decoder": ["optimum", "ORTModelVaeDecoder"],
  "vae_encoder": ["optimum", "ORTModelVaeEncoder"]
}
"#;

/// Tokens in the order of their ids, and merges: every byte, every byte at the end of a word, and what words are merged from.
fn tokenizer() -> (Vec<String>, String) {
    let printed: Vec<u8> = (b'!'..=b'~')
        .chain(0xA1..=0xAC)
        .chain(0xAE..=0xFF)
        .collect();
    let hidden = (0..=255_u8).filter(|byte| !printed.contains(byte)).count() as u32;
    let letters = printed.iter().map(|byte| char::from(*byte));
    let letters: Vec<String> = letters
        .chain((256..256 + hidden).filter_map(char::from_u32))
        .map(String::from)
        .collect();
    let mut tokens = letters.clone();
    tokens.extend(letters.iter().map(|letter| format!("{letter}</w>")));
    let mut merges = String::from("#version: 0.2\n");
    for word in WORDS {
        let mut begun = String::new();
        for (at, letter) in word.char_indices() {
            let end = if at + 1 == word.len() { "</w>" } else { "" };
            let piece = format!("{letter}{end}");
            let merged = format!("{begun}{piece}");
            if !begun.is_empty() && !tokens.contains(&merged) {
                // Writing to a string cannot fail.
                let _ = writeln!(merges, "{begun} {piece}");
                tokens.push(merged.clone());
            }
            begun = merged;
        }
    }
    tokens.extend(["<|startoftext|>", "<|endoftext|>"].map(String::from));
    (tokens, merges)
}

fn json(tokens: &[String]) -> String {
    let entries = tokens.iter().enumerate().map(|(id, token)| {
        let token = token.replace('\\', "\\\\").replace('"', "\\\"");
        format!("  \"{token}\": {id}")
    });
    format!("{{\n{}\n}}\n", entries.collect::<Vec<_>>().join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(name: &str, path: &Path, half: bool) -> Result<u64, ZooError> {
        let options = FolderOptions { half, seed: 0 };
        let mut last = (0, 0);
        let bytes = write_folder(name, path, &options, &mut |done, total| {
            last = (done, total)
        })?;
        assert_eq!(last, (bytes, bytes));
        Ok(bytes)
    }

    #[test]
    fn a_folder_is_whole_and_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sd");
        let bytes = write("sd_tiny", &path, false).unwrap();
        assert!((1 << 20..8 << 20).contains(&bytes), "{bytes}");
        assert!(path.join("unet/model.onnx").is_file());
        assert!(write("sd_tiny", &path, false).is_err());
        assert!(write("sd", &dir.path().join("other"), false).is_err());
        let halved = write("sd_tiny", &dir.path().join("half"), true).unwrap();
        assert!((bytes / 2..bytes / 2 + 1024).contains(&halved), "{halved}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    /// What a network with the sizes that are published for Stable Diffusion 1.5 has, layer by layer. The sums are those of the published files.
    #[test]
    fn stable_diffusion_has_the_published_parameters() {
        let linear = |from: u64, to: u64| (from + 1) * to;
        let conv = |from: u64, to: u64| linear(9 * from, to);
        let norm = |width: u64| 2 * width;
        // Without the layer that changes the number of channels.
        let two = |from, to| norm(from) + conv(from, to) + norm(to) + conv(to, to);
        let block = |from, to| match from == to {
            true => two(from, to),
            false => two(from, to) + linear(from, to),
        };

        let attention = 4 * linear(768, 768);
        let layer = attention + linear(768, 3072) + linear(3072, 768) + 2 * norm(768);
        let text = (49_408 + 77) * 768 + 12 * layer + norm(768);

        let looking = |width: u64| {
            let itself = 3 * width * width + linear(width, width);
            let at_text = width * width + 2 * 768 * width + linear(width, width);
            let gated = linear(width, 8 * width) + linear(4 * width, width);
            norm(width) + 2 * linear(width, width) + 3 * norm(width) + itself + at_text + gated
        };
        let timed = |from, to| block(from, to) + linear(1280, to);
        let level =
            |blocks: &[u64], to| -> u64 { blocks.iter().map(|&from| timed(from, to)).sum() };
        let time = linear(320, 1280) + linear(1280, 1280);
        let down = level(&[320, 320], 320)
            + level(&[320, 640], 640)
            + level(&[640, 1280], 1280)
            + level(&[1280, 1280], 1280)
            + conv(320, 320)
            + conv(640, 640)
            + conv(1280, 1280);
        let middle = level(&[1280, 1280], 1280) + looking(1280);
        // Each block sees the one before and what the way down left.
        let up = level(&[2560, 2560, 2560], 1280)
            + level(&[2560, 2560, 1920], 1280)
            + level(&[1920, 1280, 960], 640)
            + level(&[960, 640, 640], 320)
            + 2 * conv(1280, 1280)
            + conv(640, 640);
        let attentions = 5 * (looking(320) + looking(640) + looking(1280));
        let ends = conv(4, 320) + norm(320) + conv(320, 4);
        let unet = time + down + middle + up + attentions + ends;

        let middle = 2 * block(512, 512) + norm(512) + 4 * linear(512, 512);
        let levels = 3 * block(512, 512)
            + 3 * block(512, 512)
            + (block(512, 256) + 2 * block(256, 256))
            + (block(256, 128) + 2 * block(128, 128));
        let doubled = 2 * conv(512, 512) + conv(256, 256);
        let ends = linear(4, 4) + conv(4, 512) + norm(128) + conv(128, 3);
        let decoder = middle + levels + doubled + ends;

        let levels = 2 * block(128, 128)
            + (block(128, 256) + block(256, 256))
            + (block(256, 512) + block(512, 512))
            + 2 * block(512, 512);
        let halved = conv(128, 128) + conv(256, 256) + conv(512, 512);
        let ends = conv(3, 128) + norm(512) + conv(512, 8) + linear(8, 8);
        let encoder = middle + levels + halved + ends;

        let expected = [text, unet, decoder, encoder];
        assert_eq!(expected, [123_060_480, 859_520_964, 49_490_199, 34_163_664]);
        let (vocabulary, _) = tokenizer();
        let graphs = networks(&diffusion::SD_15, vocabulary.len(), false);
        assert_eq!(graphs.map(|graph| graph.parameter_count()), expected);
    }
}
