//! A host of which only what a model takes is counted, not what the process had before.

use neaptide::Host;
use std::sync::Arc;

/// Counts what the process has taken since this was made: before a model is opened, so that it is the model's own.
#[derive(Debug)]
pub struct Since {
    before_bytes: u64,
    host: Arc<dyn Host>,
}

impl Since {
    #[must_use]
    pub fn now(host: Arc<dyn Host>) -> Since {
        host.trim();
        Since {
            before_bytes: host.charged_bytes(),
            host,
        }
    }
}

impl Host for Since {
    fn charged_bytes(&self) -> u64 {
        self.host.charged_bytes().saturating_sub(self.before_bytes)
    }

    fn machine_bytes(&self) -> Option<u64> {
        self.host.machine_bytes()
    }

    fn trim_heap(&self) {
        self.host.trim_heap();
    }

    fn trim_program(&self) {
        self.host.trim_program();
    }
}
