//! From a graph to results through everything: packing, planning, streaming, computing.

mod bindings;
mod blocks;
#[path = "../../../neap-rewrite/tests/rewrite/build.rs"]
mod build;
mod corruption;
mod faults;
mod files;
mod formats;
mod halves;
mod hostile_onnx;
mod hostile_programs;
mod images;
mod instruction_sets;
mod integers;
mod nets;
mod random_graphs;
mod rounding;
mod sequences;
mod sessions;
mod strips;
mod toc;
