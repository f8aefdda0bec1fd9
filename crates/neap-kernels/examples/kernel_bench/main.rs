//! Speed of the kernels that multiply matrices, on the shapes of well-known networks, on one core.
//!
//! `cargo run --release -p neap-kernels --example kernel_bench [-- [ISA] [--markdown] [FILTER]]` prints a line for
//! each kernel and shape:
//!
//! ```text
//!   GFLOP/s    of the best run, operations counted as for direct convolution
//!   share      median, as a share of the peak: multiply-adds of one core, measured before and after each line
//!   MB         weights, input and output, each once
//!   GB/s       those bytes in the median run, and as a share of what one core reads from memory at best
//! ```
//! Every run uses another copy of the weights, as in a network, where they come from memory; where a layer
//! could keep them in cache, `warm` is the share with one copy. `--markdown` prints docs/kernels.md.

mod machine;
mod shapes;

use machine::{bandwidth_gb, measure, peak_gflops};
use neap_kernels::conv::{
    ConvForm, ConvShape, conv_blocked, conv_first_layer, conv_first_layer_scratch_bytes,
    conv_narrow_groups,
};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::linear::{LinearShape, MatMulShape, linear, matmul, matmul_scratch_bytes};
use neap_kernels::panel::panel_floats;
use neap_kernels::parallel::Serial;
use neap_kernels::simd::{Isa, LANES};
use neap_kernels::window::Window;
use neap_kernels::winograd::{
    Tile, WeightForm, Weights, conv_winograd, prepared_panel_floats, workspace_bytes,
};
use shapes::{CONVOLUTIONS, Conv, LINEARS, PRODUCTS};
use std::time::Duration;

/// Copies of large weights that a run walks through.
const COLD_BYTES: usize = 192 << 20;

/// From so many bytes of weights on, a run with one copy differs from one with many.
const LARGE_BYTES: usize = 512 << 10;

/// How long each figure is measured for, at least.
const EACH: Duration = Duration::from_millis(150);

/// Floats that begin on a cache line, as in an engine's arena.
struct Aligned {
    floats: Vec<f32>,
    start: usize,
}

impl Aligned {
    fn new(len: usize, value: f32) -> Self {
        let floats = vec![value; len + LANES];
        let start = floats.as_ptr().align_offset(64);
        Aligned { floats, start }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.floats[self.start..]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.floats[self.start..]
    }
}

/// One kernel on one shape.
struct Work {
    kernel: String,
    name: String,
    multiply_adds: usize,
    weight_floats: usize,
    /// Of input and output.
    other_floats: usize,
}

struct Bench {
    isa: Isa,
    filter: String,
    markdown: bool,
    /// Largest seen so far.
    peak: f64,
    bandwidth: f64,
}

