//! Winograd convolutions of what their transforms would spread: infinities, NaN, and numbers far larger than others.

use crate::support::{Scrambled, affordable, numbers};
use crate::winograd::{
    CASES, Case, How, Layer, amplification, element, layer, layer_of, plain, reference, run,
    run_in_bands, shape, whole,
};
use neap_kernels::epilogue::Activation;
use neap_kernels::simd::Isa;
use neap_kernels::winograd::{Tile, WeightForm};

const WILD: [f32; 5] = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e8, -3e38];

/// The layer of a case with some elements that are wild, and which.
fn wild_layer(case: &Case, values: &[f32]) -> (Layer, Vec<usize>) {
    let s = shape(case);
    let count = s.batch * s.c_in * s.window.input[0] * s.window.input[1];
    let mut input = numbers(count, 3);
    // In corners, on edges and inside, in the first and in the last channel.
    let places: Vec<usize> = [count / 2, count - 1, 0]
        .into_iter()
        .take(values.len())
        .collect();
    for (&place, &value) in places.iter().zip(values) {
        input[place] = value;
    }
    (layer(s, input), places)
}

/// Whether an output's window sees an element of the input.
fn sees(l: &Layer, output: usize, input: usize) -> bool {
    let s = &l.shape;
    let place = |at: usize, size: [usize; 2], channels: usize| {
        let image = at / (size[0] * size[1] * channels);
        (image, [at / size[1] % size[0], at % size[1]])
    };
    let (out_image, out) = place(output, s.window.output, s.c_out);
    let (in_image, pixel) = place(input, s.window.input, s.c_in);
    let within = |axis: usize| {
        let first = out[axis] as isize - s.window.pads_begin[axis] as isize;
        (first..first + 3).contains(&(pixel[axis] as isize))
    };
    out_image == in_image && within(0) && within(1)
}

/// What a layer without a residual is to give, and how far off it may be: what sees no wild element as little as if there were
/// none, what sees one as little as that.
struct Wanted {
    sums: Vec<f64>,
    sees_none: Vec<bool>,
    sizes: [f64; 2],
}

impl Wanted {
    fn of(l: &Layer, wild: &[usize]) -> Wanted {
        let all = reference(l, false);
        let sees_none: Vec<bool> = (0..all.len())
            .map(|i| !wild.iter().any(|&at| sees(l, i, at)))
            .collect();
        let finite = wild
            .iter()
            .map(|&at| l.input[at].abs())
            .filter(|x| x.is_finite());
        let largest = f64::from(finite.fold(0.0f32, f32::max));
        let size = |none: bool| {
            let such = all.iter().zip(&sees_none).filter(|(_, is)| **is == none);
            such.fold(0.0f64, |most, (&(_, size), _)| most.max(size))
        };
        Wanted {
            // Taps that are turned back are as exact as the largest of them.
            sizes: [size(false) + largest, size(true)],
            sums: all.iter().map(|&(sum, _)| f64::from(sum as f32)).collect(),
            sees_none,
        }
    }

    fn assert(&self, l: &Layer, how: How<'_>, what: &str) {
        let got = run(l, how, &whole(l.shape.panels()));
        for (i, (&sum, &none)) in self.sums.iter().zip(&self.sees_none).enumerate() {
            let got = f64::from(element(&got, &l.shape, i));
            let bound = 1.2e-7 * amplification(how.tile) * self.sizes[usize::from(none)];
            let fits = match sum.is_finite() {
                true => (got - sum).abs() <= bound,
                false => got == sum || got.is_nan() && sum.is_nan(),
            };
            let seen = if none { "none" } else { "some" };
            assert!(fits, "{what}: [{i}] is {got}, want {sum}; it sees {seen}");
        }
    }
}

#[test]
fn a_wild_number_stays_in_the_windows_that_see_it() {
    for (number, case) in CASES.iter().enumerate() {
        // All of them in the first cases, which have every edge.
        let values = match number {
            0..=2 => &WILD[..],
            _ => &WILD[number % WILD.len()..][..1],
        };
        for &value in values {
            let (l, wild) = wild_layer(case, &[value]);
            if !affordable(2 * l.shape.multiply_adds()) {
                continue;
            }
            let wanted = Wanted::of(&l, &wild);
            for (isa, tile) in Isa::available().flat_map(|isa| Tile::ALL.map(|tile| (isa, tile))) {
                let what = format!("{} {tile:?} {case:?} {value}", isa.name());
                wanted.assert(&l, plain(isa, tile, WeightForm::Prepared), &what);
            }
        }
    }
}

