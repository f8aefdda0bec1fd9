//! A skip is collected, or fails where everything is required.

use std::process::{Command, Output};

const ROLE: &str = "NEAP_TESTING_ROLE";

/// Runs this test again in another process, where it does as `role` says.
fn play(role: &str, require_all: &str, collected_in: &std::path::Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "skips_are_told", "--nocapture"])
        .env(ROLE, role)
        .env("NEAP_REQUIRE_ALL", require_all)
        .env("NEAP_SKIPS", collected_in)
        .output()
        .unwrap()
}

#[test]
fn skips_are_told() {
    match std::env::var(ROLE).as_deref() {
        Ok("skip") => return neap_testing::skip("no such thing here"),
        Ok("absent") => return neap_testing::absent("no such file here"),
        _ => {}
    }
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let collected = folder.join(format!("skips-{}", std::process::id()));
    assert!(play("skip", "0", &collected).status.success());
    assert!(play("absent", "1", &collected).status.success());
    let lines = std::fs::read_to_string(&collected).unwrap();
    std::fs::remove_file(&collected).unwrap();
    assert_eq!(
        lines,
        "skips_are_told: no such thing here\nskips_are_told: no such file here\n"
    );
    let failed = play("skip", "1", &collected);
    assert!(!failed.status.success());
    let said = String::from_utf8_lossy(&failed.stderr) + String::from_utf8_lossy(&failed.stdout);
    assert!(said.contains("no such thing here"), "{said}");
    assert!(!collected.exists());
}
