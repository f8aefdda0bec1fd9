//! `Place`: a network with its packed form, and processes that run it on the device.

use crate::group::Group;
use crate::models;
use crate::peer::Peer;
use crate::worker;
use anyhow::{Result, ensure};
use std::path::{Path, PathBuf};

pub(super) struct Place {
    model: PathBuf,
    cache: PathBuf,
}

impl Place {
    pub(super) fn of(root: &Path, name: &str) -> Result<Place> {
        let place = Place {
            model: models::zoo_model(root, name)?,
            cache: root.join("target/models/packed"),
        };
        // Packs it.
        drop(worker::start(&place.model, &place.cache, &[])?);
        Ok(place)
    }

    pub(super) fn started(&self, arguments: &[&str]) -> Result<Peer> {
        let arguments = [&["--vulkan"][..], arguments].concat();
        worker::start(&self.model, &self.cache, &arguments)
    }

    pub(super) fn start(&self, arguments: &[&str]) -> Result<Peer> {
        ready(self.started(arguments)?, arguments)
    }

    /// The same in a group, whose peak the kernel counts.
    pub(super) fn start_in(&self, group: &Group, arguments: &[&str]) -> Result<Peer> {
        let all = [&["--vulkan"][..], arguments].concat();
        let command = worker::command(&self.model, &self.cache, &all)?;
        ready(Peer::start(&mut group.around(&command))?, arguments)
    }
}

/// After one run.
fn ready(mut peer: Peer, arguments: &[&str]) -> Result<Peer> {
    let smallest = peer.ready["smallest_bytes"].as_u64();
    ensure!(smallest.is_none(), "{arguments:?}: {smallest:?} are needed");
    peer.run(1)?;
    Ok(peer)
}
