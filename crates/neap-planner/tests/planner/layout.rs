//! The layout solver against brute force, on random problems, and on the public MiniMalloc instances.

use neap_plan::StepRange;
use neap_planner::layout::{Block, Effort, Request, Solved, check, csv, lower_bound_bytes, solve};
use neap_testing::cases;
use proptest::prelude::*;
use std::path::PathBuf;

/// Work after which a search that should have ended long before is given up.
const PLENTY: u64 = 30_000_000_000;

fn run(blocks: &[Block], request: Request, work: u64) -> Solved {
    solve(blocks, request, &mut Effort::new(work, &mut || false))
}

/// Whether blocks `placed.len()..` can be placed below `capacity`, trying every address.
fn fits(blocks: &[Block], capacity: u64, placed: &mut Vec<u64>) -> bool {
    let Some(block) = blocks.get(placed.len()) else {
        return true;
    };
    let mut offset = 0;
    while offset + block.bytes <= capacity {
        let free = blocks.iter().zip(&*placed).all(|(other, &at)| {
            !other.live.overlaps(block.live)
                || at + other.bytes <= offset
                || offset + block.bytes <= at
        });
        if free {
            placed.push(offset);
            if fits(blocks, capacity, placed) {
                return true;
            }
            placed.pop();
        }
        offset += block.align;
    }
    false
}

fn lowest_height(blocks: &[Block]) -> u64 {
    (lower_bound_bytes(blocks)..)
        .find(|&capacity| fits(blocks, capacity, &mut Vec::new()))
        .unwrap()
}

fn blocks(largest: u64, most_align: u32, count: usize) -> impl Strategy<Value = Vec<Block>> {
    let block = (1..=largest, 0..=most_align, 0u32..7, 1u32..6);
    prop::collection::vec(block, 0..=count).prop_map(|raw| {
        let block = |(bytes, align, begin, len)| Block {
            bytes,
            align: 1u64 << align,
            live: StepRange::new(begin, begin + len),
        };
        raw.into_iter().map(block).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(150)))]

    #[test]
    fn the_optimum_is_that_of_brute_force(blocks in blocks(5, 0, 7)) {
        let solved = run(&blocks, Request::minimize(u64::MAX), PLENTY);
        prop_assert!(solved.is_optimal());
        let layout = solved.layout.unwrap();
        prop_assert_eq!(check(&blocks, &layout), Ok(()));
        prop_assert_eq!(layout.high_water_bytes, lowest_height(&blocks));
    }

    #[test]
    fn the_optimum_with_alignments_too(blocks in blocks(6, 2, 6)) {
        let solved = run(&blocks, Request::minimize(u64::MAX), PLENTY);
        prop_assert!(solved.is_optimal());
        let layout = solved.layout.unwrap();
        prop_assert_eq!(check(&blocks, &layout), Ok(()));
        prop_assert_eq!(layout.high_water_bytes, lowest_height(&blocks));
    }

    #[test]
    fn a_capacity_is_met_or_proven_too_small(blocks in blocks(5, 1, 6), less in 0u64..3) {
        let capacity = lowest_height(&blocks).saturating_sub(less);
        let solved = run(&blocks, Request::fit(capacity), PLENTY);
        if less == 0 || blocks.is_empty() {
            prop_assert!(solved.layout.unwrap().high_water_bytes <= capacity);
        } else {
            prop_assert!(solved.proven_bytes > capacity);
            prop_assert!(solved.proven_bytes <= lowest_height(&blocks));
        }
    }

    /// Whatever the effort: no layout, or a right one.
    #[test]
    fn what_is_found_is_right(
        blocks in prop::collection::vec((0u64..500, 0u32..4, 0u32..60, 0u32..20), 0..150),
        work in 0u64..3_000_000,
    ) {
        let blocks: Vec<Block> = blocks
            .into_iter()
            .map(|(bytes, align, begin, len)| Block {
                bytes,
                align: 1 << (2 * align),
                live: StepRange::new(begin, begin + len),
            })
            .collect();
        let solved = run(&blocks, Request::minimize(u64::MAX), work);
        prop_assert_eq!(solved.lower_bound_bytes, lower_bound_bytes(&blocks));
        if let Some(layout) = &solved.layout {
            prop_assert_eq!(check(&blocks, layout), Ok(()));
            prop_assert!(solved.proven_bytes <= layout.high_water_bytes);
        }
        prop_assert_eq!(&run(&blocks, Request::minimize(u64::MAX), work), &solved);
    }
}

