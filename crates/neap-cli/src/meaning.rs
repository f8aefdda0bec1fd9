//! Texts in TOML files that mean something: sizes, times; and where in the file a mistake is.

use neaptide::{parse_bytes, parse_duration};
use serde::Deserialize;
use std::time::Duration;

/// Text in a string that means something.
#[derive(Deserialize)]
#[serde(try_from = "String", bound(deserialize = "T: Meaning"))]
pub struct Parsed<T>(pub T);

pub trait Meaning: Sized {
    fn parse(text: &str) -> Result<Self, String>;
}

/// Such as `64MiB`.
pub struct Size(pub u64);

/// Such as `5s` or `250ms`.
pub struct Time(pub Duration);

impl<T: Meaning> TryFrom<String> for Parsed<T> {
    type Error = String;

    fn try_from(text: String) -> Result<Parsed<T>, String> {
        T::parse(&text).map(Parsed)
    }
}

impl Meaning for Size {
    fn parse(text: &str) -> Result<Size, String> {
        parse_bytes(text).map(Size)
    }
}

impl Meaning for Time {
    fn parse(text: &str) -> Result<Time, String> {
        parse_duration(text).map(Time)
    }
}

impl Time {
    pub fn ns(&self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// `line 3, threads: …`
pub fn at(text: &str, offset: usize, what: &str) -> String {
    let offset = offset.min(text.len());
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let written = text.lines().nth(line - 1).unwrap_or_default();
    match written.split_once('=') {
        Some((key, _)) => format!("line {line}, {}: {what}", key.trim()),
        None => format!("line {line}: {what}"),
    }
}
