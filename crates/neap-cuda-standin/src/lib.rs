//! A CUDA driver of software, for tests: memory files of the host stand for the card's memory.
//!
//! - What is not mapped cannot be touched: a kernel or a copy that tries ends the process, and so does unmapping what is in
//!   use. No fault of the hook is overlooked.
//! - The capacity binds, for all processes together.
//! - Streams do their work in order, beside the program. Copies take the time of a link.
//! - A few kernels are known by name and computed here. All others cannot be loaded.
//!
//! It is written from what the driver's public headers say. It has none of the driver's private tables, so programs that
//! want proof of a genuine driver do not run on it.

#![allow(non_snake_case)]

mod api;
mod card;
mod copies;
mod kernels;
mod space;
mod status;
mod streams;
