//! The neap command.
fn main() {}
