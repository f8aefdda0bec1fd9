//! Language models on the command line: which they are, and their shares of the budget.

use neap_serve::LanguageModel;
use neaptide::parse_bytes;
use std::path::{Path, PathBuf};

/// `NAME=SIZE`.
pub fn share(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("'{text}' is no NAME=SIZE");
    let (name, size) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.into(), parse_bytes(size)?))
}

/// The folder of models, if there is one, and the language models.
///
/// # Errors
/// One line: two folders, a name that no model can have or that two have, a share of a model that is not served.
pub fn divided(
    given: &[PathBuf],
    shares: &[(String, u64)],
) -> Result<(Option<PathBuf>, Vec<LanguageModel>), String> {
    let mut folder = None;
    let mut models: Vec<LanguageModel> = Vec::new();
    for path in given {
        let Some(model) = language_model(path)? else {
            if let Some(other) = folder.replace(path.clone()) {
                let (one, two) = (other.display(), path.display());
                return Err(format!("{one} and {two}: one folder of models is served"));
            }
            continue;
        };
        if models.iter().any(|other| other.name == model.name) {
            let name = &model.name;
            return Err(format!(
                "two language models are named '{name}': give NAME={}",
                model.path.display()
            ));
        }
        models.push(model);
    }
    for (name, bytes) in shares {
        let model = models.iter_mut().find(|model| model.name == *name);
        let model = model.ok_or_else(|| format!("--share: no language model is named '{name}'"))?;
        model.share_bytes = Some(*bytes);
    }
    Ok((folder, models))
}

/// `MODEL.gguf` or `NAME=MODEL.gguf`; `None` for what is neither.
fn language_model(given: &Path) -> Result<Option<LanguageModel>, String> {
    let is_gguf = given
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    if !is_gguf || given.is_dir() {
        return Ok(None);
    }
    let named = given.to_str().and_then(|text| text.split_once('='));
    let named = named.filter(|_| !given.is_file());
    let path = named.map_or(given, |(_, path)| Path::new(path));
    let name = match named {
        Some((name, _)) => Some(name),
        None => path.file_stem().and_then(|stem| stem.to_str()),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    let name = name.filter(|n| !n.is_empty() && n.len() <= 128 && n.chars().all(is_plain));
    let name = name.ok_or_else(|| {
        let path = path.display();
        format!("{path} needs a name of letters, digits, '_', '-', '.' and ':': give NAME={path}")
    })?;
    Ok(Some(LanguageModel {
        name: name.into(),
        path: path.into(),
        share_bytes: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(
        given: &[&str],
        shares: &[(&str, u64)],
    ) -> Result<(Option<PathBuf>, Vec<String>), String> {
        let given: Vec<PathBuf> = given.iter().map(PathBuf::from).collect();
        let shares = shares
            .iter()
            .map(|&(name, bytes)| (name.to_string(), bytes));
        let (folder, models) = divided(&given, &shares.collect::<Vec<_>>())?;
        let told = models.iter().map(|model| {
            let share = model.share_bytes.map_or(String::new(), |s| format!(" {s}"));
            format!("{} {}{share}", model.name, model.path.display())
        });
        Ok((folder, told.collect()))
    }

    #[test]
    fn folders_and_language_models_are_told_apart() {
        let told = of(&["x/A-1.gguf", "models", "b=y/A-1.GGUF"], &[("b", 7)]);
        let language = vec!["A-1 x/A-1.gguf".into(), "b y/A-1.GGUF 7".into()];
        assert_eq!(told, Ok((Some("models".into()), language)));
        assert_eq!(of(&["models"], &[]), Ok((Some("models".into()), vec![])));
        for (given, shares, told) in [
            (&["a", "b"][..], &[][..], "one folder"),
            (&["x/a.gguf", "y/a.gguf"], &[], "two language models"),
            (&["a b.gguf"], &[], "needs a name"),
            (&["=b.gguf"], &[], "needs a name"),
            (&["a.gguf"], &[("b", 1)], "--share"),
        ] {
            let error = of(given, shares).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        assert_eq!(share("a=1MiB"), Ok(("a".into(), 1 << 20)));
        assert!(share("1MiB").is_err());
    }
}
