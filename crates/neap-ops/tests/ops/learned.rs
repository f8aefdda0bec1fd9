//! Counted n-grams and decision trees beside naive ones, and 8-bit floats.

use crate::support::*;
use neap_ir::learned::{Aggregate, Branch, Gram, Test, TfIdf, TreeNode, Trees, Vote, Weighting};
use neap_ir::{DType, Float8, Literal, Op};

/// Every choice of places is looked at.
fn naive(attrs: &TfIdf, row: &[i64]) -> Vec<f32> {
    let mut result = vec![0.0; attrs.width];
    for gram in &attrs.grams {
        let size = gram.items.len();
        if size < attrs.lengths.0 || size > attrs.lengths.1 {
            continue;
        }
        let distances = if size == 1 { 1 } else { attrs.max_skip + 1 };
        let mut count = 0.0;
        for distance in 1..=distances {
            for start in 0..row.len() {
                let picked: Vec<i64> = (row[start..].iter().step_by(distance).take(size))
                    .copied()
                    .collect();
                count += f32::from(u8::from(picked == gram.items));
            }
        }
        result[gram.place] += match attrs.weighting {
            Weighting::Tf => count,
            Weighting::Idf if count > 0.0 => gram.weight,
            Weighting::Idf => 0.0,
            Weighting::TfIdf => count * gram.weight,
        };
    }
    result
}

#[test]
fn n_grams() {
    let items: [&[i64]; 7] = [&[1], &[1, 2], &[2], &[2, 1, 2], &[2, 2], &[3, 1], &[5]];
    let grams: Vec<Gram> = (items.iter().enumerate())
        .map(|(i, items)| Gram {
            items: items.to_vec(),
            place: items.len() + 4 * (i % 2),
            weight: 0.5 + i as f32,
        })
        .collect();
    // Each n-gram has a place of its own.
    let grams: Vec<Gram> = (grams.into_iter().enumerate())
        .map(|(place, gram)| Gram { place, ..gram })
        .collect();
    let rows: [&[i64]; 4] = [
        &[1, 2, 1, 2, 2, 3, 1, 2],
        &[2, 2, 2, 2, 2, 2, 2, 2],
        &[5, 9, 1, 9, 2, 9, 1, 2],
        &[0, 0, 0, 0, 0, 0, 0, 0],
    ];
    let flat: Vec<i64> = rows.concat();
    for weighting in [Weighting::Tf, Weighting::Idf, Weighting::TfIdf] {
        for lengths in [(1, 1), (1, 2), (2, 2), (2, 3), (1, 3)] {
            for max_skip in [0, 1, 5, 100] {
                let attrs = TfIdf {
                    weighting,
                    lengths,
                    max_skip,
                    grams: grams.clone(),
                    width: 8,
                };
                let expected: Vec<f32> = rows.iter().flat_map(|r| naive(&attrs, r)).collect();
                let op = Op::TfIdf(Box::new(attrs));
                let y = one(&op, &[&i64s(&[4, 8], &flat)]);
                assert_eq!(values(&y), expected, "{op:?}");
                let narrow: Vec<i32> = rows[0].iter().map(|&x| x as i32).collect();
                let y = one(&op, &[&i32s(&[8], &narrow)]);
                assert_eq!(values(&y), &expected[..8]);
            }
        }
    }
    let op = Op::TfIdf(Box::new(TfIdf {
        weighting: Weighting::Tf,
        lengths: (1, 1),
        max_skip: 0,
        grams,
        width: 3,
    }));
    assert!(try_one(&op, &[&i64s(&[2], &[1, 2])]).is_err(), "places");
}

/// A tree of three nodes with each test, and one that is a leaf.
fn forest(test: Test, missing_passes: bool, aggregate: Aggregate) -> Trees {
    let node = |feature, test, passed, failed| TreeNode {
        feature,
        test,
        value: 0.25,
        missing_passes,
        passed,
        failed,
    };
    let vote = |target, weight| Vote { target, weight };
    Trees {
        aggregate,
        targets: 3,
        features: 3,
        roots: vec![Branch::Node(0), Branch::Leaf(3), Branch::Node(1)],
        nodes: vec![
            node(0, test, Branch::Node(1), Branch::Leaf(0)),
            node(2, Test::Less, Branch::Leaf(1), Branch::Leaf(2)),
        ],
        leaves: vec![1, 2, 3, 5],
        votes: vec![
            vote(0, 1.5),
            vote(1, -2.0),
            vote(0, 4.0),
            vote(1, 0.5),
            vote(2, 7.0),
        ],
        members: vec![-1.0, 0.25, 3.0],
    }
}

