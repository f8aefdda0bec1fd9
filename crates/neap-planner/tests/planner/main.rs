//! Plans of the planner: what they hold, in what time, and that the validator finds what is wrong with others.

#[path = "../shapes/mod.rs"]
mod shapes;

mod allocate;
mod corruption;
mod layout;
mod networks;
mod own_memory;
mod random;
mod shared;
mod spill;
