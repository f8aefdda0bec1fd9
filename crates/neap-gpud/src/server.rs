//! The daemon: a thread for each program that is connected, one policy for all.
//!
//! Whoever hears something decides at once what follows, and sends it: there is no thread between two programs.

use crate::credentials::{self, Peer};
use crate::policy::{Config, Policy};
use crate::program::Id;
use crate::report;
use neap_card::{LONGEST_LINE, Order, Say};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A program that does not read for so long is gone.
const PATIENCE: Duration = Duration::from_secs(2);

struct State {
    policy: Policy,
    sockets: BTreeMap<Id, UnixStream>,
}

struct Server {
    state: Mutex<State>,
    changed: Condvar,
    started: Instant,
    /// Users whose programs may connect, beside the daemon's own and root.
    users: Vec<u32>,
}

/// Listens, and never returns unless it cannot.
///
/// # Errors
/// When nothing can listen at that path.
pub fn serve(path: &Path, config: Config, users: Vec<u32>) -> io::Result<()> {
    let listener = listen(path)?;
    // Others may connect: who they are is asked of the kernel.
    let mode = if users.is_empty() { 0o600 } else { 0o666 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    let server = Arc::new(Server {
        state: Mutex::new(State {
            policy: Policy::new(config),
            sockets: BTreeMap::new(),
        }),
        changed: Condvar::new(),
        started: Instant::now(),
        users,
    });
    let clock = Arc::clone(&server);
    std::thread::spawn(move || clock.watch_time());
    for socket in listener.incoming() {
        let (server, socket) = (Arc::clone(&server), socket?);
        std::thread::spawn(move || {
            if let Err(error) = server.attend(socket) {
                eprintln!("gpud: {error}");
            }
        });
    }
    Ok(())
}

/// Takes the place of a daemon that is gone, and of none that is there.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        let text = format!("another scheduler listens at {}", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

impl Server {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Ends slices of time.
    fn watch_time(&self) {
        let mut state = self.lock();
        loop {
            let wait = match state.policy.wakes_ns() {
                None => Duration::from_secs(3600),
                Some(at) => Duration::from_nanos(at.saturating_sub(self.now_ns())),
            };
            let waited = self.changed.wait_timeout(state, wait);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            state.policy.tick(self.now_ns());
            state.send();
        }
    }

    /// One connection, to its end.
    fn attend(&self, mut socket: UnixStream) -> io::Result<()> {
        let peer = credentials::of(&socket)?;
        let mut reader = BufReader::new(socket.try_clone()?);
        let first = line(&mut reader)?;
        let may = [0, credentials::own_uid()].contains(&peer.uid) || self.users.contains(&peer.uid);
        if !may {
            let why = format!("user {} may not use this card", peer.uid);
            return writeln!(socket, "{}", Order::Refused { why });
        }
        match first.parse::<Say>() {
            Ok(Say::Hello(hello)) => {
                socket.set_write_timeout(Some(PATIENCE))?;
                let joined = {
                    let mut state = self.lock();
                    let joined = state.policy.join(&hello, peer.pid, self.now_ns());
                    if let Ok(id) = joined {
                        state.sockets.insert(id, socket.try_clone()?);
                        state.send();
                    }
                    joined
                };
                match joined {
                    Ok(id) => self.follow(id, &mut reader),
                    Err(why) => writeln!(socket, "{}", Order::Refused { why }),
                }
            }
            _ => self.answer(&first, peer, &mut socket),
        }
    }

    /// What a program says, until it is gone.
    fn follow(&self, id: Id, reader: &mut BufReader<UnixStream>) -> io::Result<()> {
        let end = loop {
            let said = match line(reader) {
                Ok(text) if text.is_empty() => break Ok(()),
                Ok(text) => text.parse::<Say>(),
                // A program that was killed is no fault here.
                Err(_) => break Ok(()),
            };
            let said = match said {
                Ok(said) => said,
                Err(unknown) => break Err(io::Error::new(io::ErrorKind::InvalidData, unknown)),
            };
            let mut state = self.lock();
            state.policy.hear(id, &said, self.now_ns());
            state.send();
            let wakes = state.policy.wakes_ns().is_some();
            drop(state);
            if wakes {
                self.changed.notify_one();
            }
        };
        let mut state = self.lock();
        if let Some(socket) = state.sockets.remove(&id) {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        state.policy.leave(id, self.now_ns());
        state.send();
        end
    }

    /// A question of `gputop`, or a wish of whoever runs the machine.
    fn answer(&self, question: &str, peer: Peer, socket: &mut UnixStream) -> io::Result<()> {
        let mut state = self.lock();
        let text = match question
            .trim()
            .split_once(' ')
            .unwrap_or((question.trim(), ""))
        {
            ("top", "") => report::table(&state.policy),
            ("metrics", "") => report::metrics(&state.policy),
            ("evict", pid) if [0, credentials::own_uid()].contains(&peer.uid) => {
                let done = pid.parse().is_ok_and(|pid| state.policy.evict(pid));
                state.send();
                format!("{}\n", if done { "ordered" } else { "not now" })
            }
            _ => format!("not understood: {}\n", question.trim()),
        };
        drop(state);
        socket.write_all(text.as_bytes())
    }
}

impl State {
    /// Sends what the policy ordered. Who cannot be reached is found gone by its reader.
    fn send(&mut self) {
        for (id, order) in self.policy.orders() {
            if let Some(socket) = self.sockets.get_mut(&id)
                && socket.write_all(format!("{order}\n").as_bytes()).is_err()
            {
                let _ = socket.shutdown(std::net::Shutdown::Both);
            }
        }
    }
}

/// One line, without end when it is the last; empty at the end.
fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut text = String::new();
    let limited = &mut Read::take(reader, LONGEST_LINE as u64);
    BufRead::read_line(limited, &mut text)?;
    Ok(text)
}
