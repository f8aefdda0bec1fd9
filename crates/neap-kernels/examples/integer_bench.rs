//! Speed of layers in integers, and of weights of 8 and 4 bits times floats, as they are and rounded, on the shapes of
//! well-known networks, on one core.
//!
//! `cargo run --release -p neap-kernels --example integer_bench [-- [ISA] [FILTER]]` prints a line for each shape: the best
//! run's multiply-adds a second, in units of 1e9, and as a share of what the processor gives at best from registers:
//! VNNI, or multiply-adds of floats where the layer is in floats.

use neap_kernels::conv::ConvShape;
use neap_kernels::epilogue::{Activation, Epilogue};
use neap_kernels::error::KernelError;
use neap_kernels::integer::{
    Finish, Results, Steps, conv_scratch_bytes, first_layer_scratch_bytes, integer_conv,
    integer_first_layer, integer_linear, linear_scratch_bytes, rounded_linear,
    rounded_scratch_bytes,
};
use neap_kernels::linear::{LinearShape, linear};
use neap_kernels::panel::{Bits, BlockFormat, Format, Panels};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::Isa;
use neap_kernels::window::Window;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Channels in and out, height and width of the input, kernel and stride; and how often ResNet-50 has it.
#[rustfmt::skip]
const CONVOLUTIONS: &[([usize; 2], usize, [usize; 2], usize)] = &[
    ([3, 64], 224, [7, 2], 1),
    ([64, 64], 56, [1, 1], 1),
    ([64, 64], 56, [3, 1], 3),
    ([64, 256], 56, [1, 1], 4),
    ([256, 64], 56, [1, 1], 2),
    ([256, 128], 56, [1, 1], 1),
    ([128, 128], 56, [3, 2], 1),
    ([256, 512], 56, [1, 2], 1),
    ([128, 512], 28, [1, 1], 4),
    ([512, 128], 28, [1, 1], 3),
    ([128, 128], 28, [3, 1], 3),
    ([512, 256], 28, [1, 1], 1),
    ([256, 256], 28, [3, 2], 1),
    ([512, 1024], 28, [1, 2], 1),
    ([256, 1024], 14, [1, 1], 6),
    ([1024, 256], 14, [1, 1], 5),
    ([256, 256], 14, [3, 1], 5),
    ([1024, 512], 14, [1, 1], 1),
    ([512, 512], 14, [3, 2], 1),
    ([1024, 2048], 14, [1, 2], 1),
    ([512, 2048], 7, [1, 1], 3),
    ([2048, 512], 7, [1, 1], 2),
    ([512, 512], 7, [3, 1], 2),
];

/// Rows, k and channels, and how often the network has it.
#[rustfmt::skip]
const LINEARS: &[(&str, [usize; 3], usize)] = &[
    ("vit_b_16", [197, 768, 768], 12),
    ("vit_b_16", [197, 768, 2304], 12),
    ("vit_b_16", [197, 768, 3072], 12),
    ("vit_b_16", [197, 3072, 768], 12),
    ("gpt2", [64, 768, 768], 12),
    ("gpt2", [64, 768, 2304], 12),
    ("gpt2", [64, 768, 3072], 12),
    ("gpt2", [64, 3072, 768], 12),
    ("gpt2", [64, 768, 50257], 1),
    ("row", [1, 2048, 2048], 1),
];

/// The same, of 8-bit weights times floats.
#[rustfmt::skip]
const FLOATS: &[(&str, [usize; 3], usize)] = &[
    ("minilm.int8", [128, 384, 384], 24),
    ("minilm.int8", [128, 384, 1536], 6),
    ("minilm.int8", [128, 1536, 384], 6),
];

/// The same, of 4-bit weights in blocks of 32.
#[rustfmt::skip]
const BLOCKS: &[(&str, [usize; 3], usize)] = &[
    ("gpt2.int4", [128, 768, 768], 12),
    ("gpt2.int4", [128, 768, 2304], 12),
    ("gpt2.int4", [128, 768, 3072], 12),
    ("gpt2.int4", [128, 3072, 768], 12),
    ("row.int4", [1, 2048, 2048], 1),
];

/// Bytes that begin on a cache line.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize, of: impl Fn(usize) -> u8) -> Self {
        let mut bytes = vec![0; len + 64];
        let start = bytes.as_ptr().align_offset(64);
        for (i, byte) in bytes[start..].iter_mut().enumerate() {
            *byte = of(i);
        }
        Aligned { bytes, start, len }
    }

    fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