impl Bench {
    /// Measures with ever other copies of the weights, and with one copy, and prints the line.
    fn line(&mut self, work: &Work, mut body: impl FnMut(&[f32])) {
        let floats = work.weight_floats;
        let large = floats * 4 >= LARGE_BYTES;
        let copies = if large {
            (COLD_BYTES / (floats * 4)).max(1)
        } else {
            1
        };
        let weights = Aligned::new(floats * copies, 0.01);
        let before = peak_gflops(self.isa);
        let mut copy = 0;
        let (best, median) = measure(EACH, || {
            copy = (copy + 1) % copies;
            body(&weights[copy * floats..][..floats]);
        });
        let warm = large.then(|| measure(EACH, || body(&weights[..floats])).1);
        let peak = before.max(peak_gflops(self.isa));
        self.peak = self.peak.max(peak);

        let rate = |seconds: f64| 2.0 * work.multiply_adds as f64 / seconds / 1e9;
        let share = |seconds: f64| rate(seconds) / peak * 100.0;
        let bytes = (work.weight_floats + work.other_floats) as f64 * 4.0;
        let gb = bytes / median / 1e9;
        let warm = warm.map_or(String::new(), |seconds| format!("{:.0}", share(seconds)));
        let (name, kernel) = (&work.name, &work.kernel);
        let (rate, share, megabytes) = (rate(best), share(median), bytes / 1e6);
        let of_memory = gb / self.bandwidth * 100.0;
        if self.markdown {
            println!(
                "| {name} | {kernel} | {rate:.0} | **{share:.0}** | {warm} | {megabytes:.2} | {gb:.1} | {of_memory:.0} |"
            );
        } else {
            println!(
                "{name:<34} {kernel:<15} {:>9.1} us {rate:>7.1} GFLOP/s {share:>5.1} % (warm {warm:>3}) {megabytes:>7.2} MB {gb:>6.1} GB/s {of_memory:>5.1} %",
                median * 1e6,
            );
        }
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    fn convolution(&mut self, conv: &Conv) {
        let pad = if conv.form == ConvForm::FirstLayer && conv.kernel == conv.stride {
            0
        } else {
            conv.kernel / 2
        };
        let out = (conv.size + 2 * pad - conv.kernel) / conv.stride + 1;
        let s = ConvShape {
            batch: 1,
            c_in: conv.c_in,
            c_out: conv.c_out,
            groups: conv.groups,
            window: Window {
                input: [conv.size; 2],
                output: [out; 2],
                kernel: [conv.kernel; 2],
                strides: [conv.stride; 2],
                dilations: [1; 2],
                pads_begin: [pad; 2],
                pads_end: [0; 2],
            },
        };
        let groups = match conv.groups {
            1 => String::new(),
            n => format!("/{n}"),
        };
        let stride = match conv.stride {
            1 => String::new(),
            n => format!(" s{n}"),
        };
        let (k, size) = (conv.kernel, conv.size);
        let name = format!(
            "{} {k}x{k} {}-{}{groups} @{size}{stride}",
            conv.name, conv.c_in, conv.c_out
        );
        if !self.wants(&name) {
            return;
        }
        let channels = match conv.form {
            ConvForm::FirstLayer => conv.c_in,
            _ => conv.c_in.next_multiple_of(LANES),
        };
        let input = Aligned::new(channels * size * size, 0.5);
        let mut output = Aligned::new(s.panels() * LANES * out * out, 0.0);
        let mut scratch = Aligned::new(conv_first_layer_scratch_bytes(&s, 1) / 4, 0.0);
        let epilogue = Epilogue {
            activation: Activation::Relu,
            residual: Residual::None,
        };
        let (isa, all) = (self.isa, 0..s.panels());
        let mut work = Work {
            kernel: match conv.form {
                ConvForm::FirstLayer => "first layer",
                ConvForm::NarrowGroups => "narrow groups",
                ConvForm::Blocked => "direct",
            }
            .to_string(),
            name,
            multiply_adds: s.multiply_adds(),
            weight_floats: panel_floats(s.k()) * s.panels(),
            other_floats: channels * size * size + s.panels() * LANES * out * out,
        };
        self.line(&work, |w| {
            let (p, all, x, y) = (&Serial, all.clone(), &input[..], &mut output[..]);
            match conv.form {
                ConvForm::Blocked => conv_blocked(isa, p, &s, all, w, x, y, epilogue),
                ConvForm::NarrowGroups => conv_narrow_groups(isa, p, &s, all, w, x, y, epilogue),
                ConvForm::FirstLayer => {
                    conv_first_layer(isa, p, &s, all, w, x, y, epilogue, &mut scratch)
                }
            }
            .expect("valid sizes");
        });
        if conv.form != ConvForm::Blocked || !neap_kernels::winograd::supports(&s) {
            return;
        }
        for form in [WeightForm::Raw, WeightForm::Prepared] {
            let tile = Tile::F4;
            let bytes = workspace_bytes(isa, tile, form, &s, s.panels(), 1);
            let mut workspace = Aligned::new(bytes / 4, 0.0);
            (work.kernel, work.weight_floats) = match form {
                WeightForm::Raw => ("F(4,3)".to_string(), panel_floats(s.k()) * s.panels()),
                WeightForm::Prepared => (
                    "F(4,3) prepared".to_string(),
                    prepared_panel_floats(tile, s.c_in) * s.panels(),
                ),
            };
            self.line(&work, |w| {
                let weights = match form {
                    WeightForm::Raw => Weights::Raw(w.into()),
                    WeightForm::Prepared => Weights::Prepared(w),
                };
                let (all, out) = (all.clone(), &mut output[..]);
                conv_winograd(
                    isa,
                    &Serial,
                    tile,
                    &s,
                    all,
                    weights,
                    &input,
                    out,
                    epilogue,
                    &mut workspace,
                )
                .expect("valid sizes");
            });
        }
    }

    fn linear(&mut self, &(name, m, k, n): &(&'static str, usize, usize, usize)) {
        if !self.wants(name) {
            return;
        }
        let s = LinearShape::dense(m, k, n);
        let a = Aligned::new(m * k, 0.5);
        let mut out = Aligned::new(m * n, 0.0);
        let (isa, all) = (self.isa, 0..s.panels());
        let work = Work {
            kernel: "linear".to_string(),
            name: format!("{name} {m}x{k}x{n}"),
            multiply_adds: m * k * n,
            weight_floats: panel_floats(k) * s.panels(),
            other_floats: m * k + m * n,
        };
        self.line(&work, |w| {
            let e = Epilogue::default();
            linear(isa, &Serial, &s, all.clone(), w, &a, &mut out, e).expect("valid sizes");
        });
    }

    fn product(
        &mut self,
        &(name, batch, m, k, n, transposed): &(&'static str, usize, usize, usize, usize, bool),
    ) {
        if !self.wants(name) {
            return;
        }
        let mut s = MatMulShape::dense(batch, m, k, n);
        s.b_transposed = transposed;
        s.b_stride = if transposed { k } else { n };
        let (a, b) = (
            Aligned::new(batch * m * k, 0.5),
            Aligned::new(batch * k * n, 0.25),
        );
        let mut out = Aligned::new(batch * m * n, 0.0);
        let mut scratch = Aligned::new(matmul_scratch_bytes(&s, 1) / 4, 0.0);
        let isa = self.isa;
        let work = Work {
            kernel: "product".to_string(),
            name: format!("{name} {batch}x{m}x{k}x{n}"),
            multiply_adds: batch * m * k * n,
            weight_floats: 0,
            other_floats: batch * (m * k + k * n + m * n),
        };
        self.line(&work, |_| {
            matmul(isa, &Serial, &s, &a, &b, &mut out, &mut scratch).expect("valid sizes");
        });
    }
}

const PAGE: &str = "\
# Kernels

Made by `cargo run --release -p neap-kernels --example kernel_bench -- --markdown`. One thread. Operations are
counted as for direct convolution, so that Winograd's may be more than the processor's peak.

- *share*: median run, as a share of the multiply-adds of one core, measured without memory before and after each line.
  Every run takes another copy of weights of half a megabyte or more, so that they come from memory; *warm*: with one copy.
- *MB*: weights, input and output, each once; *GB/s* and *of memory*: those bytes in the median run, and as a
  share of what one core reads from memory at best.

| shape | kernel | GFLOP/s | share % | warm % | MB | GB/s | of memory % |
|---|---|--:|--:|--:|--:|--:|--:|";

fn main() {
    let mut bench = Bench {
        isa: Isa::detect(),
        filter: String::new(),
        markdown: false,
        peak: 0.0,
        bandwidth: 0.0,
    };
    for argument in std::env::args().skip(1) {
        match Isa::by_name(&argument) {
            Some(named) => bench.isa = named,
            None if argument == "--markdown" => bench.markdown = true,
            None => bench.filter = argument,
        }
    }
    bench.bandwidth = bandwidth_gb(bench.isa);
    if bench.markdown {
        println!("{PAGE}");
    }
    CONVOLUTIONS.iter().for_each(|c| bench.convolution(c));
    LINEARS.iter().for_each(|l| bench.linear(l));
    PRODUCTS.iter().for_each(|p| bench.product(p));
    println!(
        "{}{}: peak of one core {:.0} GFLOP/s (largest seen), memory read by one core at {:.0} GB/s.",
        if bench.markdown { "\n" } else { "" },
        bench.isa.name(),
        bench.peak,
        bench.bandwidth,
    );
}
