//! The façade as programs use it: models in other shapes, several in one engine, training.

#[path = "../../../neap-rewrite/tests/rewrite/build.rs"]
mod build;
#[path = "../graphs/mod.rs"]
mod graphs;
#[path = "../../../neap-onnx/tests/support/mod.rs"]
mod onnx;

mod bindings;
mod code_version;
mod engine;
mod engine_shapes;
mod late;
mod machine;
mod orders;
mod runner;
mod training;
