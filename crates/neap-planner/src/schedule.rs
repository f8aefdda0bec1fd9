//! `Schedule`: the steps cut into computes, and the weights gathered into units, each of which one load brings.
//!
//! ```text
//!   step     │    conv1     │         fc1                    │
//!   computes │      0       │    1     │    2     │    3     │
//!   units    │ bias │ slice │  slice 0 │  slice 1 │  slice 2 │     first use … last use
//! ```

use neap_plan::{BLOCK_BYTES, ByteRange, PanelRange, StepId, Workload};

use crate::base_layout::{BaseLayout, Tables, prefers_rows, whole_weights};
use crate::shared::Stay;

/// One slice of a step (or the whole of it).
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    pub step: u32,
    pub panels: PanelRange,
}

/// Weights that travel together: whole blocks of the file.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    pub file: ByteRange,
    /// First and last compute that use it.
    pub first: u32,
    pub last: u32,
    /// Where it must lie, when the step has room for its smallest slices only.
    pub pinned: Option<u64>,
    /// For weights that a step needs whole: a place that leaves room for the step's slices.
    pub fallback: Option<u64>,
    /// It is resident in every plan (a table under [`Tables::Resident`]).
    pub resident: bool,
    /// It stays for part of a run, at this offset ([`BaseLayout::stays`]).
    pub stays_at: Option<u64>,
}

/// Which of a step's weights a [`Want`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Panels,
    Extent(u32),
    Table,
}

/// A weight that computes `first..=last` (all of one step) want, and the unit that brings it.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    pub kind: Kind,
    pub first: u32,
    pub last: u32,
    pub file: ByteRange,
    pub unit: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Schedule {
    pub slices: Vec<Slice>,
    /// By first use.
    pub units: Vec<Unit>,
    pub wants: Vec<Want>,
    /// First slice of each step, and one more entry: the number of slices.
    pub step_first: Vec<u32>,
    twins: Twins,
}

/// Units of the same bytes of the file, which steps that share weights have; nothing where none do.
#[derive(Clone, Debug, Default)]
struct Twins {
    /// By unit: the next that is the same, from the last round to the first.
    next: Vec<u32>,
    /// By unit: one before it is the same.
    repeats: Vec<bool>,
    /// Units by their bytes of the file, those of the same in the order of their rounds.
    by_file: Vec<u32>,
}

/// How finely to slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slicing {
    /// No slice larger than this.
    pub cap_bytes: u64,
    /// So many slices must fit in the step's largest gap (2: one computes while the next arrives).
    pub in_gap: u64,
    /// Weights of consecutive steps that lie together in the file travel together up to this size.
    pub gather_bytes: u64,
}

impl Slicing {
    /// Every step in one piece.
    pub const WHOLE: Slicing = Slicing {
        cap_bytes: u64::MAX,
        in_gap: 1,
        gather_bytes: u64::MAX,
    };
}

impl Schedule {
    /// Cuts the steps so that every slice fits in the arena beside the base layout. `None` when some step
    /// does not fit even one panel at a time, or more than `most_slices` would come of it.
    pub fn new(
        w: &Workload,
        base_layout: &BaseLayout,
        arena_bytes: u64,
        slicing: Slicing,
        most_slices: usize,
    ) -> Option<Self> {
        let mut schedule = Schedule::default();
        let fits = schedule.renew(w, base_layout, arena_bytes, slicing, most_slices);
        fits.then_some(schedule)
    }

    /// Becomes another schedule, in the memory of this one; false where [`Schedule::new`] gives none.
    pub fn renew(
        &mut self,
        w: &Workload,
        base_layout: &BaseLayout,
        arena_bytes: u64,
        slicing: Slicing,
        most_slices: usize,
    ) -> bool {
        self.slices.clear();
        self.units.clear();
        self.wants.clear();
        self.step_first.clear();
        let mut builder = Builder {
            w,
            base_layout,
            slicing,
            out: std::mem::take(self),
            gaps: Vec::new(),
            gathers: false,
            stays: vec![None; base_layout.stays.len()],
        };
        let fits = (0..w.steps.len()).all(|step| {
            builder.step(step, arena_bytes).is_some() && builder.out.slices.len() <= most_slices
        });
        *self = builder.out;
        self.step_first.push(self.slices.len() as u32);
        if fits {
            self.find_twins(base_layout);
        }
        fits
    }

