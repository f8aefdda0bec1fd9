//! Plans that are run: by virtual clocks and by real ones, on storage and devices of all kinds.

#[path = "../support/mod.rs"]
mod support;

mod device;
mod errors;
mod faults;
mod faulty_drive;
mod files;
mod incoming;
mod overwritten;
mod prepared;
mod results;
mod runs;
mod sharing;
mod simulation;
mod spill;
mod states;
mod streaming;
