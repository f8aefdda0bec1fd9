//! Packed panels against the format's definition, whole and in pieces.

use neap_kernels::panel::{
    Affine, KOrder, channels_of, pack_band, pack_conv, pack_depthwise, pack_rows, panel_count,
    panel_floats,
};
use neap_kernels::simd::LANES;

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7 % 1009) as f32 - 500.0).collect()
}

/// Weight of output channel `oc` at inner step `k` of a packed layer.
fn at(panels: &[f32], k_len: usize, oc: usize, k: usize) -> f32 {
    panels[oc / LANES * panel_floats(k_len) + (1 + k) * LANES + oc % LANES]
}

#[test]
fn convolution_in_both_orders() {
    for (c_out, c_in, kernel) in [
        (16, 16, [3, 3]),
        (21, 19, [3, 2]),
        (5, 3, [7, 7]),
        (40, 33, [1, 1]),
    ] {
        let taps = kernel[0] * kernel[1];
        let k = c_in * taps;
        let source = numbers(c_out * k);
        let (scale, bias) = (numbers(c_out), numbers(c_out + 3)[3..].to_vec());
        let affine = Affine {
            scale: Some(&scale),
            bias: Some(&bias),
        };
        for order in [KOrder::Blocked, KOrder::Taps] {
            let all = 0..panel_count(c_out);
            let mut out = vec![f32::NAN; all.len() * panel_floats(k)];
            pack_conv(
                order,
                c_out,
                c_in,
                kernel,
                all.clone(),
                &source,
                affine,
                &mut out,
            )
            .unwrap();
            for oc in 0..all.end * LANES {
                let bias_at = out[oc / LANES * panel_floats(k) + oc % LANES];
                assert_eq!(bias_at, if oc < c_out { bias[oc] } else { 0.0 });
                let mut next = 0;
                let mut check = |c: usize, tap: usize| {
                    let want = if oc < c_out {
                        source[oc * k + c * taps + tap] * scale[oc]
                    } else {
                        0.0
                    };
                    assert_eq!(at(&out, k, oc, next), want, "{order:?} {oc} {c} {tap}");
                    next += 1;
                };
                match order {
                    KOrder::Taps => {
                        (0..taps).for_each(|tap| (0..c_in).for_each(|c| check(c, tap)));
                    }
                    KOrder::Blocked => {
                        for block in (0..c_in).step_by(LANES) {
                            for tap in 0..taps {
                                (block..c_in.min(block + LANES)).for_each(|c| check(c, tap));
                            }
                        }
                    }
                }
            }
            // In pieces, from only the source of each.
            for p in all {
                let rows = channels_of(&(p..p + 1), c_out);
                let part = &source[rows.start * k..rows.end * k];
                let mut piece = vec![f32::NAN; panel_floats(k)];
                pack_conv(
                    order,
                    c_out,
                    c_in,
                    kernel,
                    p..p + 1,
                    part,
                    affine,
                    &mut piece,
                )
                .unwrap();
                assert_eq!(piece, out[p * panel_floats(k)..][..panel_floats(k)]);
            }
        }
    }
}

#[test]
fn matrices_either_way_round() {
    let (n, k) = (37, 23);
    let source = numbers(n * k); // [k][n]
    let mut transposed = vec![0.0; n * k];
    for i in 0..k {
        for j in 0..n {
            transposed[j * k + i] = source[i * n + j];
        }
    }
    let (scale, bias) = (numbers(n), numbers(n));
    for affine in [
        Affine::default(),
        Affine {
            scale: Some(&scale),
            bias: Some(&bias),
        },
    ] {
        let all = 0..panel_count(n);
        let mut by_rows = vec![f32::NAN; all.len() * panel_floats(k)];
        pack_rows(n, k, all.clone(), &transposed, affine, &mut by_rows).unwrap();
        let mut by_bands = vec![f32::NAN; by_rows.len()];
        for rows in [0..5, 5..6, 6..k] {
            let band = &source[rows.start * n..rows.end * n];
            pack_band(n, k, all.clone(), rows, band, affine, &mut by_bands).unwrap();
        }
        assert_eq!(by_rows, by_bands);
        for j in 0..n {
            for i in 0..k {
                let want = source[i * n + j] * affine.scale.map_or(1.0, |s| s[j]);
                assert_eq!(at(&by_rows, k, j, i), want);
            }
        }
        let mut some = vec![f32::NAN; 2 * panel_floats(k)];
        pack_band(n, k, 1..3, 0..k, &source, affine, &mut some).unwrap();
        assert_eq!(some, by_rows[panel_floats(k)..]);
        let mut some = vec![f32::NAN; 2 * panel_floats(k)];
        pack_rows(n, k, 1..3, &transposed[16 * k..], affine, &mut some).unwrap();
        assert_eq!(some, by_rows[panel_floats(k)..]);
    }
}

#[test]
fn depthwise_is_one_filter_for_each_lane() {
    let source = numbers(20 * 9);
    let mut out = vec![f32::NAN; 2 * panel_floats(9)];
    pack_depthwise(20, [3, 3], 0..2, &source, Affine::default(), &mut out).unwrap();
    for c in 0..32 {
        for tap in 0..9 {
            let want = if c < 20 { source[c * 9 + tap] } else { 0.0 };
            assert_eq!(at(&out, 9, c, tap), want);
        }
    }
}

#[test]
fn bad_calls_are_refused() {
    let mut out = vec![0.0; panel_floats(4)];
    let a = Affine::default();
    assert!(pack_rows(16, 4, 0..2, &[0.0; 64], a, &mut out).is_err());
    assert!(pack_rows(16, 4, 0..1, &[0.0; 63], a, &mut out).is_err());
    assert!(pack_rows(16, 5, 0..1, &[0.0; 80], a, &mut out).is_err());
    assert!(pack_rows(16, usize::MAX, 0..1, &[0.0; 80], a, &mut out).is_err());
    assert!(pack_band(16, 4, 0..1, 3..5, &[0.0; 64], a, &mut out).is_err());
    let short = Affine {
        scale: Some(&[1.0; 3]),
        bias: None,
    };
    assert!(pack_rows(16, 4, 0..1, &[0.0; 64], short, &mut out).is_err());
    assert!(
        pack_conv(
            KOrder::Blocked,
            16,
            usize::MAX,
            [3, 3],
            0..1,
            &[],
            a,
            &mut out
        )
        .is_err()
    );
}
