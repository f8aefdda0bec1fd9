//! From one plan to the next: which resident weights stay in memory, which move, which are read.

use neap_plan::sets::{bytes_of, difference, set_of};
use neap_plan::{
    ByteRange, ExecutionPlan, Held, Home, Keep, Place, ResidentLoad, SpaceId, SpaceKind, Transition,
};

/// How a session that holds `held` goes on with `plan`. What both have resident stays, unless both plans' places would
/// together take more memory than the larger plan: then all is read again.
pub fn transition(held: &Held, plan: &ExecutionPlan) -> Transition {
    let homes = Home::all_of(&plan.resident);
    let files = homes.iter().map(|home| home.file).collect();
    let mut stays = Vec::new();
    if keeps_addresses(held, plan, &homes) {
        stays = difference(&held.read, &difference(&held.read, &set_of(files)));
    }
    let mut keeps = keeps(&stays, &held.homes, &homes);
    let most_bytes = held.memory_bytes.max(plan.memory_bytes());
    if keeps.iter().any(Keep::moves) && bytes_while_moving(held, &keeps) > most_bytes {
        keeps.clear();
        stays.clear();
    }
    Transition {
        keeps: in_safe_order(keeps),
        reads: reads(&plan.resident, &stays),
    }
}

/// Whether resident memory is as large as the plan needs it, so that none is mapped anew.
fn keeps_addresses(held: &Held, plan: &ExecutionPlan, homes: &[Home]) -> bool {
    let spaces = (0..).map(SpaceId).zip(&plan.spaces);
    let mut resident = spaces.filter(|(_, space)| space.kind == SpaceKind::Resident);
    resident.all(|(id, _)| held.keeps(plan, homes, id))
}

fn keeps(stays: &[ByteRange], old: &[Home], new: &[Home]) -> Vec<Keep> {
    let mut keeps = Vec::new();
    for file in stays {
        // What is one range here may be several in either plan's memory.
        let mut begin = file.begin;
        while begin < file.end {
            let places = Home::of_byte(old, begin).zip(Home::of_byte(new, begin));
            let Some(((from, old_end), (to, new_end))) = places else {
                break;
            };
            let end = file.end.min(old_end).min(new_end);
            keeps.push(Keep {
                file_offset: begin,
                bytes: end - begin,
                from,
                to,
            });
            begin = end;
        }
    }
    keeps
}

fn bytes_while_moving(held: &Held, keeps: &[Keep]) -> u64 {
    let old = held.homes.iter().map(Home::area);
    let new = keeps.iter().filter(|k| k.moves());
    let areas: Vec<_> = old.chain(new.map(|k| k.to.area(k.bytes))).collect();
    let mut spaces: Vec<_> = areas.iter().map(|area| area.space).collect();
    spaces.sort_unstable();
    spaces.dedup();
    let of = |space| {
        let areas = areas.iter().filter(move |area| area.space == space);
        bytes_of(&set_of(areas.map(|area| area.range).collect()))
    };
    spaces.into_iter().map(of).sum()
}

/// `keeps` have the order of what they move. First those that go down, from the lowest on, then those
/// that go up, from the highest on.
fn in_safe_order(mut keeps: Vec<Keep>) -> Vec<Keep> {
    let up: Vec<Keep> = keeps.iter().copied().filter(|k| k.to > k.from).collect();
    keeps.retain(|k| k.to <= k.from);
    keeps.extend(up.into_iter().rev());
    keeps
}

