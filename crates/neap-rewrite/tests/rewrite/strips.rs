//! Strips: no large image is whole, and layers follow one another strip by strip.

use crate::build::{Net, square};
use crate::interpret;
use neap_ir::op::{
    Activation, AttentionAttrs, CoordinateTransform, HeadLayout, NearestMode, Op, PadMode, Pool,
    Reduce, ResizeAttrs, ResizeMode, SliceRange, Window,
};
use neap_ir::{Literal, Program, ValueId};
use neap_rewrite::{live_bytes, with_strips};

fn names(program: &Program) -> Vec<&'static str> {
    let steps = program.steps.iter();
    steps
        .map(|step| program.graph.nodes[step.index()].op.name())
        .collect()
}

fn peak_bytes(program: &Program) -> u64 {
    live_bytes(program).into_iter().max().unwrap_or(0)
}

fn norm(net: &mut Net, x: ValueId, groups: usize) -> ValueId {
    let channels = net.shape(x)[1];
    let (scale, bias) = (net.weight(&[channels], 0.5), net.weight(&[channels], 0.5));
    let op = Op::GroupNorm {
        groups,
        epsilon: 1e-3,
        per_group: false,
    };
    net.op(op, &[x, scale, bias])
}

fn doubled(net: &mut Net, x: ValueId, mode: ResizeMode) -> ValueId {
    let shape = net.shape(x);
    let op = Op::Resize(ResizeAttrs {
        output_shape: vec![shape[0], shape[1], 2 * shape[2], 2 * shape[3]],
        scales: vec![1.0, 1.0, 2.0, 2.0],
        mode,
        coordinates: CoordinateTransform::HalfPixel,
        nearest: NearestMode::Floor,
        cubic_a: -0.75,
        exclude_outside: false,
        extrapolation: 0.0,
        antialias: false,
        roi: vec![],
    });
    net.op(op, &[x])
}

#[test]
fn a_chain_of_layers_goes_strip_by_strip() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 256, 16]);
    let mut y = net.conv(x, 16, 3, 1);
    for _ in 0..3 {
        y = net.conv(y, 16, 3, 1);
    }
    let y = net.conv(y, 1, 3, 1);
    net.output(y);
    let lowered = net.lower();
    let plain = &lowered.program;
    let strips = with_strips(plain, 8 << 10).expect("its images are of 256 KiB");
    assert!(
        peak_bytes(&strips) * 2 < peak_bytes(plain),
        "{} of {}",
        peak_bytes(&strips),
        peak_bytes(plain)
    );
    // The last layer has begun before the first is complete.
    let of = |name: &str| {
        let layers = strips
            .steps
            .iter()
            .map(|step| &strips.graph.nodes[step.index()]);
        let found: Vec<usize> = (layers.enumerate())
            .filter(|(_, node)| node.op.name() == "PanelConv" && node.name == name)
            .map(|(step, _)| step)
            .collect();
        found
    };
    let layers: Vec<&str> = plain.graph.nodes.iter().map(|n| n.name.as_str()).collect();
    let convolutions = (plain.graph.nodes.iter().zip(&layers))
        .filter(|(node, _)| node.op.name() == "PanelConv")
        .map(|(_, name)| of(name));
    let convolutions: Vec<Vec<usize>> = convolutions.collect();
    let (first, last) = (&convolutions[0], &convolutions[convolutions.len() - 1]);
    assert!(first.len() >= 8);
    assert!(last[0] < first[first.len() - 1]);
    assert!(strips.digest != plain.digest);
}

