//! Resizing by tables against the formula.

use neap_kernels::resize::{LinearAxis, bilinear, nearest};

use crate::support::{Random, Threads, assert_close, isas};

const SIZES: [(usize, [usize; 2], [usize; 2]); 5] = [
    (2, [13, 13], [26, 26]),
    (1, [28, 28], [224, 224]),
    (3, [5, 9], [3, 4]),
    (1, [1, 1], [4, 5]),
    (4, [7, 7], [7, 7]),
];

#[test]
fn nearest_by_table() {
    let mut random = Random::new(21);
    for (planes, input, output) in SIZES {
        let src = random.vec(planes * input[0] * input[1] * 16, -1.0, 1.0);
        let rows: Vec<u32> = (0..output[0])
            .map(|_| random.bits() as u32 % input[0] as u32)
            .collect();
        let cols: Vec<u32> = (0..output[1])
            .map(|_| random.bits() as u32 % input[1] as u32)
            .collect();
        let mut got = vec![f32::NAN; planes * output[0] * output[1] * 16];
        nearest(&Threads(2), planes, input, &rows, &cols, &src, &mut got).unwrap();
        let mut i = 0;
        for plane in 0..planes {
            for &row in &rows {
                for &col in &cols {
                    for lane in 0..16 {
                        let at = (plane * input[0] + row as usize) * input[1] + col as usize;
                        assert_eq!(got[i], src[at * 16 + lane]);
                        i += 1;
                    }
                }
            }
        }
    }
}

#[test]
fn bilinear_by_table() {
    let mut random = Random::new(22);
    for (planes, input, output) in SIZES {
        let src = random.vec(planes * input[0] * input[1] * 16, -1.0, 1.0);
        let mut axis = |input: usize, output: usize| {
            let low: Vec<u32> = (0..output)
                .map(|_| random.bits() as u32 % input as u32)
                .collect();
            let high: Vec<u32> = low.iter().map(|&l| (l + 1).min(input as u32 - 1)).collect();
            (low, high, random.vec(output, 0.0, 1.0))
        };
        let (rows, cols) = (axis(input[0], output[0]), axis(input[1], output[1]));
        let mut want = Vec::new();
        for plane in 0..planes {
            for y in 0..output[0] {
                for x in 0..output[1] {
                    for lane in 0..16 {
                        let value = |row: u32, col: u32| {
                            let at = (plane * input[0] + row as usize) * input[1] + col as usize;
                            f64::from(src[at * 16 + lane])
                        };
                        let (v, h) = (f64::from(rows.2[y]), f64::from(cols.2[x]));
                        let top = value(rows.0[y], cols.0[x]) * (1.0 - h)
                            + value(rows.0[y], cols.1[x]) * h;
                        let bottom = value(rows.1[y], cols.0[x]) * (1.0 - h)
                            + value(rows.1[y], cols.1[x]) * h;
                        want.push(top * (1.0 - v) + bottom * v);
                    }
                }
            }
        }
        for isa in isas() {
            let mut got = vec![f32::NAN; want.len()];
            let table =
                |t: &'_ (Vec<u32>, Vec<u32>, Vec<f32>)| (t.0.clone(), t.1.clone(), t.2.clone());
            let (r, c) = (table(&rows), table(&cols));
            let r = LinearAxis {
                low: &r.0,
                high: &r.1,
                weight: &r.2,
            };
            let c = LinearAxis {
                low: &c.0,
                high: &c.1,
                weight: &c.2,
            };
            bilinear(isa, &Threads(2), planes, input, r, c, &src, &mut got).unwrap();
            assert_close(&got, &want, 1e-6, 1.0, &format!("{isa:?}"));
        }
    }
}

#[test]
fn bad_calls_are_refused() {
    let (src, mut dst) = ([0.0; 64], [0.0; 16]);
    assert!(nearest(&Threads(1), 1, [2, 2], &[2], &[0], &src, &mut dst).is_err());
    assert!(nearest(&Threads(1), 1, [2, 3], &[1], &[0], &src, &mut dst).is_err());
    assert!(nearest(&Threads(1), 1, [2, 2], &[1, 1], &[0], &src, &mut dst).is_err());
    assert!(nearest(&Threads(1), usize::MAX, [2, 2], &[1], &[0], &src, &mut dst).is_err());
}
