//! Plans in a device's own memory: two budgets, and three tiers.
//!
//! ```text
//!   --device-budget    reserve of the driver + arena                       what plans take of the device
//!   --memory-budget    process + what a session takes + copies             what is left of it holds activations that leave the
//!                                                                           device, then weights
//! ```

use crate::error::Error;
use crate::ledger::{DeviceLedger, Ledger};
use crate::options::RunOptions;
use neap_compile::{Compiled, Draft, Search, SearchError, tables_of};
use neap_planner::{Planned, with_copies, with_packed_residents};
use neap_runtime::{LinkRates, OwnMemoryFigures, STAGING_BYTES};
use neap_sim::CostProfile;

/// The device whose memory plans are for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnDevice {
    figures: OwnMemoryFigures,
    budget_bytes: Option<u64>,
}

/// Costs where all weights fit into what the host's budget leaves: none is read from storage but for the first time.
pub(crate) fn of_link_alone(costs: &CostProfile, link: Option<LinkRates>) -> CostProfile {
    let mut costs = costs.clone();
    if let Some(link) = link {
        costs.storage_bytes_per_second = costs.link_bytes_per_second;
        costs.request_latency_ns = link.latency_ns;
        costs.group_bytes = 0;
    }
    costs
}

/// A plan in a device's memory, and what it takes where.
pub(crate) struct Placed {
    pub found: Compiled,
    pub ledger: Ledger,
}

impl OnDevice {
    /// `None` where plans are in the process's memory.
    pub fn of(options: &RunOptions) -> Option<OnDevice> {
        let figures = options.accelerator.as_ref()?.own_memory()?;
        Some(OnDevice {
            figures,
            budget_bytes: options.device_budget_bytes,
        })
    }

    /// What of the device is left to a plan; `None` where everything may be resident.
    fn room_bytes(&self, search: &Search) -> Option<u64> {
        let most_bytes = self.figures.most_bytes;
        let of_budget = |bytes: u64| {
            bytes
                .saturating_sub(self.figures.reserve_bytes)
                .min(most_bytes)
        };
        let has_room = || search.whole_arena_bytes() <= most_bytes;
        match self.budget_bytes {
            Some(bytes) => Some(of_budget(bytes)),
            None if has_room() => None,
            None => Some(most_bytes),
        }
    }

    /// With what a session pins in the host.
    pub fn base(base: Ledger) -> Ledger {
        Ledger {
            fixed_bytes: base.fixed_bytes + STAGING_BYTES + tables_of(STAGING_BYTES),
            ..base
        }
    }

    /// With an arena of so many bytes on the device.
    pub fn ledger(&self, base: Ledger, arena_bytes: u64) -> Ledger {
        Ledger {
            device: Some(DeviceLedger {
                reserve_bytes: self.figures.reserve_bytes,
                arena_bytes,
            }),
            ..base
        }
    }

    /// The best plan within both budgets; `base` is what the process takes ([`OnDevice::base`]), copies apart.
    ///
    /// # Errors
    /// [`Error::Infeasible`] names the smallest pair.
    pub fn plan(
        &self,
        search: &Search,
        base: Ledger,
        host_bytes: Option<u64>,
        opening_bytes: u64,
    ) -> Result<Placed, Error> {
        let refused = |smallest_bytes: u64| {
            let smallest = self.ledger(base, smallest_bytes).named(opening_bytes);
            Error::infeasible(host_bytes.unwrap_or(u64::MAX), smallest)
        };
        let found = search.find(self.room_bytes(search));
        let mut found = found.map_err(|error| match error {
            SearchError::Infeasible { smallest_bytes } => refused(smallest_bytes),
            SearchError::Defect(what) => Error::Defect(what),
        })?;
        if host_bytes.is_some_and(|bytes| bytes < base.total_bytes()) {
            let smallest_bytes = match search.find(Some(0)) {
                Err(SearchError::Infeasible { smallest_bytes }) => smallest_bytes,
                _ => 0,
            };
            return Err(refused(smallest_bytes));
        }
        let spare_bytes = host_bytes.map(|bytes| bytes - base.total_bytes());
        place(&mut found, spare_bytes);
        let found = found.check().map_err(Error::bad_plan)?;
        let host_bytes = found.plan.plan().host_bytes();
        let base = Ledger {
            copies_bytes: host_bytes,
            tables_bytes: tables_of(host_bytes),
            ..base
        };
        Ok(Placed {
            ledger: self.ledger(base, found.plan.verdict().high_water_bytes),
            found,
        })
    }
}

/// Packs what stays on the device, and keeps in the host what it has room for: everything without a limit.
fn place(found: &mut Draft, spare_bytes: Option<u64>) {
    let room_bytes = spare_bytes.map_or(u64::MAX / 2, |bytes| bytes - tables_of(bytes).min(bytes));
    let mut plan = with_packed_residents(&found.planned.plan);
    // What is stored moves twice in each run, so it comes first.
    let spill_bytes = plan.spill_bytes();
    plan.spills_to_host = spill_bytes > 0 && spill_bytes <= room_bytes;
    let room_bytes = room_bytes - plan.host_bytes();
    let plan = with_copies(&found.workload, &plan, &found.costs, room_bytes);
    let prediction = neap_sim::predict(&found.workload, &plan, &found.costs);
    found.planned = Planned { plan, prediction };
}