#[test]
fn norms_over_space_are_sums_of_strips() {
    for (groups, images) in [(1, 1), (4, 1), (32, 2)] {
        let mut net = Net::new();
        let x = net.input(&[images, 32, 24, 10]);
        let a = net.conv(x, 32, 3, 1);
        let b = norm(&mut net, a, groups);
        let b = net.activation(Activation::Silu, b);
        let b = net.conv(b, 32, 3, 1);
        let c = net.add(b, a);
        net.output(c);
        let lowered = net.lower();
        let strips = with_strips(&lowered.program, 4 << 10).expect("its images are longer");
        let names = names(&strips);
        assert!(!names.contains(&"GroupNormalization"));
        assert_eq!(
            names.iter().filter(|name| **name == "NormFactors").count(),
            1
        );
        assert!(names.iter().filter(|name| **name == "Moments").count() > 4);
        // The activation is part of it.
        assert!(!names.contains(&"Silu"));
    }
}

#[test]
fn images_in_strips_may_change_their_size() {
    for mode in [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic] {
        let mut net = Net::new();
        let x = net.input(&[1, 3, 21, 9]);
        let a = net.conv(x, 16, 3, 1);
        let pool = Op::Pool {
            kind: Pool::Max {
                column_major: false,
            },
            window: square(2, 2),
            output_spatial: vec![10, 4],
        };
        let b = net.op(pool, &[a]);
        let c = net.conv(b, 16, 3, 1);
        let c = doubled(&mut net, c, mode);
        let d = net.conv(c, 16, 1, 2);
        let e = doubled(&mut net, d, mode);
        let e = net.concat(1, &[c, e]);
        let e = net.conv(e, 4, 3, 1);
        net.output(e);
        net.lower();
    }
}

#[test]
fn tokens_of_images_come_in_strips() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 8, 6]);
    let a = net.conv(x, 16, 3, 1);
    let last = net.transpose(a, &[0, 2, 3, 1]);
    let rows = net.reshape(last, &[1, 48, 16]);
    let wide = net.weight(&[16, 64], 0.2);
    let wide = net.op(Op::MatMul, &[rows, wide]);
    let parts = net.split(2, &[32, 32], wide);
    let gate = net.activation(Activation::Gelu, parts[1]);
    let gated = net.mul(parts[0], gate);
    let narrow = net.weight(&[32, 16], 0.2);
    let narrow = net.op(Op::MatMul, &[gated, narrow]);
    let rows = net.add(narrow, rows);
    let last = net.reshape(rows, &[1, 8, 6, 16]);
    let image = net.transpose(last, &[0, 3, 1, 2]);
    let y = net.conv(image, 16, 3, 1);
    net.output(y);
    let lowered = net.lower();
    let plain = &lowered.program;
    let strips = with_strips(plain, 2 << 10).expect("12 KiB are wide");
    let wide = |program: &Program| {
        let values = program.graph.nodes.iter().flat_map(|n| n.present_outputs());
        let bytes = values.map(|v| program.graph.value(v).len_bytes());
        bytes.max().unwrap_or(0)
    };
    assert_eq!(wide(plain), 48 * 64 * 4);
    assert!(wide(&strips) <= 48 * 16 * 4, "{}", wide(&strips));
}

/// Rows that are padding alone are read, too.
#[test]
fn images_with_wide_borders() {
    for mode in [PadMode::Constant, PadMode::Edge, PadMode::Reflect] {
        let mut net = Net::new();
        let x = net.input(&[1, 16, 24, 8]);
        let a = net.conv(x, 16, 3, 1);
        let pads = vec![(0, 0), (0, 0), (5, 6), (1, 1)];
        let b = net.op(Op::Pad { mode, pads }, &[a]);
        let c = net.conv(b, 16, 3, 1);
        net.output(c);
        let lowered = net.lower();
        // Zeros join the convolution, of which a row that reads nothing else is not computed for itself.
        if mode != PadMode::Constant {
            in_strips(&lowered.program, 1 << 10);
        }
    }
}