    fn find_twins(&mut self, base_layout: &BaseLayout) {
        let Twins {
            next,
            repeats,
            by_file,
        } = &mut self.twins;
        next.clear();
        repeats.clear();
        if !base_layout.shares_weights {
            return;
        }
        let units = &self.units;
        next.resize(units.len(), 0);
        repeats.resize(units.len(), false);
        by_file.clear();
        by_file.extend(0..units.len() as u32);
        let file = |unit: u32| {
            let range = units[unit as usize].file;
            (range.begin, range.end)
        };
        by_file.sort_unstable_by_key(|&unit| (file(unit), unit));
        for same in by_file.chunk_by(|&a, &b| file(a) == file(b)) {
            for (i, &unit) in same.iter().enumerate() {
                next[unit as usize] = same[(i + 1) % same.len()];
                repeats[unit as usize] = i > 0;
            }
        }
    }

    /// Other units of the same bytes: where one is in memory, all are.
    pub fn twins(&self, unit: u32) -> impl Iterator<Item = u32> + '_ {
        let next = move |&u: &u32| {
            let next = self.twins.next.get(u as usize).copied();
            next.filter(|&next| next != unit)
        };
        std::iter::successors(next(&unit), next)
    }

    /// A unit before it is of the same bytes.
    pub fn repeats(&self, unit: usize) -> bool {
        self.twins.repeats.get(unit).copied().unwrap_or(false)
    }

    /// How many steps there are.
    pub fn steps(&self) -> usize {
        self.step_first.len() - 1
    }

    /// The schedule in which nothing is cut, for plans whose weights are all resident.
    pub fn whole(w: &Workload, base_layout: &BaseLayout) -> Self {
        let mut builder = Builder {
            w,
            base_layout,
            slicing: Slicing::WHOLE,
            out: Schedule::default(),
            gaps: Vec::new(),
            gathers: false,
            stays: vec![None; base_layout.stays.len()],
        };
        for step in 0..w.steps.len() {
            let panels = w.steps[step].panels.map_or(0, |p| p.panels);
            builder.emit(step, panels.max(1), &[], &[]);
        }
        let mut out = builder.out;
        out.step_first.push(out.slices.len() as u32);
        out.find_twins(base_layout);
        out
    }
}

struct Builder<'a> {
    w: &'a Workload,
    base_layout: &'a BaseLayout,
    slicing: Slicing,
    out: Schedule,
    gaps: Vec<ByteRange>,
    /// The last unit belongs to steps in one piece, so that more may travel with it.
    gathers: bool,
    /// By stay of the base_layout: the unit, once there is one.
    stays: Vec<Option<u32>>,
}

