//! How long runs of each model take, as far as anybody knows: predicted when it is loaded, of late when it has run.

use super::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;

#[derive(Debug, Default)]
pub struct Pace(Mutex<BTreeMap<String, u64>>);

impl Pace {
    /// What is known before the first run.
    pub fn begin(&self, model: &str, predicted_ns: u64) {
        lock(&self.0).insert(model.into(), predicted_ns);
    }

    /// A run of it took so long. Where it was ended early, that is a part of a run.
    pub fn note(&self, model: &str, ran_ns: u64, is_whole: bool) {
        if let Some(known_ns) = lock(&self.0).get_mut(model) {
            *known_ns = match is_whole {
                true => ran_ns,
                false => ran_ns.max(*known_ns),
            };
        }
    }

    /// How long a run is taken to be.
    pub fn of(&self, model: &str) -> u64 {
        lock(&self.0).get(model).copied().unwrap_or(0)
    }

    pub fn forget(&self, model: &str) {
        lock(&self.0).remove(model);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_run_counts() {
        let pace = Pace::default();
        pace.note("a", 5, true);
        assert_eq!(pace.of("a"), 0, "it is not loaded");
        pace.begin("a", 100);
        pace.note("a", 70, false);
        assert_eq!(pace.of("a"), 100);
        pace.note("a", 120, false);
        assert_eq!(pace.of("a"), 120);
        pace.note("a", 70, true);
        assert_eq!(pace.of("a"), 70);
        pace.forget("a");
        assert_eq!(pace.of("a"), 0);
    }
}
