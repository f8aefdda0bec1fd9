//! Speed of the kernels that are not matrix products, on one core and the shapes networks have.
//!
//! `cargo run --release -p neap-kernels --example layer_bench [-- ISA] [FILTER]` prints the best of
//! many runs: microseconds, GB/s over sources and destination, and GFLOP/s where sums of products
//! are what takes the time. Data is warm, as between the layers of a network.

use neap_kernels::attention::{Attention, KeyLayout, Strides, attention, attention_scratch_bytes};
use neap_kernels::depthwise::{Depthwise, depthwise};
use neap_kernels::elementwise::{Binary, Operand, Unary, affine, binary, unary};
use neap_kernels::epilogue::{Activation, Epilogue};
use neap_kernels::parallel::Serial;
use neap_kernels::pool::{Pool, average_pool, global_average, max_pool};
use neap_kernels::reorder;
use neap_kernels::resize::{LinearAxis, bilinear};
use neap_kernels::rows::{Input, Softmax, layer_norm, softmax};
use neap_kernels::simd::Isa;
use neap_kernels::window::Window;
use std::time::{Duration, Instant};

struct Bench {
    isa: Isa,
    filter: String,
}

impl Bench {
    /// Runs `body` for a fifth of a second and prints its best time.
    fn run(&self, name: &str, floats: usize, multiply_adds: usize, mut body: impl FnMut()) {
        if !name.contains(&self.filter) {
            return;
        }
        let (start, mut best) = (Instant::now(), Duration::MAX);
        while start.elapsed() < Duration::from_millis(200) {
            let once = Instant::now();
            body();
            best = best.min(once.elapsed());
        }
        let seconds = best.as_secs_f64();
        print!(
            "{name:38} {:9.1} us {:7.1} GB/s",
            seconds * 1e6,
            floats as f64 * 4e-9 / seconds
        );
        if multiply_adds > 0 {
            print!(" {:7.1} GFLOP/s", 2e-9 * multiply_adds as f64 / seconds);
        }
        println!();
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[allow(dead_code, reason = "read through slices")] [f32; 16]);

/// Floats that start on a cache line, as the buffers of an arena do.
#[derive(Clone)]
struct Floats {
    lines: Vec<Line>,
    len: usize,
}

impl std::ops::Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the lines are 16 floats each and hold at least `len`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: the lines are 16 floats each and hold at least `len`.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

/// Numbers that keep every function in its usual range.
fn values(len: usize) -> Floats {
    let value = |i: usize| (i * 7919 % 1000) as f32 / 500.0 - 1.0;
    let line = |l: usize| Line(std::array::from_fn(|i| value(l * 16 + i)));
    Floats {
        lines: (0..len.div_ceil(16)).map(line).collect(),
        len,
    }
}

fn main() {
    let mut bench = Bench {
        isa: Isa::detect(),
        filter: String::new(),
    };
    for argument in std::env::args().skip(1) {
        match Isa::by_name(&argument) {
            Some(isa) => bench.isa = isa,
            None => bench.filter = argument,
        }
    }
    println!("{}", bench.isa.name());
    convolutions(&bench);
    pools(&bench);
    maps(&bench);
    rows(&bench);
    attentions(&bench);
    moves(&bench);
}

fn convolutions(bench: &Bench) {
    // channels, input, kernel, stride
    for (channels, size, kernel, stride) in [
        (32, 112, 3, 1),
        (96, 112, 3, 2),
        (144, 56, 3, 1),
        (144, 56, 3, 2),
        (192, 28, 3, 1),
        (384, 14, 3, 1),
        (576, 14, 3, 2),
        (960, 7, 3, 1),
        (240, 28, 5, 1),
        (240, 56, 5, 2),
        (672, 14, 5, 1),
        (1152, 7, 5, 1),
    ] {
        let out: usize = (size - 1) / stride + 1;
        let shape = Depthwise {
            batch: 1,
            channels,
            window: Window {
                input: [size; 2],
                output: [out; 2],
                kernel: [kernel; 2],
                strides: [stride; 2],
                dilations: [1; 2],
                pads_begin: [kernel / 2; 2],
                pads_end: [0; 2],
            },
        };
        let blocks = channels.div_ceil(16);
        let weights = values(blocks * shape.panel_floats());
        let input = values(blocks * 16 * size * size);
        let mut output = values(blocks * 16 * out * out);
        let epilogue = Epilogue {
            activation: Activation::Clip {
                low: 0.0,
                high: 6.0,
            },
            ..Epilogue::default()
        };
        let name = format!("depthwise {kernel}x{kernel} s{stride} {channels} {size}x{size}");
        let work = out * out * blocks * 16 * kernel * kernel;
        bench.run(&name, input.len() + output.len(), work, || {
            depthwise(
                bench.isa,
                &Serial,
                &shape,
                0..blocks,
                &*weights,
                &input,
                &mut output,
                epilogue,
            )
            .unwrap();
        });
    }
}

fn pools(bench: &Bench) {
    let pool = |planes, size: usize, kernel, stride: usize| Pool {
        planes,
        window: Window {
            input: [size; 2],
            output: [(size - 1) / stride + 1; 2],
            kernel: [kernel; 2],
            strides: [stride; 2],
            dilations: [1; 2],
            pads_begin: [kernel / 2; 2],
            pads_end: [kernel / 2; 2],
        },
    };
    for (planes, size, kernel, stride) in [
        (4, 112, 3, 2),
        (4, 224, 2, 2),
        (12, 35, 3, 1),
        (32, 13, 5, 1),
    ] {
        let pool = pool(planes, size, kernel, stride);
        let src = values(planes * size * size * 16);
        let mut dst = values(planes * pool.window.output[0] * pool.window.output[1] * 16);
        let name = format!(
            "pool {kernel}x{kernel} s{stride} {} {size}x{size}",
            planes * 16
        );
        bench.run(&format!("max {name}"), src.len() + dst.len(), 0, || {
            max_pool(bench.isa, &Serial, &pool, &src, &mut dst).unwrap();
        });
        bench.run(&format!("average {name}"), src.len() + dst.len(), 0, || {
            average_pool(bench.isa, &Serial, &pool, true, &src, &mut dst).unwrap();
        });
    }
    let src = values(128 * 49 * 16);
    let mut dst = values(128 * 16);
    bench.run("global average 2048 7x7", src.len(), 0, || {
        global_average(bench.isa, &Serial, 128, 49, &src, &mut dst).unwrap();
    });
}

fn maps(bench: &Bench) {
    let len = 64 * 56 * 56;
    let (a, b, mut dst) = (values(len), values(len), values(len));
    for op in [
        Unary::Relu,
        Unary::Sigmoid,
        Unary::Tanh,
        Unary::Gelu,
        Unary::GeluTanh,
        Unary::Silu,
        Unary::HardSwish,
        Unary::Mish,
        Unary::Exp,
        Unary::Erf,
    ] {
        bench.run(&format!("unary {op:?} 800 KB"), 2 * len, 0, || {
            unary(bench.isa, &Serial, op, &a, &mut dst).unwrap();
        });
    }
    let mut two = |name: &str, rows: usize, cols: usize, b: Operand<'_>, activation| {
        bench.run(&format!("binary {name} 800 KB"), 3 * len, 0, || {
            binary(
                bench.isa,
                &Serial,
                Binary::Add,
                rows,
                cols,
                Operand::Full(&a),
                b,
                &mut dst,
                activation,
            )
            .unwrap();
        });
    };
    two("add", 1, len, Operand::Full(&b), Activation::None);
    two("add relu", 1, len, Operand::Full(&b), Activation::Relu);
    two("add scalar", 1, len, Operand::Scalar(1.5), Activation::None);
    two(
        "add row of 768",
        len / 768,
        768,
        Operand::Row(&b),
        Activation::None,
    );
    two(
        "add column of 3136",
        64,
        3136,
        Operand::Column(&b[..64]),
        Activation::None,
    );
    two(
        "add channel, blocked",
        4,
        3136 * 16,
        Operand::Lanes(&b[..64]),
        Activation::None,
    );
    let (x, s, t) = (
        Operand::Full(&a),
        Operand::Lanes(&b[..64]),
        Operand::Lanes(&b[64..128]),
    );
    bench.run("affine relu, blocked 800 KB", 2 * len, 0, || {
        affine(
            bench.isa,
            &Serial,
            4,
            3136 * 16,
            x,
            s,
            t,
            &mut dst,
            Activation::Relu,
        )
        .unwrap();
    });
}

