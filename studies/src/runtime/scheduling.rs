//! How a cell's process is scheduled.

use crate::group::Group;
use anyhow::Result;
use std::process;
use std::time::Duration;

/// How workers are started.
pub struct Command {
    /// What comes before the program, from a scheduling policy to processors.
    before: Vec<String>,
    /// For the page.
    pub told: String,
}

impl Command {
    /// By the policy SCHED_FIFO and on as many processors as there are threads, where that is allowed.
    pub fn new(wants_fifo: bool) -> Command {
        let usual = |why: &str| Command {
            before: Vec::new(),
            told: format!("usual scheduling ({why})"),
        };
        if !wants_fifo {
            return usual("--no-fifo");
        }
        let processors = format!("0-{}", super::tasks::THREADS - 1);
        let before = ["chrt", "-f", "10", "taskset", "-c", &processors].map(String::from);
        let tried = process::Command::new(&before[0])
            .args(&before[1..])
            .arg("true")
            .stderr(process::Stdio::null())
            .status();
        match tried.is_ok_and(|status| status.success()) {
            true => Command {
                before: before.into(),
                told: format!("SCHED_FIFO, processors {processors}"),
            },
            false => usual("SCHED_FIFO is not allowed here"),
        }
    }

    /// This program with other arguments, in the group. It is ended after `patience`.
    pub fn within(
        &self,
        group: &Group,
        patience: Duration,
        arguments: &[&str],
    ) -> Result<process::Command> {
        let mut command = process::Command::new("timeout");
        command.args(["-s", "KILL", &patience.as_secs().to_string()]);
        command.args(&self.before).arg(std::env::current_exe()?);
        command.args(arguments);
        Ok(group.around(&command))
    }
}
