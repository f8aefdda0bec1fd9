//! Trainings from data to files, with the interpreter.

mod data;
mod ends;
mod resuming;
mod support;
