//! What rewriting does to small graphs: which nodes remain, which values share memory, and that the
//! program still computes the same.

mod aliasing;
mod attention;
mod bands;
mod build;
mod fusions;
mod gathers;
mod interpret;
mod lower;
mod order;
mod quantized;
mod random;
mod recurrent;
mod strips;