impl Builder<'_> {
    fn step(&mut self, step: usize, arena_bytes: u64) -> Option<()> {
        let spec = &self.w.steps[step];
        let mut whole: Vec<ByteRange> = whole_weights(
            spec,
            self.base_layout.reads_rows[step],
            self.base_layout.tables,
        )
        .collect();
        if !self.base_layout.stays.is_empty() {
            // Those that stay need no place of the step's.
            for range in &mut whole {
                if self.stay_of(step, *range).is_some() {
                    *range = ByteRange::new(0, 0);
                }
            }
        }
        let panels = spec
            .panels
            .filter(|p| self.stay_of(step, p.file_range(p.all())).is_none());
        if whole.is_empty() && spec.panels.is_none() {
            self.emit(step, 1, &[], &[]);
            return Some(());
        }
        self.gaps.clear();
        self.gaps.extend(self.base_layout.gaps(step, arena_bytes));
        let fallback = self.place_whole(&whole);
        let room = self.gaps.iter().copied().max_by_key(|g| g.len());
        if let Some(fallback) = fallback {
            match (panels, room) {
                (None, _) => {
                    let all = spec.panels.map_or(1, |p| p.panels);
                    self.emit(step, all, &fallback, &[]);
                    return Some(());
                }
                (Some(p), Some(room)) => {
                    if let Some(per) = self.panels_per_slice(&p, room.len()) {
                        self.emit(step, per, &fallback, &[]);
                        return Some(());
                    }
                }
                (Some(_), None) => {}
            }
        }
        // Only the reserved place is left: weights needed whole first, then one panel at a time.
        let mut at = self.base_layout.reserved.as_ref()?[step];
        let mut pinned = Vec::with_capacity(whole.len() + 1);
        for range in &whole {
            pinned.push(at);
            at += range.to_blocks().len();
        }
        pinned.push(at);
        self.emit(step, 1, &[], &pinned);
        Some(())
    }

    /// A place in the gaps for each range (largest first, tightest gap), taken out of the gaps.
    fn place_whole(&mut self, ranges: &[ByteRange]) -> Option<Vec<u64>> {
        let mut offsets = vec![0; ranges.len()];
        let mut order: Vec<usize> = (0..ranges.len()).collect();
        order.sort_by_key(|&i| std::cmp::Reverse(ranges[i].to_blocks().len()));
        for i in order {
            let bytes = ranges[i].to_blocks().len();
            let gap = self
                .gaps
                .iter_mut()
                .filter(|g| g.len() >= bytes)
                .min_by_key(|g| g.len())?;
            offsets[i] = gap.begin;
            gap.begin += bytes;
        }
        Some(offsets)
    }

    /// How many panels a slice gets in a gap of `room` bytes; `None` when not even one panel fits.
    fn panels_per_slice(&self, p: &neap_plan::PanelSpec, room: u64) -> Option<u32> {
        // A slice of k panels takes at most k·panel_bytes rounded up, and one block more for straddling.
        let aligned = (p.panel_bytes | p.file_offset).is_multiple_of(BLOCK_BYTES);
        let straddle = if aligned { 0 } else { 2 * BLOCK_BYTES - 2 };
        let fits = |bytes: u64| bytes.saturating_sub(straddle) / p.panel_bytes;
        let largest = |count: u32| {
            let mut begin = 0;
            let mut most = 0;
            while begin < p.panels {
                let end = (begin + count).min(p.panels);
                most = most.max(p.file_range(PanelRange::new(begin, end)).to_blocks().len());
                begin = end;
            }
            most
        };
        let wanted = (room / self.slicing.in_gap).min(self.slicing.cap_bytes);
        let all = u64::from(p.panels);
        if p.file_range(p.all()).to_blocks().len() <= wanted.min(room) {
            return Some(p.panels);
        }
        let mut per = fits(wanted).min(all) as u32;
        let granule = p.granule.max(1);
        if per < granule && fits(room.min(self.slicing.cap_bytes)) >= u64::from(granule) {
            per = granule;
        }
        per = if per >= granule {
            per / granule * granule
        } else {
            per
        };
        // Equal slices: the same count of them, none larger than needed.
        if per > granule {
            let slices = p.panels.div_ceil(per);
            per = p.panels.div_ceil(slices).next_multiple_of(granule).min(per);
        }
        let per = per.max(1);
        (largest(per) <= room)
            .then_some(per)
            .or_else(|| (largest(1) <= room).then_some(1))
    }

    /// Adds the computes, units and wants of a step cut into slices of `per` panels.
    fn emit(&mut self, step: usize, per: u32, fallback: &[u64], pinned: &[u64]) {
        let spec = &self.w.steps[step];
        let first = self.out.slices.len() as u32;
        self.out.step_first.push(first);
        let id = step as u32;
        match spec.panels {
            None => self.out.slices.push(Slice {
                step: id,
                panels: PanelRange::NONE,
            }),
            Some(p) => {
                for begin in (0..p.panels).step_by(per.max(1) as usize) {
                    let panels = PanelRange::new(begin, begin.saturating_add(per).min(p.panels));
                    self.out.slices.push(Slice { step: id, panels });
                }
            }
        }
        let last = self.out.slices.len() as u32 - 1;
        let whole = whole_weights(
            spec,
            self.base_layout.reads_rows[step],
            self.base_layout.tables,
        );
        for (i, file) in whole.enumerate() {
            let kind = if i < spec.extents.len() {
                Kind::Extent(i as u32)
            } else {
                Kind::Table
            };
            let unit = Unit {
                pinned: pinned.get(i).copied(),
                fallback: fallback.get(i).copied(),
                ..unit(file, first, last)
            };
            self.want(kind, file, unit);
        }
        if self.base_layout.tables == Tables::Resident
            && prefers_rows(spec)
            && let Some(table) = spec.rows
        {
            let file = table.file_range();
            self.want(
                Kind::Table,
                file,
                Unit {
                    resident: true,
                    ..unit(file, first, last)
                },
            );
        }
        if let Some(p) = spec.panels {
            let pinned = pinned.last().copied();
            for c in first..=last {
                let file = p.file_range(self.out.slices[c as usize].panels);
                self.want(
                    Kind::Panels,
                    file,
                    Unit {
                        pinned,
                        ..unit(file, c, c)
                    },
                );
            }
        }
    }

    /// Which of the base layout's stays the weights are.
    fn stay_of(&self, step: usize, file: ByteRange) -> Option<usize> {
        let blocks = file.to_blocks();
        let is_there = |stay: &Stay| stay.file == blocks && stay.live.contains(step as u32);
        self.base_layout.stays.iter().position(is_there)
    }

    /// Adds a want for weights that stay: to their unit, from its first use to its last.
    fn want_stay(&mut self, stay: usize, kind: Kind, file: ByteRange, new: Unit) {
        let (first, last) = (new.first, new.last);
        let unit = match self.stays[stay] {
            Some(unit) => {
                self.out.units[unit as usize].last = last;
                unit
            }
            None => {
                let unit = self.out.units.len() as u32;
                self.stays[stay] = Some(unit);
                self.gathers = false;
                self.out.units.push(Unit {
                    stays_at: Some(self.base_layout.stays[stay].offset),
                    pinned: None,
                    fallback: None,
                    ..new
                });
                unit
            }
        };
        self.out.wants.push(Want {
            kind,
            first,
            last,
            file,
            unit,
        });
    }

    /// Adds a want, to the last unit where it continues that unit's bytes, to a new one otherwise.
    fn want(&mut self, kind: Kind, file: ByteRange, new: Unit) {
        let step = self.out.slices[new.first as usize].step;
        if let Some(stay) = self.stay_of(step as usize, file) {
            return self.want_stay(stay, kind, file, new);
        }
        let (first, last) = (new.first, new.last);
        let may_gather = first == last && new.pinned.is_none() && !new.resident && {
            let step = self.out.slices[first as usize].step;
            self.out.step_first[step as usize] + 1 == self.out.slices.len() as u32
        };
        match self.out.units.last_mut() {
            Some(u)
                if self.gathers
                    && may_gather
                    && (u.file.begin..=u.file.end).contains(&new.file.begin)
                    && new.file.end.max(u.file.end) - u.file.begin <= self.slicing.gather_bytes =>
            {
                u.file.end = u.file.end.max(new.file.end);
                u.last = last;
                u.fallback = None;
            }
            _ => self.out.units.push(new),
        }
        self.gathers = may_gather;
        let unit = self.out.units.len() as u32 - 1;
        self.out.wants.push(Want {
            kind,
            first,
            last,
            file,
            unit,
        });
    }
}

fn unit(file: ByteRange, first: u32, last: u32) -> Unit {
    Unit {
        file: file.to_blocks(),
        first,
        last,
        pinned: None,
        fallback: None,
        resident: false,
        stays_at: None,
    }
}

impl Slice {
    pub fn id(&self) -> StepId {
        StepId(self.step)
    }
}
