//! Weights stay what they are from plan to plan, and what is given back is not charged.

use super::*;
use neap_plan::sets::difference;
use neap_planner::placement::Homes;

const MIB: u64 = 1 << 20;

fn plan(work_bytes: u64, files: &[ByteRange]) -> ExecutionPlan {
    let room_bytes = bytes_of(files).max(100 * MIB);
    let homes = Homes::of(files.to_vec(), 100 * MIB);
    ExecutionPlan {
        spaces: Space::of_host(work_bytes, room_bytes, 0, 0),
        resident: homes.loads(files.iter().map(|&file| (file, 0))),
        ..ExecutionPlan::default()
    }
}

fn needs(work_bytes: u64, files: &[ByteRange]) -> Needs {
    Needs::of(&plan(work_bytes, files))
}

fn reshape(arena: &mut Arena, work_bytes: u64, files: &[ByteRange]) -> u64 {
    let plan = plan(work_bytes, files);
    let change = neap_planner::transition(&arena.held(), &plan);
    neap_plan::validate_transition(&arena.held(), &plan, &change).unwrap();
    // SAFETY: nobody uses the arena.
    unsafe { arena.reshape(Needs::of(&plan), &change.keeps).unwrap() }
}

/// What of the file is to come.
fn missing(arena: &Arena) -> Vec<ByteRange> {
    let wanted = arena.homes.iter().map(|home| home.file);
    difference(&set_of(wanted.collect()), &arena.read)
}

fn place_of(arena: &Arena, file_offset: u64) -> Option<Place> {
    Some(Home::of_byte(&arena.homes, file_offset)?.0)
}

fn charged_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Fills what is missing with the number of its MiB in the file.
fn fill(arena: &mut Arena) {
    for file in missing(arena) {
        for begin in (file.begin..file.end).step_by(4096) {
            let at = place_of(arena, begin).unwrap();
            // SAFETY: the range lies in the arena, which nobody else uses.
            unsafe {
                let start = arena.map().at(at, 4096).unwrap();
                start.write_bytes((begin / MIB) as u8 + 1, 4096);
            }
        }
        arena.hold([file]);
    }
}

fn check(arena: &Arena, files: &[ByteRange]) {
    for file in files {
        for begin in (file.begin..file.end).step_by(4096) {
            let at = place_of(arena, begin).unwrap();
            // SAFETY: as above.
            let byte = unsafe {
                arena
                    .map()
                    .at(at.checked_add(4095).unwrap(), 1)
                    .unwrap()
                    .read()
            };
            assert_eq!(byte, (begin / MIB) as u8 + 1);
        }
    }
}

#[test]
fn resident_weights_follow_from_plan_to_plan() {
    let all = [ByteRange::at(4096, 96 * MIB)];
    // Odd places: in the middle of huge pages.
    let few: Vec<ByteRange> = (0..24)
        .map(|i| ByteRange::at(4096 + i * 4 * MIB + MIB, 12288))
        .collect();
    let before = charged_bytes();
    let mut arena = Arena::new(needs(4 * MIB, &all)).unwrap();
    fill(&mut arena);
    check(&arena, &all);
    assert!(charged_bytes() > before + 90 * MIB);
    // SAFETY: nobody uses the arena.
    unsafe { arena.discard_work().unwrap() };
    let released = reshape(&mut arena, 2 * MIB, &few);
    assert_eq!(released, 96 * MIB - 24 * 12288);
    assert_eq!(arena.memory_bytes(), 2 * MIB + 24 * 12288);
    assert_eq!(missing(&arena), []);
    check(&arena, &few);
    assert!(charged_bytes() < before + 8 * MIB);
    let released = reshape(&mut arena, 8 * MIB, &all);
    assert_eq!(released, 0);
    assert_eq!(arena.held_bytes(), 24 * 12288);
    check(&arena, &few);
    fill(&mut arena);
    check(&arena, &all);
    // More than is reserved: all anew.
    let more = [ByteRange::at(0, 120 * MIB)];
    let released = reshape(&mut arena, 8 * MIB, &more);
    assert_eq!(released, 96 * MIB);
    assert_eq!(missing(&arena), more);
    assert!(charged_bytes() < before + 8 * MIB);
}

/// Weights that go leave gaps, which are the kernel's; those that come back are put there.
#[test]
fn gaps_are_not_charged() {
    let all = [ByteRange::at(4096, 96 * MIB)];
    let some: Vec<ByteRange> = (0..4)
        .map(|i| ByteRange::at(4096 + i * 24 * MIB + 12288, 20 * MIB))
        .collect();
    let few = [some[1]];
    let mut arena = Arena::new(needs(4 * MIB, &all)).unwrap();
    fill(&mut arena);
    let start = place_of(&arena, some[1].begin);
    let full = charged_bytes();
    let reshape = |arena: &mut Arena, files: &[ByteRange]| reshape(arena, 4 * MIB, files);
    let is_packed = |arena: &Arena| is_packed(&parts(&arena.homes, SpaceId::RESIDENT));
    assert_eq!(reshape(&mut arena, &some), 16 * MIB);
    assert!(!is_packed(&arena) && arena.is_whole());
    assert_eq!(place_of(&arena, some[1].begin), start);
    assert_eq!(arena.memory_bytes(), 84 * MIB);
    assert!(charged_bytes() < full - 15 * MIB);
    assert_eq!(missing(&arena), []);
    check(&arena, &some);
    assert_eq!(reshape(&mut arena, &all), 0);
    assert_eq!(arena.held_bytes(), 80 * MIB);
    assert!(charged_bytes() < full - 15 * MIB);
    fill(&mut arena);
    check(&arena, &all);
    // Few are moved together, and go apart again.
    assert_eq!(reshape(&mut arena, &few), 76 * MIB);
    assert!(is_packed(&arena) && missing(&arena).is_empty());
    assert!(charged_bytes() < full - 75 * MIB);
    check(&arena, &few);
    assert_eq!(reshape(&mut arena, &some), 0);
    assert_eq!(arena.held_bytes(), 20 * MIB);
    // Where they were others will come.
    assert!(charged_bytes() < full - 55 * MIB);
    check(&arena, &few);
    fill(&mut arena);
    check(&arena, &some);
    assert!(charged_bytes() < full - 15 * MIB);
}

#[test]
fn bounds_of_each_space() {
    let arena = Arena::new(needs(8192, &[ByteRange::at(1 << 20, 4096)])).unwrap();
    let map = arena.map();
    let (start, end) = (Place::resident(0), Place::resident(4096));
    assert!(map.at(start, 4096).is_some() && map.at(start, 4097).is_none());
    assert!(map.at(end, 0).is_some() && map.at(end, 1).is_none());
    let work = Place::work;
    assert!(map.at(work(0), 8192).is_some() && map.at(work(4096), 4097).is_none());
    assert!(map.at(work(u64::MAX), 2).is_none() && map.at(start, u64::MAX).is_none());
    assert!(map.at(Place::packed(0), 0).is_none() && map.at(Place::spill(0), 0).is_none());
    assert!(map.at(Place::new(SpaceId(9), 0), 0).is_none());
    assert_eq!(place_of(&arena, 1 << 20), Some(start));
    assert_eq!(place_of(&arena, 0), None);
}
