//! The last pass of a planner: where resident weights lie and in which order they are read, how large each space is.
//!
//! ```text
//!   packed file     │ w0 │ w1 │ w2 │ w3 │ w4 │ w5 │
//!   at home         │▓w0▓│▓w1▓│····│▓w3▓│▓w4▓│▓w5▓│      ▓ in memory   · not charged
//!   packed          │▓w0▓│▓w3▓│▓w4▓│
//! ```
//! Many resident weights lie at the offsets that they have in the packed file, so that those of two plans never move when
//! one follows the other. Few are packed one after the other, so that they can come in huge pages; to move them
//! takes no time.

use neap_plan::sets::{bytes_of, set_of};
use neap_plan::{
    BLOCK_BYTES, ByteRange, ExecutionPlan, Place, PreparedPanels, ResidentLoad, Space, SpaceId,
    SpaceKind, State, StepId, Workload, whole_blocks,
};

/// What is charged at once where memory is used from end to end.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// To move no more than this takes little time.
const CHEAP_BYTES: u64 = 32 << 20;

/// Resident weights are read in pieces, so that some are checked while others arrive.
const PIECE_BYTES: u64 = 1 << 20;

/// Page tables that resident weights of so many bytes may take, at most, because they lie apart, beside one for each
/// 2 MiB of them.
pub fn tables_for_gaps(resident_bytes: u64) -> u64 {
    resident_bytes.saturating_sub(CHEAP_BYTES) / HUGE_PAGE_BYTES * 2
}

/// Where resident weights lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Homes {
    /// Ranges of the packed file, as a set.
    files: Vec<ByteRange>,
    /// Where each begins.
    offsets: Vec<u64>,
}

impl Homes {
    /// At home if there are many and `room_bytes` of addresses are enough for that, else packed.
    pub fn of(files: Vec<ByteRange>, room_bytes: u64) -> Homes {
        let packed = Homes::packed(files);
        match packed.bytes() > CHEAP_BYTES {
            true => packed.at_home(room_bytes).unwrap_or(packed),
            false => packed,
        }
    }

    fn packed(files: Vec<ByteRange>) -> Homes {
        let files = set_of(files);
        let mut end = 0;
        let offsets = files.iter().map(|file| {
            end += file.len();
            end - file.len()
        });
        Homes {
            offsets: offsets.collect(),
            files,
        }
    }

    /// The same weights at the offsets that they have in the file; `None` where there is no room for that, or it takes
    /// too many page tables.
    fn at_home(&self, room_bytes: u64) -> Option<Homes> {
        let at_home = Homes {
            files: self.files.clone(),
            offsets: self.files.iter().map(|file| file.begin).collect(),
        };
        let end = at_home.files.last().map_or(0, |file| file.end);
        let few_tables = at_home.tables() <= self.tables() + tables_for_gaps(self.bytes());
        (end <= room_bytes && few_tables).then_some(at_home)
    }

    /// Page tables: one for each part of memory of the size of a huge page of which anything is used.
    fn tables(&self) -> u64 {
        let places = self.offsets.iter().zip(&self.files);
        let parts = places.map(|(&offset, file)| ByteRange::at(offset, file.len()));
        let mut tables = 0;
        let mut end = 0;
        for part in set_of(parts.collect()) {
            let begin = (part.begin / HUGE_PAGE_BYTES).max(end);
            end = part.end.div_ceil(HUGE_PAGE_BYTES);
            tables += end - begin.min(end);
        }
        tables
    }

    /// What is charged.
    pub fn bytes(&self) -> u64 {
        bytes_of(&self.files)
    }

    /// Where a byte of the file lies.
    pub fn of_byte(&self, file_offset: u64) -> Option<Place> {
        let after = self.files.partition_point(|f| f.begin <= file_offset);
        let i = after.checked_sub(1)?;
        let offset = self.offsets[i] + (file_offset - self.files[i].begin);
        (file_offset < self.files[i].end).then(|| Place::resident(offset))
    }

