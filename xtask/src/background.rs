//! A part of the tests that goes on beside others: a process of its own, whose words are shown when it has ended.

use crate::skips::Skips;
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub struct Background {
    child: Child,
    /// Whether somebody waited for its end.
    is_over: bool,
    log: PathBuf,
}

impl Background {
    /// This program with other arguments; what it prints goes to `target/NAME.log`. What runs beside it goes first.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(root: &Path, name: &str, arguments: &[&str], skips: &Skips) -> Result<Background> {
        let log = root.join("target").join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = Command::new("nice");
        command.args(["-n", "5"]).arg(std::env::current_exe()?);
        skips.watch(command.args(arguments).stdin(Stdio::null()));
        command.stdout(file.try_clone()?).stderr(file);
        Ok(Background {
            child: command.spawn().context("cannot start nice")?,
            is_over: false,
            log,
        })
    }

    /// Waits for its end, and prints what it said.
    ///
    /// # Errors
    /// When it did not succeed.
    pub fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        self.is_over = true;
        print!("{}", fs::read_to_string(&self.log)?);
        ensure!(status.success(), "{} tells of {status}", self.log.display());
        Ok(())
    }
}

impl Drop for Background {
    /// Another part failed. Processes that this one started would go on, so it comes to its end.
    fn drop(&mut self) {
        if !self.is_over {
            eprintln!("waiting for what tells its steps to {}", self.log.display());
            let _ = self.child.wait();
        }
    }
}
