//! Files of settings in a folder of `diffusers`: what the shapes of tensors do not say, and what is copied as it is.

use super::bad;
use crate::ZooError;
use crate::nets::diffusion::Family;
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Indices of shards are the longest, and vocabularies, which are only copied.
const MOST_BYTES: u64 = 32 << 20;

#[derive(Debug, Default)]
pub(super) struct Settings {
    folder: Option<PathBuf>,
    pub text: Object,
    pub unet: Object,
    pub vae: Object,
}

/// One file of them, and its path for messages.
#[derive(Debug, Default)]
pub(super) struct Object {
    path: PathBuf,
    entries: Map<String, Value>,
}

/// A file of JSON that may be missing.
pub(super) fn json(path: &Path) -> Result<Option<Value>, ZooError> {
    let shown = path.display();
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text));
    match read {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(bad(format!("cannot read {shown}: {e}"))),
        Ok(_) => match serde_json::from_str(&text) {
            Ok(value) => Ok(Some(value)),
            Err(e) => Err(bad(format!("{shown}: {e}"))),
        },
    }
}

impl Object {
    fn read(path: PathBuf) -> Result<Object, ZooError> {
        let entries = match json(&path)? {
            Some(Value::Object(entries)) => entries,
            None => Map::new(),
            Some(_) => return Err(bad(format!("{} is no object", path.display()))),
        };
        Ok(Object { path, entries })
    }

    /// A setting that is there and is not null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(key).filter(|value| !value.is_null())
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn wrong(&self, key: &str) -> ZooError {
        let value = self.entries.get(key).unwrap_or(&Value::Null);
        bad(format!(
            "{}: '{key}' of {value} is not supported",
            self.path.display()
        ))
    }

    /// A number from 1 on that divides something of moderate size.
    pub fn count(&self, key: &str) -> Result<Option<usize>, ZooError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(count @ 1..=65_536) => Ok(Some(count as usize)),
            _ => Err(self.wrong(key)),
        }
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, ZooError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => value
                .as_f64()
                .map_or_else(|| Err(self.wrong(key)), |n| Ok(Some(n))),
        }
    }

    /// One number for all levels, or one for each.
    pub fn each(&self, key: &str, levels: usize) -> Result<Option<Vec<usize>>, ZooError> {
        match self.get(key) {
            Some(Value::Array(values)) => {
                let counts = values.iter().map(|value| match value.as_u64() {
                    Some(count @ 1..=65_536) => Some(count as usize),
                    _ => None,
                });
                let counts: Option<Vec<usize>> = counts.collect();
                let counts = counts.filter(|counts| counts.len() == levels);
                counts.map(Some).ok_or_else(|| self.wrong(key))
            }
            _ => Ok(self.count(key)?.map(|count| vec![count; levels])),
        }
    }

    /// Refuses a setting that is not one of these, which the networks here are built for. Without it they are what is meant.
    fn only(&self, key: &str, values: &[Value]) -> Result<(), ZooError> {
        // 1 and 1.0 are the same.
        let is = |value: &Value, other: &Value| match (value.as_f64(), other.as_f64()) {
            (Some(a), Some(b)) => a == b,
            _ => value == other,
        };
        match self.get(key) {
            Some(found) if !values.iter().any(|value| is(value, found)) => Err(self.wrong(key)),
            _ => Ok(()),
        }
    }
}

const FOLDERS: [(&str, &str); 4] = [
    ("text_encoder/config.json", "text_encoder/config.json"),
    ("unet/config.json", "unet/config.json"),
    ("vae/config.json", "vae_decoder/config.json"),
    ("vae/config.json", "vae_encoder/config.json"),
];
const SCHEDULER: &str = "scheduler/scheduler_config.json";
const VOCABULARY: [&str; 2] = ["vocab.json", "merges.txt"];

impl Settings {
    pub fn read(folder: Option<&Path>) -> Result<Settings, ZooError> {
        let Some(folder) = folder else {
            return Ok(Settings::default());
        };
        if !folder.is_dir() {
            return Err(bad(format!("{} is no folder", folder.display())));
        }
        let settings = Settings {
            folder: Some(folder.into()),
            text: Object::read(folder.join("text_encoder/config.json"))?,
            unet: Object::read(folder.join("unet/config.json"))?,
            vae: Object::read(folder.join("vae/config.json"))?,
        };
        settings.check_usual()?;
        Ok(settings)
    }

