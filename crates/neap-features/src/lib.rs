//! No code: one set of features for the libraries that all programs of the workspace share.
//!
//! Cargo gives a library the features that the packages being built ask for. Without this crate, a program built alone
//! would get fewer of them than the workspace's tests, and everything above would be compiled again.

#![forbid(unsafe_code)]