/// In strips, where no value is of more than twice as many bytes, or half of the largest of the program.
fn in_strips(plain: &Program, bytes: u64) -> Program {
    let strips = with_strips(plain, bytes).expect("its images are longer");
    let longest = |program: &Program| {
        // Results into which strips are put lie in the memory of one.
        let nodes = program
            .graph
            .nodes
            .iter()
            .filter(|n| n.op.name() != "PutRows");
        let made = nodes.flat_map(|n| n.present_outputs());
        let inner = made.filter(|v| !program.graph.outputs.contains(v));
        let bytes = inner.map(|v| program.graph.value(v).len_bytes() as u64);
        bytes.max().unwrap_or(0)
    };
    assert!(
        longest(&strips) <= (2 * bytes).max(longest(plain) / 2),
        "{} of {}",
        longest(&strips),
        longest(plain)
    );
    strips
}

/// Scales by what all places of a channel say: the image goes by twice, and is never whole.
#[test]
fn channels_are_scaled_by_a_pooling_of_all_places() {
    let average = Op::GlobalPool(Pool::Average {
        count_include_pad: false,
    });
    let largest = Op::GlobalPool(Pool::Max {
        column_major: false,
    });
    let reduce = |kind, keep_dims| Op::Reduce {
        kind,
        axes: vec![2, 3],
        keep_dims,
    };
    for pooling in [
        average,
        largest,
        reduce(Reduce::Mean, true),
        reduce(Reduce::Max, true),
        reduce(Reduce::Mean, false),
    ] {
        for (images, channels) in [(1, 32), (2, 20)] {
            let mut net = Net::new();
            let x = net.input(&[images, 3, 40, 12]);
            let a = net.conv(x, channels, 3, 1);
            let a = net.activation(Activation::Silu, a);
            let pooled = net.op(pooling.clone(), &[a]);
            let pooled = net.reshape(pooled, &[images, channels, 1, 1]);
            let squeezed = net.conv(pooled, 8, 1, 1);
            let squeezed = net.activation(Activation::Silu, squeezed);
            let scale = net.conv(squeezed, channels, 1, 1);
            let scale = net.activation(Activation::Sigmoid, scale);
            let scaled = net.mul(a, scale);
            let b = net.conv(scaled, 16, 1, 1);
            net.output(b);
            let lowered = net.lower();
            let strips = in_strips(&lowered.program, 4 << 10);
            let names = names(&strips);
            let count = |wanted: &str| names.iter().filter(|name| **name == wanted).count();
            assert!(count("FoldPlaces") > 4);
            assert_eq!(count("PoolPlaces"), 1);
            assert_eq!(count("GlobalAveragePool") + count("ReduceMean"), 0);
        }
    }
}

#[test]
fn images_are_spread_by_transposed_convolutions() {
    for (kernel, stride, dilation, pad, more) in [
        (2, 2, 1, 0, 0),
        (4, 2, 1, 1, 0),
        (3, 2, 1, 1, 1),
        (1, 2, 1, 0, 1),
        (3, 1, 2, 2, 0),
        (5, 3, 1, 1, 2),
    ] {
        let mut net = Net::new();
        let x = net.input(&[1, 16, 14, 9]);
        let a = net.conv(x, 16, 3, 1);
        let weight = net.weight(&[16, 16, kernel, kernel], 0.2);
        let bias = net.weight(&[16], 0.2);
        let reach = (kernel - 1) * dilation + 1;
        let size = |places: usize| (places - 1) * stride + reach + more - 2 * pad;
        let op = Op::ConvTranspose {
            window: Window {
                kernel: vec![kernel; 2],
                strides: vec![stride; 2],
                dilations: vec![dilation; 2],
                pads_begin: vec![pad; 2],
                pads_end: vec![pad; 2],
            },
            groups: 1,
            output_spatial: vec![size(14), size(9)],
        };
        let b = net.op(op, &[a, weight, bias]);
        let c = net.conv(b, 16, 3, 1);
        net.output(c);
        let lowered = net.lower();
        in_strips(&lowered.program, 2 << 10);
    }
}