    /// What would be another network of the same shapes, or takes more inputs.
    fn check_usual(&self) -> Result<(), ZooError> {
        let no = [json!(false)];
        let one = [json!(1)];
        let three = [json!(3)];
        let unet: [(&str, &[Value]); 21] = [
            ("act_fn", &[json!("silu"), json!("swish")]),
            ("addition_embed_type", &[]),
            ("attention_type", &[json!("default")]),
            ("center_input_sample", &no),
            ("class_embed_type", &[]),
            ("conv_in_kernel", &three),
            ("conv_out_kernel", &three),
            ("cross_attention_norm", &[]),
            ("downsample_padding", &one),
            ("dual_cross_attention", &no),
            ("encoder_hid_dim_type", &[]),
            ("flip_sin_to_cos", &[json!(true)]),
            ("freq_shift", &[json!(0)]),
            ("mid_block_scale_factor", &one),
            ("norm_eps", &[json!(1e-5)]),
            ("only_cross_attention", &no),
            ("resnet_skip_time_act", &no),
            ("resnet_time_scale_shift", &[json!("default")]),
            ("time_cond_proj_dim", &[]),
            ("time_embedding_type", &[json!("positional")]),
            ("timestep_post_act", &[]),
        ];
        for (key, values) in unet {
            self.unet.only(key, values)?;
        }
        self.vae.only("act_fn", &[json!("silu"), json!("swish")])?;
        self.vae.only("shift_factor", &[json!(0)])?;
        self.vae.only("mid_block_add_attention", &[json!(true)])?;
        self.text.only("layer_norm_eps", &[json!(1e-5)])?;
        self.text.only("max_position_embeddings", &[json!(77)])
    }

    fn tokenizer(&self) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        // Or a tokenizer alone.
        let own = folder.join("tokenizer");
        let folder = if own.is_dir() { own } else { folder.clone() };
        let is_whole = VOCABULARY.iter().all(|name| folder.join(name).is_file());
        is_whole.then_some(folder)
    }

    /// Refuses what lacks a file that nothing can be put in place of.
    pub fn check_files(&self, family: &Family) -> Result<(), ZooError> {
        if self.tokenizer().is_none() {
            return Err(bad(match &self.folder {
                Some(folder) => format!(
                    "{} has no tokenizer/vocab.json and merges.txt",
                    folder.display()
                ),
                None => "the checkpoint has no tokenizer: add --settings FOLDER with vocab.json and merges.txt, such as \
                         those of openai/clip-vit-large-patch14"
                    .into(),
            }));
        }
        let has_scheduler = (self.folder.iter()).any(|folder| folder.join(SCHEDULER).is_file());
        // Those of Stable Diffusion 2 find noise or velocity, and their tensors do not say which.
        if family.unet.linear_ends && !has_scheduler {
            return Err(bad(
                "whether the UNet of Stable Diffusion 2 finds noise or velocity is not in its weights: add --settings FOLDER with \
                 scheduler/scheduler_config.json",
            ));
        }
        Ok(())
    }

    /// Those that are there take the place of those that were written.
    pub fn copy_files(&self, to: &Path) -> Result<(), ZooError> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        for (from, name) in FOLDERS.into_iter().chain([(SCHEDULER, SCHEDULER)]) {
            copy(&folder.join(from), &to.join(name))?;
        }
        if let Some(folder) = self.tokenizer() {
            let optional = [
                "tokenizer_config.json",
                "special_tokens_map.json",
                "added_tokens.json",
            ];
            for name in VOCABULARY.into_iter().chain(optional) {
                copy(&folder.join(name), &to.join("tokenizer").join(name))?;
            }
        }
        Ok(())
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), ZooError> {
    if !from.is_file() {
        return Ok(());
    }
    // Contents alone: a file that nobody may write is no reason for another one.
    let copied = File::open(from).and_then(|mut source| {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        std::io::copy(&mut source, &mut File::create(to)?)
    });
    copied
        .map(|_| ())
        .map_err(|e| bad(format!("cannot copy {}: {e}", from.display())))
}
