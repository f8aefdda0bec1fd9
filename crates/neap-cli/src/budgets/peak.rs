//! Peak memory in parts of a process's life.

use crate::cgroup::{Found, Version};
use neaptide::memory::{self, Peak, PeakSource};
use std::fs;

pub struct PeakMeter {
    own: Option<Found>,
    most: Peak,
    /// The count began anew at the last [`PeakMeter::take`].
    fresh: bool,
}

impl PeakMeter {
    /// `own` is the cgroup in which this process is alone.
    pub fn new(own: Option<Found>) -> PeakMeter {
        let most = memory::peak(own.is_some());
        PeakMeter {
            own,
            most,
            fresh: true,
        }
    }

    /// The peak since the last call, where the kernel can count anew; a new count begins.
    pub fn take(&mut self) -> Option<u64> {
        let peak = self.overall();
        let now = memory::peak(self.own.is_some());
        self.most = peak;
        let counted = self.fresh.then_some(now.bytes);
        self.fresh = self.reset(now.source);
        counted
    }

    /// The peak since the process began.
    pub fn overall(&self) -> Peak {
        let now = memory::peak(self.own.is_some());
        if now.bytes >= self.most.bytes {
            now
        } else {
            self.most
        }
    }

    fn reset(&self, source: PeakSource) -> bool {
        match (source, &self.own) {
            (PeakSource::VmHwm, _) => fs::write("/proc/self/clear_refs", "5").is_ok(),
            (PeakSource::CgroupV1, Some(own)) if own.version == Version::V1 => {
                fs::write(own.dir.join("memory.max_usage_in_bytes"), "0").is_ok()
            }
            _ => false,
        }
    }
}