/// One of some places, some places of all, and one of all channels.
#[test]
fn images_of_which_parts_are_taken() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 26, 10]);
    let a = net.conv(x, 16, 3, 1);
    let quarter = |at: usize| {
        let range = |start, step, len| SliceRange { start, step, len };
        let all = range(0, 1, 16);
        let ranges = vec![range(0, 1, 1), all, range(at, 2, 13), range(at, 2, 5)];
        Op::Slice { ranges }
    };
    let parts = [net.op(quarter(0), &[a]), net.op(quarter(1), &[a])];
    let b = net.concat(1, &parts);
    let c = net.conv(b, 24, 3, 1);
    let most = net.op(
        Op::Reduce {
            kind: Reduce::Max,
            axes: vec![1],
            keep_dims: false,
        },
        &[c],
    );
    let which = net.op(
        Op::ArgReduce {
            largest: true,
            axis: 1,
            keep_dims: false,
            select_last: false,
        },
        &[c],
    );
    net.output(most);
    net.output(which);
    let lowered = net.lower();
    in_strips(&lowered.program, 1 << 10);
}

#[test]
fn rows_that_are_normalised_are_not_gathered_before() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 32, 16]);
    let a = net.conv(x, 16, 3, 1);
    let b = norm(&mut net, a, 4);
    let b = net.conv(b, 16, 3, 1);
    net.output(b);
    let lowered = net.lower();
    let names = names(&in_strips(&lowered.program, 4 << 10));
    let count = |wanted: &str| names.iter().filter(|name| **name == wanted).count();
    // The input's rows are.
    assert_eq!(count("Rows"), count("Normalise"), "{names:?}");
    assert_eq!(count("Moments"), count("Normalise"));
}

/// An attention over the places of an image of 40 x 32, which a layer made and another takes; with its keys and values as they lie.
fn attention_over_places(
    heads: [usize; 2],
    [q, k, v]: [HeadLayout; 3],
    mask: Option<&[usize]>,
    attrs: impl Fn(&mut AttentionAttrs),
) -> Net {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 40, 32]);
    let mask = mask.map(|shape| net.input(shape));
    let a = net.conv(x, 16, 3, 1);
    let last = net.transpose(a, &[0, 2, 3, 1]);
    let rows = net.reshape(last, &[1, 1280, 16]);
    let operand = |net: &mut Net, heads: usize, layout: HeadLayout| {
        let weight = net.weight(&[16, 8 * heads], 0.5);
        let made = net.op(Op::MatMul, &[rows, weight]);
        let apart = [1, 1280, heads, 8];
        match layout {
            HeadLayout::RowMajor => made,
            HeadLayout::HeadMajor => {
                let apart = net.reshape(made, &apart);
                net.transpose(apart, &[0, 2, 1, 3])
            }
            _ => {
                let apart = net.reshape(made, &apart);
                net.transpose(apart, &[0, 2, 3, 1])
            }
        }
    };
    let mut operands = vec![
        operand(&mut net, heads[0], q),
        operand(&mut net, heads[1], k),
        operand(&mut net, heads[1], v),
    ];
    operands.extend(mask);
    let mut own = AttentionAttrs {
        heads: heads[0],
        kv_heads: heads[1],
        scale: 0.5,
        causal: false,
        nan_is_zero: false,
        q,
        k,
        v,
        out: HeadLayout::RowMajor,
    };
    attrs(&mut own);
    let y = net.op(Op::Attention(own), &operands);
    let narrow = net.weight(&[8 * heads[0], 16], 0.2);
    let y = net.op(Op::MatMul, &[y, narrow]);
    let y = net.add(y, rows);
    let last = net.reshape(y, &[1, 40, 32, 16]);
    let image = net.transpose(last, &[0, 3, 1, 2]);
    let y = net.conv(image, 16, 3, 1);
    net.output(y);
    net
}