fn best(mut body: impl FnMut()) -> f64 {
    body();
    let mut best = f64::MAX;
    let (begin, mut runs) = (Instant::now(), 0);
    while runs < 5 || begin.elapsed() < Duration::from_millis(150) {
        let start = Instant::now();
        body();
        best = best.min(start.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// What a layer computes with.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    Floats,
}

/// Multiply-adds a second without memory, in vectors of 512 bits; none where the processor has no such unit.
fn peak(unit: Unit) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        // More than a unit's latency times how many it begins in a cycle.
        const CHAINS: usize = 16;
        #[target_feature(enable = "avx512f,avx512vnni")]
        fn bytes(rounds: usize) -> i32 {
            let x = _mm512_set1_epi32(std::hint::black_box(0x0102_0304));
            let mut acc = [_mm512_setzero_si512(); CHAINS];
            for _ in 0..rounds {
                for v in &mut acc {
                    *v = _mm512_dpbusd_epi32(*v, x, x);
                }
            }
            let sum = acc.into_iter().fold(x, |a, b| _mm512_add_epi32(a, b));
            _mm512_reduce_add_epi32(sum)
        }
        #[target_feature(enable = "avx512f")]
        fn floats(rounds: usize) -> f32 {
            let x = _mm512_set1_ps(std::hint::black_box(0.5));
            let mut acc = [_mm512_setzero_ps(); CHAINS];
            for _ in 0..rounds {
                for v in &mut acc {
                    *v = _mm512_fmadd_ps(*v, x, x);
                }
            }
            let sum = acc.into_iter().fold(x, |a, b| _mm512_add_ps(a, b));
            _mm512_reduce_add_ps(sum)
        }
        const ROUNDS: usize = 50_000;
        let (is_there, lanes) = match unit {
            Unit::Bytes => (std::arch::is_x86_feature_detected!("avx512vnni"), 64),
            Unit::Floats => (std::arch::is_x86_feature_detected!("avx512f"), 16),
        };
        if is_there {
            let seconds = best(|| match unit {
                // SAFETY: the processor has the instructions.
                Unit::Bytes => _ = std::hint::black_box(unsafe { bytes(ROUNDS) }),
                // SAFETY: as above.
                Unit::Floats => _ = std::hint::black_box(unsafe { floats(ROUNDS) }),
            });
            return Some((CHAINS * lanes * ROUNDS) as f64 / seconds);
        }
    }
    let _ = unit;
    None
}

struct Bench {
    isa: Isa,
    filter: String,
    /// Seconds of each network's layers, and at the peak.
    totals: Vec<(String, f64, f64)>,
}

impl Bench {
    fn line(
        &mut self,
        unit: Unit,
        net: &str,
        name: &str,
        times: usize,
        macs: usize,
        body: &mut dyn FnMut(),
    ) {
        if !format!("{net} {name}").contains(&self.filter) {
            return;
        }
        let before = peak(unit);
        let seconds = best(body);
        let peak = before.zip(peak(unit)).map(|(a, b)| a.max(b));
        let rate = macs as f64 / seconds;
        let share = peak.map_or(String::new(), |peak| {
            format!("{:5.1} %", rate / peak * 100.0)
        });
        println!(
            "{net:9} {name:28} {:9.1} us {:7.1} GMAC/s {share}",
            seconds * 1e6,
            rate / 1e9
        );
        let ideal = peak.map_or(0.0, |peak| macs as f64 / peak);
        let at = self.totals.iter().position(|(of, ..)| of == net);
        let at = at.unwrap_or_else(|| {
            self.totals.push((net.to_owned(), 0.0, 0.0));
            self.totals.len() - 1
        });
        self.totals[at].1 += seconds * times as f64;
        self.totals[at].2 += ideal * times as f64;
    }
}

fn main() {
    let mut filter = String::new();
    let mut isa = Isa::detect();
    for argument in std::env::args().skip(1) {
        match Isa::available().into_iter().find(|i| i.name() == argument) {
            Some(found) => isa = found,
            None => filter = argument,
        }
    }
    let mut bench = Bench {
        isa,
        filter,
        totals: Vec::new(),
    };
    convolutions(&mut bench);
    linears(&mut bench);
    floats(&mut bench);
    blocks(&mut bench);
    for (net, seconds, ideal) in &bench.totals {
        println!(
            "{net}: {:.2} ms, at the peak {:.2}",
            seconds * 1e3,
            ideal * 1e3
        );
    }
}

const STEPS: Steps = Steps {
    scale: 0.02,
    zero: 128,
};

fn weights(panels: usize, k: usize) -> Aligned {
    let each = Format::I8.panel_bytes(k).unwrap();
    // Heads are small numbers; no zero points.
    let head = 1.0f32.to_le_bytes();
    Aligned::new(panels * each, |i| match i % each {
        at if at < 128 => head[at % 4],
        at if at < 192 => 0,
        at => ((at * 37) >> 3) as u8,
    })
}

fn finish() -> Finish<'static> {
    Finish {
        activation: Activation::Requantize {
            scale: 40.0,
            zero: 3.0,
            low: 3.0,
            high: 255.0,
            nan: 0.0,
        },
        ..Finish::default()
    }
}

type Conv = fn(
    Isa,
    &dyn Parallel,
    &ConvShape,
    Range<usize>,
    Panels<'_>,
    &[u8],
    Steps,
    Results<'_>,
    Finish<'_>,
    &mut [u8],
) -> Result<(), KernelError>;

