//! Strips: no large image is whole, and layers follow one another strip by strip.

use crate::build::{Net, square};
use neap_ir::op::{
    Activation, CoordinateTransform, NearestMode, Op, PadMode, Pool, ResizeAttrs, ResizeMode,
};
use neap_ir::{Program, ValueId};
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
    let mut net = Net::new();
    let x = net.input(&[1, 16, 12, 8]);
    let a = net.conv(x, 16, 3, 1);
    let pads = vec![(0, 0), (0, 0), (5, 6), (1, 1)];
    let mode = PadMode::Constant;
    let b = net.op(Op::Pad { mode, pads }, &[a]);
    let c = net.conv(b, 16, 3, 1);
    net.output(c);
    net.lower();
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