    /// The loads that bring them, in the order in which they are needed. `uses` says which compute uses which range of
    /// the file; what none uses is left out.
    ///
    /// ```text
    ///   computes            │ c0 │ c1 │ c2 │····│ c3 │ …       c3 waits for w3, and for nothing behind it
    ///   first needed by       w0   w1   w1        w3   w9
    ///   read in this order  ├ w0 ┤├ w1 ──┤├ w3 ──────┤├ w9 …
    /// ```
    pub fn loads(&self, uses: impl Iterator<Item = (ByteRange, u32)>) -> Vec<ResidentLoad> {
        const NEVER: u32 = u32::MAX;
        let places = self.files.iter().zip(&self.offsets);
        let pieces = places.flat_map(|(file, &offset)| {
            let begins = (file.begin..file.end).step_by(PIECE_BYTES as usize);
            begins.map(move |begin| ResidentLoad {
                from: Place::packed(begin),
                bytes: PIECE_BYTES.min(file.end - begin),
                to: Place::resident(offset + (begin - file.begin)),
                first: NEVER,
            })
        });
        let mut pieces: Vec<ResidentLoad> = pieces.collect();
        for (file, compute) in uses {
            let first = pieces.partition_point(|p| p.file_range().end <= file.begin);
            let used = pieces[first..].iter_mut();
            for piece in used.take_while(|p| p.from.offset < file.end) {
                piece.first = piece.first.min(compute);
            }
        }
        pieces.retain(|p| p.first != NEVER);
        pieces.sort_by_key(|p| p.first);
        pieces
    }
}

/// Addresses for the resident weights of any plan of the workload: as many as the packed file has, so that all may lie at
/// home; or as many as there are bytes, where weights are far apart in the file.
pub fn resident_room_bytes(workload: &Workload) -> u64 {
    let (bytes, end) = weights(workload).fold((0u64, 0), |(bytes, end), file: ByteRange| {
        let blocks = file.to_blocks();
        (bytes.saturating_add(blocks.len()), blocks.end.max(end))
    });
    if end / 2 <= bytes {
        bytes.max(end)
    } else {
        bytes
    }
}

fn weights(workload: &Workload) -> impl Iterator<Item = ByteRange> + '_ {
    workload.steps.iter().flat_map(|s| {
        let panels = s.panels.map(|p| p.file_range(p.all()));
        let extents = s.extents.iter().map(|e| e.file_range());
        let table = s.rows.map(|r| r.file_range());
        panels.into_iter().chain(extents).chain(table)
    })
}

/// Lists the spaces of a plan in which everything has its place. Where its memory stays within `limit_bytes`, work memory
/// ends with a whole huge page: drives read much faster into those.
pub fn size_spaces(workload: &Workload, plan: &mut ExecutionPlan, limit_bytes: u64) {
    let end = work_end(workload, plan);
    let large = end.next_multiple_of(HUGE_PAGE_BYTES);
    let work_bytes = match large.saturating_add(plan.resident_bytes()) <= limit_bytes {
        true => large,
        false => end.next_multiple_of(BLOCK_BYTES),
    };
    let resident = plan.resident.iter().map(|r| r.area().range.end);
    let resident_bytes = resident_room_bytes(workload).max(resident.max().unwrap_or(0));
    let packed_bytes = weights(workload).map(|file| file.to_blocks().end).max();
    plan.spaces = Space::of_host(
        work_bytes,
        resident_bytes,
        packed_bytes.unwrap_or(0),
        plan.spill_bytes(),
    );
    place_states(workload, plan);
}

/// One home after the other in the state file, for states that do not stream.
fn place_states(workload: &Workload, plan: &mut ExecutionPlan) {
    let mut end = 0;
    let space = SpaceId(plan.spaces.len() as u8);
    let mut states = Vec::with_capacity(workload.states.len());
    for &buffer in &workload.states {
        let streams = plan.streaming_home(buffer);
        let home = streams.unwrap_or(Place::new(space, end));
        states.push(State { buffer, home });
        if streams.is_none() {
            end += workload.buffers[buffer.index()].bytes;
        }
    }
    plan.states = states;
    if end > 0 {
        plan.spaces.push(Space {
            name: "state".into(),
            kind: SpaceKind::State,
            bytes: end,
            align: BLOCK_BYTES,
        });
    }
}

/// One past the last byte of work memory that anything uses.
fn work_end(workload: &Workload, plan: &ExecutionPlan) -> u64 {
    let mut reads_rows = vec![false; workload.steps.len()];
    for compute in &plan.computes {
        reads_rows[compute.step.index()] |= compute.weights.table.is_none();
    }
    let buffers = plan.buffers.iter().zip(&workload.buffers);
    let buffers = buffers.filter(|(_, b)| !b.live.is_empty());
    let buffers = buffers.map(|(at, b)| at.area(b.bytes));
    let steps = workload.steps.iter().zip(&reads_rows);
    let workspaces = plan.workspaces.iter().zip(steps);
    let workspaces = workspaces.map(|(at, (s, &rows))| at.area(s.workspace_rect_bytes(rows)));
    let loads = plan.loads.iter().map(|l| l.area());
    let stores = plan
        .stores
        .iter()
        .map(|s| s.from.area(whole_blocks(s.bytes)));
    let prepared = plan.prepared.iter().map(|p| {
        let step = &workload.steps[p.step.index()];
        p.at.area(step.prepared_bytes())
    });
    let all = buffers.chain(workspaces).chain(loads).chain(stores);
    let used = all.chain(prepared).filter(|area| !area.range.is_empty());
    used.map(|area| area.range.end).max().unwrap_or(0)
}