#[test]
fn strips_of_queries_pass_over_strips_of_keys() {
    use HeadLayout::{HeadMajor, HeadMajorTransposed, RowMajor};
    let whole = |_: &mut AttentionAttrs| {};
    for (heads, layouts, mask) in [
        ([1, 1], [RowMajor; 3], None),
        ([2, 1], [RowMajor, HeadMajorTransposed, HeadMajor], None),
        ([2, 2], [HeadMajor; 3], Some(&[1280, 1280][..])),
        (
            [4, 2],
            [HeadMajor, RowMajor, RowMajor],
            Some(&[1, 1, 1, 1280]),
        ),
        ([2, 1], [RowMajor; 3], Some(&[2, 1280, 1])),
    ] {
        let mut net = attention_over_places(heads, layouts, mask, whole);
        let lowered = net.lower();
        let plain = &lowered.program;
        let shapes = plain
            .graph
            .inputs
            .iter()
            .map(|&v| plain.graph.ty(v).shape.clone());
        let inputs: Vec<Literal> = (shapes.collect::<Vec<_>>().into_iter())
            .map(|shape| {
                let data: Vec<f32> = (0..shape.iter().product::<usize>())
                    .map(|_| 3.0 * net.random.float())
                    .collect();
                Literal::from_f32(&shape, &data)
            })
            .collect();
        let expected = interpret::run_program(&lowered, plain, &inputs);
        for bytes in [4 << 10, 12 << 10, 30 << 10] {
            let strips = with_strips(plain, bytes).expect("40 KiB are longer");
            let names = names(&strips);
            assert!(!names.contains(&"Attention"), "{names:?}");
            let nodes = strips.graph.nodes.iter();
            let walks = nodes.filter(|node| node.op.name() == "AttendKeys");
            let (begins, goes_on) = walks.partition::<Vec<_>, _>(|node| node.input(4).is_none());
            // By each strip of queries, over two strips of keys or all three.
            let passes = goes_on.len() / begins.len();
            assert!((1..=2).contains(&passes) && begins.len() > 1, "{names:?}");
            assert_eq!(goes_on.len() % begins.len(), 0);
            let found = interpret::run_program(&lowered, &strips, &inputs);
            assert!(
                found == expected,
                "other bits in strips of {bytes}: {heads:?} {layouts:?}"
            );
        }
    }
}

/// Queries are made for the strip that passes over the keys, and are not kept.
#[test]
fn queries_come_last() {
    let mut net = attention_over_places([1, 1], [HeadLayout::RowMajor; 3], None, |_| {});
    let lowered = net.lower();
    let strips = with_strips(&lowered.program, 12 << 10).expect("80 KiB are longer");
    let nodes: Vec<_> = strips
        .steps
        .iter()
        .map(|step| &strips.graph.nodes[step.index()])
        .collect();
    let first = nodes
        .iter()
        .position(|node| node.op.name() == "AttendKeys")
        .expect("one");
    let q = nodes[first].input(0).expect("queries");
    let makes = |at: &usize| nodes[*at].present_outputs().any(|v| v == q);
    let maker = (0..first).find(makes).expect("made before");
    assert_eq!(nodes[maker].op.name(), "PanelLinear");
    let queries = nodes[first..]
        .iter()
        .filter(|node| node.name == nodes[maker].name);
    assert!(queries.count() > 2);
}

/// Rows whose NaN are zeros need all values at once; of causal ones, tiles skip keys.
#[test]
fn other_attentions_have_whole_keys() {
    let causal = |attrs: &mut AttentionAttrs| attrs.causal = true;
    let guarded = |attrs: &mut AttentionAttrs| attrs.nan_is_zero = true;
    let row_major = [HeadLayout::RowMajor; 3];
    for mut net in [
        attention_over_places([1, 1], row_major, None, causal),
        attention_over_places([1, 1], row_major, None, guarded),
    ] {
        let lowered = net.lower();
        let strips = with_strips(&lowered.program, 12 << 10).expect("80 KiB are longer");
        assert!(!names(&strips).contains(&"AttendKeys"));
    }
}

#[test]
fn what_is_short_stays_whole() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 8, 8]);
    let y = net.conv(x, 16, 3, 1);
    net.output(y);
    let lowered = net.lower();
    assert!(with_strips(&lowered.program, 1 << 20).is_none());
}
