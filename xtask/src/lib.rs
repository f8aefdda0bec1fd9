//! Project automation: `cargo xtask tidy|test|accuracy|conformance|nightly|fuzz|wheels|regress|release|sbom`.
//!
//! It builds no engine by itself: what needs one starts `neap`, the workspace's tests or `neap-conformance`. The studies in
//! `studies/` use its list of models and its Python environments.

// Whatever fails ends the command.
#![allow(clippy::missing_errors_doc)]

pub mod accuracy;
pub mod arm;
mod background;
pub mod c_library;
pub mod check;
mod checked;
mod circles;
pub mod conformance;
mod cuda;
mod features;
pub mod fuzz;
mod licences;
mod locks;
mod metadata;
pub mod models;
pub mod nightly;
mod published;
pub mod python;
mod real_data;
pub mod regress;
pub mod release;
pub mod sbom;
mod serving;
pub mod skips;
pub mod survive;
pub mod test;
pub mod tidy;
mod vulkan;
pub mod wheels;

use std::path::PathBuf;

/// The repository's root folder.
#[must_use]
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
        .to_path_buf()
}
