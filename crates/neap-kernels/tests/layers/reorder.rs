//! Layout conversion: exact copies, so every comparison is exact.

use neap_kernels::parallel::Serial;
use neap_kernels::reorder::{self, ChannelCopy};

use crate::support::{Random, Threads, from_blocked, isas, to_blocked};

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
fn rows_and_blocked() {
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
        let mut got = vec![9.0; rows.len()];
        reorder::blocked_to_rows(
            &Threads(2),
            n,
            c,
            hw,
            &to_blocked(&plain, n, c, hw, 3.5),
            &mut got,
        )
        .unwrap();
        assert_eq!(got, rows, "{n} {c} {hw}");
        let mut back = vec![9.0; n * c.div_ceil(16) * hw * 16];
        reorder::rows_to_blocked(&Threads(2), n, c, hw, &rows, &mut back).unwrap();
        assert_eq!(back, to_blocked(&plain, n, c, hw, 0.0), "{n} {c} {hw}");
        for isa in isas() {
            let mut transposed = vec![9.0; plain.len()];
            reorder::transpose(isa, &Threads(2), n, c, hw, &plain, &mut transposed).unwrap();
            assert_eq!(transposed, rows, "{isa:?} {n} {c} {hw}");
        }
    }
}

#[test]
fn channel_ranges() {
    let mut random = Random::new(3);
    // channels, source channels and start, destination channels and start
    let cases = [
        (16, 16, 0, 48, 16),
        (32, 64, 16, 32, 0),
        (20, 20, 0, 52, 32),
        (20, 40, 16, 36, 16),
        (20, 20, 0, 60, 16),
        (5, 30, 13, 20, 7),
        (33, 50, 3, 50, 16),
        (1, 1, 0, 17, 16),
        (40, 64, 8, 100, 29),
    ];
    for (channels, src_channels, src_start, dst_channels, dst_start) in cases {
        for (batch, positions) in [(1, 1), (2, 9), (1, 1000)] {
            let src = random.vec(batch * src_channels * positions, -1.0, 1.0);
            let mut want = random.vec(batch * dst_channels * positions, -1.0, 1.0);
            let mut got = to_blocked(&want, batch, dst_channels, positions, 4.0);
            for b in 0..batch {
                for ch in 0..channels {
                    for p in 0..positions {
                        want[(b * dst_channels + dst_start + ch) * positions + p] =
                            src[(b * src_channels + src_start + ch) * positions + p];
                    }
                }
            }
            let copy = ChannelCopy {
                batch,
                positions,
                channels,
                src_channels,
                src_start,
                dst_channels,
                dst_start,
            };
            let from = to_blocked(&src, batch, src_channels, positions, 5.0);
            reorder::copy_channels(&Threads(2), &copy, &from, &mut got).unwrap();
            assert_eq!(
                from_blocked(&got, batch, dst_channels, positions),
                want,
                "{copy:?}"
            );
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
