//! The written networks: read back, and run by another engine.

mod files;
mod onnxruntime;
