//! `--device` of `neap run`: what computes.

use crate::failure::{Outcome, bad};
use neaptide::{Accelerator, Model};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// `vulkan`, or `vulkan:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    number: Option<usize>,
}

/// Where plans on a device are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// In the device's own memory, not in the host's.
    pub own: bool,
    /// Its link as if it were no faster.
    pub link_bytes_per_second: Option<f64>,
}

impl FromStr for Compute {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Compute, &'static str> {
        const HOW: &str = "write vulkan, or vulkan:N";
        let number = match text.split_once(':') {
            None if text == "vulkan" => None,
            Some(("vulkan", number)) => Some(number.parse().map_err(|_| HOW)?),
            _ => return Err(HOW),
        };
        Ok(Compute { number })
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number {
            None => f.write_str("vulkan"),
            Some(number) => write!(f, "vulkan:{number}"),
        }
    }
}

impl Compute {
    /// Opens the device for a model, and takes what it will take of this process's memory. Plans are in
    /// `memory`.
    #[cfg(feature = "vulkan")]
    pub fn open(self, model: &Model, memory: Memory) -> Outcome<Arc<dyn Accelerator>> {
        let options = neap_vulkan::Options {
            number: self.number,
            program: Some(model.program().clone()),
            own_memory: memory.own,
            link_bytes_per_second: memory.link_bytes_per_second,
            ..neap_vulkan::Options::default()
        };
        match neap_vulkan::Vulkan::open(&options) {
            Ok(vulkan) => Ok(Arc::new(vulkan)),
            Err(e) => Err(bad(format!("--device vulkan: {e}"))),
        }
    }

    /// This program was built without.
    #[cfg(not(feature = "vulkan"))]
    pub fn open(self, _: &Model, _: Memory) -> Outcome<Arc<dyn Accelerator>> {
        Err(bad(
            "--device vulkan: build neap with it, cargo build --release --features vulkan",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_as_people_write_them() {
        let number = |text: &str| text.parse::<Compute>().map(|c| c.number);
        assert_eq!(number("vulkan"), Ok(None));
        assert_eq!(number("vulkan:2"), Ok(Some(2)));
        for text in ["vulkan", "vulkan:2"] {
            assert_eq!(text.parse::<Compute>().expect("right").to_string(), text);
        }
        for wrong in ["", "cuda", "vulkan:", "vulkan:x", "vulkan:-1", "cuda:0"] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }
}
