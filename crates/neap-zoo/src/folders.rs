//! Models that are several networks in a folder, with the files around them.

use crate::graph::{Batch, Graph};
use crate::nets::diffusion;
use crate::{ZooError, writer};
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
}

static FOLDERS: &[FolderEntry] = &[FolderEntry {
    name: "sd_tiny",
    summary: "a small Stable Diffusion 1: a folder of four networks, a tokenizer and their settings",
}];

/// All models that are folders.
pub fn folders() -> &'static [FolderEntry] {
    FOLDERS
}

/// Words of the small vocabulary, beside all bytes.
const WORDS: [&str; 10] = [
    "a", "photo", "of", "the", "sea", "cat", "dog", "house", "red", "boat",
];

/// Writes the model `name` as a new folder, under a temporary name until it is complete. Returns the bytes of its weights.
///
/// # Errors
/// [`ZooError`] where there is no such model, the folder is there already, or it cannot be written.
pub fn write_folder(name: &str, path: &Path, seed: u64) -> Result<u64, ZooError> {
    if !FOLDERS.iter().any(|entry| entry.name == name) {
        return Err(ZooError::UnknownName { name: name.into() });
    }
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
    let bytes = sd_tiny(&partial.0, seed)?;
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

fn sd_tiny(folder: &Path, seed: u64) -> Result<u64, ZooError> {
    let (vocabulary, merges) = tokenizer();
    let tokens = vocabulary.len();
    let mut weight_bytes = 0;
    let mut network = |name: &'static str, build: &dyn Fn(&mut Graph)| {
        let mut graph = Graph::new(name, Batch::Dynamic);
        build(&mut graph);
        let graph = graph.finish();
        weight_bytes += graph.weight_bytes();
        let folder = folder.join(name);
        fs::create_dir_all(&folder).map_err(io(&folder))?;
        let path = folder.join("model.onnx");
        writer::write(&graph, seed, &path, writer::Weights::Inline, &mut |_, _| {}).map(drop)
    };
    network("text_encoder", &|g| diffusion::text_encoder(g, tokens))?;
    network("unet", &diffusion::unet)?;
    network("vae_decoder", &diffusion::vae_decoder)?;
    network("vae_encoder", &diffusion::vae_encoder)?;
    let channels = diffusion::LATENT_CHANNELS;
    let levels = |levels: &[usize]| {
        let texts: Vec<String> = levels.iter().map(usize::to_string).collect();
        texts.join(", ")
    };
    let vae = format!(
        "{{\n  \"_class_name\": \"AutoencoderKL\",\n  \"block_out_channels\": [{}],\n  \"latent_channels\": {channels},\n  \"scaling_factor\": 0.18215\n}}\n",
        levels(&diffusion::VAE_LEVELS)
    );
    let unet = format!(
        "{{\n  \"_class_name\": \"UNet2DConditionModel\",\n  \"block_out_channels\": [{}],\n  \"in_channels\": {channels},\n  \"sample_size\": 8\n}}\n",
        levels(&diffusion::LEVELS)
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
    Ok(weight_bytes)
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

    #[test]
    fn a_folder_is_whole_and_never_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sd");
        let bytes = write_folder("sd_tiny", &path, 0).unwrap();
        assert!((1 << 20..8 << 20).contains(&bytes), "{bytes}");
        assert!(path.join("unet/model.onnx").is_file());
        assert!(write_folder("sd_tiny", &path, 0).is_err());
        assert!(write_folder("sd", &dir.path().join("other"), 0).is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
