//! The Arm part of the tests: kernels' tests and whole models under emulation.
//!
//! A process under emulation is charged the emulator's memory too, a good part of which is code that it
//! translates as it goes. So plans are made for given budgets, with and without streaming, and what is judged is
//! the outputs.

use crate::{accuracy, models};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ARM: &str = "aarch64-unknown-linux-gnu";

const EMULATOR: &str = "qemu-aarch64-static";

/// Where the cross tools keep that processor's loader and C library.
const CROSS_ROOT: &str = "/usr/aarch64-linux-gnu";

/// Builds more quickly, which takes longer than what is run: the kernels alone keep one processor busy for minutes.
const QUICKER: &[&str] = &[
    "profile.release.opt-level=1",
    "profile.release.lto='off'",
    "profile.release.package.neap-kernels.opt-level=1",
    "profile.release.package.neap-kernels.codegen-units=16",
    "profile.release.package.neap-blocks.opt-level=1",
    "profile.release.package.neap-blocks.codegen-units=16",
];

/// Crates whose tests are run under emulation: the kernels' tables.
const TESTED: &[&str] = &["neap-kernels", "neap-blocks"];

const MODELS: [&str; 2] = ["squeezenet1_1", "mobilenet_v2"];

/// Cross-builds, runs the kernels' tests under emulation, and runs models packed on this machine.
pub fn run(root: &Path) -> Result<()> {
    if let Some(missing) = missing() {
        bail!("{missing} is missing: run scripts/install_arm.sh as root (Debian)");
    }
    let neap = own_neap(root)?;
    let target_dir = root.join("target/arm");
    let runner = format!("{EMULATOR} {}", emulation(Path::new(CROSS_ROOT)).join(" "));
    let cargo = |arguments: &[&str]| -> Result<()> {
        let mut command = Command::new("/usr/bin/env");
        command
            .arg("cargo")
            .args(arguments)
            .args(["--release", "--target", ARM])
            .args(QUICKER.iter().flat_map(|setting| ["--config", setting]))
            .current_dir(root)
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("RUSTC", "/usr/bin/rustc")
            .env("CARGO_TARGET_DIR", &target_dir)
            .env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
                "aarch64-linux-gnu-gcc",
            )
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", &runner)
            // Emulation is hundreds of times slower: tests leave their large cases out.
            .env("NEAP_EMULATED", "1")
            // One at a time: the emulator crashed once where tests ran side by side.
            .env("RUST_TEST_THREADS", "1")
            .env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc");
        let status = command.status().context("cannot start cargo")?;
        ensure!(status.success(), "cargo {}: {status}", arguments.join(" "));
        Ok(())
    };
    let tests = |more: &[&str]| -> Result<()> {
        TESTED.iter().try_for_each(|name| {
            let test = ["test", "--quiet", "--package", name, "--lib", "--tests"];
            cargo(&[&test[..], more].concat())
        })
    };
    tests(&["--no-run"])?;
    // The emulator keeps one processor busy; the others build meanwhile. No server: nothing asks it here.
    std::thread::scope(|scope| {
        let emulated = scope.spawn(|| tests(&[]));
        let built = cargo(&[
            "build",
            "--quiet",
            "--package",
            "neap-cli",
            "--no-default-features",
        ]);
        let emulated = emulated.join();
        built?;
        emulated.expect("a test's failure is an error, no panic")
    })?;
    let arm_neap = target_dir.join(ARM).join("release/neap");
    end_to_end(root, &neap, &|| emulated(Path::new(CROSS_ROOT), &arm_neap))
}

/// Runs an Arm program here, with the loader and the libraries under `system`.
pub fn emulated(system: &Path, program: &Path) -> Command {
    let mut command = Command::new(EMULATOR);
    command.args(emulation(system)).arg(program);
    command
}

/// The library path keeps the loader and the C library together: another libc of this architecture may be installed, and a
/// mixture of two hangs.
fn emulation(system: &Path) -> [String; 4] {
    let root = system.display();
    let libraries = ["lib", "lib/aarch64-linux-gnu", "usr/lib/aarch64-linux-gnu"];
    let libraries = libraries.map(|folder| format!("{root}/{folder}")).join(":");
    [
        "-L".into(),
        root.to_string(),
        "-E".into(),
        format!("LD_LIBRARY_PATH={libraries}"),
    ]
}

/// This machine's program, where no other part of the tests builds it anew meanwhile.
fn own_neap(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/arm-run");
    fs::create_dir_all(&folder)?;
    let kept = folder.join("neap");
    fs::copy(models::neap(root)?, &kept)?;
    Ok(kept)
}

