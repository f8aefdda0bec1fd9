//! Speed of the product kernels on the shapes of well-known networks, on one core.
//!
//! `cargo run --release -p neap-kernels --example kernel_bench [-- ISA] [FILTER]` prints, for every
//! layer, the best of many runs in GFLOP/s and as a share of the multiply-add peak of one core,
//! which is measured in between. Layers with large weights are also measured `cold`: every run
//! uses another copy of the weights, as in a network, where they come from memory.

use neap_kernels::conv::{
    ConvForm, ConvShape, conv_blocked, conv_first_layer, conv_first_layer_scratch_bytes,
    conv_narrow_groups,
};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::linear::{LinearShape, MatMulShape, linear, matmul, matmul_scratch_bytes};
use neap_kernels::panel::panel_floats;
use neap_kernels::parallel::Serial;
use neap_kernels::simd::{Isa, LANES, Simd};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// `(name, form, c_in, c_out, groups, input size, kernel, stride)`; padding keeps the size.
type Conv = (
    &'static str,
    ConvForm,
    usize,
    usize,
    usize,
    usize,
    usize,
    usize,
);

#[rustfmt::skip]
const CONVOLUTIONS: &[Conv] = &[
    ("resnet50 conv1 7x7", ConvForm::FirstLayer, 3, 64, 1, 224, 7, 2),
    ("resnet50 2 1x1 64-64", ConvForm::Blocked, 64, 64, 1, 56, 1, 1),
    ("resnet50 2 3x3 64", ConvForm::Blocked, 64, 64, 1, 56, 3, 1),
    ("resnet50 2 1x1 64-256", ConvForm::Blocked, 64, 256, 1, 56, 1, 1),
    ("resnet50 2 1x1 256-64", ConvForm::Blocked, 256, 64, 1, 56, 1, 1),
    ("resnet50 3 3x3 128 s2", ConvForm::Blocked, 128, 128, 1, 56, 3, 2),
    ("resnet50 3 3x3 128", ConvForm::Blocked, 128, 128, 1, 28, 3, 1),
    ("resnet50 3 1x1 128-512", ConvForm::Blocked, 128, 512, 1, 28, 1, 1),
    ("resnet50 3 1x1 512-128", ConvForm::Blocked, 512, 128, 1, 28, 1, 1),
    ("resnet50 4 3x3 256", ConvForm::Blocked, 256, 256, 1, 14, 3, 1),
    ("resnet50 4 1x1 256-1024", ConvForm::Blocked, 256, 1024, 1, 14, 1, 1),
    ("resnet50 4 1x1 1024-256", ConvForm::Blocked, 1024, 256, 1, 14, 1, 1),
    ("resnet50 4 1x1 s2 512-1024", ConvForm::Blocked, 512, 1024, 1, 28, 1, 2),
    ("resnet50 5 3x3 512", ConvForm::Blocked, 512, 512, 1, 7, 3, 1),
    ("resnet50 5 1x1 512-2048", ConvForm::Blocked, 512, 2048, 1, 7, 1, 1),
    ("resnet50 5 1x1 2048-512", ConvForm::Blocked, 2048, 512, 1, 7, 1, 1),
    ("vgg19 3x3 64", ConvForm::Blocked, 64, 64, 1, 224, 3, 1),
    ("vgg19 3x3 256", ConvForm::Blocked, 256, 256, 1, 56, 3, 1),
    ("vgg19 3x3 512", ConvForm::Blocked, 512, 512, 1, 28, 3, 1),
    ("mobilenet_v2 1x1 32-16", ConvForm::Blocked, 32, 16, 1, 112, 1, 1),
    ("mobilenet_v2 1x1 16-96", ConvForm::Blocked, 16, 96, 1, 112, 1, 1),
    ("mobilenet_v2 1x1 144-24", ConvForm::Blocked, 144, 24, 1, 56, 1, 1),
    ("mobilenet_v2 1x1 64-384", ConvForm::Blocked, 64, 384, 1, 14, 1, 1),
    ("mobilenet_v2 1x1 384-64", ConvForm::Blocked, 384, 64, 1, 14, 1, 1),
    ("mobilenet_v2 1x1 160-960", ConvForm::Blocked, 160, 960, 1, 7, 1, 1),
    ("mobilenet_v2 1x1 960-160", ConvForm::Blocked, 960, 160, 1, 7, 1, 1),
    ("densenet121 3x3 128-32", ConvForm::Blocked, 128, 32, 1, 28, 3, 1),
    ("resnext50 3x3 128/32", ConvForm::NarrowGroups, 128, 128, 32, 56, 3, 1),
    ("resnext50 3x3 512/32", ConvForm::Blocked, 512, 512, 32, 14, 3, 1),
    ("resnext50 3x3 256/32", ConvForm::NarrowGroups, 256, 256, 32, 28, 3, 1),
    ("vit_b_16 patches 16x16", ConvForm::FirstLayer, 3, 768, 1, 224, 16, 16),
];

