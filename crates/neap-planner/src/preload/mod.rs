//! The preload planner: weights stream through a window of the arena, as early as space allows; what
//! memory is left keeps the weights resident whose loads are waited for longest.
//!
//! ```text
//!   budget  ┌──────────────────────────────┐
//!           │ resident weights             │   never overwritten
//!   window  ├──────────────────────────────┤
//!           │   ╱▤▤╱ ╱▤▤▤▤▤╱ ╱▤▤╱  ╱▤▤╱    │   slices, each loaded as early as its place is free
//!           │ activations, workspaces      │
//!         0 └──────────────────────────────┘ ► time, cyclic
//! ```
//!
//! How large the window is and how finely it is sliced is decided by simulating candidates, the most promising windows
//! first. The candidates depend on the workload alone, each is the better the more memory lies above its window, and a
//! larger budget tries all that a smaller one does, but for those that are known to be slower: more memory never predicts
//! slower (but for the half percent within which the search is content).

mod bound;
mod phase;
pub mod place;
mod refine;
pub mod residency;
mod skyline;

use neap_plan::sets::{bytes_of, set_of};
use neap_plan::{BLOCK_BYTES, ByteRange, ExecutionPlan, Workload};
use neap_sim::{CostProfile, Prediction, Simulator};

use crate::assemble::assemble;
use crate::base_layout::{BaseLayout, Memory, Reserve, Tables, prefers_rows};
use crate::layout::Layouts;
use crate::options::{Effort, PlanOptions};
use crate::schedule::{Schedule, Slicing};
use crate::shared::with_stays;
use bound::Bound;
use phase::Phase;
use place::addresses_in;
pub use refine::{Generation, RefineOptions, refine};
use residency::{Simulated, Window};

/// Slicings to try. The last takes all the room that a step leaves: where nothing can be prefetched, the
/// fewest slices are best.
const THOROUGH: &[Slicing] = &[
    slicing(16 << 20, 2, COARSEST_GATHER_BYTES),
    slicing(4 << 20, 2, COARSEST_GATHER_BYTES),
    slicing(2 << 20, 2, COARSEST_GATHER_BYTES),
    slicing(1 << 20, 2, 128 << 10),
    slicing(1 << 20, FINE_IN_GAP, 64 << 10),
    slicing(256 << 10, FINE_IN_GAP, 64 << 10),
    slicing(u64::MAX, 1, 0),
];
const QUICK: &[Slicing] = &[
    slicing(2 << 20, 2, COARSEST_GATHER_BYTES),
    slicing(512 << 10, FINE_IN_GAP, 64 << 10),
    slicing(u64::MAX, 1, 0),
];

/// Shares of a window, in quarters, that shared weights may stay in.
const STAYS: [u64; 3] = [4, 3, 2];

/// Windows above which small steps up are left out when planning is to be quick.
const QUICK_SMALL_BYTES: u64 = 16 << 20;

const fn slicing(cap_bytes: u64, in_gap: u64, gather_bytes: u64) -> Slicing {
    Slicing {
        cap_bytes,
        in_gap,
        gather_bytes,
    }
}

const COARSEST_GATHER_BYTES: u64 = 256 << 10;

/// Fine slicings leave room for each other where there is little of it; not in windows that are larger than the
/// smallest by more than this.
const FINE_WITHIN_BYTES: u64 = 6 << 20;
const FINE_IN_GAP: u64 = 4;

/// When planning is to be quick, a fine slicing that is slower than others by more than this part of its time in one
/// window is not tried in those that follow. (Coarse ones take little time, and may lose in small windows and win in
/// large ones.)
const SLOWER_PART: u64 = 24;

pub fn slicings(effort: Effort) -> &'static [Slicing] {
    match effort {
        Effort::Thorough => THOROUGH,
        Effort::Quick => QUICK,
    }
}

/// The base layouts that plans of a workload stand on.
pub struct BaseLayouts {
    /// Tightest: a plan exists in [`BaseLayout::needed_bytes`].
    pub tight: BaseLayout,
    /// Buffers and workspaces laid out by themselves.
    pub loose: BaseLayout,
    /// Buffers and workspaces lie in the same places on both.
    same_places: bool,
    /// The same with tables in memory, for workloads that have such.
    pub(crate) tables: Option<BaseLayout>,
    pub options: PlanOptions,
}

impl BaseLayouts {
    pub fn new(w: &Workload, options: PlanOptions, layouts: &Layouts) -> Self {
        Self::beside(tight(w, options, layouts), w, options, layouts)
    }

