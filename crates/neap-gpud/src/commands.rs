//! `neap gpud`, `neap gputop` and `neap gpu`.

use crate::admission::Costs;
use crate::policy::Config;
use crate::server;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What is wrong, in one line, for exit code 2.
pub type Outcome = Result<(), String>;

#[derive(Subcommand)]
pub enum GpuCommand {
    /// Schedule programs that share a graphics card: turns, deadlines, and whose memory is on it
    Gpud(GpudArgs),
    /// Show who holds what of a shared graphics card
    Gputop(GputopArgs),
    /// Run a CUDA program on a shared graphics card
    #[command(subcommand)]
    Gpu(Gpu),
}

#[derive(Subcommand)]
pub enum Gpu {
    /// Run an unmodified CUDA program under the scheduler
    Run(RunArgs),
    /// Have a program's memory leave the card until it is the program's turn again
    Evict(EvictArgs),
}

#[derive(Args)]
pub struct Socket {
    /// Where the scheduler listens [default: $NEAP_GPU_SOCKET, or neap-gpud.sock in $XDG_RUNTIME_DIR or /run]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl Socket {
    fn path(&self) -> PathBuf {
        self.socket
            .clone()
            .unwrap_or_else(neap_card::default_socket)
    }
}

#[derive(Args)]
pub struct GpudArgs {
    #[command(flatten)]
    socket: Socket,
    /// Memory of the card that programs share [default: nine tenths of what the first program sees]
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    memory: Option<u64>,
    /// The most for each program
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    quota: Option<u64>,
    /// How long a program without deadlines runs while others wait
    #[arg(long, value_parser = nanoseconds, value_name = "TIME", default_value = "100ms")]
    slice: u64,
    /// Jobs that are measured before a program's deadlines are promised
    #[arg(long, value_name = "N", default_value_t = 20)]
    learn: u32,
    /// Promises are for jobs so much longer than the longest measured
    #[arg(long, value_name = "PERCENT", default_value_t = 20)]
    margin: u64,
    /// Promises count with programs without deadlines that go on for so long after they were told to yield
    #[arg(long, value_parser = nanoseconds, value_name = "TIME", default_value = "10ms")]
    hold: u64,
    /// Promises count with at least this time for a GiB to or from the card, until more was measured
    #[arg(long, value_parser = nanoseconds, value_name = "TIME", default_value = "50ms")]
    swap: u64,
    /// What programs do when the scheduler is gone for three seconds
    #[arg(long, value_enum, default_value_t = Orphans::GoOn)]
    orphans: Orphans,
    /// Users whose programs may use the card, beside this one and root
    #[arg(long, value_name = "UID", value_delimiter = ',')]
    users: Vec<u32>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Orphans {
    GoOn,
    Stop,
}

#[derive(Args)]
pub struct GputopArgs {
    #[command(flatten)]
    socket: Socket,
    /// Show it once and end
    #[arg(long)]
    once: bool,
    /// Print metrics for Prometheus and end
    #[arg(long)]
    metrics: bool,
}

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    socket: Socket,
    /// The most memory for the program; it sees a card of this size
    #[arg(long, value_parser = bytes, value_name = "SIZE")]
    memory: Option<u64>,
    /// The program has a job this often, and each is to be done before the next
    #[arg(long, value_parser = nanoseconds, value_name = "TIME")]
    period: Option<u64>,
    /// From a job's release to its end [default: the period]
    #[arg(long, value_parser = nanoseconds, value_name = "TIME", requires = "period")]
    deadline: Option<u64>,
    /// The longest that a job runs [default: measured]
    #[arg(long, value_parser = nanoseconds, value_name = "TIME", requires_all = ["period", "memory"])]
    wcet: Option<u64>,
    /// The unit in which memory leaves the card
    #[arg(long, value_parser = bytes, value_name = "SIZE", default_value = "32MiB")]
    chunk: u64,
    /// The library that goes under the program [default: $NEAP_HOOK, or libneap_hook.so beside neap or in ../lib]
    #[arg(long, value_name = "PATH")]
    hook: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Args)]
pub struct EvictArgs {
    #[command(flatten)]
    socket: Socket,
    /// The program's process
    pid: u32,
}

/// Does what was asked for.
///
/// # Errors
/// One line that says what is wrong.
pub fn obey(command: &GpuCommand) -> Outcome {
    match command {
        GpuCommand::Gpud(args) => schedule(args),
        GpuCommand::Gputop(args) => top(args),
        GpuCommand::Gpu(Gpu::Run(args)) => run(args),
        GpuCommand::Gpu(Gpu::Evict(args)) => {
            let answer = ask(&args.socket.path(), &format!("evict {}", args.pid))?;
            match answer.trim() {
                "ordered" => Ok(()),
                other => Err(format!("process {}: {other}", args.pid)),
            }
        }
    }
}

