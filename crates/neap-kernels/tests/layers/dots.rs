//! Few rows times a matrix as it is stored, against sums in f64; a sum has the same bits whatever is computed beside it.

use crate::support::{isas, numbers};
use neap_kernels::linear::{DotsShape, dots};

fn shape(rows: usize, units: usize, k: usize, gap: usize) -> DotsShape {
    DotsShape {
        rows,
        units,
        k,
        row_stride: k + gap,
        unit_stride: k + 2 * gap,
        out_stride: units + gap,
    }
}

#[test]
fn sums_of_all_tails_are_right_and_do_not_depend_on_their_neighbours() {
    for isa in isas() {
        for rows in [1, 2, 3, 4, 5, 9] {
            for (units, gap) in [(1, 0), (3, 1), (4, 0), (5, 3), (18, 2)] {
                for k in [1, 15, 16, 17, 33, 100] {
                    check(isa, shape(rows, units, k, gap));
                }
            }
        }
    }
}

fn check(isa: neap_kernels::simd::Isa, s: DotsShape) {
    let a = numbers(s.rows * s.row_stride, 1);
    let b = numbers(s.units * s.unit_stride, 2);
    let mut out = vec![7.0; s.rows * s.out_stride];
    dots(isa, &s, &a, &b, &mut out).unwrap();
    for row in 0..s.rows {
        for unit in 0..s.out_stride {
            let found = out[row * s.out_stride + unit];
            if unit >= s.units {
                assert_eq!(found, 7.0, "{s:?}: between rows");
                continue;
            }
            let (x, w) = (
                &a[row * s.row_stride..][..s.k],
                &b[unit * s.unit_stride..][..s.k],
            );
            let terms = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let (sum, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            assert!(
                (f64::from(found) - sum).abs() <= 1e-6 * size,
                "{s:?} {row} {unit}"
            );
            let mut alone = [0.0];
            dots(isa, &shape(1, 1, s.k, 0), x, w, &mut alone).unwrap();
            assert_eq!(alone[0].to_bits(), found.to_bits(), "{} {s:?}", isa.name());
        }
    }
}

#[test]
fn no_terms_give_zero_and_short_buffers_are_refused() {
    let isa = neap_kernels::simd::Isa::detect();
    let mut out = [1.0; 6];
    dots(isa, &shape(2, 3, 0, 0), &[], &[], &mut out).unwrap();
    assert_eq!(out, [0.0; 6]);
    dots(isa, &shape(0, 3, 5, 0), &[], &[0.0; 15], &mut []).unwrap();
    let s = shape(2, 3, 5, 0);
    let [a, b] = [[0.0; 10].as_slice(), [0.0; 15].as_slice()];
    assert!(dots(isa, &s, &a[1..], b, &mut out).is_err());
    assert!(dots(isa, &s, a, &b[1..], &mut out).is_err());
    assert!(dots(isa, &s, a, b, &mut out[1..]).is_err());
    let overlapping = DotsShape { out_stride: 2, ..s };
    assert!(dots(isa, &overlapping, a, b, &mut out).is_err());
}
