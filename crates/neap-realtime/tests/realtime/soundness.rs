//! What the tests admit is played by an adversary: no job may be late.

use neap_realtime::demand::{self, of_swapping};
use neap_realtime::hunt::hunt;
use neap_realtime::simulate::{Actor, Choices, Scene, simulate};
use neap_realtime::{Random, SwapCost, System, Task, response, sets, theorem, volumes};

/// Hunts in systems at the edge of `admits`, until so many jobs were played.
fn hunted(jobs: u64, any_deadlines: bool, seed: u64, admits: impl Fn(&System, &[u64]) -> bool) {
    let mut random = Random::new(seed, 0);
    let (mut played, mut sets_played) = (0, 0);
    while played < jobs {
        let (system, volumes) = sets::draw(&mut random, any_deadlines);
        let Some(system) = sets::at_the_edge(&system, |s| admits(s, &volumes)) else {
            continue;
        };
        let scene = Scene::of_swapping(&system, &volumes);
        let hunt = hunt(&scene, 30, 120, random.bits());
        assert_eq!(hunt.misses, 0, "{:?}\n{system:?}\n{volumes:?}", hunt.found);
        let work = of_swapping(&system, &volumes);
        if demand::check(&work).is_admitted() {
            let bounds = response::bounds_ns(&work);
            for (task, (seen, bound)) in hunt.response_ns.iter().zip(bounds).enumerate() {
                assert!(
                    *seen <= bound,
                    "task {task}: {seen} > {bound}\n{system:?}\n{volumes:?}"
                );
            }
        }
        played += hunt.jobs;
        sets_played += 1;
    }
    assert!(sets_played > 50, "only {sets_played} sets");
}

#[test]
fn sets_that_theorem_1_admits_miss_no_deadline() {
    hunted(600_000, false, 1, theorem::admits);
}

#[test]
fn sets_that_demand_admits_miss_no_deadline() {
    hunted(600_000, true, 2, |system, volumes| {
        demand::check(&of_swapping(system, volumes)).is_admitted()
    });
}

/// Work without deadlines that would fill all time, and holds as long as it may: no task is late.
#[test]
fn work_without_deadlines_fills_gaps_and_breaks_nothing() {
    let mut random = Random::new(8, 0);
    let (mut played, mut sets_played, mut tight) = (0, 0, 0);
    while played < 700_000 {
        let (system, _) = sets::draw(&mut random, true);
        let none = vec![0; system.tasks.len()];
        let system = System {
            memory_bytes: 1 << 20,
            ..sets::stretched(&system, random.between(150, 600))
        };
        if system.check().is_err() {
            continue;
        }
        let work = of_swapping(&system, &none);
        let Some(most_ns) = demand::most_beside_ns(&work).filter(|&most| most > 1) else {
            continue;
        };
        let mut late = |hold_ns: u64| {
            let mut actors = Scene::of_swapping(&system, &none).actors;
            actors.push(Actor {
                period_ns: hold_ns,
                deadline_ns: neap_realtime::LONGEST_NS,
                wcet_ns: hold_ns,
                step_ns: hold_ns,
                resume_ns: 0,
                volume_chunks: 0,
            });
            let hunt = hunt(&Scene::of_actors(actors), 20, 200, random.bits());
            played += hunt.jobs;
            (hunt.misses, hunt.found)
        };
        let (misses, found) = late(most_ns);
        assert_eq!(misses, 0, "{found:?}\n{system:?}\n{most_ns}");
        tight += u32::from(late(most_ns + most_ns / 4 + 2).0 > 0);
        sets_played += 1;
    }
    assert!(sets_played > 50, "only {sets_played} sets");
    // What is refused is often late indeed.
    assert!(tight * 3 > sets_played, "{tight} of {sets_played}");
}

#[test]
fn demand_admits_whatever_theorem_1_admits() {
    let mut random = Random::new(3, 0);
    let (mut by_theorem, mut by_demand) = (0, 0);
    for _ in 0..3000 {
        let (system, volumes) = sets::draw(&mut random, false);
        let system = sets::stretched(&system, random.between(200, 2000));
        let theorem = theorem::admits(&system, &volumes);
        let demand = demand::check(&of_swapping(&system, &volumes)).is_admitted();
        assert!(demand || !theorem, "{system:?}\n{volumes:?}");
        by_theorem += u32::from(theorem);
        by_demand += u32::from(demand);
    }
    assert!(
        by_theorem > 300 && by_demand > by_theorem,
        "{by_theorem} {by_demand}"
    );
}

/// For tasks without volumes the test is exact, so what it refuses misses.
#[test]
fn the_hunter_finds_misses_in_sets_that_are_not_admitted() {
    let mut random = Random::new(4, 0);
    let (mut refused, mut found) = (0, 0);
    for _ in 0..400 {
        let (system, _) = sets::draw(&mut random, true);
        let none = vec![0; system.tasks.len()];
        let system = System {
            memory_bytes: 1 << 20,
            ..sets::stretched(&system, random.between(100, 400))
        };
        if system.check().is_err() || demand::check(&of_swapping(&system, &none)).is_admitted() {
            continue;
        }
        refused += 1;
        found += u32::from(hunt(&Scene::of_swapping(&system, &none), 60, 120, 5).misses > 0);
    }
    assert!(refused > 60, "{refused}");
    assert!(found * 10 >= refused * 9, "{found} of {refused}");
}

