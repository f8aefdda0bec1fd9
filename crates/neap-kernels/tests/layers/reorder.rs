//! Layout conversion: exact copies, so every comparison is exact.

use neap_kernels::parallel::Serial;
use neap_kernels::reorder;

use crate::support::{Random, Threads, isas, to_blocked};

const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 3, 49),
    (1, 16, 16),
    (2, 16, 15),
    (1, 17, 33),
    (1, 32, 3136),
    (3, 40, 49),
    (1, 24, 100),
    (2, 5, 7),
    (1, 1000, 1),
    (1, 64, 197),
    (1, 31, 31),
];

#[test]
fn plain_and_blocked() {
    let mut random = Random::new(1);
    for (n, c, hw) in SHAPES {
        let plain = random.vec(n * c * hw, -1.0, 1.0);
        let blocked = to_blocked(&plain, n, c, hw, 0.0);
        for isa in isas() {
            let mut got = vec![9.0; blocked.len()];
            reorder::plain_to_blocked(isa, &Threads(3), n, c, hw, &plain, &mut got).unwrap();
            assert_eq!(got, blocked, "{isa:?} {n} {c} {hw}");
            let garbage = to_blocked(&plain, n, c, hw, 7.5);
            let mut back = vec![9.0; plain.len()];
            reorder::blocked_to_plain(isa, &Threads(2), n, c, hw, &garbage, &mut back).unwrap();
            assert_eq!(back, plain, "{isa:?} {n} {c} {hw}");
        }
    }
}

#[test]
fn transposed() {
    let mut random = Random::new(2);
    for (n, c, hw) in SHAPES {
        let plain = random.vec(n * c * hw, -1.0, 1.0);
        let mut rows = vec![0.0; n * hw * c];
        for b in 0..n {
            for ch in 0..c {
                for p in 0..hw {
                    rows[(b * hw + p) * c + ch] = plain[(b * c + ch) * hw + p];
                }
            }
        }
        for isa in isas() {
            let mut transposed = vec![9.0; plain.len()];
            reorder::transpose(isa, &Threads(2), n, c, hw, &plain, &mut transposed).unwrap();
            assert_eq!(transposed, rows, "{isa:?} {n} {c} {hw}");
        }
    }
}

#[test]
fn nothing_to_move() {
    for isa in isas() {
        reorder::plain_to_blocked(isa, &Serial, 0, 3, 5, &[], &mut []).unwrap();
        reorder::blocked_to_plain(isa, &Serial, 1, 0, 5, &[], &mut []).unwrap();
        reorder::transpose(isa, &Serial, 1, 4, 0, &[], &mut []).unwrap();
    }
}
