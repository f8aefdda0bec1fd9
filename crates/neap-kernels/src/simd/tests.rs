//! Every operation of every instruction set against plain arithmetic.

use super::{Isa, LANES, Simd, math};

#[derive(Clone, Copy, Debug)]
enum Function {
    Exp,
    Log,
    Sigmoid,
    Tanh,
    Erf,
    Gelu,
    GeluTanh,
    Silu,
}

#[inline(always)]
fn map_generic<S: Simd>(s: S, f: Function, x: &mut [f32]) {
    for block in x.chunks_exact_mut(LANES) {
        // SAFETY: a block is 16 floats.
        let v = unsafe { s.load(block.as_ptr()) };
        let y = match f {
            Function::Exp => math::exp(s, v),
            Function::Log => math::log(s, v),
            Function::Sigmoid => math::sigmoid(s, v),
            Function::Tanh => math::tanh(s, v),
            Function::Erf => math::erf(s, v),
            Function::Gelu => math::gelu(s, v),
            Function::GeluTanh => math::gelu_tanh(s, v),
            Function::Silu => math::silu(s, v),
        };
        // SAFETY: a block is 16 floats.
        unsafe { s.store(block.as_mut_ptr(), y) };
    }
}
super::simd_kernel! { fn map(f: Function, x: &mut [f32]) = map_generic; }

/// erf in f64 by its Taylor series, or a continued fraction where the series cancels.
fn erf64(x: f64) -> f64 {
    if x.abs() < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..80 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let a = x.abs();
    let mut f = a;
    for n in (1..60).rev() {
        f = a + f64::from(n) / 2.0 / f;
    }
    (1.0 - (-a * a).exp() / f / std::f64::consts::PI.sqrt()).copysign(x)
}

fn exact(f: Function, x: f64) -> f64 {
    match f {
        Function::Exp => x.exp(),
        Function::Log => x.ln(),
        Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Function::Tanh => x.tanh(),
        Function::Erf => erf64(x),
        Function::Gelu => x / 2.0 * (1.0 + erf64(x / 2f64.sqrt())),
        Function::GeluTanh => {
            let t = ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh();
            x / 2.0 * (1.0 + t)
        }
        Function::Silu => x / (1.0 + (-x).exp()),
    }
}

