//! Images in strips give the bits of whole ones.

use crate::blocked::{Tensor, Threads, run};
use crate::support::*;
use neap_ir::op::{AttentionAttrs, HeadLayout, Pool, SliceRange, SpaceNorm};
use neap_ir::strips::{KeyStrip, PlaceFold, PlacePool, Rows};
use neap_ir::{DType, Layout, Literal, Op, TensorType, op::Activation};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_ops::{Context, OperandForm, TensorMut, TensorRef, execute, supported, workspace_bytes};

/// Images of several widths and numbers of channels, and where their rows are cut.
const IMAGES: [(&[usize], &[usize]); 4] = [
    (&[1, 16, 9, 5], &[0, 3, 9]),
    (&[2, 21, 7, 4], &[0, 1, 2, 7]),
    (&[1, 3, 12, 3], &[0, 5, 10, 12]),
    (&[2, 40, 11], &[0, 4, 11]),
];

const LAYOUTS: [Layout; 2] = [Layout::Plain, Layout::Blocked];

fn rows(x: &Literal, first: usize, end: usize) -> Literal {
    let whole = |&len: &usize| SliceRange {
        start: 0,
        step: 1,
        len,
    };
    let mut ranges: Vec<SliceRange> = x.shape().iter().map(whole).collect();
    (ranges[2].start, ranges[2].len) = (first, end - first);
    one(&Op::Slice { ranges }, &[x])
}

fn strips(x: &Literal, cuts: &[usize], layout: Layout) -> Vec<Tensor> {
    let cuts = cuts.windows(2);
    cuts.map(|cut| Tensor::of(&rows(x, cut[0], cut[1])).reordered(layout))
        .collect()
}

/// By an operator that takes a strip, and what it gave for those before.
fn over_strips(op: &Op, strips: &[Tensor], each: usize) -> Tensor {
    let shape = &strips[0].ty.shape;
    let ty = TensorType::new(DType::F64, &[shape[0], shape[1].div_ceil(16), each, 16]);
    let mut found: Option<Tensor> = None;
    for strip in strips {
        let inputs: Vec<Tensor> = [strip.clone()].into_iter().chain(found).collect();
        let y = Tensor::new(&ty, Layout::Plain);
        found = Some(run(op, &inputs, None, vec![y], &Threads(2)).remove(0));
    }
    found.expect("there are strips")
}

#[test]
fn poolings_of_all_places() {
    for (shape, cuts) in IMAGES {
        let x = noise(shape, 3);
        let mut pooled = shape.to_vec();
        pooled[2..].fill(1);
        let ty = TensorType::new(DType::F32, &pooled);
        for layout in LAYOUTS {
            let average = Pool::Average {
                count_include_pad: false,
            };
            let max = Pool::Max {
                column_major: false,
            };
            for (fold, pool) in [(PlaceFold::Sum, average), (PlaceFold::Largest, max)] {
                let whole = [Tensor::of(&x).reordered(layout)];
                let y = || vec![Tensor::new(&ty, layout)];
                let wanted = run(&Op::GlobalPool(pool), &whole, None, y(), &Threads(3)).remove(0);
                let found = over_strips(&Op::FoldPlaces(fold), &strips(&x, cuts, layout), 1);
                let of = PlacePool {
                    fold,
                    positions: shape[2..].iter().product(),
                    shape: pooled.clone(),
                };
                let op = Op::PoolPlaces(Box::new(of));
                let found = run(&op, &[found], None, y(), &Serial).remove(0);
                let bits = |y: &Tensor| y.reordered(Layout::Plain).literal().bytes().to_vec();
                assert_eq!(bits(&found), bits(&wanted), "{shape:?} {layout:?} {fold:?}");
                let plain = one(&Op::GlobalPool(pool), &[&x]);
                let found = found.reordered(Layout::Plain).literal();
                assert_close(&found, values(&plain), 1e-6);
            }
        }
    }
}