    /// The others beside the tight one.
    pub(crate) fn beside(
        tight: BaseLayout,
        w: &Workload,
        options: PlanOptions,
        layouts: &Layouts,
    ) -> Self {
        let any_tables = w.steps.iter().any(prefers_rows);
        let base_layout =
            |tables| BaseLayout::new(w, tables, Reserve::Nothing, memory(options), layouts);
        let loose = base_layout(Tables::Rows);
        Self {
            same_places: tight.buffers == loose.buffers && tight.workspaces == loose.workspaces,
            tight,
            loose,
            tables: any_tables.then(|| base_layout(Tables::Resident)),
            options,
        }
    }

    /// The base layout on which everything is resident.
    pub(crate) fn resident(&self) -> &BaseLayout {
        self.tables.as_ref().unwrap_or(&self.loose)
    }

    /// The smallest arena in which weights stream.
    pub fn smallest_bytes(&self) -> u64 {
        smallest_on(&self.tight)
    }
}

/// The base layout on which the smallest plan stands.
pub fn tight(w: &Workload, options: PlanOptions, layouts: &Layouts) -> BaseLayout {
    let (tables, reserve) = (Tables::Rows, Reserve::SmallestSlices);
    BaseLayout::new(w, tables, reserve, memory(options), layouts)
}

/// The smallest arena for a tight base layout.
pub fn smallest_on(tight: &BaseLayout) -> u64 {
    tight.needed_bytes.next_multiple_of(BLOCK_BYTES)
}

fn memory(options: PlanOptions) -> Memory {
    if options.static_memory {
        Memory::Planned
    } else {
        Memory::Allocated
    }
}

/// The fastest plan found within `budget_bytes`, which is at least [`BaseLayouts::smallest_bytes`], if it is faster
/// than `limit_ns`.
pub fn plan(
    w: &Workload,
    base_layouts: &BaseLayouts,
    budget_bytes: u64,
    costs: &CostProfile,
    limit_ns: u64,
) -> Option<(ExecutionPlan, Prediction)> {
    let mut sim = Simulator::default();
    if let Some(all) = all_resident(w, base_layouts, budget_bytes, costs, &mut sim) {
        return Some(all);
    }
    let mut search = Search {
        w,
        cyclic: base_layouts.options.cyclic,
        budget_bytes,
        costs,
        phase: Phase::new(w, costs, budget_bytes),
        coarsest: Bound::default(),
        sim,
        limit_ns,
        best: None,
        simulated_ns: None,
        tried: Vec::new(),
        schedule: Schedule::default(),
        offsets: Vec::new(),
        bound: Bound::default(),
    };
    search.find_coarsest(&base_layouts.loose);
    let effort = base_layouts.options.effort;
    let table_bytes = largest_table_bytes(w);
    let mut slicings = slicings(effort).to_vec();
    for window_bytes in search.by_promise(base_layouts) {
        // A larger window leaves less to residents: what is enough for this one is for those that are larger.
        let enough_ns = search.enough_ns(window_bytes);
        let mut window = InWindow {
            bytes: window_bytes,
            holds_tables: table_bytes <= budget_bytes - window_bytes,
            fastest_ns: u64::MAX,
        };
        let is_wide = window_bytes - base_layouts.smallest_bytes() > FINE_WITHIN_BYTES;
        slicings.retain(|&slicing| {
            let is_left_out = is_wide && slicing.in_gap == FINE_IN_GAP;
            is_left_out
                || search.best_ns() <= enough_ns
                || search.is_promising(base_layouts, &mut window, slicing)
        });
        if search.best_ns() > enough_ns && base_layouts.loose.shares_weights {
            search.with_stays(base_layouts, window_bytes);
        }
    }
    search.best
}

/// Of those that could be resident.
fn largest_table_bytes(w: &Workload) -> u64 {
    let steps = w.steps.iter().filter(|step| prefers_rows(step));
    let tables = steps.filter_map(|step| step.rows);
    tables.map(|table| table.bytes).max().unwrap_or(0)
}

/// Window sizes to try: the smallest that works, and ever coarser steps up from it.
pub fn windows(
    effort: Effort,
    smallest_bytes: u64,
    weight_bytes: u64,
) -> impl Iterator<Item = u64> {
    let (first, factor) = match effort {
        Effort::Thorough => (64u64 << 10, 2),
        // Steps of much less than a large window change nothing.
        Effort::Quick if smallest_bytes < QUICK_SMALL_BYTES => (128u64 << 10, 4),
        Effort::Quick => (512u64 << 10, 4),
    };
    let steps = std::iter::successors(Some(first), move |s| s.checked_mul(factor));
    let more = steps.take_while(move |&s| s < 2 * weight_bytes.max(1));
    std::iter::once(smallest_bytes).chain(more.map(move |s| smallest_bytes + s))
}

