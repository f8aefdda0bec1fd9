//! Derivatives against finite differences in f64, and f32 against f64; losses, updates and whole steps of training.

mod adapters;
mod attention;
mod difference;
mod elementwise;
mod losses;
mod movement;
mod normalisations;
mod products;
mod recurrent;
mod resize;
mod steps;
mod updates;
mod windows;

mod networks;
mod zoo;
