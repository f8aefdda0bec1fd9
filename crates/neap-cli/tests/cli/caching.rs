//! The cache of packed models: bound to content, healed when damaged, closed to other users.

use super::onnx::{FLOAT, Model, layers};
use super::support::Bench;
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const SIDE: usize = 64;

fn matrix(factor: f32) -> Vec<u8> {
    let value = |i: usize| factor * ((i * 7919 % 1000) as f32 / 1000.0 - 0.5);
    (0..SIDE * SIDE)
        .flat_map(|i| value(i).to_le_bytes())
        .collect()
}

/// One layer whose weights are `w.bin`.
fn external() -> Vec<u8> {
    let side = SIDE as u64;
    Model::default()
        .node("MatMul", &["x", "w"], &["y"])
        .external_weights("w", &[side, side], "w.bin")
        .input("x", FLOAT, &["1", "64"])
        .output("y", FLOAT, &["1", "64"])
        .finish()
}

/// One layer with its weights inside.
fn inline(seed: u32) -> Vec<u8> {
    let side = SIDE as u64;
    Model::default()
        .node("MatMul", &["x", "w"], &["y"])
        .weights("w", &[side, side], seed)
        .input("x", FLOAT, &["1", "64"])
        .output("y", FLOAT, &["1", "64"])
        .finish()
}

fn with_external(factor: f32) -> Bench {
    let bench = Bench::with_model(&external());
    bench.write("w.bin", &matrix(factor));
    bench
}

/// Writes a file again and gives it the times that it had, as an archive or a container build does.
fn rewrite_keeping_times(path: &Path, bytes: &[u8]) {
    let before = fs::metadata(path).unwrap();
    fs::write(path, bytes).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    let after = fs::metadata(path).unwrap();
    assert_eq!(after.modified().unwrap(), before.modified().unwrap());
    assert_eq!(after.len(), before.len());
}

/// The packed forms of a model in a folder.
fn packed_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut found: Vec<PathBuf> = entries
        .filter(|p| {
            let name = p.file_name().unwrap().to_str().unwrap();
            name.starts_with("m.onnx.") && name.ends_with(".neap")
        })
        .collect();
    found.sort();
    found
}