#[test]
fn elementary_functions_are_close() {
    // (function, low, high, relative tolerance, absolute tolerance)
    let table = [
        (Function::Exp, -86.0, 88.7, 4e-7, 0.0),
        (Function::Log, 1e-6, 40.0, 3e-7, 1e-8),
        (Function::Log, 0.9, 1.1, 4e-7, 1e-9),
        (Function::Log, 1e-38, 3e38, 3e-7, 0.0),
        (Function::Sigmoid, -80.0, 80.0, 5e-7, 0.0),
        (Function::Tanh, -20.0, 20.0, 5e-7, 0.0),
        (Function::Tanh, -0.7, 0.7, 4e-7, 0.0),
        (Function::Erf, -6.0, 6.0, 4e-7, 0.0),
        (Function::Gelu, -6.0, 6.0, 1e-6, 4e-7),
        (Function::GeluTanh, -6.0, 6.0, 1e-6, 4e-7),
        (Function::Silu, -80.0, 80.0, 6e-7, 1e-37),
    ];
    for isa in Isa::available() {
        for (f, low, high, relative, absolute) in table {
            let n = 40_000;
            let x: Vec<f32> = (0..n)
                .map(|i| low + (high - low) * (i as f32 / (n - 1) as f32))
                .collect();
            let mut y = x.clone();
            map(isa, f, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let want = exact(f, f64::from(x));
                let error = (f64::from(y) - want).abs();
                assert!(
                    error <= relative * want.abs() + absolute,
                    "{} {f:?}({x}) = {y}, want {want}",
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn elementary_functions_at_the_edges() {
    let inf = f32::INFINITY;
    for isa in Isa::available() {
        let cases: [(Function, f32, f32); 12] = [
            (Function::Exp, inf, inf),
            (Function::Exp, -inf, 0.0),
            (Function::Exp, 100.0, inf),
            (Function::Exp, -100.0, 0.0),
            (Function::Exp, 0.0, 1.0),
            (Function::Log, 0.0, -inf),
            (Function::Log, inf, inf),
            (Function::Log, 1e-40, -92.103_4),
            (Function::Sigmoid, -inf, 0.0),
            (Function::Sigmoid, inf, 1.0),
            (Function::Tanh, -inf, -1.0),
            (Function::Erf, inf, 1.0),
        ];
        for (f, x, want) in cases {
            let mut y = [x; LANES];
            map(isa, f, &mut y);
            for y in y {
                let close = y == want || (y - want).abs() < 1e-4;
                assert!(close, "{} {f:?}({x}) = {y}, want {want}", isa.name());
            }
        }
        for f in [
            Function::Exp,
            Function::Log,
            Function::Sigmoid,
            Function::Tanh,
            Function::Erf,
        ] {
            let mut y = [f32::NAN; LANES];
            map(isa, f, &mut y);
            assert!(y.iter().all(|y| y.is_nan()), "{} {f:?}(NaN)", isa.name());
        }
        let mut y = [-1.0; LANES];
        map(isa, Function::Log, &mut y);
        assert!(y.iter().all(|y| y.is_nan()));
    }
}

/// Runs every plain operation once; the output is rows of 16.
#[inline(always)]
fn operations_generic<S: Simd>(s: S, a: &[f32; 16], b: &[f32; 16], out: &mut Vec<[f32; 16]>) {
    let (va, vb) = (s.from_array(*a), s.from_array(*b));
    let mut put = |v| out.push(s.to_array(v));
    put(s.add(va, vb));
    put(s.sub(va, vb));
    put(s.mul(va, vb));
    put(s.div(va, vb));
    put(s.max(va, vb));
    put(s.min(va, vb));
    put(s.neg(va));
    put(s.abs(va));
    put(s.copysign(va, vb));
    put(s.sqrt(s.abs(va)));
    put(s.round(va));
    put(s.floor(va));
    put(s.ceil(va));
    put(s.pow2(s.round(va)));
    put(s.split_exponent(s.abs(va)).0);
    put(s.split_exponent(s.abs(va)).1);
    put(s.select(s.lt(va, vb), va, vb));
    put(s.select(s.le(va, vb), va, vb));
    put(s.select(s.eq(va, vb), va, vb));
    put(s.group_broadcast(va, 2, 1));
    put(s.group_broadcast(va, 4, 2));
    put(s.spread_quarter(va, 0));
    put(s.spread_quarter(va, 1));
    put(s.splat(s.reduce_sum(va)));
    put(s.splat(s.reduce_max(va)));
    put(s.splat(s.reduce_min(va)));
    put(s.fma(va, vb, va));
    put(s.fnma(va, vb, va));
}
super::simd_kernel! {
    fn operations(a: &[f32; 16], b: &[f32; 16], out: &mut Vec<[f32; 16]>) = operations_generic;
}

#[test]
fn operations_agree_with_portable() {
    let a: [f32; 16] =
        std::array::from_fn(|i| [2.5, -3.5, 0.4, -7.25, 11.0, 1e-3][i % 6] + i as f32);
    let b: [f32; 16] = std::array::from_fn(|i| {
        if i % 3 == 0 {
            a[i]
        } else {
            4.0 - i as f32 * 0.7
        }
    });
    let mut want = Vec::new();
    operations_generic(super::Portable, &a, &b, &mut want);
    for isa in Isa::available() {
        let mut got = Vec::new();
        operations(isa, &a, &b, &mut got);
        let exact = want.len() - 2; // the last two round once or twice
        assert_eq!(got[..exact], want[..exact], "{}", isa.name());
        for (g, w) in got[exact..]
            .iter()
            .flatten()
            .zip(want[exact..].iter().flatten())
        {
            assert!(
                (g - w).abs() <= 1e-5 * w.abs() + 1e-5,
                "{}: {g} {w}",
                isa.name()
            );
        }
    }
    // And portable itself, where the answer is easily said.
    for i in 0..16 {
        assert_eq!(want[0][i], a[i] + b[i]);
        assert_eq!(want[10][i], a[i].round_ties_even());
        assert_eq!(want[13][i], a[i].round_ties_even().exp2());
        assert_eq!(want[14][i] * want[15][i].exp2(), a[i].abs());
        assert_eq!(want[19][i], a[i / 2 * 2 + 1]);
        assert_eq!(want[20][i], a[i / 4 * 4 + 2]);
        assert_eq!(want[21][i], a[i / 8 * 8 + i % 4]);
        assert_eq!(want[22][i], a[i / 8 * 8 + 4 + i % 4]);
    }
}

#[inline(always)]
fn nan_rules_generic<S: Simd>(s: S, out: &mut [[f32; 16]; 3]) {
    let (one, nan) = (s.splat(1.0), s.splat(f32::NAN));
    out[0] = s.to_array(s.max(one, nan));
    out[1] = s.to_array(s.min(nan, one));
    out[2] = s.to_array(s.clamp(nan, s.zero(), one));
}
super::simd_kernel! { fn nan_rules(out: &mut [[f32; 16]; 3]) = nan_rules_generic; }

#[test]
fn max_and_min_return_the_second_when_one_is_nan() {
    for isa in Isa::available() {
        let mut out = [[0.0; 16]; 3];
        nan_rules(isa, &mut out);
        assert!(out[0].iter().all(|x| x.is_nan()), "{}", isa.name());
        assert!(out[1].iter().all(|x| *x == 1.0), "{}", isa.name());
        assert!(out[2].iter().all(|x| x.is_nan()), "{}", isa.name());
    }
}

#[inline(always)]
fn copy_generic<S: Simd>(s: S, from: &[f32], to: &mut [f32]) {
    let n = from.len().min(to.len());
    // SAFETY: both slices have at least `n` floats.
    unsafe { s.store_partial(to.as_mut_ptr(), n, s.load_partial(from.as_ptr(), n)) };
}
super::simd_kernel! { fn copy(from: &[f32], to: &mut [f32]) = copy_generic; }

#[inline(always)]
fn load_tail_generic<S: Simd>(s: S, from: &[f32]) -> [f32; 16] {
    // SAFETY: exactly the slice is read.
    s.to_array(unsafe { s.load_partial(from.as_ptr(), from.len()) })
}
super::simd_kernel! { fn load_tail(from: &[f32]) -> [f32; 16] = load_tail_generic; }

#[test]
fn partial_loads_and_stores_touch_only_their_lanes() {
    let from: Vec<f32> = (1..=16).map(|i| i as f32).collect();
    for isa in Isa::available() {
        for n in 0..=16 {
            let mut to = [-1.0; 20];
            copy(isa, &from[..n], &mut to[..n]);
            assert_eq!(to[..n], from[..n]);
            assert!(to[n..].iter().all(|x| *x == -1.0));
            let tail = load_tail(isa, &from[..n]);
            assert_eq!(tail[..n], from[..n]);
            assert!(tail[n..].iter().all(|x| *x == 0.0));
        }
    }
}

#[test]
fn names_find_their_instruction_sets() {
    for isa in Isa::available() {
        assert_eq!(Isa::by_name(isa.name()), Some(isa));
    }
    assert_eq!(Isa::by_name("none such"), None);
    assert!(Isa::available().any(|isa| isa == Isa::detect()));
}
