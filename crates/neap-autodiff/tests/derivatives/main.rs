//! Derivatives against finite differences in f64, and f32 against f64.

mod difference;
mod elementwise;
mod movement;
mod normalisations;
mod products;
mod windows;

mod networks;