/// Lemma 1 needs that one fetched job at most waits for the processor: with two, a job waits for three others.
#[test]
fn two_fetched_jobs_ahead_break_the_theorem() {
    let task = |wcet_ns, period_ns, swappable_bytes| Task {
        wcet_ns,
        period_ns,
        deadline_ns: period_ns,
        footprint_bytes: 1,
        swappable_bytes,
    };
    let system = System {
        memory_bytes: 4,
        cost: SwapCost {
            chunk_bytes: 1,
            in_ns: 1,
            out_ns: 1,
        },
        tasks: vec![
            task(1, 22, 0),
            task(10, 10_000, 0),
            task(10, 10_001, 1),
            task(10, 10_002, 1),
        ],
    };
    let volumes = [0, 0, 1, 1];
    assert!(theorem::admits(&system, &volumes));
    let mut scene = Scene::of_swapping(&system, &volumes);
    // The first executes from 0 to 10; meanwhile the second and then, if allowed, the third are fetched.
    let mut choices = Choices::synchronous(&scene, 20);
    choices.resident_chunks.fill(0);
    choices.phases_ns[0] = 3;
    let outcome = simulate(&scene, &choices);
    assert_eq!((outcome.misses, outcome.response_ns[0]), (0, 18));
    scene.ahead = 2;
    let outcome = simulate(&scene, &choices);
    assert_eq!((outcome.misses, outcome.response_ns[0]), (1, 28));
}

/// The job that executes while another is fetched is part of the hold: a test that forgets it admits sets that miss.
#[test]
fn the_hunter_finds_what_a_forgotten_part_of_the_hold_does() {
    let mut random = Random::new(10, 0);
    let mut missed = 0;
    for _ in 0..300 {
        let (system, volumes) = sets::draw(&mut random, false);
        let admits = |s: &System| {
            let mut work = of_swapping(s, &volumes);
            for (i, w) in work.iter_mut().enumerate() {
                w.hold_ns = s.in_ns(volumes[i]) + s.tasks[i].wcet_ns;
            }
            demand::check(&work).is_admitted()
        };
        if let Some(system) = sets::at_the_edge(&system, admits) {
            let scene = Scene::of_swapping(&system, &volumes);
            missed += u32::from(hunt(&scene, 100, 60, 7).misses > 0);
        }
    }
    assert!(missed > 0);
}

/// Steps: a job waits for one step of a later deadline only.
#[test]
fn sets_admitted_with_steps_miss_no_deadline() {
    let mut random = Random::new(8, 0);
    let (mut played, mut better) = (0, 0);
    while played < 700_000 {
        let (system, _) = sets::draw(&mut random, true);
        let none = vec![0; system.tasks.len()];
        let steps = random.between(2, 6);
        let resume_ns = random.between(0, 3);
        let actors = |system: &System| -> Vec<Actor> {
            let tasks = system.tasks.iter();
            tasks
                .map(|t| Actor {
                    period_ns: t.period_ns,
                    deadline_ns: t.deadline_ns,
                    wcet_ns: t.wcet_ns,
                    step_ns: t.wcet_ns.div_ceil(steps),
                    resume_ns,
                    volume_chunks: 0,
                })
                .collect()
        };
        let admits = |s: &System| demand::check(&demand::of_steps(&actors(s))).is_admitted();
        let Some(system) = sets::at_the_edge(&system, admits) else {
            continue;
        };
        better += u32::from(!demand::check(&of_swapping(&system, &none)).is_admitted());
        let hunt = hunt(&Scene::of_actors(actors(&system)), 30, 120, random.bits());
        assert_eq!(hunt.misses, 0, "{:?}\n{:?}", hunt.found, actors(&system));
        let bounds = response::bounds_ns(&demand::of_steps(&actors(&system)));
        for (seen, bound) in hunt.response_ns.iter().zip(bounds) {
            assert!(*seen <= bound, "{seen} > {bound}\n{:?}", actors(&system));
        }
        played += hunt.jobs;
    }
    assert!(better > 10, "{better}");
}

/// Every combination of volumes, on small systems.
#[test]
fn the_integer_program_finds_the_smallest_volumes() {
    let mut random = Random::new(9, 0);
    let (mut feasible, mut infeasible) = (0, 0);
    while feasible + infeasible < 400 {
        let (mut system, _) = sets::draw(&mut random, false);
        system.tasks.truncate(4);
        let system = sets::stretched(&system, random.between(256, 2000));
        let most: Vec<u64> = (0..system.tasks.len())
            .map(|i| system.swappable_chunks(i))
            .collect();
        let mut best: Option<u64> = None;
        let mut chunks = vec![0; most.len()];
        loop {
            if theorem::admits(&system, &chunks) {
                let total = chunks.iter().sum();
                best = Some(best.map_or(total, |b: u64| b.min(total)));
            }
            let Some(i) = (0..most.len()).find(|&i| chunks[i] < most[i]) else {
                break;
            };
            chunks[i] += 1;
            chunks[..i].fill(0);
        }
        let found = volumes::smallest_for_chunk(&system);
        assert_eq!(found.map(|v| v.iter().sum::<u64>()), best, "{system:?}");
        *(if best.is_some() {
            &mut feasible
        } else {
            &mut infeasible
        }) += 1;
    }
    assert!(feasible > 100 && infeasible > 20, "{feasible} {infeasible}");
}