/// Any rows of the strips, as the whole norm gives them.
#[test]
fn rows_of_strips_are_normalised() {
    for (shape, cuts) in IMAGES {
        let x = noise(shape, 5);
        let (scale, bias) = (noise(&shape[1..2], 6), noise(&shape[1..2], 7));
        let parameters = [Tensor::of(&scale), Tensor::of(&bias)];
        for layout in LAYOUTS {
            let strips = strips(&x, cuts, layout);
            let norm = SpaceNorm {
                groups: shape[1],
                positions: shape[2..].iter().product(),
                epsilon: 1e-3,
            };
            let moments = over_strips(&Op::Moments, &strips, 2);
            let ty = &moments.ty.shape;
            let factors = TensorType::new(DType::F32, &[ty[0], ty[1], 3, 16]);
            let inputs: Vec<Tensor> = [moments].into_iter().chain(parameters.clone()).collect();
            let y = vec![Tensor::new(&factors, Layout::Plain)];
            let factors = run(&Op::NormFactors(norm), &inputs, None, y, &Serial).remove(0);
            let plain = one(&Op::InstanceNorm { epsilon: 1e-3 }, &[&x, &scale, &bias]);
            for start in 0..shape[2] {
                for end in start + 1..=shape[2] {
                    let own = Rows {
                        axis: 2,
                        start,
                        len: end - start,
                    };
                    let op = Op::Normalise {
                        activation: Activation::None,
                        rows: own,
                    };
                    let wanted = rows(&plain, start, end);
                    let inputs: Vec<Tensor> = [factors.clone()]
                        .into_iter()
                        .chain(strips.clone())
                        .collect();
                    let y = vec![Tensor::new(&wanted.ty(), layout)];
                    let found = run(&op, &inputs, None, y, &Threads(2)).remove(0);
                    let found = found.reordered(Layout::Plain).literal();
                    assert_close(&found, values(&wanted), 1e-5);
                }
            }
            // The whole at once, in the layout that is computed by the same kernel.
            if layout == Layout::Blocked {
                let inputs: Vec<Tensor> = [Tensor::of(&x).reordered(layout)]
                    .into_iter()
                    .chain(parameters.clone())
                    .collect();
                let y = || vec![Tensor::new(&x.ty(), layout)];
                let op = Op::InstanceNorm { epsilon: 1e-3 };
                let whole = run(&op, &inputs, None, y(), &Threads(3)).remove(0);
                let inputs: Vec<Tensor> = [factors].into_iter().chain(strips).collect();
                let op = Op::Normalise {
                    activation: Activation::None,
                    rows: Rows {
                        axis: 2,
                        start: 0,
                        len: shape[2],
                    },
                };
                let joined = run(&op, &inputs, None, y(), &Serial).remove(0);
                let bits = |y: &Tensor| y.reordered(Layout::Plain).literal().bytes().to_vec();
                assert_eq!(bits(&joined), bits(&whole), "{shape:?}");
            }
        }
    }
}

