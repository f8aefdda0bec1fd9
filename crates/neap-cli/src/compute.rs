//! `--device` of `neap run`: what computes.

use crate::failure::{Outcome, bad};
use neaptide::{Accelerator, Model, RunOptions, Sharing};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// `vulkan`, or `vulkan:N`; `auto` or `auto:N` where the processor keeps what it computes sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    number: Option<usize>,
    /// Steps are shared with the processor by what each is predicted to take.
    is_shared: bool,
}

/// Where plans on a device are, and how exact they are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// In the device's own memory, not in the host's.
    pub own: bool,
    /// Its link as if it were no faster.
    pub link_bytes_per_second: Option<f64>,
    /// Direct kernels compute, without scratch.
    pub exact: bool,
}

impl FromStr for Compute {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Compute, &'static str> {
        const HOW: &str = "write vulkan, vulkan:N, auto or auto:N";
        let (name, number) = match text.split_once(':') {
            None => (text, None),
            Some((name, number)) => (name, Some(number.parse().map_err(|_| HOW)?)),
        };
        let is_shared = match name {
            "vulkan" => false,
            "auto" => true,
            _ => return Err(HOW),
        };
        Ok(Compute { number, is_shared })
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_shared { "auto" } else { "vulkan" })?;
        match self.number {
            None => Ok(()),
            Some(number) => write!(f, ":{number}"),
        }
    }
}

impl Compute {
    /// Lets the processor keep what it computes sooner, if that is asked for. `options` have the device.
    pub fn share(self, model: &Model, options: &mut RunOptions) -> Outcome {
        if self.is_shared {
            options.sharing = Some(Sharing::new(model, options)?);
        }
        Ok(())
    }

    /// Opens the device for a model, and takes what it will take of this process's memory. Plans are in
    /// `memory`.
    #[cfg(feature = "vulkan")]
    pub fn open(self, model: &Model, memory: Memory) -> Outcome<Arc<dyn Accelerator>> {
        let options = neap_vulkan::Options {
            number: self.number,
            program: Some(model.program().clone()),
            // What is shared is divided by the times of direct kernels.
            exact: memory.exact || self.is_shared,
            own_memory: memory.own,
            link_bytes_per_second: memory.link_bytes_per_second,
            ..neap_vulkan::Options::default()
        };
        match neap_vulkan::Vulkan::open(&options) {
            Ok(vulkan) => {
                let gpu = vulkan.gpu();
                if gpu.is_card() && !memory.own {
                    crate::progress::note(&format!(
                        "{} has memory of its own, and computes in the host's over the bus; with --device-budget none, or a size, it computes in its own",
                        gpu.name()
                    ));
                }
                Ok(Arc::new(vulkan))
            }
            Err(e) => Err(bad(format!("--device {self}: {e}"))),
        }
    }

    /// This program was built without.
    #[cfg(not(feature = "vulkan"))]
    pub fn open(self, _: &Model, _: Memory) -> Outcome<Arc<dyn Accelerator>> {
        Err(bad(format!(
            "--device {self}: build neap with it, cargo build --release --features vulkan"
        )))
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
        assert_eq!(number("auto:3"), Ok(Some(3)));
        for text in ["vulkan", "vulkan:2", "auto", "auto:1"] {
            assert_eq!(text.parse::<Compute>().expect("right").to_string(), text);
        }
        for wrong in [
            "",
            "cuda",
            "vulkan:",
            "vulkan:x",
            "vulkan:-1",
            "cuda:0",
            "auto:",
            "auto:x",
        ] {
            assert!(number(wrong).is_err(), "{wrong}");
        }
    }
}
