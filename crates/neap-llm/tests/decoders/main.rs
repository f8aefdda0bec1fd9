//! Decoders of every architecture, with seeded weights, against a plain reference; and the same bits in every budget, chunk and batch.

mod bits;
mod files;
mod made;
mod mixtures;
mod reference;
mod right;
mod states;
mod windows;
