//! What a run of the tests could not test here: collected from all processes, and told at the end.

use anyhow::{Result, bail};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set to anything but `0` or nothing, a missing capability is a failure.
const REQUIRE_ALL: &str = "NEAP_REQUIRE_ALL";

/// Names the file to processes that test.
const FILE: &str = "NEAP_SKIPS";

/// A file to which tests append what they skip; `neap_testing::skip` does.
pub struct Skips {
    file: PathBuf,
    /// Another process began it, and will tell.
    is_others: bool,
}

impl Skips {
    /// Begins an empty collection, or adds to that of the process which started this one.
    pub fn collect(root: &Path) -> Result<Skips> {
        if let Some(file) = std::env::var_os(FILE) {
            let (file, is_others) = (PathBuf::from(file), true);
            return Ok(Skips { file, is_others });
        }
        let file = root.join("target/skips.txt");
        std::fs::create_dir_all(root.join("target"))?;
        std::fs::write(&file, "")?;
        let is_others = false;
        Ok(Skips { file, is_others })
    }

    /// Has the tests of this command tell what they skip.
    pub fn watch<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env(FILE, &self.file)
    }

    /// Notes a part of the tests that is left out as a whole.
    ///
    /// # Errors
    /// Where everything is required.
    pub fn skip(&self, what: &str) -> Result<()> {
        if all_required() {
            bail!("{what}; {REQUIRE_ALL} is set, so nothing may be skipped");
        }
        let mut file = OpenOptions::new().append(true).open(&self.file)?;
        Ok(writeln!(file, "{what}")?)
    }

    /// Prints each skip once.
    pub fn tell(&self) -> Result<()> {
        if self.is_others {
            return Ok(());
        }
        let text = std::fs::read_to_string(&self.file)?;
        let lines: BTreeSet<&str> = text.lines().collect();
        if lines.is_empty() {
            println!("nothing was skipped");
        }
        for line in lines {
            println!("SKIPPED: {line}");
        }
        Ok(())
    }
}

pub fn all_required() -> bool {
    std::env::var_os(REQUIRE_ALL).is_some_and(|value| !value.is_empty() && value != "0")
}
