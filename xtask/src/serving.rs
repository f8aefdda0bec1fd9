//! The server asked by clients as they come from PyPI: `tritonclient`, over HTTP and gRPC, and `openai`; and its page in a
//! browser.

use crate::check::check;
use crate::models;
use crate::skips::Skips;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Zoo models that are served: one that fits into the budget, and one that does not.
const SERVED: [&str; 2] = ["mobilenet_v2", "resnet50"];

pub fn run(root: &Path, skips: &Skips) -> Result<()> {
    let Some(python) = python(root)? else {
        return skips.skip("clients of the server: no Python environment with tritonclient");
    };
    let neap = models::neap(root)?;
    let folder = root.join("target/models/served");
    std::fs::create_dir_all(&folder)?;
    for name in SERVED {
        let model = models::zoo_model(root, name)?;
        let link = folder.join(format!("{name}.onnx"));
        if !link.exists() {
            std::os::unix::fs::symlink(&model, &link)
                .with_context(|| format!("cannot link {}", link.display()))?;
        }
    }
    let mut clients = Command::new(&python);
    clients.arg(root.join("scripts/serve_clients.py")).args([
        &neap,
        &folder,
        &root.join("target/models/packed"),
    ]);
    check(&mut clients, "clients of the server")?;
    let mut openai = Command::new(&python);
    openai.arg(root.join("scripts/serve_openai.py")).args([
        &neap,
        &folder,
        &root.join("target/models/packed"),
    ]);
    match language_model(root, &python) {
        Some(model) => drop(openai.arg(model)),
        None => skips.skip("a real language model of the server: it cannot be fetched")?,
    }
    check(&mut openai, "the server asked by the openai package")?;
    let Some(chromium) = chromium() else {
        return skips.skip("the server's page: no Chromium");
    };
    let mut page = Command::new(python);
    page.arg(root.join("scripts/serve_page.py")).args([
        &neap,
        &folder,
        &root.join("target/models/packed"),
        &chromium,
    ]);
    check(&mut page, "the server's page in a browser")
}

/// A real language model, where it can be had.
fn language_model(root: &Path, python: &Path) -> Option<PathBuf> {
    let mut fetch = Command::new(python);
    fetch.arg(root.join("scripts/language_models.py"));
    let output = fetch.stderr(Stdio::inherit()).output().ok()?;
    let told = String::from_utf8(output.stdout).ok()?;
    let path = PathBuf::from(told.trim());
    path.is_file().then_some(path)
}

/// The browser, where it is installed.
fn chromium() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let mut all = std::env::split_paths(&folders).flat_map(|f| names.map(|name| f.join(name)));
    all.find(|path| path.is_file())
}

/// The Python with the clients; `None`, with the reason on stderr, when it cannot be had.
fn python(root: &Path) -> Result<Option<PathBuf>> {
    let output = Command::new("sh")
        .arg(root.join("scripts/clients.sh"))
        .stderr(Stdio::inherit())
        .output()?;
    let path = String::from_utf8(output.stdout)?.trim().to_string();
    Ok((!path.is_empty()).then(|| PathBuf::from(path)))
}