fn convolutions(bench: &mut Bench) {
    for &([c_in, c_out], size, [kernel, stride], times) in CONVOLUTIONS {
        let pad = kernel / 2;
        let output = (size + 2 * pad - kernel) / stride + 1;
        let shape = ConvShape {
            batch: 1,
            c_in,
            c_out,
            groups: 1,
            window: Window {
                input: [size; 2],
                output: [output; 2],
                kernel: [kernel; 2],
                strides: [stride; 2],
                dilations: [1; 2],
                pads_begin: [pad; 2],
                pads_end: [pad; 2],
            },
        };
        let mut input = Aligned::new(size * size * c_in, |i| ((i * 13) >> 2) as u8);
        let mut out = Aligned::new(output * output * c_out, |_| 0);
        let (scratch_bytes, run) = match c_in {
            // Of a plain image.
            3 => (
                first_layer_scratch_bytes(&shape, 1),
                integer_first_layer as Conv,
            ),
            _ => (conv_scratch_bytes(&shape, 1), integer_conv as Conv),
        };
        let mut scratch = Aligned::new(scratch_bytes, |_| 0);
        let mut weights = weights(shape.panels(), shape.k());
        let (input, out, scratch, weights) = (input.get(), out.get(), scratch.get(), weights.get());
        let isa = bench.isa;
        let name = format!("{c_in}>{c_out} {size} {kernel}/{stride}");
        let macs = output * output * c_out * shape.k();
        bench.line(Unit::Bytes, "resnet50", &name, times, macs, &mut || {
            let panels = Panels::new(Format::I8, weights).unwrap();
            let all = 0..shape.panels();
            let results = Results::Steps(out);
            run(
                isa,
                &Serial,
                &shape,
                all,
                panels,
                input,
                STEPS,
                results,
                finish(),
                scratch,
            )
            .unwrap();
        });
    }
}

fn linears(bench: &mut Bench) {
    for &(net, [m, k, n], times) in LINEARS {
        let shape = LinearShape::dense(m, k, n);
        let mut a = Aligned::new(m * k, |i| ((i * 13) >> 2) as u8);
        let mut out = vec![0.0; m * n];
        let mut scratch = Aligned::new(linear_scratch_bytes(&shape, 1), |_| 0);
        let mut weights = weights(shape.panels(), k);
        let (a, scratch, weights) = (a.get(), scratch.get(), weights.get());
        let isa = bench.isa;
        let name = format!("{m} x {k} x {n}");
        bench.line(Unit::Bytes, net, &name, times, m * k * n, &mut || {
            let panels = Panels::new(Format::I8, weights).unwrap();
            let all = 0..shape.panels();
            let (results, finish) = (Results::Floats(&mut out), Finish::default());
            integer_linear(
                isa, &Serial, &shape, all, panels, a, STEPS, results, finish, scratch,
            )
            .unwrap();
        });
    }
}

fn floats(bench: &mut Bench) {
    for &(net, [m, k, n], times) in FLOATS {
        let shape = LinearShape::dense(m, k, n);
        let (a, mut out) = (vec![0.5; m * k], vec![0.0; m * n]);
        let mut weights = weights(shape.panels(), k);
        let weights = weights.get();
        let isa = bench.isa;
        let name = format!("{m} x {k} x {n}");
        bench.line(Unit::Floats, net, &name, times, m * k * n, &mut || {
            let panels = Panels::new(Format::I8, weights).unwrap();
            let (all, serial) = (0..shape.panels(), &Serial);
            let epilogue = Epilogue::default();
            linear(isa, serial, &shape, all, panels, &a, &mut out, epilogue).unwrap();
        });
    }
}

fn blocks(bench: &mut Bench) {
    let blocks = BlockFormat {
        bits: Bits::Four,
        has_half_scales: false,
        len: 32,
    };
    let format = Format::Blocks(blocks);
    for &(net, [m, k, n], times) in BLOCKS {
        let shape = LinearShape::dense(m, k, n);
        let (a, mut out) = (vec![0.5; m * k], vec![0.0; m * n]);
        // Weights of zero and one, scales and biases that are small numbers.
        let bytes = shape.panels() * format.panel_bytes(k).unwrap();
        let mut weights = Aligned::new(bytes, |i| [0, 0, 0x10, 0x10][i % 4]);
        let weights = weights.get();
        let isa = bench.isa;
        let name = format!("{m} x {k} x {n}");
        bench.line(Unit::Floats, net, &name, times, m * k * n, &mut || {
            let panels = Panels::new(format, weights).unwrap();
            let (all, serial) = (0..shape.panels(), &Serial);
            let epilogue = Epilogue::default();
            linear(isa, serial, &shape, all, panels, &a, &mut out, epilogue).unwrap();
        });
        let scratch_bytes = rounded_scratch_bytes(&shape, blocks.len, 1);
        let mut scratch = Aligned::new(scratch_bytes, |_| 0);
        let scratch = scratch.get();
        bench.line(
            Unit::Bytes,
            &format!("{net}a8"),
            &name,
            times,
            m * k * n,
            &mut || {
                let panels = Panels::new(format, weights).unwrap();
                let (all, serial) = (0..shape.panels(), &Serial);
                let epilogue = Epilogue::default();
                rounded_linear(
                    isa, serial, &shape, all, panels, &a, &mut out, epilogue, scratch,
                )
                .unwrap();
            },
        );
    }
}
