//! Prints how long the backward pass of an LSTM takes, and its products with the recurrent weights as GFLOP/s.
//!
//! `cargo run --release -p neap-ops --example recurrent_bench`

use neap_ir::op::{Direction, Recurrent, RecurrentActivation as A};
use neap_ir::{Gradient, Layout, Literal, Op, TensorType, infer};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_ops::{Context, OperandForm, TensorMut, TensorRef, execute, workspace_bytes};
use std::time::{Duration, Instant};

fn noise(shape: &[usize]) -> Literal {
    let n = shape.iter().product();
    let data: Vec<f32> = (0..n)
        .map(|i| (i * 7 % 97) as f32 * 0.001 - 0.048)
        .collect();
    Literal::from_f32(shape, &data)
}

fn bench(steps: usize, batch: usize, hidden: usize) {
    let op = Op::Gradient(Gradient::Lstm(Recurrent {
        hidden,
        direction: Direction::Forward,
        activations: vec![A::Sigmoid, A::Tanh, A::Tanh],
        clip: None,
        couple_input_forget: false,
        batch_first: false,
        rounds_state: false,
        in_panels: false,
    }));
    // What inputs give, weights, bias, and the derivative by all states; neither lengths nor initial states.
    let mut inputs: Vec<Option<Literal>> = vec![None; 10];
    inputs[0] = Some(noise(&[steps, batch, 4 * hidden]));
    inputs[1] = Some(noise(&[1, 4 * hidden, hidden]));
    inputs[2] = Some(noise(&[1, 8 * hidden]));
    inputs[7] = Some(noise(&[steps, 1, batch, hidden]));
    let types: Vec<Option<TensorType>> =
        inputs.iter().map(|l| l.as_ref().map(|l| l.ty())).collect();
    let out_types = infer::output_types(&op, &types, 6).expect("infers");
    let form = |t: &'static TensorType| (t, Layout::Plain);
    let leak = |t: &TensorType| -> &'static TensorType { Box::leak(Box::new(t.clone())) };
    let types: Vec<Option<&'static TensorType>> =
        types.iter().map(|t| t.as_ref().map(leak)).collect();
    let ins: Vec<OperandForm> = types.iter().map(|t| t.map(form)).collect();
    let out_types: Vec<&'static TensorType> = out_types.iter().map(leak).collect();
    let outs: Vec<OperandForm> = out_types.iter().map(|t| Some(form(t))).collect();
    let isa = Isa::detect();
    let mut workspace = vec![0u8; workspace_bytes(&op, &ins, &outs, 1, isa)];
    let mut results: Vec<Literal> = (out_types.iter())
        .map(|t| Literal::zeros(t.dtype, &t.shape))
        .collect();
    let refs: Vec<Option<TensorRef>> = (types.iter().zip(&inputs))
        .map(|(t, l)| TensorRef::from_bytes((*t)?, l.as_ref()?.bytes()))
        .collect();
    let muts: Vec<Option<TensorMut>> = (out_types.iter().zip(&mut results))
        .map(|(t, l)| TensorMut::from_bytes(t, l.bytes_mut()))
        .collect();
    let mut best = Duration::MAX;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        let mut ctx = Context {
            par: &Serial,
            isa,
            workspace: &mut workspace,
        };
        let start = Instant::now();
        execute(&op, &refs, None, &muts, &mut ctx).expect("runs");
        best = best.min(start.elapsed());
    }
    // Of the state forward, and of the gates backward.
    let flops = 2.0 * 2.0 * (4 * hidden * hidden * batch * steps) as f64;
    println!(
        "{steps:>4} steps, {batch:>3} sequences, state of {hidden:>4}: {:>9.2} ms {:>7.1} GFLOP/s",
        best.as_secs_f64() * 1e3,
        flops / best.as_secs_f64() / 1e9
    );
}

fn main() {
    for (steps, batch, hidden) in [
        (64, 1, 256),
        (64, 8, 256),
        (64, 32, 256),
        (32, 32, 512),
        (16, 32, 1024),
    ] {
        bench(steps, batch, hidden);
    }
}
