//! The processes of a task: started, told what to do, listened to, and ended with it.

use super::message::{Order, Said};
use crate::cgroup::Group;
use crate::cgroup::supervise;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::progress::tells_details;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// How often signals are looked for while nothing is heard.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Dropping it ends what still runs.
pub struct Fleet {
    members: Vec<Running>,
    heard: Receiver<(usize, Heard)>,
}

struct Running {
    child: Child,
    /// `None` when it has ended.
    orders: Option<ChildStdin>,
    done: bool,
}

enum Heard {
    Said(Said),
    Unreadable(String),
    Closed,
}

impl Fleet {
    /// Starts `neap member ARGS` for each list of arguments, inside the group if there is one.
    pub fn start(members: Vec<Vec<OsString>>, group: Option<&Group>) -> Outcome<Fleet> {
        let broken = |e: &dyn std::fmt::Display| {
            Failure::Internal(format!("a model's process cannot be started: {e}"))
        };
        let (sender, heard) = channel();
        let mut fleet = Fleet {
            members: Vec::with_capacity(members.len()),
            heard,
        };
        let entrance = group.map(Group::entrance).transpose();
        let entrance = entrance.map_err(|e| broken(&e))?;
        for (index, args) in members.into_iter().enumerate() {
            let mut command = Command::new("/proc/self/exe");
            command
                .arg("member")
                .args(args)
                .args(tells_details().then_some("--verbose"))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped());
            supervise::confine(&mut command, entrance.as_ref());
            let mut child = command.spawn().map_err(|e| broken(&e))?;
            let orders = child.stdin.take();
            if let Some(out) = child.stdout.take() {
                let sender = sender.clone();
                std::thread::spawn(move || listen(index, BufReader::new(out), &sender));
            }
            fleet.members.push(Running {
                child,
                orders,
                done: false,
            });
        }
        Ok(fleet)
    }

    /// To one that has ended nothing is told.
    pub fn tell(&mut self, index: usize, order: &Order) {
        if let Some(orders) = &mut self.members[index].orders
            && writeln!(orders, "{order}").is_err()
        {
            self.members[index].orders = None;
        }
    }

    pub fn is_done(&self, index: usize) -> bool {
        self.members[index].done
    }

    /// The next thing that is said, if something is before `until`.
    ///
    /// # Errors
    /// A member that ended before it was done, as its own end; a signal.
    pub fn hear(&mut self, until: Option<Instant>) -> Outcome<Option<(usize, Said)>> {
        loop {
            interrupt::check()?;
            let rest = until.map(|u| u.saturating_duration_since(Instant::now()));
            let wait = rest.map_or(LOOK_EVERY, |rest| rest.min(LOOK_EVERY));
            match self.heard.recv_timeout(wait) {
                Ok((index, Heard::Said(said))) => {
                    if let Said::Done(_) = said {
                        self.members[index].done = true;
                        self.members[index].orders = None;
                    }
                    return Ok(Some((index, said)));
                }
                Ok((_, Heard::Unreadable(line))) => {
                    let text = format!("a model's process said what nobody understands: {line}");
                    return Err(Failure::Internal(text));
                }
                Ok((index, Heard::Closed)) => {
                    let member = &mut self.members[index];
                    member.orders = None;
                    let status = member
                        .child
                        .wait()
                        .map_err(|e| Failure::Internal(format!("a process was lost: {e}")))?;
                    supervise::ended(status)?;
                    if !member.done {
                        return Err(Failure::Internal("a model's process ended early".into()));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if rest.is_some_and(|rest| rest <= wait) {
                        return Ok(None);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::Internal("no model's process is left".into()));
                }
            }
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            if !member.done {
                // It may have ended just now.
                let _ = member.child.kill();
            }
        }
        for member in &mut self.members {
            let _ = member.child.wait();
        }
    }
}

fn listen(index: usize, out: impl BufRead, sender: &Sender<(usize, Heard)>) {
    for line in out.lines() {
        let heard = match line.map(|line| (serde_json::from_str(&line), line)) {
            Ok((Ok(said), _)) => Heard::Said(said),
            Ok((Err(_), line)) => Heard::Unreadable(line),
            Err(_) => break,
        };
        if sender.send((index, heard)).is_err() {
            return;
        }
    }
    // When nobody listens any more the task is over.
    let _ = sender.send((index, Heard::Closed));
}
