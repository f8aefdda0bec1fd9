//! Memory budgets as people write them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Whose memory a budget limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The whole process, as the kernel charges it.
    #[default]
    Process,
    /// The engine alone, in a process that has other work too ([`Budget::Engine`]).
    Engine,
}

/// How much memory may be used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Everything stays resident.
    Unlimited,
    /// Bytes of the whole process, as the kernel charges it.
    Bytes(u64),
    /// Of what the whole process takes with everything resident: so many bytes
    /// ([`Bounds::whole`](crate::Bounds::whole)), which the model and its options determine alone.
    Percent(f64),
    /// Bytes of the engine's own memory: arena and its page tables, threads' stacks, heap of model and session. For
    /// programs that have other work too; inputs and outputs are theirs, as is what packing and planning take for a
    /// while. It is not written as text.
    Engine(u64),
}

impl Budget {
    /// A limit of so many bytes on whoever's memory.
    pub fn of(scope: Scope, bytes: u64) -> Budget {
        match scope {
            Scope::Process => Budget::Bytes(bytes),
            Scope::Engine => Budget::Engine(bytes),
        }
    }

    /// Whose memory it limits.
    pub fn scope(&self) -> Scope {
        match self {
            Budget::Engine(_) => Scope::Engine,
            Budget::Unlimited | Budget::Bytes(_) | Budget::Percent(_) => Scope::Process,
        }
    }

    /// In bytes; `None` without a limit. `whole` is what percentages are of.
    pub(crate) fn bytes(&self, whole: impl FnOnce() -> u64) -> Option<u64> {
        match *self {
            Budget::Unlimited => None,
            Budget::Bytes(bytes) | Budget::Engine(bytes) => Some(bytes),
            Budget::Percent(percent) => Some((whole() as f64 * percent / 100.0) as u64),
        }
    }
}

/// `64MiB`, `64M`, `67108864`, `25%` or `none`. Suffixes are base 2.
impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Budget, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("none") {
            return Ok(Budget::Unlimited);
        }
        if let Some(number) = text.strip_suffix('%') {
            return match number.trim().parse::<f64>() {
                Ok(percent) if percent > 0.0 && percent.is_finite() => Ok(Budget::Percent(percent)),
                _ => Err(format!("'{text}' is no percentage above zero")),
            };
        }
        parse_bytes(text).map(Budget::Bytes).map_err(|error| {
            error.replace(
                "64M or a number of bytes",
                "64M, a number of bytes, 25% or none",
            )
        })
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Unlimited => f.write_str("none"),
            Budget::Bytes(bytes) => Bytes(*bytes).fmt(f),
            Budget::Percent(percent) => write!(f, "{percent}%"),
            Budget::Engine(bytes) => write!(f, "{} of the engine", Bytes(*bytes)),
        }
    }
}

/// A size in bytes: a number with an optional `K`, `M`, `G` (also `KiB`, `KB`, ...; all base 2).
///
/// # Errors
/// What to write instead.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => {
            return Err(format!(
                "'{text}' is no size: write 64MiB, 64M or a number of bytes"
            ));
        }
    };
    let value: f64 = number
        .parse()
        .map_err(|_| format!("'{text}' is no size: write 64MiB, 64M or a number of bytes"))?;
    let bytes = value * (1u64 << shift) as f64;
    if bytes < 1.0 || bytes > u64::MAX as f64 / 2.0 {
        return Err(format!("'{text}' is out of range"));
    }
    Ok(bytes as u64)
}

/// Shows bytes in the largest unit that keeps them readable: `32.5 MiB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        let (value, unit) = match self.0 {
            0..1024 => return write!(f, "{} B", self.0),
            1024..0x10_0000 => (bytes / 1024.0, "KiB"),
            0x10_0000..0x4000_0000 => (bytes / 1048576.0, "MiB"),
            _ => (bytes / 1073741824.0, "GiB"),
        };
        let text = format!("{value:.2}");
        write!(
            f,
            "{} {unit}",
            text.trim_end_matches('0').trim_end_matches('.')
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        let check = |text: &str, expected: Budget| assert_eq!(text.parse(), Ok(expected), "{text}");
        check("64MiB", Budget::Bytes(64 << 20));
        check("64M", Budget::Bytes(64 << 20));
        check("64mb", Budget::Bytes(64 << 20));
        check("1.5 GiB", Budget::Bytes(3 << 29));
        check("4096", Budget::Bytes(4096));
        check("25%", Budget::Percent(25.0));
        check("none", Budget::Unlimited);
        for bad in [
            "", "-1", "0", "0%", "64Q", "1e99G", "MiB", "..5M", "nan%", "inf%",
        ] {
            assert!(bad.parse::<Budget>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_as_people_read_them() {
        assert_eq!(Bytes(64 << 20).to_string(), "64 MiB");
        assert_eq!(Bytes(1536).to_string(), "1.5 KiB");
        assert_eq!(Bytes(10).to_string(), "10 B");
    }
}