/// What a test says of a number.
type Passes = fn(f32) -> bool;

#[test]
fn trees_of_all_tests() {
    let numbers = [-1.0, 0.0, 0.25, 0.5, 3.0, f32::NAN];
    let rows: Vec<[f32; 3]> = (numbers.iter())
        .flat_map(|&a| numbers.iter().map(move |&c| [a, 9.0, c]))
        .collect();
    let x = f32s(&[rows.len(), 3], &rows.concat());
    let member = Test::Member { start: 0, end: 3 };
    let tests: [(Test, Passes); 7] = [
        (Test::LessOrEqual, |x| x <= 0.25),
        (Test::Less, |x| x < 0.25),
        (Test::GreaterOrEqual, |x| x >= 0.25),
        (Test::Greater, |x| x > 0.25),
        (Test::Equal, |x| x == 0.25),
        (Test::NotEqual, |x| x != 0.25),
        (member, |x| [-1.0, 0.25, 3.0].contains(&x)),
    ];
    for (test, passes) in tests {
        for missing in [false, true] {
            for aggregate in [
                Aggregate::Sum,
                Aggregate::Average,
                Aggregate::Min,
                Aggregate::Max,
            ] {
                let mut expected = Vec::new();
                for [a, _, c] in &rows {
                    let second = if *c < 0.25 || (c.is_nan() && missing) {
                        (1, -2.0)
                    } else {
                        (0, 4.0)
                    };
                    let first = if passes(*a) || (a.is_nan() && missing) {
                        second
                    } else {
                        (0, 1.5)
                    };
                    for target in 0..3 {
                        let votes = [first, (1, 0.5), (2, 7.0), second];
                        let votes = votes.iter().filter(|v| v.0 == target).map(|v| v.1);
                        let none = votes.clone().count() == 0;
                        expected.push(match aggregate {
                            Aggregate::Sum => votes.sum(),
                            Aggregate::Average => votes.map(|v| v / 3.0).sum(),
                            _ if none => 0.0,
                            Aggregate::Min => votes.fold(f32::MAX, f32::min),
                            Aggregate::Max => votes.fold(f32::MIN, f32::max),
                        });
                    }
                }
                let op = Op::Trees(Box::new(forest(test, missing, aggregate)));
                assert_close(&one(&op, &[&x]), &expected, 1e-6);
            }
        }
    }
}

#[test]
fn trees_without_an_end_are_refused() {
    let mut endless = forest(Test::Less, false, Aggregate::Sum);
    endless.nodes[1].failed = Branch::Node(0);
    let mut beyond = forest(Test::Less, false, Aggregate::Sum);
    beyond.roots.push(Branch::Leaf(4));
    for trees in [endless, beyond] {
        let op = Op::Trees(Box::new(trees));
        let refusal = try_one(&op, &[&noise(&[1, 3], 1)]).expect_err("not whole");
        assert!(refusal.to_string().contains("whole"), "{refusal}");
    }
}

#[test]
fn floats_of_8_bits() {
    let codes: Vec<u8> = (0..=u8::MAX).collect();
    for kind in Float8::ALL {
        let wide = one(&Op::Float8s { kind }, &[&u8s(&[256], &codes)]);
        for (&code, value) in codes.iter().zip(values(&wide)) {
            assert_eq!(value.to_bits(), kind.decode(code).to_bits());
        }
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let halves = Literal::from_bytes(DType::F16, &[1 << 16], &bytes).expect("fits");
        let halves = one(&Op::Cast { to: DType::F32 }, &[&halves]);
        for saturate in [false, true] {
            let rounded = one(&Op::RoundToFloat8 { kind, saturate }, &[&halves]);
            for (x, y) in values(&halves).iter().zip(values(&rounded)) {
                let expected = kind.round(*x, saturate);
                assert!(y.to_bits() == expected.to_bits() || (y.is_nan() && expected.is_nan()));
            }
        }
    }
}
