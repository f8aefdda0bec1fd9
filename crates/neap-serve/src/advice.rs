//! What to write into a model's settings, where it cannot be opened without.

use neaptide::{Error, Need};
use std::path::Path;

/// The error, and what to write into the file of settings.
pub fn advised(error: Error, settings: &Path) -> Error {
    match error {
        Error::Unbound { text, need } => {
            let file = settings.file_name().unwrap_or(settings.as_os_str());
            let text = format!("{text} ({} in {})", entry(&need), file.display());
            Error::Unbound { text, need }
        }
        other => other,
    }
}

/// As TOML on one line.
fn entry(need: &Need) -> String {
    match need {
        Need::Shape { input, example } => {
            let example = example.as_ref();
            let shape = example.map_or("[1, ...]".into(), |shape| format!("{shape:?}"));
            format!("[shapes] {} = {shape}", key(input))
        }
        Need::Values { inputs } => {
            let values: Vec<String> = inputs.iter().map(|i| format!("{} = ...", key(i))).collect();
            format!("[values] {}", values.join(", "))
        }
        Need::Bound { name } => format!("[bounds] {} = N", key(name)),
    }
}

/// Quoted, where TOML wants it.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match !name.is_empty() && name.chars().all(bare) {
        true => name.into(),
        false => format!("{name:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_write_is_toml() {
        let input = "images:0".to_string();
        let example = Some(vec![1, 4]);
        let need = Need::Shape { input, example };
        assert_eq!(entry(&need), "[shapes] \"images:0\" = [1, 4]");
        let name = "boxes".to_string();
        assert_eq!(entry(&Need::Bound { name }), "[bounds] boxes = N");
        let inputs = vec!["a".into(), "b".into()];
        assert_eq!(entry(&Need::Values { inputs }), "[values] a = ..., b = ...");
    }
}