/// A search for the fastest plan under one budget.
struct Search<'a> {
    w: &'a Workload,
    cyclic: bool,
    budget_bytes: u64,
    costs: &'a CostProfile,
    phase: Phase,
    /// Of weights in the largest units of any candidate.
    coarsest: Bound,
    sim: Simulator,
    /// Slower plans are of no use.
    limit_ns: u64,
    best: Option<(ExecutionPlan, Prediction)>,
    /// The fastest that was simulated of one slicing in one window.
    simulated_ns: Option<u64>,
    /// Digests of what was simulated, and in which windows: to simulate the same in one that is as large or larger, and
    /// leaves less to residents, finds nothing better.
    tried: Vec<(u64, u64)>,
    /// Of the candidate at hand; kept for their memory.
    schedule: Schedule,
    offsets: Vec<u64>,
    bound: Bound,
}

/// A window that candidates are tried in.
struct InWindow {
    bytes: u64,
    /// Beside it there is room for tables.
    holds_tables: bool,
    /// Of the candidates that were simulated in it.
    fastest_ns: u64,
}

/// What became of a candidate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// There is no such plan for any budget.
    Impossible,
    /// Other places for the same slices could be faster.
    Waits,
    /// Other places for the same slices are no faster: nothing is waited for, or it has been tried, or found to be slower
    /// than the best wherever it lies.
    Smooth,
}