fn the_packed(folder: &Path) -> PathBuf {
    let found = packed_in(folder);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

/// The output of a run, and whether the model was packed for it.
fn output(bench: &Bench, args: &str) -> (Vec<u8>, bool) {
    output_of(bench, "m.onnx", args)
}

fn output_of(bench: &Bench, model: &str, args: &str) -> (Vec<u8>, bool) {
    let ran = bench
        .neap(&format!(
            "run {model} --calibrate off --output-dir out {args}"
        ))
        .ok();
    (
        fs::read(bench.path("out/y.npy")).unwrap(),
        ran.stderr.contains("packing"),
    )
}

/// Flips one bit.
fn damage(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn the_cache_is_listed_and_cleared_and_nothing_else() {
    let bench = Bench::with_model(&inline(1));
    bench.neap("run m.onnx --cache-dir cache").ok();
    bench.neap("run m.onnx").ok();
    bench.neap("pack m.onnx -o mine.neap").ok();
    let listed = bench.neap("cache list . cache").ok().stdout;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(
        listed.contains("m.onnx.cached.neap") && !listed.contains("mine"),
        "{listed}"
    );
    let cleared = bench.neap("cache clear . cache").ok().stdout;
    assert_eq!(cleared, listed.replace("in all", "removed"));
    assert!(bench.path("mine.neap").exists() && bench.path("m.onnx").exists());
    assert!(!bench.path("m.onnx.cached.neap").exists());
    let listed = bench.neap("cache list . cache absent").ok().stdout;
    assert_eq!(listed.lines().count(), 1, "{listed}");
    bench
        .neap("cache list m.onnx")
        .fails(2, &["m.onnx", "not a folder"]);
    bench.neap("run m.onnx").ok();
}

#[test]
fn changed_weights_are_never_served_from_the_cache() {
    for args in ["", "--cache-dir cache"] {
        let bench = with_external(1.0);
        let (first, packed) = output(&bench, args);
        assert!(packed);
        assert_eq!(output(&bench, args), (first.clone(), false));

        rewrite_keeping_times(&bench.path("w.bin"), &matrix(2.0));
        let (changed, packed) = output(&bench, args);
        assert!(packed && changed != first, "{args}");
        assert_eq!(output(&bench, args), (changed, false));

        let bench = Bench::with_model(&inline(1));
        let (first, _) = output(&bench, args);
        rewrite_keeping_times(&bench.path("m.onnx"), &inline(2));
        let (changed, packed) = output(&bench, args);
        assert!(packed && changed != first, "{args}");
    }
}

#[test]
fn the_same_content_under_another_identity_is_stamped_and_not_packed() {
    let bench = with_external(1.0);
    let (first, _) = output(&bench, "");
    let packed = the_packed(bench.dir.path());
    let inode = fs::metadata(&packed).unwrap().ino();
    let before = fs::read(&packed).unwrap();

    // Another inode and other times, as after a copy.
    fs::copy(bench.path("w.bin"), bench.path("copy")).unwrap();
    fs::rename(bench.path("copy"), bench.path("w.bin")).unwrap();
    assert_eq!(output(&bench, ""), (first.clone(), false));
    assert_eq!(fs::metadata(&packed).unwrap().ino(), inode);
    let after = fs::read(&packed).unwrap();
    assert_ne!(before, after, "not stamped");
    let stamp_at = before.len() - 4096;
    assert_eq!(before[..stamp_at], after[..stamp_at]);
    // Now trusted as it is.
    assert_eq!(output(&bench, ""), (first.clone(), false));
    assert_eq!(fs::read(&packed).unwrap(), after);

    // A stamp that was written by half costs a look at the source.
    damage(&packed, stamp_at as u64 + 3);
    assert_eq!(output(&bench, ""), (first, false));
    assert_eq!(fs::read(&packed).unwrap(), after);
}

#[test]
fn a_trusted_source_is_not_read() {
    let bench = with_external(1.0);
    let (first, _) = output(&bench, "");
    let weights = bench.path("w.bin");
    let watch = Watch::new(&weights);
    assert_eq!(output(&bench, ""), (first.clone(), false));
    assert!(!watch.was_opened());

    // The time of change is another: hashed once, and trusted from then on.
    fs::set_permissions(&weights, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&weights, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(output(&bench, ""), (first.clone(), false));
    assert!(watch.was_opened());
    assert_eq!(output(&bench, ""), (first, false));
    assert!(!watch.was_opened());
}

/// Hears of every opening of a file.
struct Watch(OwnedFd);

impl Watch {
    fn new(path: &Path) -> Watch {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the path ends in NUL, and the descriptor is checked before it is owned.
        unsafe {
            let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            assert!(fd >= 0);
            assert!(libc::inotify_add_watch(fd, path.as_ptr(), libc::IN_OPEN) >= 0);
            Watch(OwnedFd::from_raw_fd(fd))
        }
    }

    /// Since the last call.
    fn was_opened(&self) -> bool {
        let mut events = [0u8; 4096];
        let mut all = 0;
        loop {
            // SAFETY: reads into memory of that size.
            let read =
                unsafe { libc::read(self.0.as_raw_fd(), events.as_mut_ptr().cast(), events.len()) };
            if read <= 0 {
                return all > 0;
            }
            all += read;
        }
    }
}

#[test]
fn models_of_one_name_and_time_share_no_cached_file() {
    let bench = Bench::new();
    let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for (folder, seed) in [("a", 1), ("b", 2)] {
        fs::create_dir(bench.path(folder)).unwrap();
        let model = format!("{folder}/m.onnx");
        bench.write(&model, &inline(seed));
        File::options()
            .write(true)
            .open(bench.path(&model))
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
    let run = |folder: &str| {
        let args = format!("run {folder}/m.onnx --cache-dir cache --output-dir {folder}/out");
        bench.neap(&args).ok();
        fs::read(bench.path(&format!("{folder}/out/y.npy"))).unwrap()
    };
    let (a, b) = (run("a"), run("b"));
    assert_ne!(a, b);
    assert_eq!(packed_in(&bench.path("cache")).len(), 2);
    assert_eq!((run("a"), run("b")), (a, b));
}

/// As long as the file system allows: their packed forms have names of their own, and are found again.
#[test]
fn models_with_the_longest_names_are_cached_apart() {
    let bench = Bench::new();
    let names = ["1", "2"].map(|last| format!("{}{last}.onnx", "a".repeat(249)));
    let seeds = [1, 2];
    for (name, seed) in names.iter().zip(seeds) {
        bench.write(name, &inline(seed));
    }
    for cache in ["", "--cache-dir cache"] {
        let results = names.each_ref().map(|name| {
            let (first, was_packed) = output_of(&bench, name, cache);
            let (again, was_packed_again) = output_of(&bench, name, cache);
            assert!(was_packed && !was_packed_again, "{name} {cache}");
            assert_eq!(first, again);
            first
        });
        assert_ne!(results[0], results[1]);
    }
    let long = format!("{}.neap", "p".repeat(250));
    bench.neap(&format!("pack {} -o {long}", names[0])).ok();
    assert!(bench.path(&long).exists());
}

#[test]
fn hashing_fits_into_a_small_budget() {
    let bench = Bench::with_model(&layers());
    if !super::support::can_enforce(&bench) {
        return;
    }
    let run = |extra: &str| bench.json(&format!("run m.onnx --json - {extra}"));
    let smallest = bench.json("inspect m.onnx --format json")["smallest_feasible_bytes"].as_u64();
    let budget = smallest.expect("a number").max(8 << 20);
    // A new identity: 12 MiB are hashed under the limit.
    rewrite_keeping_times(&bench.path("m.onnx"), &layers());
    let packed = the_packed(bench.dir.path());
    let before = fs::metadata(&packed).unwrap().ino();
    let report = run(&format!("--memory-budget {budget} --enforce"));
    assert!(report["peak_memory_bytes"].as_u64().unwrap() <= budget);
    assert_eq!(fs::metadata(&packed).unwrap().ino(), before);
}

#[test]
fn a_cache_damaged_anywhere_heals_within_one_command() {
    for args in ["", "--cache-dir cache", "--memory-budget 64MiB"] {
        let bench = Bench::with_model(&inline(1));
        let (good, _) = output(&bench, args);
        let folder = match args.contains("cache") {
            true => bench.path("cache"),
            false => bench.dir.path().to_path_buf(),
        };
        let packed = the_packed(&folder);
        let len = fs::metadata(&packed).unwrap().len();
        // Header, weights, table of contents, checksums.
        for at in [
            0,
            100,
            4096 + 17,
            len - 2 * 4096 - 4000,
            len - 3 * 4096 + 5,
            len - 2 * 4096,
        ] {
            damage(&packed, at);
            let ran = bench.neap(&format!(
                "run m.onnx --output-dir out --calibrate off {args}"
            ));
            let ran = ran.ok();
            assert_eq!(
                fs::read(bench.path("out/y.npy")).unwrap(),
                good,
                "byte {at}"
            );
            let name = packed.file_name().unwrap().to_str().unwrap();
            let told: Vec<&str> = ran.stderr.lines().filter(|l| l.contains(name)).collect();
            assert_eq!(told.len(), 1, "byte {at}: {}", ran.stderr);
            assert!(told[0].contains("packing the model again"), "{}", told[0]);
            // And it stays well.
            assert_eq!(output(&bench, args), (good.clone(), false), "byte {at}");
        }
        fs::write(&packed, b"").unwrap();
        assert_eq!(output(&bench, args), (good.clone(), true));
    }
}

#[test]
fn a_damaged_cache_heals_under_a_hard_limit() {
    let bench = Bench::with_model(&layers());
    if !super::support::can_enforce(&bench) {
        return;
    }
    let args = "run m.onnx --memory-budget 64MiB --enforce --output-dir out";
    bench.neap(args).ok();
    let good = fs::read(bench.path("out/out_put_0.npy")).unwrap();
    damage(&the_packed(bench.dir.path()), 4096 * 3);
    bench.neap(args).ok();
    assert_eq!(fs::read(bench.path("out/out_put_0.npy")).unwrap(), good);
}

#[test]
fn a_damaged_file_that_the_user_names_is_an_error_that_names_it() {
    let bench = Bench::with_model(&inline(1));
    bench.neap("pack m.onnx -o named.neap").ok();
    let good = fs::read(bench.path("named.neap")).unwrap();
    for at in [0, 100, 4096 + 17, good.len() - 2 * 4096, good.len() - 4000] {
        bench.write("named.neap", &good);
        damage(&bench.path("named.neap"), at as u64);
        bench.neap("run named.neap").fails(2, &["named.neap"]);
        assert!(bench.path("named.neap").exists());
    }
}

#[test]
fn benchmarks_and_tasks_do_not_end_with_the_damage() {
    let bench = Bench::with_model(&inline(1));
    output(&bench, "");
    let packed = the_packed(bench.dir.path());
    damage(&packed, 4096 + 17);
    let args = "bench m.onnx --memory-budget none --iterations 1";
    bench.neap(args).ok();
    assert!(!output(&bench, "").1);

    // Members of a task have been planned by then: the task ends, and the next one packs.
    let task = "total = '512MiB'\n[[model]]\npath = 'm.onnx'\n";
    bench.write("task.toml", task.as_bytes());
    damage(&packed, 4096 + 17);
    bench
        .neap("tasks task.toml")
        .fails(2, &["m.onnx.", "damaged"]);
    bench.neap("tasks task.toml").ok();
}

#[test]
fn what_others_could_have_written_is_not_trusted() {
    let bench = Bench::with_model(&inline(1));
    let (good, _) = output(&bench, "--cache-dir cache");
    let packed = the_packed(&bench.path("cache"));

    // Planted weights: whole, with fitting checksums, and this very model's name.
    let plant = || {
        let other = Bench::with_model(&inline(2));
        other.neap("pack m.onnx -o p.neap").ok();
        fs::read(other.path("p.neap")).unwrap()
    };
    let planted = plant();
    let cases: [(&str, &dyn Fn()); 3] = [
        ("a link", &|| {
            bench.write("elsewhere.neap", &planted);
            fs::remove_file(&packed).unwrap();
            std::os::unix::fs::symlink(bench.path("elsewhere.neap"), &packed).unwrap();
        }),
        ("writable", &|| {
            let mode = fs::Permissions::from_mode(0o666);
            fs::set_permissions(&packed, mode).unwrap();
        }),
        ("foreign", &|| {
            // Only the administrator can give files away.
            let given = std::os::unix::fs::chown(&packed, Some(12_345), None);
            if given.is_err() {
                neap_testing::skip("no right to change owners");
                fs::set_permissions(&packed, fs::Permissions::from_mode(0o646)).unwrap();
            }
        }),
    ];
    for (what, prepare) in cases {
        prepare();
        let ran = bench
            .neap("run m.onnx --cache-dir cache --output-dir out")
            .ok();
        assert!(ran.stderr.contains("not trusted"), "{what}: {}", ran.stderr);
        assert_eq!(fs::read(bench.path("out/y.npy")).unwrap(), good, "{what}");
        let meta = fs::symlink_metadata(&packed).unwrap();
        assert!(meta.is_file() && meta.mode() & 0o022 == 0, "{what}");
        assert_eq!(
            output(&bench, "--cache-dir cache"),
            (good.clone(), false),
            "{what}"
        );
    }
    // What its owner put there of another model is of other content.
    fs::write(&packed, &planted).unwrap();
    assert_eq!(output(&bench, "--cache-dir cache"), (good, true));
}

#[test]
fn what_a_killed_packer_left_goes_with_the_next() {
    let bench = Bench::with_model(&layers());
    let parts = || {
        let names = fs::read_dir(bench.dir.path()).unwrap();
        let names = names.map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|n| n.ends_with(".part")).count()
    };
    let mut tries = 0;
    while parts() == 0 {
        tries += 1;
        assert!(tries < 200, "the packer is never met at work");
        let _ = fs::remove_file(bench.path("m.neap"));
        let mut child = bench
            .command("pack m.onnx -o m.neap")
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while parts() == 0 && started.elapsed() < Duration::from_secs(20) {
            if child.try_wait().unwrap().is_some() {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    bench.neap("pack m.onnx -o other.neap").ok();
    assert_eq!(parts(), 0);
}

#[test]
fn a_packed_model_in_memory_is_told() {
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        neap_testing::skip("there is no /dev/shm");
        return;
    };
    let bench = Bench::with_model(&inline(1));
    let folder = memory.path().display();
    let ran = bench
        .neap(&format!("run m.onnx --cache-dir {folder} --json r.json"))
        .ok();
    let told: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|l| l.contains("lies in memory"))
        .collect();
    assert_eq!(told.len(), 1, "{}", ran.stderr);
    let report = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&fs::read(bench.path(name)).unwrap()).unwrap()
    };
    assert_eq!(report("r.json")["packed_in_memory"], true);
    let ran = bench.neap(&format!("pack m.onnx -o {folder}/m.neap")).ok();
    assert!(ran.stderr.contains("lies in memory"), "{}", ran.stderr);

    let on_drive = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = on_drive.path().display();
    let ran = bench
        .neap(&format!("run m.onnx --cache-dir {folder} --json r.json"))
        .ok();
    assert!(!ran.stderr.contains("lies in memory"), "{}", ran.stderr);
    assert_eq!(report("r.json")["packed_in_memory"], false);
}

/// Who may write everywhere becomes somebody who may not.
#[test]
fn where_nothing_can_be_written_the_option_is_named() {
    let bench = Bench::with_model(&inline(1));
    let neap = bench.path("neap");
    fs::copy(super::support::NEAP, &neap).unwrap();
    let dir = bench.dir.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o555)).unwrap();
    let is_root = fs::metadata(dir).unwrap().uid() == 0;
    let run = |home: Option<&str>| {
        let mut command = std::process::Command::new(&neap);
        command
            .args(["run", "m.onnx"])
            .current_dir(dir)
            .env_remove("XDG_CACHE_HOME")
            .env_remove("HOME")
            .stdin(Stdio::null());
        home.into_iter().for_each(|home| {
            command.env("HOME", home);
        });
        if is_root {
            command.uid(65_534).gid(65_534);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("--cache-dir"), "{text}");
    };
    run(None);
    run(Some("/proc/no/such/home"));
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
}
