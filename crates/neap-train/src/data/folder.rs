//! A folder of pictures, each in a folder with the name of its class.

use super::picture;
use super::prepare::{Planes, Prepare};
use super::sample::{SampleType, Samples};
use crate::error::{Result, bad, unreadable};
use crate::random::Draw;
use std::fs;
use std::path::{Path, PathBuf};

pub struct Folder {
    root: PathBuf,
    /// Class, and file name within the class's folder.
    files: Vec<(u32, String)>,
    classes: Vec<String>,
    prepare: Prepare,
    planes: Planes,
}

/// Names of the folders in a folder, sorted; hidden ones are left out.
///
/// # Errors
/// It cannot be read.
pub fn folders(root: &Path) -> Result<Vec<String>> {
    names(root, &|path| path.is_dir())
}

fn names(root: &Path, wanted: &dyn Fn(&Path) -> bool) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).map_err(|e| unreadable(root, e))? {
        let entry = entry.map_err(|e| unreadable(root, e))?;
        let name = entry.file_name().into_string();
        let name = name.map_err(|n| bad(format!("{n:?} in {} is no text", root.display())))?;
        if !name.starts_with('.') && wanted(&entry.path()) {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

fn is_picture(path: &Path) -> bool {
    let kind = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    ["jpg", "jpeg", "png"]
        .iter()
        .any(|k| kind.eq_ignore_ascii_case(k))
}

impl Folder {
    /// `classes` are the names that the classes have in this order; without, they are the folders in alphabetical order.
    ///
    /// # Errors
    /// It cannot be read, holds no pictures, or has other classes.
    pub fn open(
        root: &Path,
        wanted: &SampleType,
        prepare: Prepare,
        classes: Option<&[String]>,
    ) -> Result<Folder> {
        let found = folders(root)?;
        let classes = classes.map_or_else(|| found.clone(), <[String]>::to_vec);
        let mut files = Vec::new();
        for folder in &found {
            let class = classes.iter().position(|c| c == folder).ok_or_else(|| {
                let root = root.display();
                bad(format!("{root} has a class '{folder}' that is not trained"))
            })?;
            let pictures = names(&root.join(folder), &is_picture)?;
            files.extend(pictures.into_iter().map(|name| (class as u32, name)));
        }
        let shown = root.display();
        if files.is_empty() {
            return Err(bad(format!(
                "{shown} has no folders with .jpg or .png files"
            )));
        }
        match wanted.classes {
            None => {
                return Err(bad(
                    "a folder of pictures has classes: --loss cross-entropy",
                ));
            }
            Some(count) if classes.len() > count => {
                let found = classes.len();
                return Err(bad(format!(
                    "{shown} has {found} classes, the model has {count}"
                )));
            }
            Some(_) => {}
        }
        let planes = *prepare.planes().ok_or_else(|| {
            bad("the model takes no pictures: its input is none of CxHxW, HxWxC and HxW")
        })?;
        Ok(Folder {
            root: root.into(),
            files,
            classes,
            prepare,
            planes,
        })
    }

    pub fn classes(&self) -> &[String] {
        &self.classes
    }
}

impl Samples for Folder {
    fn count(&self) -> usize {
        self.files.len()
    }

    fn fill(
        &self,
        index: usize,
        draw: Option<Draw>,
        input: &mut [u8],
        target: &mut [u8],
    ) -> Result<()> {
        let (class, name) = &self.files[index];
        let folder = &self.classes[*class as usize];
        let picture = picture::read(&self.root.join(folder).join(name))?;
        let values = picture::fill(&picture, &self.planes);
        self.prepare.write(&values, 1.0 / 255.0, draw, input);
        target.copy_from_slice(&i64::from(*class).to_le_bytes());
        Ok(())
    }
}
