//! `neap train`: options, and what is shown meanwhile.

mod args;
mod follow;

pub use args::LearningArgs;
pub use follow::Follower;