#[test]
fn an_infinity_times_a_zero_is_no_number() {
    let s = shape(&(1, 16, 16, [9, 9], [9, 9], [1, 1]));
    // A middle tap, a corner, and an edge are zeros in turn.
    let mut weights = numbers(s.c_out * s.c_in * 9, 1);
    for (i, weight) in weights.iter_mut().enumerate() {
        if [4, 0, 5][i / 9 % 3] == i % 9 {
            *weight = 0.0;
        }
    }
    let mut input = numbers(s.c_in * 81, 3);
    let wild = [40, 15 * 81 + 3];
    wild.iter().for_each(|&at| input[at] = f32::INFINITY);
    let l = layer_of(s, input, weights);
    let wanted = Wanted::of(&l, &wild);
    for (isa, tile) in Isa::available().flat_map(|isa| Tile::ALL.map(|tile| (isa, tile))) {
        let what = format!("{} {tile:?}", isa.name());
        wanted.assert(&l, plain(isa, tile, WeightForm::Raw), &what);
    }
}

#[test]
fn a_mask_of_large_numbers_ends_at_its_edge() {
    // A frame, half an image, and one row: edges of all directions, in all channels.
    type Mask = fn(usize, usize) -> bool;
    let masks: [Mask; 4] = [
        |y, x| y < 3 || x < 3,
        |_, x| x >= 7,
        |y, _| y == 5,
        |y, x| (y + x) % 9 == 0,
    ];
    for mask in masks {
        let s = shape(&(1, 20, 33, [13, 14], [13, 14], [1, 1]));
        let mut input = numbers(s.c_in * 13 * 14, 3);
        let pixels = 0..13 * 14;
        let wild: Vec<usize> = pixels.filter(|p| mask(p / 14, p % 14)).collect();
        for channel in 0..s.c_in {
            wild.iter()
                .for_each(|p| input[channel * 13 * 14 + p] = -1e9);
        }
        let l = layer(s, input);
        let wanted = Wanted::of(&l, &wild);
        for (isa, tile) in Isa::available().flat_map(|isa| Tile::ALL.map(|tile| (isa, tile))) {
            let what = format!("{} {tile:?}", isa.name());
            wanted.assert(&l, plain(isa, tile, WeightForm::Raw), &what);
        }
    }
}

#[test]
fn wild_numbers_have_the_same_bits_however_the_work_is_cut() {
    for case in CASES {
        let (l, _) = wild_layer(case, &[f32::INFINITY, 1e8, f32::NAN]);
        let panels = l.shape.panels();
        if !affordable(12 * l.shape.multiply_adds()) {
            continue;
        }
        let single: Vec<_> = (0..panels).map(|p| p..p + 1).collect();
        let bits = |got: Vec<f32>| -> Vec<u32> { got.into_iter().map(f32::to_bits).collect() };
        for (isa, tile) in Isa::available().flat_map(|isa| Tile::ALL.map(|tile| (isa, tile))) {
            let how = How {
                activation: Activation::Relu,
                residual: 1,
                ..plain(isa, tile, WeightForm::Prepared)
            };
            let want = bits(run(&l, how, &whole(panels)));
            for (form, workers, ranges, residual) in [
                (WeightForm::Prepared, 3, &single, 2),
                (WeightForm::Raw, 1, &whole(panels), 2),
                (WeightForm::Raw, 2, &single, 1),
            ] {
                let parallel = &Scrambled(workers);
                let how = How {
                    form,
                    residual,
                    parallel,
                    ..how
                };
                let got = bits(run(&l, how, ranges));
                assert!(got == want, "{} {tile:?} {form:?} {case:?}", isa.name());
            }
            let how = How {
                form: WeightForm::Raw,
                residual: 2,
                ..how
            };
            for tile_rows in [1, 2] {
                let got = bits(run_in_bands(&l, how, tile_rows));
                assert!(
                    got == want,
                    "{} {tile:?} {case:?} in bands of {tile_rows}",
                    isa.name()
                );
            }
        }
    }
}