impl Search<'_> {
    fn best_ns(&self) -> u64 {
        let best_ns = self.best.as_ref().map_or(u64::MAX, |(_, p)| p.latency_ns);
        best_ns.min(self.limit_ns)
    }

    fn find_coarsest(&mut self, base_layout: &BaseLayout) {
        let slicing = slicing(u64::MAX, 1, COARSEST_GATHER_BYTES);
        let arena_bytes = u64::MAX / 2;
        self.schedule
            .renew(self.w, base_layout, arena_bytes, slicing, usize::MAX);
        self.coarsest
            .renew(self.w, &self.schedule, self.costs, &self.phase);
    }

    /// A latency that is not worth improving with a window of so many bytes, or a larger one: half a percent above what
    /// any candidate takes.
    fn enough_ns(&self, window_bytes: u64) -> u64 {
        let room_bytes = self.budget_bytes - window_bytes;
        let (costs, phase) = (self.costs, &self.phase);
        let least_ns = self
            .coarsest
            .at_least_ns(costs, phase, window_bytes, room_bytes);
        least_ns.saturating_add(least_ns / 200)
    }

    /// Windows that the budget has room for, those first in which the coarsest slicing may be fastest: the better what
    /// is found early, the less of what follows needs to be simulated.
    fn by_promise(&mut self, base_layouts: &BaseLayouts) -> Vec<u64> {
        let effort = base_layouts.options.effort;
        let windows = windows(effort, base_layouts.smallest_bytes(), self.w.weight_bytes());
        let windows = windows.take_while(|&bytes| bytes <= self.budget_bytes);
        let mut promises: Vec<(u64, u64)> = windows.map(|bytes| (0, bytes)).collect();
        if promises.len() > 1 {
            for (least_ns, window_bytes) in &mut promises {
                *least_ns =
                    self.promise_ns(&base_layouts.loose, *window_bytes, slicings(effort)[0]);
            }
            promises.sort_unstable();
        }
        promises.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// Least that plans take with this window and slicing; the most there is where it gives no schedule.
    fn promise_ns(&mut self, base_layout: &BaseLayout, window_bytes: u64, slicing: Slicing) -> u64 {
        let most = most_slices(self.w);
        let schedule = &mut self.schedule;
        if !schedule.renew(self.w, base_layout, window_bytes, slicing, most) {
            return u64::MAX;
        }
        let room_bytes = self.budget_bytes - window_bytes;
        self.bound
            .renew(self.w, &self.schedule, self.costs, &self.phase);
        self.bound
            .at_least_ns(self.costs, &self.phase, window_bytes, room_bytes)
    }

    /// Tries a slicing on all base layouts; false where it need not be tried in other windows.
    fn is_promising(
        &mut self,
        base_layouts: &BaseLayouts,
        window: &mut InWindow,
        slicing: Slicing,
    ) -> bool {
        let (bytes, fastest_ns) = (window.bytes, window.fastest_ns);
        let is_thorough = base_layouts.options.effort == Effort::Thorough;
        let is_near = |ns: u64| is_thorough || ns - ns / SLOWER_PART <= fastest_ns;
        self.simulated_ns = None;
        if let Some(tables) = base_layouts.tables.as_ref().filter(|_| window.holds_tables) {
            self.candidate(tables, bytes, slicing);
        }
        // The tight base layout leaves worse gaps; it is for windows in which the loose one may have none.
        let loose = self.candidate(&base_layouts.loose, bytes, slicing);
        let may_gain = match loose {
            Tried::Impossible => true,
            Tried::Waits => {
                let is_smallest = bytes == base_layouts.smallest_bytes();
                is_smallest && !base_layouts.same_places && self.simulated_ns.is_none_or(is_near)
            }
            Tried::Smooth => false,
        };
        if may_gain {
            self.candidate(&base_layouts.tight, bytes, slicing);
        }
        window.fastest_ns = self
            .simulated_ns
            .map_or(fastest_ns, |ns| ns.min(fastest_ns));
        slicing.in_gap != FINE_IN_GAP || self.simulated_ns.is_none_or(is_near)
    }

    /// Tries to let shared weights stay for part of a run, in so much of the window that is left beside the base layout.
    fn with_stays(&mut self, base_layouts: &BaseLayouts, window_bytes: u64) {
        let loose = &base_layouts.loose;
        let free_bytes = window_bytes.saturating_sub(loose.fixed_bytes);
        let slicings = slicings(base_layouts.options.effort);
        for for_stays in STAYS {
            let bytes = free_bytes / 4 * for_stays;
            let room = ByteRange::new(window_bytes - bytes, window_bytes);
            let Some(base_layout) = with_stays(self.w, loose, room) else {
                return;
            };
            for &slicing in slicings.first().into_iter().chain(slicings.last()) {
                self.candidate(&base_layout, window_bytes, slicing);
            }
        }
    }

    /// Plays the best plan with this window and slicing.
    fn candidate(
        &mut self,
        base_layout: &BaseLayout,
        window_bytes: u64,
        slicing: Slicing,
    ) -> Tried {
        let placed = self.place(base_layout, window_bytes, slicing);
        if placed != Tried::Waits {
            return placed;
        }
        let room_bytes = self.budget_bytes - window_bytes;
        let digest = self.digest(base_layout);
        let is_same = |&(tried, bytes): &(u64, u64)| tried == digest && bytes <= window_bytes;
        if self.tried.iter().any(is_same) {
            return Tried::Smooth;
        }
        self.tried.push((digest, window_bytes));
        let window = Window {
            w: self.w,
            base_layout,
            schedule: &self.schedule,
            offsets: &self.offsets,
            window_bytes,
            cyclic: self.cyclic,
        };
        let Some((resident, mut simulated)) = window.fill(room_bytes, self.costs, &mut self.sim)
        else {
            return Tried::Waits;
        };
        let simulated_ns = simulated.prediction.latency_ns;
        self.simulated_ns = Some(
            self.simulated_ns
                .map_or(simulated_ns, |ns| ns.min(simulated_ns)),
        );
        if self.regrouped_at_least_ns(&simulated) < self.best_ns() {
            window.regroup(&mut simulated, self.costs, &mut self.sim);
        }
        if simulated.prediction.latency_ns < self.best_ns() {
            self.best = Some((
                assemble("preload", &window, &resident, &simulated),
                simulated.prediction,
            ));
        }
        match simulated.prediction.stall_ns {
            0 => Tried::Smooth,
            _ => Tried::Waits,
        }
    }

    /// What a plan takes with larger groups of loads: those save latencies, of which there is one for each
    /// group, mostly more than half full.
    fn regrouped_at_least_ns(&self, simulated: &Simulated) -> u64 {
        let latency_ns = self.costs.request_latency_ns as f64;
        let moving_ns = self.costs.transfer_ns(self.costs.group_bytes / 2) as f64;
        let moving_share = moving_ns / (latency_ns + moving_ns).max(1.0);
        let Prediction {
            latency_ns,
            stall_ns,
            ..
        } = simulated.prediction;
        let computing_ns = latency_ns - stall_ns.min(latency_ns);
        computing_ns.max((latency_ns as f64 * moving_share) as u64)
    }

    /// A schedule with addresses, still to be simulated ([`Tried::Waits`]); weights of small steps gathered where that
    /// can be placed.
    fn place(&mut self, base_layout: &BaseLayout, window_bytes: u64, slicing: Slicing) -> Tried {
        if base_layout.needed_bytes > window_bytes {
            return Tried::Impossible;
        }
        // Very fine slicing costs planning time; it is for windows that allow no other.
        let coarsest = slicing.gather_bytes == COARSEST_GATHER_BYTES || slicing.in_gap == 1;
        let most_slices = match slicing.in_gap {
            1 => usize::MAX,
            _ if coarsest => MOST_SLICES,
            _ => most_slices(self.w),
        };
        let apart = Slicing {
            gather_bytes: 0,
            ..slicing
        };
        let room_bytes = self.budget_bytes - window_bytes;
        for slicing in [slicing, apart] {
            let schedule = &mut self.schedule;
            if !schedule.renew(self.w, base_layout, window_bytes, slicing, most_slices) {
                continue;
            }
            let (costs, phase) = (self.costs, &self.phase);
            self.bound.renew(self.w, &self.schedule, costs, phase);
            let least_ns = self
                .bound
                .at_least_ns(costs, phase, window_bytes, room_bytes);
            if least_ns >= self.best_ns() {
                // In more parts it takes no less.
                return Tried::Smooth;
            }
            if addresses_in(&mut self.offsets, &self.schedule, base_layout, window_bytes) {
                return Tried::Waits;
            }
        }
        Tried::Impossible
    }

    /// Of all that decides how the candidate runs: the files of its units say how it is sliced.
    fn digest(&self, base_layout: &BaseLayout) -> u64 {
        let lying = base_layout
            .buffers
            .iter()
            .chain(&base_layout.workspaces)
            .copied();
        let reading = base_layout.reads_rows.iter().map(|&reads| u64::from(reads));
        let units = self.schedule.units.iter().zip(&self.offsets);
        let units = units.flat_map(|(u, &offset)| [u.file.begin, u.file.end, offset]);
        let all = lying.chain(reading).chain(units);
        all.fold(self.schedule.slices.len() as u64, |digest, x| {
            (digest ^ x)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(29)
        })
    }
}

