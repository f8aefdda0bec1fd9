//! Row bands: which layers become chains, and that memory needs fall.

use crate::build::{Net, square};
use crate::lower::EAGER;
use neap_ir::bands::Bands;
use neap_ir::op::{Activation, Op, Pool};
use neap_ir::panel::PanelFormat;
use neap_ir::{Program, ValueId};
use neap_rewrite::{BandLimits, with_bands};

fn max_pool(net: &mut Net, x: ValueId) -> ValueId {
    let shape = net.shape(x);
    let op = Op::Pool {
        kind: Pool::Max {
            column_major: false,
        },
        window: square(2, 2),
        output_spatial: vec![shape[2] / 2, shape[3] / 2],
    };
    net.op(op, &[x])
}

fn relu_conv(net: &mut Net, x: ValueId, c_out: usize) -> ValueId {
    let y = net.conv(x, c_out, 3, 1);
    net.relu(y)
}

fn depthwise(net: &mut Net, x: ValueId) -> ValueId {
    let channels = net.shape(x)[1];
    let weight = net.weight(&[channels, 1, 3, 3], 0.3);
    let y = net.op(Op::Conv(square(3, 1), channels), &[x, weight]);
    net.relu(y)
}

fn chains(program: &Program) -> Vec<&Bands> {
    let nodes = program.graph.nodes.iter();
    nodes
        .filter_map(|n| match &n.op {
            Op::Bands(bands) => Some(bands),
            _ => None,
        })
        .collect()
}

/// Most buffer bytes that live at once.
fn peak_bytes(program: &Program) -> u64 {
    let at = |step: usize| {
        let live = program.buffers.iter();
        live.filter(|b| b.live.contains(&(step as u32)))
            .map(|b| b.bytes)
            .sum::<u64>()
    };
    (0..program.steps.len()).map(at).max().unwrap_or(0)
}

#[test]
fn a_chain_of_large_layers_becomes_one_step() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 32, 32]);
    let a = relu_conv(&mut net, x, 32);
    let b = relu_conv(&mut net, a, 32);
    let c = max_pool(&mut net, b);
    let d = relu_conv(&mut net, c, 32);
    net.output(d);
    let lowered = net.lower();
    let plain = &lowered.program;
    let banded = with_bands(plain, &EAGER).expect("it is worth it");
    assert!(peak_bytes(&banded) * 3 < peak_bytes(plain));
    assert_eq!(chains(&banded).len(), 1);
    assert!(chains(&banded)[0].layers.len() >= 3);
    assert_ne!(banded.digest, plain.digest);
    // The same weights in the same order: one packed file serves both.
    let names = |p: &Program| -> Vec<(String, u64)> {
        let packed = p.packed.iter();
        packed.map(|p| (p.name.clone(), p.bytes)).collect()
    };
    assert_eq!(names(&banded), names(plain));
}

#[test]
fn small_programs_stay_as_they_are() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 32, 32]);
    let a = relu_conv(&mut net, x, 32);
    let b = relu_conv(&mut net, a, 32);
    net.output(b);
    let lowered = net.lower();
    let limits = BandLimits {
        enough_bytes: 10 << 20,
        ..EAGER
    };
    assert!(with_bands(&lowered.program, &limits).is_none());
}

#[test]
fn weights_of_a_chain_are_limited() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 32, 32]);
    let mut y = relu_conv(&mut net, x, 32);
    for _ in 0..4 {
        y = relu_conv(&mut net, y, 32);
    }
    net.output(y);
    let lowered = net.lower();
    let one = 2 * (1 + 32 * 9) * 64;
    let limits = BandLimits {
        weight_bytes: 2 * one,
        ..EAGER
    };
    let banded = with_bands(&lowered.program, &limits).expect("two layers fit");
    for chain in chains(&banded) {
        let weights = chain.layers.iter();
        let weights = weights.filter_map(|l| l.weight_type(PanelFormat::default()));
        let bytes = weights.map(|ty| ty.len_bytes() as u64).sum::<u64>();
        assert!(bytes <= limits.weight_bytes);
    }
}

#[test]
fn a_residual_block_runs_in_the_memory_of_its_input() {
    let mut net = Net::new();
    let image = net.input(&[1, 3, 24, 24]);
    let x = relu_conv(&mut net, image, 16);
    let a = net.conv(x, 96, 1, 1);
    let a = net.activation(
        Activation::Clip {
            low: 0.0,
            high: 6.0,
        },
        a,
    );
    let b = depthwise(&mut net, a);
    let c = net.conv(b, 16, 1, 1);
    let y = net.add(c, x);
    net.output(y);
    let lowered = net.lower();
    let banded = with_bands(&lowered.program, &EAGER).expect("it is worth it");
    let block = chains(&banded)
        .into_iter()
        .find(|c| c.residual_input().is_some())
        .expect("the block is a chain");
    assert_eq!(block.layers.len(), 3);
    // Nothing but the trunk, 16 channels, and the plain output at the end.
    let trunk = 16 * 24 * 24 * 4;
    assert!(peak_bytes(&banded) <= 2 * trunk, "{}", peak_bytes(&banded));
}

#[test]
fn results_that_are_read_twice_are_kept_whole() {
    let mut net = Net::new();
    let x = net.input(&[1, 3, 32, 32]);
    let a = relu_conv(&mut net, x, 32);
    let b = relu_conv(&mut net, a, 32);
    net.output(b);
    let c = relu_conv(&mut net, b, 32);
    let d = relu_conv(&mut net, c, 32);
    net.output(d);
    let lowered = net.lower();
    let banded = with_bands(&lowered.program, &EAGER).expect("it is worth it");
    assert!(chains(&banded).iter().all(|c| c.layers.len() == 2));
}