/// What of the loads is not in memory.
fn reads(resident: &[ResidentLoad], stays: &[ByteRange]) -> Vec<ResidentLoad> {
    let mut reads = Vec::new();
    for load in resident {
        let file = load.file_range();
        let begin = stays.partition_point(|s| s.end <= file.begin);
        let end = stays.partition_point(|s| s.begin < file.end);
        for part in difference(&[file], &stays[begin..end.max(begin)]) {
            let skip_bytes = part.begin - file.begin;
            reads.push(ResidentLoad {
                from: Place::new(load.from.space, part.begin),
                bytes: part.len(),
                to: Place::new(load.to.space, load.to.offset + skip_bytes),
                first: load.first,
            });
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::Homes;
    use neap_plan::{BLOCK_BYTES, Compute, LaneId, PanelRange, Space, StepId, Turn, WeightsAt};
    use neap_plan::{Violation, validate_transition};
    use proptest::prelude::*;

    const BLOCKS: u64 = 128;

    /// A plan that keeps these blocks of the file resident.
    fn plan(blocks: &[(u64, u64)], at_home: bool) -> ExecutionPlan {
        let files = blocks.iter().map(|&(b, n)| blocks_at(b, n)).collect();
        // Few are packed; to lie at home, blocks stand for more.
        let scale = if at_home { 8192 } else { 1 };
        let scaled = |range: &ByteRange| ByteRange::new(range.begin * scale, range.end * scale);
        let files: Vec<ByteRange> = set_of(files).iter().map(scaled).collect();
        let homes = Homes::of(files.clone(), BLOCKS * BLOCK_BYTES * scale);
        let resident = files.iter().map(|file| {
            let to = homes.of_byte(file.begin).unwrap();
            ResidentLoad {
                from: Place::packed(file.begin / scale),
                bytes: file.len() / scale,
                to: Place::new(to.space, to.offset / scale),
                first: 0,
            }
        });
        let resident = resident.collect();
        let bytes = BLOCKS * BLOCK_BYTES;
        ExecutionPlan {
            spaces: Space::of_host(0, bytes, bytes, 0),
            resident,
            computes: vec![Compute {
                step: StepId(0),
                panels: PanelRange::NONE,
                weights: WeightsAt::default(),
                turn: Turn::of(LaneId::COMPUTE),
            }],
            ..ExecutionPlan::default()
        }
    }

    fn blocks_at(begin: u64, count: u64) -> ByteRange {
        ByteRange::at(begin * BLOCK_BYTES, count * BLOCK_BYTES)
    }

    fn held_under(plan: &ExecutionPlan, read: Vec<ByteRange>) -> Held {
        Held {
            spaces: plan.spaces.clone(),
            memory_bytes: plan.memory_bytes(),
            homes: Home::all_of(&plan.resident),
            read,
        }
    }

    fn some_blocks() -> impl Strategy<Value = Vec<(u64, u64)>> {
        prop::collection::vec((0u64..90, 1u64..12), 0..10)
    }

    proptest! {
        /// Whatever follows what: the transition is valid, and what it keeps is found.
        #[test]
        fn weights_of_both_plans_stay(
            plans in prop::collection::vec((some_blocks(), any::<bool>()), 2..6),
            unread in some_blocks(),
            more_blocks in 0u64..64,
        ) {
            let mut memory = [0u8; BLOCKS as usize];
            let unread = set_of(unread.iter().map(|&(b, n)| blocks_at(b, n)).collect());
            let mut held = Held::default();
            for (blocks, at_home) in plans {
                let plan = plan(&blocks, at_home);
                held.memory_bytes += more_blocks * BLOCK_BYTES;
                let change = transition(&held, &plan);
                prop_assert_eq!(validate_transition(&held, &plan, &change), Ok(()));
                let block = |offset: u64| (offset / BLOCK_BYTES) as usize;
                for keep in &change.keeps {
                    let from = block(keep.from.offset)..block(keep.from.offset + keep.bytes);
                    memory.copy_within(from, block(keep.to.offset));
                }
                let mut read = set_of(change.keeps.iter().map(Keep::file_range).collect());
                for load in &change.reads {
                    for file in difference(&[load.file_range()], &unread) {
                        let begin = load.to.offset + (file.begin - load.from.offset);
                        for at in 0..block(file.len()) {
                            memory[block(begin) + at] = (block(file.begin) + at) as u8 + 1;
                        }
                        read.push(file);
                    }
                }
                held = held_under(&plan, set_of(read));
                for file in &held.read {
                    for byte in (file.begin..file.end).step_by(BLOCK_BYTES as usize) {
                        let (at, _) = Home::of_byte(&held.homes, byte).unwrap();
                        prop_assert_eq!(memory[block(at.offset)], block(byte) as u8 + 1);
                    }
                }
            }
        }
    }

    /// To be moved, weights lie twice in memory for a moment.
    #[test]
    fn what_cannot_be_moved_within_the_budget_is_read_again() {
        let few = plan(&[(0, 10), (60, 20)], false);
        let more = plan(&[(0, 10), (60, 30)], true);
        let read: Vec<ByteRange> = Home::all_of(&few.resident).iter().map(|h| h.file).collect();
        let mut held = held_under(&few, set_of(read));
        held.memory_bytes = 49 * BLOCK_BYTES;
        // Ten are where they were; twenty lie at 10 and go to 60.
        assert_eq!(transition(&held, &more), Transition::opening(&more));
        held.memory_bytes = 50 * BLOCK_BYTES;
        let moved = transition(&held, &more);
        assert_eq!(moved.kept_bytes(), 30 * BLOCK_BYTES);
        assert_eq!(moved.read_bytes(), 10 * BLOCK_BYTES);
    }

    #[test]
    fn what_lies_in_other_addresses_is_read_again() {
        let all = plan(&[(10, 100)], true);
        let read = vec![blocks_at(10, 100)];
        let mut held = held_under(&all, read);
        assert_eq!(transition(&held, &all).read_bytes(), 0);
        held.spaces[1].bytes = 109 * BLOCK_BYTES;
        assert_eq!(transition(&held, &all), Transition::opening(&all));
    }

    #[test]
    fn transitions_are_checked() {
        let old = plan(&[(0, 8), (20, 10), (40, 10)], false);
        let new = plan(&[(20, 10), (40, 12)], false);
        let read = old.resident.iter().map(ResidentLoad::file_range).collect();
        let held = held_under(&old, set_of(read));
        let good = transition(&held, &new);
        assert_eq!(validate_transition(&held, &new, &good), Ok(()));
        let refused = |corrupt: &dyn Fn(&mut Transition)| {
            let mut bad = good.clone();
            corrupt(&mut bad);
            validate_transition(&held, &new, &bad).unwrap_err()
        };
        let is_bad = |v: Violation| matches!(v, Violation::Transition(_));
        assert!(is_bad(refused(&|t| t.keeps[0].file_offset += BLOCK_BYTES)));
        assert!(is_bad(refused(&|t| t.keeps[0].from.offset += BLOCK_BYTES)));
        assert!(is_bad(refused(&|t| t.keeps[0].to.offset += BLOCK_BYTES)));
        assert!(is_bad(refused(&|t| t.keeps.truncate(1))));
        assert!(is_bad(refused(&|t| t.reads.clear())));
        assert!(is_bad(refused(&|t| t.reads.push(t.reads[0]))));
        assert!(is_bad(refused(&|t| t.reads[0].to.offset += BLOCK_BYTES)));
        assert!(is_bad(refused(&|t| t.reads[0].first += 1)));
        // The second goes where the first still lies.
        let swapped = refused(&|t| t.keeps.reverse());
        assert!(matches!(swapped, Violation::Overlap { .. }), "{swapped}");
        let small = Held {
            memory_bytes: 0,
            ..held.clone()
        };
        let far = plan(&[(0, 8), (20, 10), (40, 10)], true);
        let kept = keeps(&held.read, &held.homes, &Home::all_of(&far.resident));
        let moves = Transition {
            keeps: in_safe_order(kept),
            reads: Vec::new(),
        };
        assert_eq!(
            validate_transition(&held, &far, &transition(&held, &far)),
            Ok(())
        );
        assert!(is_bad(
            validate_transition(&small, &far, &moves).unwrap_err()
        ));
    }
}
