//! Timelines that can be checked by hand.

mod by_hand;
mod lanes;
mod stores;
