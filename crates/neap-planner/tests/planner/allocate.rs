//! Memory for several models: sums, limits, optimality.

use neap_planner::allocate::{
    AllocateError, Curve, Demand, curves, equal, largest_weighted, paper,
};
use proptest::prelude::*;

const MB: u64 = 1_000_000;

fn demand(least: u64, memory: u64, latency_ms: u64) -> Demand {
    Demand {
        least_bytes: least * MB,
        memory_bytes: memory * MB,
        latency_ns: latency_ms * 1_000_000,
        urgency: 1.0,
    }
}

/// Equation 1 by hand: two models of 300 and 200 MB in 200 MB, latencies 30 and 80 ms. Demands are 3/5 and
/// 2/5 of all, scores 0.1 and 0.4, so A = 3/5 · 100 + 1/5 · 100, and 2/5 · 100 + 4/5 · 100.
#[test]
fn equation_one_by_hand() {
    let demands = [demand(10, 300, 30), demand(10, 200, 80)];
    let found = paper(&demands, 200 * MB).unwrap();
    assert_eq!(found, [80 * MB, 120 * MB]);
    let urgent = Demand {
        urgency: 4.0,
        ..demands[0]
    };
    let found = paper(&[urgent, demands[1]], 200 * MB).unwrap();
    assert_eq!(found, [110 * MB, 90 * MB]);
}

#[test]
fn demands_that_can_be_met_are_met_and_others_refused() {
    let demands = [demand(10, 300, 30), demand(10, 100, 40)];
    for allocate in [paper, equal] {
        assert_eq!(allocate(&demands, 500 * MB).unwrap(), [300 * MB, 100 * MB]);
        assert_eq!(allocate(&demands, 20 * MB).unwrap(), [10 * MB, 10 * MB]);
        let refused = allocate(&demands, 20 * MB - 1).unwrap_err();
        let sum = AllocateError::Infeasible {
            least_bytes: 20 * MB,
        };
        assert_eq!(refused, sum);
    }
    // One that cannot do with its part takes from the other.
    let uneven = [demand(150, 300, 30), demand(10, 100, 40)];
    assert_eq!(equal(&uneven, 200 * MB).unwrap(), [150 * MB, 50 * MB]);
}

fn fleet() -> impl Strategy<Value = Vec<(Vec<(u64, u64)>, f64)>> {
    let points = prop::collection::vec((1u64..40, 1u64..40), 1..6);
    prop::collection::vec((points, 1u32..4), 1..5).prop_map(|models| {
        let models = models.into_iter();
        models.map(|(p, u)| (p, f64::from(u) / 2.0)).collect()
    })
}

/// All combinations of points, the best largest weighted latency.
fn brute_force(curves: &[Curve], points: &[Vec<u64>], total: u64, chosen: &mut Vec<u64>) -> f64 {
    if chosen.len() == curves.len() {
        return largest_weighted(curves, chosen).unwrap_or(f64::INFINITY);
    }
    let mut best = f64::INFINITY;
    for &bytes in &points[chosen.len()] {
        if chosen.iter().sum::<u64>() + bytes <= total {
            chosen.push(bytes);
            best = best.min(brute_force(curves, points, total, chosen));
            chosen.pop();
        }
    }
    best
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn curves_are_optimal_and_never_worse_than_equation_one(fleet in fleet(), extra in 0u64..120) {
        let all: Vec<Curve> = fleet.iter().map(|(p, u)| Curve::new(p.clone(), *u).unwrap()).collect();
        let least: u64 = all.iter().map(Curve::least_bytes).sum();
        let total = least + extra;
        let found = curves(&all, total).unwrap();
        prop_assert!(found.iter().sum::<u64>() <= total);
        let value = largest_weighted(&all, &found).unwrap();
        let points: Vec<Vec<u64>> = fleet.iter().map(|(p, _)| p.iter().map(|x| x.0).collect()).collect();
        prop_assert_eq!(value, brute_force(&all, &points, total, &mut Vec::new()));
        let demands: Vec<Demand> = fleet.iter().zip(&all).map(|((points, urgency), curve)| {
            let memory_bytes = points.iter().map(|p| p.0).max().unwrap();
            Demand {
                least_bytes: curve.least_bytes(),
                memory_bytes,
                latency_ns: curve.latency_ns(memory_bytes).unwrap(),
                urgency: *urgency,
            }
        }).collect();
        for others in [paper(&demands, total).unwrap(), equal(&demands, total).unwrap()] {
            prop_assert!(others.iter().sum::<u64>() <= total);
            prop_assert!(value <= largest_weighted(&all, &others).unwrap());
        }
        prop_assert!(least == 0 || curves(&all, least - 1).is_err());
    }
}

/// What is left once the slowest is as fast as it can be goes to the next.
#[test]
fn the_second_slowest_gets_what_the_slowest_cannot_use() {
    let slow = Curve::new(vec![(10, 100), (20, 90)], 1.0).unwrap();
    let quick = Curve::new(vec![(10, 50), (30, 20), (90, 10)], 1.0).unwrap();
    assert_eq!(curves(&[slow.clone(), quick.clone()], 60), Ok(vec![20, 30]));
    assert_eq!(curves(&[slow.clone(), quick.clone()], 25), Ok(vec![10, 10]));
    assert_eq!(curves(&[slow, quick], 110), Ok(vec![20, 90]));
}

/// By slowdown a quick model is not starved for a slow one.
#[test]
fn slowdowns_are_shared() {
    let slow = Curve::new(vec![(10, 1000), (50, 900), (90, 800)], 1.0).unwrap();
    let quick = Curve::new(vec![(10, 400), (50, 100)], 1.0).unwrap();
    let both = [slow, quick];
    assert_eq!(curves(&both, 100), Ok(vec![90, 10]));
    let relative = both.each_ref().map(Curve::relative);
    assert_eq!(curves(&relative, 100), Ok(vec![50, 50]));
    assert_eq!(largest_weighted(&relative, &[50, 50]), Some(900.0 / 800.0));
}
