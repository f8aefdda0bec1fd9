//! The validator and the timeline, on plans that were made by hand.

mod by_hand;
mod lanes;
mod states;
mod stores;
