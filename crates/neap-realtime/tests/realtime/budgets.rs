//! Budgets chosen with admission, against every combination of points.

use neap_realtime::budgets::{
    Chosen, Point, Streaming, chosen, least_memory, most_slack, nearly_least_memory, slack_permille,
};
use neap_realtime::{Effort, Random, demand};

fn draw(random: &mut Random) -> Vec<Streaming> {
    let count = 1 + random.index(4);
    let tightness = random.between(2, 8);
    (0..count)
        .map(|_| {
            let period_ns = random.between(100, 1000);
            let deadline_ns = random.between(period_ns / 2, period_ns + period_ns / 2);
            let (mut bytes, mut work) = (
                random.between(1, 50),
                random.between(20, 80) * 10 / tightness,
            );
            let points = (0..1 + random.index(5)).map(|_| {
                let point = Point {
                    budget_bytes: bytes,
                    work_ns: work,
                    hold_ns: match random.chance(30) {
                        true => work.div_ceil(4),
                        false => work,
                    },
                };
                bytes += random.between(1, 40);
                work = (work * random.between(60, 99) / 100).max(1);
                point
            });
            Streaming {
                period_ns,
                deadline_ns,
                points: points.collect(),
            }
        })
        .collect()
}

fn every(tasks: &[Streaming]) -> Vec<Chosen> {
    let mut all = vec![Vec::new()];
    for task in tasks {
        let longer = all.iter().flat_map(|picks: &Vec<usize>| {
            (0..task.points.len()).map(move |p| [picks.as_slice(), &[p]].concat())
        });
        all = longer.collect();
    }
    all.iter().map(|picks| chosen(tasks, picks)).collect()
}

#[test]
fn the_least_memory_is_that_of_the_best_combination() {
    let mut random = Random::new(1, 0);
    let (mut admitted, mut refused, mut learnt) = (0, 0, 0);
    for _ in 0..1500 {
        let tasks = draw(&mut random);
        let fit = every(&tasks).into_iter();
        let fit = fit.filter(|c| demand::check(&c.work).is_admitted());
        let best = fit.map(|c| c.total_bytes).min();
        let found = least_memory(&tasks);
        assert_eq!(found.as_ref().map(|c| c.total_bytes), best, "{tasks:?}");
        match found {
            None => refused += 1,
            Some(c) => {
                admitted += 1;
                let least: u64 = tasks.iter().map(|t| t.points[0].budget_bytes).sum();
                learnt += u32::from(c.total_bytes > least);
            }
        }
    }
    assert!(
        admitted > 200 && refused > 200 && learnt > 100,
        "{admitted} {refused} {learnt}"
    );
}

#[test]
fn the_most_slack_is_that_of_the_best_combination() {
    let mut random = Random::new(2, 0);
    let (mut admitted, mut refused) = (0, 0);
    for _ in 0..120 {
        let tasks = draw(&mut random);
        let memory = random.between(10, 400);
        let fit = every(&tasks)
            .into_iter()
            .filter(|c| c.total_bytes <= memory);
        let best = fit.map(|c| slack_permille(&c.work)).max();
        let best = best.filter(|&permille| permille >= 1000);
        let found = most_slack(&tasks, memory, 0.0, &Effort::endless());
        assert_eq!(
            found.as_ref().map(|(permille, _)| *permille),
            best,
            "{tasks:?}"
        );
        if let Some((permille, c)) = &found {
            assert!(c.total_bytes <= memory);
            assert_eq!(slack_permille(&c.work), *permille);
        }
        *(if found.is_some() {
            &mut admitted
        } else {
            &mut refused
        }) += 1;
    }
    assert!(admitted > 20 && refused > 20, "{admitted} {refused}");
}

/// Curves of many points: what is found within the effort is admitted, and where nothing is, it is said that something was left out.
#[test]
fn large_sets_are_searched_within_bounds() {
    let mut random = Random::new(3, 0);
    for (count, points, tightness) in [(7, 400, 12), (24, 60, 52)] {
        let tasks: Vec<Streaming> = (0..count)
            .map(|_| {
                let period_ns = random.between(500_000, 1_000_000);
                let mut work_ns = period_ns * 2 / tightness;
                let mut budget_bytes = random.between(1000, 50_000);
                let points = (0..points).map(|_| {
                    let point = Point {
                        budget_bytes,
                        work_ns,
                        hold_ns: work_ns,
                    };
                    budget_bytes += random.between(1, 4000);
                    work_ns -= random.between(0, work_ns / 200);
                    point
                });
                Streaming {
                    period_ns,
                    deadline_ns: period_ns,
                    points: points.collect(),
                }
            })
            .collect();
        let effort = Effort::bounded();
        let found = nearly_least_memory(&tasks, 0.01, &effort);
        let found = found.expect("the fastest points are admitted");
        assert!(demand::check(&found.work).is_admitted());
        let slack = most_slack(&tasks, found.total_bytes * 2, 0.01, &effort);
        if let Some((permille, best)) = slack {
            assert!(best.total_bytes <= found.total_bytes * 2);
            assert!(slack_permille(&best.work) >= permille);
        }
    }
}