/// The same plan with room for the prepared panels of `steps` behind everything else in work memory; `workload` is the
/// one whose kernels take them so.
pub fn with_prepared_panels(
    plan: &ExecutionPlan,
    workload: &Workload,
    steps: &[usize],
) -> ExecutionPlan {
    let mut plan = ExecutionPlan {
        digest: workload.digest.clone(),
        ..plan.clone()
    };
    let mut limit_bytes = plan.memory_bytes();
    let mut end = work_end(workload, &plan).next_multiple_of(BLOCK_BYTES);
    for &step in steps {
        let bytes = workload.steps[step].prepared_bytes();
        plan.prepared.push(PreparedPanels {
            step: StepId(step as u32),
            at: Place::work(end),
        });
        end += bytes.next_multiple_of(BLOCK_BYTES);
        limit_bytes += bytes.next_multiple_of(BLOCK_BYTES);
    }
    size_spaces(workload, &mut plan, limit_bytes);
    plan
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn mib(ranges: &[(u64, u64)]) -> Vec<ByteRange> {
        let ranges = ranges.iter();
        ranges
            .map(|&(b, e)| ByteRange::new(b * MIB, e * MIB))
            .collect()
    }

    fn is_packed(homes: &Homes) -> bool {
        *homes == Homes::packed(homes.files.clone())
    }

    #[test]
    fn many_lie_where_they_lie_in_the_file() {
        let many = Homes::of(mib(&[(10, 40), (44, 110)]), 300 * MIB);
        assert_eq!(many.offsets, [10 * MIB, 44 * MIB]);
        assert_eq!(many.bytes(), 96 * MIB);
        let few = Homes::of(mib(&[(20, 30), (50, 70)]), 300 * MIB);
        assert!(is_packed(&few));
        assert_eq!(few.offsets, [0, 10 * MIB]);
    }

    #[test]
    fn packed_where_gaps_would_cost_much() {
        let every_other = |count: u64| -> Vec<(u64, u64)> {
            let begins = (0..count).map(|i| i * 300 / count);
            begins.map(|b| (b, b + 1)).collect()
        };
        let packs = |count| is_packed(&Homes::of(mib(&every_other(count)), 301 * MIB));
        // One table for each, instead of one for every two; and too few to lie apart.
        assert_eq!([48, 100, 30].map(packs), [true, false, true]);
        // No room.
        assert!(is_packed(&Homes::of(mib(&[(250, 300)]), 299 * MIB)));
        assert!(!is_packed(&Homes::of(mib(&[(250, 300)]), 300 * MIB)));
    }

    #[test]
    fn packed_in_the_order_of_the_file() {
        let files = [(40, 10), (0, 8), (50, 2)].map(|(b, n)| ByteRange::at(b, n));
        let homes = Homes::of(files.to_vec(), 100);
        assert_eq!(homes.bytes(), 20);
        let places = [0, 7, 40, 51].map(|byte| homes.of_byte(byte).unwrap());
        assert_eq!(places, [0, 7, 8, 19].map(Place::resident));
        assert_eq!([8, 39, 52].map(|byte| homes.of_byte(byte)), [None; 3]);
    }

    #[test]
    fn read_in_the_order_of_use() {
        let homes = Homes::of(mib(&[(0, 3)]), 300 * MIB);
        let used = |b: u64, e: u64, compute| (ByteRange::new(b, e), compute);
        let uses = [
            used(2 * MIB + 4096, 3 * MIB, 0),
            // Across a boundary of pieces.
            used(MIB - 10, MIB + 10, 7),
            used(MIB, MIB + 10, 4),
        ];
        let loads = homes.loads(uses.into_iter());
        let order = loads.iter().map(|l| (l.from.offset / MIB, l.first));
        assert_eq!(order.collect::<Vec<_>>(), [(2, 0), (1, 4), (0, 7)]);
        assert!(loads.iter().all(|l| l.bytes == MIB));
        // What nothing uses is not read.
        assert_eq!(homes.loads([used(0, 1, 3)].into_iter()).len(), 1);
    }
}
