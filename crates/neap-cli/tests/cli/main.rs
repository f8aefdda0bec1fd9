//! The binary as a user meets it: options, files, exit codes, reports, limits, signals.

mod admit;
mod bare;
mod blocks;
mod budgets;
mod caching;
mod calibration;
mod changes;
mod commands;
mod destinations;
mod devices;
mod files;
mod following;
mod gguf;
mod inputs;
mod layout;
mod ledgers;
mod onnx;
mod rounding;
mod serving;
mod signals;
mod spilling;
mod support;
mod tasks;
mod training;
mod training_limits;
