//! What is read from ONNX files: operators, shapes, constants, and files that are wrong.

#[path = "../support/mod.rs"]
mod support;

mod classical;
mod constants;
mod contrib;
mod early_opsets;
mod gradient;
mod halves;
mod hostile;
mod loops;
mod narrow;
mod operators;
mod rare;
mod recent;
mod replace;
mod signature;
mod skeleton;
mod structure;
mod tolerated;
mod training;
