//! Reading `.npz`: a zip archive of `.npy` files.

use super::hints::Glance;
use super::{npy, open_file};
use neaptide::TensorInfo;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use zip::ZipArchive;
use zip::read::ZipFile;

/// Names of the arrays.
pub fn members(path: &Path) -> Result<Vec<String>, String> {
    let file = open_file(path)?;
    let archive = open(&file)?;
    let mut names: Vec<String> = archive
        .file_names()
        .map(|name| {
            let name = name.map_err(|e| format!("is no .npz file: {e}"))?;
            Ok(name.strip_suffix(".npy").unwrap_or(&name).to_string())
        })
        .collect::<Result<_, String>>()?;
    names.sort();
    Ok(names)
}

/// Names and shapes of the arrays, and values of the small ones.
pub fn glance(path: &Path, max_bytes: usize) -> Result<Vec<(String, Glance)>, String> {
    let names = members(path)?;
    let file = open_file(path)?;
    let mut archive = open(&file)?;
    let mut arrays = Vec::with_capacity(names.len());
    for name in names {
        let mut entry = entry(&mut archive, &name)?;
        let array =
            npy::glance(&mut entry, max_bytes).map_err(|e| format!("array '{name}' {e}"))?;
        arrays.push((name, array));
    }
    Ok(arrays)
}

/// The array for the input `name`: the one of that name, or the only one.
pub fn member_for(path: &Path, name: &str) -> Result<String, String> {
    let mut members = members(path)?;
    if members.iter().any(|m| m == name) {
        return Ok(name.into());
    }
    match members.len() {
        1 => Ok(members.remove(0)),
        0 => Err("holds no arrays".into()),
        _ => Err(format!(
            "holds no array '{name}', but {}",
            members.join(", ")
        )),
    }
}

pub fn read(
    file: &File,
    member: &str,
    info: &TensorInfo,
) -> Result<(Vec<u8>, Option<String>), String> {
    let mut archive = open(file)?;
    let mut entry = entry(&mut archive, member)?;
    npy::read(&mut entry, info).map_err(|e| format!("array '{member}' {e}"))
}

fn entry<'a, 'f>(
    archive: &'a mut ZipArchive<BufReader<&'f File>>,
    member: &str,
) -> Result<ZipFile<'a, BufReader<&'f File>>, String> {
    let name = [format!("{member}.npy"), member.to_string()]
        .into_iter()
        .find(|name| archive.index_for_name(name).is_some())
        .ok_or_else(|| format!("holds no array '{member}'"))?;
    archive.by_name(&name).map_err(|e| e.to_string())
}

fn open(file: &File) -> Result<ZipArchive<BufReader<&File>>, String> {
    ZipArchive::new(BufReader::new(file)).map_err(|e| format!("is no .npz file: {e}"))
}