fn schedule(args: &GpudArgs) -> Outcome {
    let path = args.socket.path();
    let config = Config {
        memory_bytes: args.memory.unwrap_or(0),
        quota_bytes: args.quota.unwrap_or(0),
        slice_ns: args.slice,
        learn_jobs: args.learn,
        margin_percent: args.margin,
        costs: Costs {
            in_ns_per_mib: args.swap / 1024,
            out_ns_per_mib: args.swap / 1024,
            hold_ns: args.hold,
        },
        stop: matches!(args.orphans, Orphans::Stop),
    };
    let failed = |error| format!("cannot schedule at {}: {error}", path.display());
    server::serve(&path, config, args.users.clone()).map_err(failed)
}

/// Asks the scheduler something, and gives all of its answer.
fn ask(path: &Path, question: &str) -> Result<String, String> {
    let failed = |error| format!("no scheduler answers at {}: {error}", path.display());
    let mut socket = UnixStream::connect(path).map_err(failed)?;
    writeln!(socket, "{question}").map_err(failed)?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).map_err(failed)?;
    Ok(answer)
}

fn top(args: &GputopArgs) -> Outcome {
    let path = args.socket.path();
    let mut out = std::io::stdout();
    if args.metrics || args.once {
        let answer = ask(&path, if args.metrics { "metrics" } else { "top" })?;
        return out.write_all(answer.as_bytes()).map_err(|e| e.to_string());
    }
    loop {
        let answer = ask(&path, "top")?;
        // The reader of a pipe may have gone.
        if write!(out, "\x1b[H\x1b[J{answer}")
            .and_then(|()| out.flush())
            .is_err()
        {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn run(args: &RunArgs) -> Outcome {
    let socket = args.socket.path();
    ask(&socket, "top")?;
    let given = args
        .hook
        .clone()
        .or_else(|| std::env::var_os("NEAP_HOOK").map(PathBuf::from));
    let hook = match given {
        Some(given) => given,
        None => find_hook()?,
    };
    let hook = std::path::absolute(&hook)
        .ok()
        .filter(|path| path.is_file());
    let hook = hook.ok_or("the library libneap_hook.so is not where --hook says")?;
    let mut preload = hook.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let socket = std::path::absolute(socket).map_err(|error| error.to_string())?;
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]).env("LD_PRELOAD", preload);
    command.env(neap_card::SOCKET_VARIABLE, socket);
    for (name, value) in [
        ("NEAP_GPU_CHUNK", Some(args.chunk)),
        ("NEAP_GPU_MEMORY", args.memory),
        ("NEAP_GPU_PERIOD", args.period),
        ("NEAP_GPU_DEADLINE", args.deadline),
        ("NEAP_GPU_WCET", args.wcet),
    ] {
        match value {
            Some(value) => command.env(name, value.to_string()),
            None => command.env_remove(name),
        };
    }
    let error = command.exec();
    Err(format!(
        "{} cannot be run: {error}",
        args.program[0].display()
    ))
}

/// Beside this program, or where libraries of its installation are.
fn find_hook() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let places = ["libneap_hook.so", "../lib/libneap_hook.so"].map(|place| folder.join(place));
    let found = places.iter().find(|path| path.is_file());
    found.cloned().ok_or_else(|| {
        format!(
            "libneap_hook.so is not in {}: say where it is by --hook",
            folder.display()
        )
    })
}

/// A size such as `4GiB`, `512M` or `1048576`.
fn bytes(text: &str) -> Result<u64, String> {
    let units = [
        ("", 0),
        ("B", 0),
        ("KiB", 10),
        ("K", 10),
        ("MiB", 20),
        ("M", 20),
        ("GiB", 30),
        ("G", 30),
        ("TiB", 40),
        ("T", 40),
    ];
    let (number, unit) = split(text);
    let shift = units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|&(_, shift)| shift);
    let number: Option<f64> = number
        .parse()
        .ok()
        .filter(|n: &f64| n.is_finite() && *n > 0.0);
    match (number, shift) {
        (Some(number), Some(shift)) if number * 2f64.powi(shift) < 2f64.powi(60) => {
            Ok((number * 2f64.powi(shift)) as u64)
        }
        _ => Err("a size is a number with a unit, such as 4GiB".into()),
    }
}

/// A time such as `100ms`, in nanoseconds.
fn nanoseconds(text: &str) -> Result<u64, String> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let (number, unit) = split(text);
    let unit = units
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|&(_, ns)| ns);
    let number: Option<f64> = number
        .parse()
        .ok()
        .filter(|n: &f64| n.is_finite() && *n > 0.0);
    match (number, unit) {
        (Some(number), Some(ns)) if number * ns <= 86_400e9 => Ok((number * ns).round() as u64),
        _ => Err("a time is a number with a unit, such as 100ms, up to a day".into()),
    }
}

fn split(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text.split_at(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read() {
        assert_eq!(bytes("4GiB"), Ok(4 << 30));
        assert_eq!(bytes("1.5M"), Ok(3 << 19));
        assert_eq!(bytes("123"), Ok(123));
        assert_eq!(nanoseconds("100ms"), Ok(100_000_000));
        assert_eq!(nanoseconds("0.5s"), Ok(500_000_000));
        for wrong in ["", "GiB", "-1GiB", "1e9999G", "3 apples", "0"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "ms", "100", "1h", "0ms", "1e9s"] {
            assert!(nanoseconds(wrong).is_err(), "{wrong}");
        }
    }
}