/// `(name, m, k, n)`
const LINEARS: &[(&str, usize, usize, usize)] = &[
    ("vit qkv", 197, 768, 2304),
    ("vit mlp up", 197, 768, 3072),
    ("vit mlp down", 197, 3072, 768),
    ("gpt2 qkv", 128, 768, 2304),
    ("gpt2 mlp down", 128, 3072, 768),
    ("rows 8", 8, 1024, 1024),
    ("fc resnet", 1, 2048, 1000),
    ("fc vgg", 1, 25088, 4096),
];

/// `(name, batch, m, k, n, b transposed)`
const PRODUCTS: &[(&str, usize, usize, usize, usize, bool)] = &[
    ("attention q.kT", 12, 197, 64, 197, true),
    ("attention p.v", 12, 197, 197, 64, false),
    ("square", 1, 512, 512, 512, false),
];

/// Copies of large weights that a cold run walks through.
const COLD_BYTES: usize = 192 << 20;

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

struct Bench {
    isa: Isa,
    filter: String,
    peak: f64,
}

/// Best and median seconds of repeated calls, for at least `least` of wall time.
fn measure(least: Duration, mut body: impl FnMut()) -> (f64, f64) {
    body();
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < least || times.len() < 5 {
        let start = Instant::now();
        body();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

/// Multiply-adds without memory: enough independent chains to fill the pipes.
#[inline(always)]
fn chains<S: Simd, const N: usize>(s: S, rounds: usize) -> f32 {
    let (a, b) = (s.splat(black_box(0.999)), s.splat(black_box(1e-3)));
    let mut acc = [s.zero(); N];
    for _ in 0..rounds {
        for v in &mut acc {
            *v = s.fma(*v, a, b);
        }
    }
    acc.into_iter().map(|v| s.reduce_sum(v)).sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn chains_avx512(rounds: usize) -> f32 {
    chains::<_, 24>(neap_kernels::simd::Avx512::new(), rounds)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn chains_avx2(rounds: usize) -> f32 {
    chains::<_, 6>(neap_kernels::simd::Avx2Fma::new(), rounds)
}

/// GFLOP/s of one core.
fn measure_peak(isa: Isa) -> f64 {
    const ROUNDS: usize = 200_000;
    let run: (usize, Box<dyn Fn() -> f32>) = match isa.name() {
        // SAFETY: the processor has the instruction set, as the value shows.
        #[cfg(target_arch = "x86_64")]
        "avx512" => (24, Box::new(|| unsafe { chains_avx512(ROUNDS) })),
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        "avx2" => (6, Box::new(|| unsafe { chains_avx2(ROUNDS) })),
        #[cfg(target_arch = "aarch64")]
        "neon" => (
            6,
            Box::new(|| chains::<_, 6>(neap_kernels::simd::Neon::new(), ROUNDS)),
        ),
        _ => (
            2,
            Box::new(|| chains::<_, 2>(neap_kernels::simd::Portable, ROUNDS)),
        ),
    };
    let (best, _) = measure(Duration::from_millis(60), || {
        black_box((run.1)());
    });
    (run.0 * LANES * 2 * ROUNDS) as f64 / best / 1e9
}

impl Bench {
    fn report(
        &mut self,
        name: &str,
        multiply_adds: usize,
        (best, median): (f64, f64),
        bytes: usize,
    ) {
        self.peak = self.peak.max(measure_peak(self.isa));
        let rate = |seconds: f64| 2.0 * multiply_adds as f64 / seconds / 1e9;
        println!(
            "{name:<34} {:>9.1} us {:>7.1} GFLOP/s {:>5.1} % (median {:>5.1} %) {:>6.1} GB/s",
            best * 1e6,
            rate(best),
            rate(best) / self.peak * 100.0,
            rate(median) / self.peak * 100.0,
            bytes as f64 / best / 1e9,
        );
    }

    fn wants(&self, name: &str) -> bool {
        name.contains(&self.filter)
    }

    /// Measures with one copy of the weights, and with ever other copies.
    fn warm_and_cold(
        &mut self,
        name: &str,
        multiply_adds: usize,
        floats: usize,
        mut body: impl FnMut(&[f32]),
    ) {
        let copies = (COLD_BYTES / (floats * 4)).max(1);
        let cold = floats * 4 >= 512 << 10;
        let weights = Aligned::new(floats * if cold { copies } else { 1 }, 0.01);
        let least = Duration::from_millis(150);
        let times = measure(least, || body(&weights[..floats]));
        self.report(name, multiply_adds, times, floats * 4);
        if cold {
            let mut copy = 0;
            let times = measure(least, || {
                copy = (copy + 1) % copies;
                body(&weights[copy * floats..][..floats]);
            });
            self.report(&format!("{name} (cold)"), multiply_adds, times, floats * 4);
        }
    }

    fn convolution(&mut self, &(name, form, c_in, c_out, groups, size, kernel, stride): &Conv) {
        if !self.wants(name) {
            return;
        }
        let pad = if form == ConvForm::FirstLayer && kernel == stride {
            0
        } else {
            kernel / 2
        };
        let out = (size + 2 * pad - kernel) / stride + 1;
        let s = ConvShape {
            batch: 1,
            c_in,
            c_out,
            groups,
            input: [size; 2],
            output: [out; 2],
            kernel: [kernel; 2],
            strides: [stride; 2],
            dilations: [1; 2],
            pads_begin: [pad; 2],
        };
        let input = Aligned::new(c_in.next_multiple_of(LANES) * size * size, 0.5);
        let mut output = Aligned::new(s.panels() * LANES * out * out, 0.0);
        let mut scratch = Aligned::new(conv_first_layer_scratch_bytes(&s, 1) / 4, 0.0);
        let epilogue = Epilogue {
            activation: Activation::Relu,
            residual: Residual::None,
        };
        let (isa, all) = (self.isa, 0..s.panels());
        let floats = panel_floats(s.k()) * s.panels();
        self.warm_and_cold(name, s.multiply_adds(), floats, |w| {
            let (p, all, x, y) = (&Serial, all.clone(), &input[..], &mut output[..]);
            let done = match form {
                ConvForm::Blocked => conv_blocked(isa, p, &s, all, w, x, y, epilogue),
                ConvForm::NarrowGroups => conv_narrow_groups(isa, p, &s, all, w, x, y, epilogue),
                ConvForm::FirstLayer => {
                    conv_first_layer(isa, p, &s, all, w, x, y, epilogue, &mut scratch)
                }
            };
            if let Err(error) = done {
                println!("{name}: {error}");
            }
        });
    }

    fn linear(&mut self, &(name, m, k, n): &(&'static str, usize, usize, usize)) {
        if !self.wants(name) {
            return;
        }
        let s = LinearShape::dense(m, k, n);
        let a = Aligned::new(m * k, 0.5);
        let mut out = Aligned::new(m * n, 0.0);
        let (isa, all) = (self.isa, 0..s.panels());
        let floats = panel_floats(k) * s.panels();
        let name = format!("{name} {m}x{k}x{n}");
        self.warm_and_cold(&name, m * k * n, floats, |w| {
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
        let times = measure(Duration::from_millis(150), || {
            matmul(isa, &Serial, &s, &a, &b, &mut out, &mut scratch).expect("valid sizes");
        });
        self.report(
            &format!("{name} {batch}x{m}x{k}x{n}"),
            batch * m * k * n,
            times,
            0,
        );
    }
}

fn main() {
    let mut isa = Isa::detect();
    let mut filter = String::new();
    for argument in std::env::args().skip(1) {
        match Isa::by_name(&argument) {
            Some(named) => isa = named,
            None => filter = argument,
        }
    }
    let mut bench = Bench {
        isa,
        filter,
        peak: measure_peak(isa),
    };
    println!(
        "{}: multiply-add peak of one core {:.1} GFLOP/s",
        isa.name(),
        bench.peak
    );
    CONVOLUTIONS.iter().for_each(|c| bench.convolution(c));
    LINEARS.iter().for_each(|l| bench.linear(l));
    PRODUCTS.iter().for_each(|p| bench.product(p));
    println!("peak, measured throughout: {:.1} GFLOP/s", bench.peak);
}