/// The first tool that cross-building needs and does not find.
pub fn missing() -> Option<&'static str> {
    let needed = [
        ("/usr/bin/rustc", "Debian's rustc"),
        (
            "/usr/lib/rustlib/aarch64-unknown-linux-gnu",
            "the standard library for arm64",
        ),
        ("/usr/bin/aarch64-linux-gnu-gcc", "aarch64-linux-gnu-gcc"),
        ("/usr/bin/qemu-aarch64-static", "qemu-aarch64-static"),
    ];
    needed
        .iter()
        .find(|(path, _)| !Path::new(path).exists())
        .map(|(_, what)| *what)
}

/// A `.neap` packed here runs on Arm unchanged, with the same outputs but for rounding; and there under
/// budgets, with the same bits.
fn end_to_end(root: &Path, neap: &Path, emulated: &dyn Fn() -> Command) -> Result<()> {
    for name in MODELS {
        let work = root.join("target/arm-run").join(name);
        fs::create_dir_all(&work)?;
        let packed = work.join("model.neap");
        let model = models::zoo_model(root, name)?;
        let pack = Command::new(neap)
            .arg("pack")
            .arg(&model)
            .arg("-o")
            .arg(&packed)
            .status()?;
        ensure!(pack.success(), "packing {name}: {pack}");
        let subject = Subject {
            packed: &packed,
            work: &work,
        };
        let here = subject.run(Command::new(neap), "x86-64", "none")?;
        let free = subject.run(emulated(), "aarch64", "none")?;
        let error = accuracy::compare(&free.output, &here.output)?;
        println!("ok    {name} packed on x86-64 runs on aarch64, error {error:.1e}");
        let bits = fs::read(&free.output)?;
        let smallest = subject.smallest(emulated)?;
        // A third of the weights' bytes more: some are resident and others are not.
        let named = smallest + fs::metadata(&packed)?.len() / 3;
        for (what, budget) in [("named", named), ("smallest", smallest)] {
            let small = subject.run(emulated(), what, &budget.to_string())?;
            ensure!(
                small.loaded_bytes > 0,
                "{name}: nothing is streamed at {budget}"
            );
            ensure!(
                fs::read(&small.output)? == bits,
                "{name}: other bits on aarch64 at {budget}"
            );
            let mib = budget as f64 / 1048576.0;
            println!("ok    {name} on aarch64 at its {what} budget, {mib:.2} MiB: the same bits");
        }
    }
    Ok(())
}

struct Subject<'a> {
    packed: &'a Path,
    work: &'a Path,
}

struct Run {
    output: PathBuf,
    loaded_bytes: u64,
}

impl Subject<'_> {
    const ALIKE: [&'static str; 5] = ["--threads", "2", "--exact", "--calibrate", "off"];

    fn run(&self, neap: Command, folder: &str, budget: &str) -> Result<Run> {
        let folder = self.work.join(folder);
        let report = folder.with_extension("json");
        fs::create_dir_all(&folder)?;
        let ran = self.start(neap, &folder, &report, budget)?;
        let said = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "run at {budget}: {}", said.trim());
        let report: Value = serde_json::from_str(&fs::read_to_string(&report)?)?;
        let file = report["outputs"][0]["file"].as_str();
        Ok(Run {
            output: PathBuf::from(file.context("the report names no output")?),
            loaded_bytes: report["loaded_bytes_per_run"].as_u64().unwrap_or(0),
        })
    }

    fn start(
        &self,
        mut neap: Command,
        folder: &Path,
        report: &Path,
        budget: &str,
    ) -> Result<Output> {
        neap.arg("run")
            .arg(self.packed)
            .args(Subject::ALIKE)
            .args(["--seed", "1", "--memory-budget", budget])
            .arg("--output-dir")
            .arg(folder)
            .arg("--json")
            .arg(report)
            .output()
            .context("cannot start the emulator")
    }

    /// The smallest budget, as refused runs name it. What the emulator takes for itself moves by some pages from one
    /// run to the next and counts as the process's own, so the largest of three is taken, and some room.
    fn smallest(&self, neap: &dyn Fn() -> Command) -> Result<u64> {
        const ROOM: u64 = 512 * 1024;
        let folder = self.work.join("refused");
        fs::create_dir_all(&folder)?;
        let report = folder.with_extension("json");
        let mut largest = 0;
        for _ in 0..3 {
            let refused = self.start(neap(), &folder, &report, "1MiB")?;
            let said = String::from_utf8_lossy(&refused.stderr);
            let bytes = said
                .split_once(" bytes)")
                .and_then(|(before, _)| before.rsplit('(').next()?.parse().ok());
            let bytes: u64 = bytes.with_context(|| format!("no smallest budget in: {said}"))?;
            largest = largest.max(bytes);
        }
        Ok(largest + ROOM)
    }
}