fn rows(bench: &Bench) {
    for (rows, cols) in [(12 * 197, 197), (12 * 128, 128), (1, 1000), (10, 50_257)] {
        let src = values(rows * cols);
        let mut dst = values(rows * cols);
        bench.run(&format!("softmax {rows}x{cols}"), 2 * src.len(), 0, || {
            softmax(
                bench.isa,
                &Serial,
                Softmax::Plain,
                rows,
                cols,
                Input::From(&src),
                &mut dst,
            )
            .unwrap();
        });
    }
    let (src, scale, mut dst) = (values(197 * 768), values(768), values(197 * 768));
    bench.run("layer norm 197x768", 2 * src.len(), 0, || {
        let factor = Some(&scale[..]);
        layer_norm(
            bench.isa,
            &Serial,
            197,
            768,
            1e-5,
            factor,
            factor,
            Input::From(&src),
            &mut dst,
        )
        .unwrap();
    });
}

fn attentions(bench: &Bench) {
    for (name, batch, heads, len, dim, causal, keys) in [
        ("vit_b_16", 1, 12, 197, 64, None, KeyLayout::Rows),
        (
            "vit_b_16 transposed keys",
            1,
            12,
            197,
            64,
            None,
            KeyLayout::Transposed,
        ),
        ("gpt2 causal", 1, 12, 128, 64, Some(0), KeyLayout::Rows),
        ("bert", 1, 12, 32, 32, None, KeyLayout::Rows),
        ("long", 1, 2, 2048, 64, None, KeyLayout::Rows),
    ] {
        let packed = Strides {
            batch: len * heads * dim,
            head: dim,
            row: heads * dim,
        };
        let k = match keys {
            KeyLayout::Rows => packed,
            KeyLayout::Transposed => Strides {
                batch: len * heads * dim,
                head: len * dim,
                row: len,
            },
        };
        let shape = Attention {
            batch,
            heads_q: heads,
            heads_kv: heads,
            q_len: len,
            kv_len: len,
            head_dim: dim,
            v_dim: dim,
            scale: 0.125,
            softcap: 0.0,
            causal,
            nan_is_zero: false,
            mask: None,
            q: packed,
            k,
            v: packed,
            out: packed,
            keys,
        };
        let data = values(batch * heads * len * dim);
        let mut out = data.clone();
        let mut scratch = values(attention_scratch_bytes(&shape, 1) / 4);
        let pairs = if causal.is_some() {
            len * (len + 1) / 2
        } else {
            len * len
        };
        bench.run(
            &format!("attention {name}"),
            4 * data.len(),
            2 * batch * heads * pairs * dim,
            || {
                attention(
                    bench.isa,
                    &Serial,
                    &shape,
                    &data,
                    &data,
                    &data,
                    &mut out,
                    &mut scratch,
                )
                .unwrap();
            },
        );
    }
}

