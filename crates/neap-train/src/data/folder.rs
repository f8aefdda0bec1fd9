//! A folder of pictures, each in a folder with the name of its class. All that the files' heads say is looked at before
//! anything is trained.

use super::prepare::Prepare;
use super::sample::{SampleType, Samples};
use crate::error::{Result, bad, unreadable};
use crate::random::Draw;
use neap_picture::{ENDINGS, Head, MOST_BYTES, Refusal, decode, is_picture};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

pub struct Folder {
    root: PathBuf,
    /// Class, and file name within the class's folder.
    files: Vec<(u32, String)>,
    classes: Vec<String>,
    prepare: Prepare,
    largest: Largest,
    /// How many files were left out, by ending.
    others: BTreeMap<String, usize>,
}

/// The picture that takes the most memory to decode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Largest {
    pub path: PathBuf,
    pub width: usize,
    pub height: usize,
    /// What decoding it takes.
    pub bytes: u64,
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

/// The files of a class: pictures, and how many others there are by ending. Hidden ones are no files of anybody.
fn files(folder: &Path, others: &mut BTreeMap<String, usize>) -> Result<Vec<String>> {
    let (pictures, rest): (Vec<String>, Vec<String>) = (names(folder, &|_| true)?.into_iter())
        .partition(|name| is_picture(Path::new(name)) && !folder.join(name).is_dir());
    for name in rest {
        let ending = Path::new(&name)
            .extension()
            .map(|e| format!(".{}", e.display()));
        let kind = match (folder.join(&name).is_dir(), ending) {
            (true, _) => "folders".into(),
            (_, Some(ending)) => ending,
            (_, None) => "no ending".into(),
        };
        *others.entry(kind).or_default() += 1;
    }
    Ok(pictures)
}

/// How many files of which endings.
fn told(others: &BTreeMap<String, usize>) -> String {
    let kinds: Vec<String> = others
        .iter()
        .map(|(kind, n)| format!("{n} {kind}"))
        .collect();
    kinds.join(", ")
}

fn endings() -> String {
    let endings: Vec<String> = ENDINGS.iter().map(|e| format!(".{e}")).collect();
    endings.join(", ")
}

impl Folder {
    /// `classes` are the names that the classes have in this order; without, they are the folders in alphabetical order.
    ///
    /// # Errors
    /// It cannot be read, has other classes, or one without pictures; or a picture is none.
    pub fn open(
        root: &Path,
        wanted: &SampleType,
        prepare: Prepare,
        classes: Option<&[String]>,
    ) -> Result<Folder> {
        let found = folders(root)?;
        let is_trained = classes.is_none();
        let classes = classes.map_or_else(|| found.clone(), <[String]>::to_vec);
        check_count(root, classes.len(), wanted)?;
        let mut folder = Folder {
            root: root.into(),
            files: Vec::new(),
            classes,
            prepare,
            largest: Largest::default(),
            others: BTreeMap::new(),
        };
        for class in &found {
            folder.add(class, is_trained)?;
        }
        if folder.files.is_empty() {
            let (shown, endings) = (root.display(), endings());
            return Err(bad(format!("{shown} has no folders with {endings} files")));
        }
        folder.look_at_all()?;
        Ok(folder)
    }

    fn add(&mut self, class: &str, is_trained: bool) -> Result<()> {
        let number = self
            .classes
            .iter()
            .position(|c| c == class)
            .ok_or_else(|| {
                let root = self.root.display();
                bad(format!("{root} has a class '{class}' that is not trained"))
            })?;
        let mut others = BTreeMap::new();
        let folder = self.root.join(class);
        let pictures = files(&folder, &mut others)?;
        if pictures.is_empty() && is_trained {
            let (folder, endings) = (folder.display(), endings());
            let rest = match others.is_empty() {
                true => "it is empty".into(),
                false => format!("it has {}", told(&others)),
            };
            return Err(bad(format!(
                "the class '{class}' has no pictures ({endings}): {rest}; fill {folder}, or remove it"
            )));
        }
        for (kind, count) in others {
            *self.others.entry(kind).or_default() += count;
        }
        let files = pictures.into_iter().map(|name| (number as u32, name));
        self.files.extend(files);
        Ok(())
    }

    fn path(&self, index: usize) -> PathBuf {
        let (class, name) = &self.files[index];
        self.root.join(&self.classes[*class as usize]).join(name)
    }

    /// Reads all heads: pictures that are none or cut short are found now, and how much memory the largest takes.
    fn look_at_all(&mut self) -> Result<()> {
        let target = *self.prepare.target().ok_or_else(|| {
            bad("the model takes no pictures: its input is none of CxHxW, HxWxC and HxW")
        })?;
        let mut wrong: Option<String> = None;
        let mut count = 0;
        for index in 0..self.files.len() {
            let path = self.path(index);
            let head = File::open(&path).map_err(|e| e.to_string());
            match head.and_then(|file| Head::of(&file)) {
                Ok(head) => {
                    let bytes = head.bytes(target.width);
                    if bytes > self.largest.bytes {
                        let (width, height) = head.upright();
                        self.largest = Largest {
                            path,
                            width,
                            height,
                            bytes,
                        };
                    }
                }
                Err(why) => {
                    count += 1;
                    wrong.get_or_insert_with(|| format!("{} {why}", path.display()));
                }
            }
        }
        match wrong {
            None => Ok(()),
            Some(first) if count == 1 => Err(bad(first)),
            Some(first) => Err(bad(format!("{first}; so are {} others like it", count - 1))),
        }
    }

    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    pub fn largest(&self) -> &Largest {
        &self.largest
    }

    /// What a model that is trained with these says of how its pictures are prepared.
    pub fn picture(&self) -> Option<neap_picture::Recipe> {
        self.prepare.told()
    }

    /// What was left out, for the user.
    pub fn remark(&self) -> Option<String> {
        let root = self.root.display();
        (!self.others.is_empty()).then(|| {
            let others = told(&self.others);
            format!("{root}: files with other endings are left out: {others}")
        })
    }
}

fn check_count(root: &Path, found: usize, wanted: &SampleType) -> Result<()> {
    match wanted.classes {
        None => Err(bad(
            "a folder of pictures has classes: --loss cross-entropy",
        )),
        Some(count) if found > count => {
            let shown = root.display();
            Err(bad(format!(
                "{shown} has {found} classes, the model has {count}: --classes {found} gives it a last layer of {found}"
            )))
        }
        Some(_) => Ok(()),
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
        let path = self.path(index);
        let file = File::open(&path).map_err(|e| unreadable(&path, e))?;
        let place = *self
            .prepare
            .target()
            .ok_or_else(|| bad("the model takes no pictures"))?;
        // What was foreseen; a file may have been exchanged since.
        let limit = self.largest.bytes.min(MOST_BYTES);
        let pixels = decode(&file, &place, limit).map_err(|refusal| match refusal {
            Refusal::Bad(why) => unreadable(&path, why),
            Refusal::TooLarge { width, height, .. } => unreadable(
                &path,
                format!(
                    "its {width}x{height} pixels take more memory than is set aside for pictures"
                ),
            ),
        })?;
        self.prepare.write_picture(&pixels, draw, input)?;
        let class = self.files[index].0;
        target.copy_from_slice(&i64::from(class).to_le_bytes());
        Ok(())
    }
}