/// Many more slices than this take minutes to plan: where networks use tens of gigabytes of weights again and again,
/// only the coarsest slicing has fewer.
const MOST_SLICES: usize = 1 << 16;

/// More slices than this are too many.
pub fn most_slices(w: &Workload) -> usize {
    (256 + 2 * w.steps.len() + (w.weight_bytes() >> 19) as usize).min(MOST_SLICES)
}

/// The arena in which everything is resident.
pub fn all_resident_bytes(w: &Workload, base_layouts: &BaseLayouts) -> u64 {
    let base_layout = base_layouts.resident();
    let schedule = Schedule::whole(w, base_layout);
    let resident = vec![true; schedule.units.len()];
    resident_end(base_layout, &schedule, &resident)
}

/// What is charged for the base layout and the resident units.
fn resident_end(base_layout: &BaseLayout, schedule: &Schedule, resident: &[bool]) -> u64 {
    let units = schedule.units.iter().zip(resident);
    let files = units.filter(|(_, r)| **r).map(|(u, _)| u.file);
    base_layout.fixed_bytes.next_multiple_of(BLOCK_BYTES) + bytes_of(&set_of(files.collect()))
}

/// Everything resident, if that fits: no loads, every step in one piece.
pub fn all_resident(
    w: &Workload,
    base_layouts: &BaseLayouts,
    budget_bytes: u64,
    costs: &CostProfile,
    sim: &mut Simulator,
) -> Option<(ExecutionPlan, Prediction)> {
    let base_layout = base_layouts.resident();
    let schedule = Schedule::whole(w, base_layout);
    let resident = vec![true; schedule.units.len()];
    if resident_end(base_layout, &schedule, &resident) > budget_bytes {
        return None;
    }
    let offsets = vec![0; schedule.units.len()];
    let window = Window {
        w,
        base_layout,
        schedule: &schedule,
        offsets: &offsets,
        window_bytes: base_layout.fixed_bytes,
        cyclic: base_layouts.options.cyclic,
    };
    let simulated: Simulated = window.simulate(&resident, costs, sim);
    let plan = assemble("resident", &window, &resident, &simulated);
    (plan.memory_bytes() <= budget_bytes).then_some((plan, simulated.prediction))
}