/// A generator of numbers below a bound, the same every time.
fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

/// Six bytes are live at once, but the second block can only begin at 4.
#[test]
fn more_than_the_lower_bound_is_proven_to_be_needed() {
    let block = |bytes, begin, end| Block {
        bytes,
        align: 4,
        live: StepRange::new(begin, end),
    };
    let blocks = [block(3, 0, 2), block(3, 1, 3), block(3, 2, 4)];
    let within = run(&blocks, Request::fit(6), PLENTY);
    assert_eq!((within.lower_bound_bytes, within.proven_bytes), (6, 7));
    let lowest = run(&blocks, Request::minimize(u64::MAX), PLENTY);
    assert!(lowest.is_optimal());
    assert_eq!(lowest.layout.unwrap().high_water_bytes, 7);
}

#[test]
fn being_stopped_at_once_gives_no_layout_but_the_bound() {
    let block = |begin| Block {
        bytes: 5,
        align: 1,
        live: StepRange::new(begin, begin + 2),
    };
    let blocks: Vec<Block> = (0..9).map(block).collect();
    let mut now = || true;
    let solved = solve(
        &blocks,
        Request::fit(10),
        &mut Effort::new(PLENTY, &mut now),
    );
    assert_eq!((solved.layout, solved.lower_bound_bytes), (None, 10));
}

fn instances(folder: &str) -> Vec<(String, csv::Table)> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/instances");
    let Ok(files) = std::fs::read_dir(root.join(folder)) else {
        neap_testing::absent(format_args!("the instances of {folder} are not there"));
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    paths.sort();
    let table = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        (
            name,
            csv::read(&std::fs::read_to_string(path).unwrap()).unwrap(),
        )
    };
    paths.into_iter().map(table).collect()
}

/// The work is counted, not timed: each takes well under a second.
#[test]
fn the_challenging_instances_fit() {
    for (name, table) in instances("minimalloc") {
        let solved = run(&table.blocks, Request::fit(1 << 20), 2_000_000_000);
        let layout = solved.layout.unwrap();
        assert!(
            layout.high_water_bytes <= 1 << 20,
            "{name}: {}",
            layout.high_water_bytes
        );
        assert_eq!(check(&table.blocks, &layout), Ok(()), "{name}");
        let written = csv::read(&csv::write(&table, &layout)).unwrap();
        assert_eq!(written, table, "{name}");
    }
}

#[test]
fn networks_of_idealloc_take_their_lower_bound() {
    for (name, table) in instances("idealloc") {
        let solved = run(&table.blocks, Request::minimize(u64::MAX), 2_000_000_000);
        assert!(solved.is_optimal(), "{name}");
        assert_eq!(solved.proven_bytes, solved.lower_bound_bytes, "{name}");
        assert_eq!(
            check(&table.blocks, &solved.layout.unwrap()),
            Ok(()),
            "{name}"
        );
    }
}

/// Thousands of random buffers, hundreds live at once: within 2 % of the bound by counted work.
#[test]
fn large_problems_come_close_to_the_bound() {
    let mut random = numbers(7);
    let blocks: Vec<Block> = (0..20_000)
        .map(|_| {
            let begin = random(1_000_000) as u32;
            Block {
                bytes: 64 * (1 + random(1000)),
                align: 64,
                live: StepRange::new(begin, begin + 1 + random(30_000) as u32),
            }
        })
        .collect();
    let solved = run(&blocks, Request::minimize(u64::MAX), 300_000_000);
    let layout = solved.layout.unwrap();
    assert_eq!(check(&blocks, &layout), Ok(()));
    let bound = solved.lower_bound_bytes;
    assert!(
        layout.high_water_bytes <= bound + bound / 50,
        "{} {bound}",
        layout.high_water_bytes
    );
}