#[test]
fn an_infinity_leaves_no_number_in_what_it_is_normalised_with() {
    let shape = [1usize, 4, 3, 2];
    let (scale, bias) = (noise(&shape[1..2], 6), noise(&shape[1..2], 7));
    for wild in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        let mut numbers = values(&noise(&shape, 5)).to_vec();
        // In the second channel.
        numbers[7] = wild;
        let x = f32s(&shape, &numbers);
        let group = Op::GroupNorm {
            groups: 2,
            epsilon: 1e-3,
            per_group: false,
        };
        // The last channel that shares its statistics.
        for (op, first, last) in [(Op::InstanceNorm { epsilon: 1e-3 }, 1, 1), (group, 0, 1)] {
            for layout in LAYOUTS {
                let inputs = [
                    Tensor::of(&x).reordered(layout),
                    Tensor::of(&scale),
                    Tensor::of(&bias),
                ];
                let y = vec![Tensor::new(&x.ty(), layout)];
                let found = run(&op, &inputs, None, y, &Serial).remove(0);
                let found = found.reordered(Layout::Plain).literal();
                for (channel, y) in values(&found).chunks(6).enumerate() {
                    let is_hit = (first..=last).contains(&channel);
                    assert!(
                        y.iter().all(|y| y.is_nan() == is_hit),
                        "{op:?} {wild} {channel}: {y:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn strips_are_put_into_their_places() {
    for (shape, cuts) in IMAGES {
        let x = noise(shape, 5);
        let whole = TensorType::new(DType::F32, shape);
        let mut found: Option<Tensor> = None;
        for (strip, cut) in strips(&x, cuts, Layout::Plain).into_iter().zip(cuts) {
            let op = Op::PutRows(Rows {
                axis: 2,
                start: *cut,
                len: shape[2],
            });
            let inputs: Vec<Tensor> = [strip].into_iter().chain(found).collect();
            let y = vec![Tensor::new(&whole, Layout::Plain)];
            found = Some(run(&op, &inputs, None, y, &Threads(2)).remove(0));
        }
        let found = found.expect("there are strips");
        assert_eq!(found.literal().bytes(), x.bytes(), "{shape:?}");
    }
}

/// By strips of rows `[start, end)` along the axis of keys, and what those before gave.
#[test]
fn attention_over_strips_of_keys() {
    let (queries, keys) = (21, 1300);
    let attrs = AttentionAttrs {
        heads: 4,
        kv_heads: 2,
        scale: 0.3,
        causal: false,
        nan_is_zero: false,
        q: HeadLayout::RowMajor,
        k: HeadLayout::HeadMajor,
        v: HeadLayout::HeadMajor,
        out: HeadLayout::RowMajor,
    };
    let (q, k, v) = (
        noise(&[2, queries, 4 * 20], 1),
        noise(&[2, 2, keys, 20], 2),
        noise(&[2, 2, keys, 9], 3),
    );
    let out = TensorType::new(DType::F32, &[2, queries, 4 * 9]);
    let state = TensorType::new(DType::F32, &[2, 4, 2, queries]);
    for mask in [
        None,
        Some(noise(&[queries, keys], 4)),
        Some(noise(&[2, 1, 1, keys], 5)),
    ] {
        let mask = mask.map(|mask| Tensor::of(&mask));
        let all: Vec<Tensor> = [&q, &k, &v]
            .map(Tensor::of)
            .into_iter()
            .chain(mask.clone())
            .collect();
        let y = || Tensor::new(&out, Layout::Plain);
        let op = Op::Attention(attrs.clone());
        let wanted = run(&op, &all, None, vec![y()], &Threads(3)).remove(0);
        for cuts in [&[0, 512, 1024, 1300][..], &[0, 1024, 1300], &[0, 1300]] {
            let mut before: Vec<Option<Tensor>> = vec![None, None];
            for cut in cuts.windows(2) {
                let op = Op::AttendKeys(Box::new(KeyStrip {
                    attrs: attrs.clone(),
                    total: keys,
                    start: cut[0],
                }));
                let strip = |x: &Literal| Some(Tensor::of(&rows(x, cut[0], cut[1])));
                let inputs = [Some(Tensor::of(&q)), strip(&k), strip(&v), mask.clone()];
                let inputs: Vec<_> = inputs.into_iter().chain(before).collect();
                let results = vec![y(), Tensor::new(&state, Layout::Plain)];
                let found = run_some(&op, &inputs, results);
                before = found.into_iter().map(Some).collect();
            }
            let found = before[0].take().expect("there are strips");
            assert_eq!(
                found.literal().bytes(),
                wanted.literal().bytes(),
                "{cuts:?}"
            );
        }
    }
}

/// As [`run`], with operands that may be left out.
fn run_some(op: &Op, inputs: &[Option<Tensor>], mut outputs: Vec<Tensor>) -> Vec<Tensor> {
    let types: Vec<TensorType> = outputs.iter().map(|t| t.ty.clone()).collect();
    let given: Vec<_> = inputs
        .iter()
        .map(|t| t.as_ref().map(|t| t.ty.clone()))
        .collect();
    let inferred = neap_ir::infer::output_types(op, &given, types.len()).expect("infers");
    assert_eq!(inferred, types);
    let ins: Vec<OperandForm> = (inputs.iter())
        .map(|t| t.as_ref().map(|t| (&t.ty, t.layout)))
        .collect();
    let outs: Vec<OperandForm> = types.iter().map(|ty| Some((ty, Layout::Plain))).collect();
    supported(op, &ins, &outs).expect("supported");
    let par = Threads(3);
    let isa = Isa::detect();
    let mut workspace = vec![0xA5u8; workspace_bytes(op, &ins, &outs, 3, isa)];
    let refs: Vec<Option<TensorRef>> = (inputs.iter())
        .map(|t| {
            t.as_ref().map(|t| {
                // SAFETY: the memory is as large as its type says and is not written during the call.
                unsafe { TensorRef::new(&t.ty, t.layout, t.data.as_ptr().cast()) }
            })
        })
        .collect();
    let muts: Vec<Option<TensorMut>> = (outputs.iter_mut().zip(&types))
        // SAFETY: as above, and each output is its own.
        .map(|(t, ty)| Some(unsafe { TensorMut::new(ty, t.layout, t.data.as_mut_ptr().cast()) }))
        .collect();
    let mut ctx = Context {
        par: &par,
        isa,
        workspace: &mut workspace,
    };
    execute(op, &refs, None, &muts, &mut ctx).expect("computed");
    outputs
}

#[test]
fn strips_of_keys_that_do_not_fit_are_refused() {
    let attrs = AttentionAttrs {
        heads: 1,
        kv_heads: 1,
        scale: 1.0,
        causal: false,
        nan_is_zero: false,
        q: HeadLayout::RowMajor,
        k: HeadLayout::RowMajor,
        v: HeadLayout::RowMajor,
        out: HeadLayout::RowMajor,
    };
    let ty = |rows: usize| TensorType::new(DType::F32, &[1, rows, 8]);
    let state = TensorType::new(DType::F32, &[1, 1, 2, 3]);
    let infers = |start: usize, keys: usize, before: bool| {
        let op = Op::AttendKeys(Box::new(KeyStrip {
            attrs: attrs.clone(),
            total: 1300,
            start,
        }));
        let mut inputs = vec![Some(ty(3)), Some(ty(keys)), Some(ty(keys)), None];
        inputs.extend(if before {
            [Some(ty(3)), Some(state.clone())]
        } else {
            [None, None]
        });
        let inferred = neap_ir::infer::output_types(&op, &inputs, 2);
        let forms: Vec<OperandForm> = (inputs.iter())
            .map(|ty| ty.as_ref().map(|ty| (ty, Layout::Plain)))
            .collect();
        inferred.is_ok_and(|outputs| {
            let outs: Vec<OperandForm> =
                outputs.iter().map(|ty| Some((ty, Layout::Plain))).collect();
            supported(&op, &forms, &outs).is_ok()
        })
    };
    assert!(infers(0, 512, false) && infers(512, 788, true));
    assert!(!infers(0, 512, true) && !infers(512, 788, false));
    assert!(!infers(0, 500, false) && !infers(500, 800, true));
    assert!(!infers(1024, 512, true) && !infers(usize::MAX, 512, true));
}
