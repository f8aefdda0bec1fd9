//! Trainings from data to files, with the interpreter.

mod data;
mod ends;
mod lora;
mod resuming;
mod support;
