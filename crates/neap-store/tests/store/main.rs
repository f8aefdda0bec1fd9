//! Packed files, sources and the spill file: what is written is read, and what fails is said.

mod common;

mod buffered;
mod faults;
mod full_disk;
mod hostile_files;
mod packed_file;
mod plain;
mod sources;
mod spill;