fn moves(bench: &Bench) {
    for (channels, positions) in [(64, 56 * 56), (256, 14 * 14), (768, 14 * 14), (2048, 49)] {
        let src = values(channels * positions);
        let mut dst = src.clone();
        let both = 2 * src.len();
        bench.run(
            &format!("to blocked {channels} x {positions}"),
            both,
            0,
            || {
                reorder::plain_to_blocked(
                    bench.isa, &Serial, 1, channels, positions, &src, &mut dst,
                )
                .unwrap();
            },
        );
        bench.run(
            &format!("to plain {channels} x {positions}"),
            both,
            0,
            || {
                reorder::blocked_to_plain(
                    bench.isa, &Serial, 1, channels, positions, &src, &mut dst,
                )
                .unwrap();
            },
        );
    }
    let low: Vec<u32> = (0..224).map(|i| i / 8).collect();
    let high: Vec<u32> = low.iter().map(|&i| (i + 1).min(27)).collect();
    let weight = values(224);
    let axis = LinearAxis {
        low: &low,
        high: &high,
        weight: &weight,
    };
    let src = values(2 * 28 * 28 * 16);
    let mut dst = values(2 * 224 * 224 * 16);
    bench.run("bilinear 32 28x28 to 224x224", dst.len(), 0, || {
        bilinear(bench.isa, &Serial, 2, [28, 28], axis, axis, &src, &mut dst).unwrap();
    });
}
