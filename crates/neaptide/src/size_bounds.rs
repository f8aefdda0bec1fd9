//! Bounds for sizes that only the data say, as text: for options and variables of the environment.

use crate::error::{Error, Result};
use crate::model;
use std::collections::BTreeMap;
use std::path::Path;

/// Reads `frames=500,boxes=100`. A name may have `=` in it.
///
/// # Errors
/// [`Error::BadInput`] says what is wrong.
pub fn parse_bounds(text: &str) -> Result<BTreeMap<String, usize>> {
    let parts = text.split(',').map(str::trim).filter(|p| !p.is_empty());
    let bound = |part: &str| {
        let named = part.rsplit_once('=').filter(|(name, _)| !name.is_empty());
        let most = named.and_then(|(name, most)| Some((name.trim(), most.trim().parse().ok()?)));
        let (name, most) = most.ok_or_else(|| {
            Error::BadInput(format!(
                "bounds: expected NAME=N, with commas between several, got '{part}'"
            ))
        })?;
        Ok((name.to_string(), most))
    };
    parts.map(bound).collect()
}

/// Of bounds that are meant for several models those that the model at `path` has results for.
///
/// # Errors
/// [`Error::BadInput`] for a file that is no model.
pub fn known_bounds(
    path: &Path,
    bounds: BTreeMap<String, usize>,
) -> Result<BTreeMap<String, usize>> {
    if bounds.is_empty() || model::is_packed(path)? {
        return Ok(bounds);
    }
    let skeleton = neap_onnx::Skeleton::open(path)?;
    let unknown = skeleton.unknown_results(bounds.keys().map(String::as_str));
    let known = bounds
        .iter()
        .filter(|(name, _)| !unknown.contains(name.as_str()));
    Ok(known.map(|(name, most)| (name.clone(), *most)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_pairs_of_a_name_and_a_number() {
        let read = |text: &str| parse_bounds(text).ok().map(|b| b.into_iter().collect());
        let pair = |name: &str, most: usize| (name.to_string(), most);
        assert_eq!(read("frames=500"), Some(vec![pair("frames", 500)]));
        assert_eq!(
            read(" a=1, /n/b=c=2,"),
            Some(vec![pair("/n/b=c", 2), pair("a", 1)])
        );
        for wrong in ["frames", "=5", "frames=", "frames=x", "frames=-1"] {
            assert_eq!(read(wrong), None::<Vec<_>>, "{wrong}");
        }
    }
}
