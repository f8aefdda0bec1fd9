//! Speed of Winograd convolution beside direct convolution, on the 3x3 layers of well-known networks.
//!
//! `cargo run --release -p neap-kernels --example winograd_bench [-- [ISA] [THREADS] [COLUMN] [FILTER]]` prints,
//! for every layer, GFLOP/s as if computed directly (best of many runs), for direct convolution and for each tile
//! size with prepared and raw weights (or the one COLUMN, such as `F4` or `F4raw`), raw ones also in a wide workspace. Every run uses another copy of the weights, as in a network, where they
//! come from memory.

use neap_kernels::conv::{ConvShape, conv_blocked};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::panel::panel_floats;
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::{Isa, LANES};
use neap_kernels::window::Window;
use neap_kernels::winograd::{
    Tile, WeightForm, Weights, conv_winograd, prepared_panel_floats, wide_workspace_bytes,
    workspace_bytes,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// `(name, c_in, c_out, size)`
const LAYERS: &[(&str, usize, usize, usize)] = &[
    ("vgg19 64-64 @224", 64, 64, 224),
    ("vgg19 64-128 @112", 64, 128, 112),
    ("vgg19 128-128 @112", 128, 128, 112),
    ("vgg19 128-256 @56", 128, 256, 56),
    ("vgg19 256-256 @56", 256, 256, 56),
    ("vgg19 256-512 @28", 256, 512, 28),
    ("vgg19 512-512 @28", 512, 512, 28),
    ("vgg19 512-512 @14", 512, 512, 14),
    ("resnet 64-64 @56", 64, 64, 56),
    ("resnet 128-128 @28", 128, 128, 28),
    ("resnet 256-256 @14", 256, 256, 14),
    ("resnet 512-512 @7", 512, 512, 7),
    ("yolov3 32-64 @208", 32, 64, 208),
    ("yolov3 64-128 @104", 64, 128, 104),
    ("yolov3 128-256 @52", 128, 256, 52),
    ("yolov3 256-512 @26", 256, 512, 26),
    ("yolov3 512-1024 @13", 512, 1024, 13),
    ("squeezenet 64-256 @13", 64, 256, 13),
    ("sd 512-512 @64", 512, 512, 64),
    ("sd 512-256 @64", 512, 256, 64),
    ("sd 256-256 @128", 256, 256, 128),
    ("sd 256-128 @128", 256, 128, 128),
    ("sd 640-640 @32", 640, 640, 32),
    ("sd 1280-1280 @16", 1280, 1280, 16),
];

/// Forms of the weights, and what columns are called.
const FORMS: [(WeightForm, &str); 3] = [
    (WeightForm::Prepared, ""),
    (WeightForm::Raw, "raw"),
    (WeightForm::Raw, "wide"),
];

/// Copies of the weights that the runs walk through.
const COLD_BYTES: usize = 192 << 20;

/// How long each figure is measured for.
const EACH: Duration = Duration::from_millis(120);

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

/// A job as the waiting threads see it: tasks are claimed from a counter.
struct Job<'a> {
    body: &'a (dyn Fn(usize, usize) + Sync),
    tasks: usize,
}

/// Threads that wait spinning, as an engine's do between the steps of a network.
struct Spinning<'a> {
    workers: usize,
    shared: &'a Shared,
}

#[derive(Default)]
struct Shared {
    /// Address of the job, or 0; 1 tells the threads to end.
    job: AtomicUsize,
    next: AtomicUsize,
    round: AtomicUsize,
    busy: AtomicUsize,
}

impl Shared {
    fn take(&self, job: &Job<'_>, worker: usize) {
        loop {
            let task = self.next.fetch_add(1, Ordering::AcqRel);
            if task >= job.tasks {
                return;
            }
            (job.body)(task, worker);
        }
    }

    fn serve(&self, worker: usize) {
        let mut seen = 0;
        loop {
            let round = self.round.load(Ordering::Acquire);
            if round == seen {
                std::hint::spin_loop();
                continue;
            }
            seen = round;
            let job = self.job.load(Ordering::Acquire);
            if job == 0 {
                return;
            }
            // SAFETY: the caller of `run` keeps the job until every thread has left it.
            self.take(unsafe { &*(job as *const Job<'_>) }, worker);
            self.busy.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Parallel for Spinning<'_> {
    fn workers(&self) -> usize {
        self.workers
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        let job = Job { body, tasks };
        let s = self.shared;
        s.next.store(0, Ordering::Release);
        s.busy.store(self.workers - 1, Ordering::Release);
        s.job
            .store(std::ptr::from_ref(&job).addr(), Ordering::Release);
        s.round.fetch_add(1, Ordering::AcqRel);
        s.take(&job, 0);
        while s.busy.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
        }
    }
}

/// Best seconds of repeated calls; each gets its number.
fn measure(mut body: impl FnMut(usize)) -> f64 {
    body(0);
    let (begin, mut best, mut runs) = (Instant::now(), f64::MAX, 0);
    while begin.elapsed() < EACH || runs < 5 {
        runs += 1;
        let start = Instant::now();
        body(runs);
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Part `run` of many copies of `floats` weights.
fn copy(weights: &[f32], floats: usize, run: usize) -> &[f32] {
    let copies = weights.len() / floats;
    &weights[run % copies * floats..][..floats]
}

fn main() {
    let (mut isa, mut workers, mut filter) = (Isa::detect(), 1, String::new());
    let mut columns = vec!["direct".to_string()];
    for tile in Tile::ALL {
        columns.extend(FORMS.map(|(_, suffix)| format!("{tile:?}{suffix}")));
    }
    for argument in std::env::args().skip(1) {
        if let Some(named) = Isa::by_name(&argument) {
            isa = named;
        } else if let Ok(number) = argument.parse() {
            workers = number;
        } else if columns.contains(&argument) {
            columns = vec![argument];
        } else {
            filter = argument;
        }
    }
    println!(
        "{}, {workers} threads; GFLOP/s as of direct convolution",
        isa.name()
    );
    print!("{:24}", "layer");
    for column in &columns {
        print!(" {column:>8}");
    }
    println!("   scratch of {:?} raw, MB", Tile::F4);
    let shared = Shared::default();
    std::thread::scope(|scope| {
        for worker in 1..workers {
            let shared = &shared;
            scope.spawn(move || shared.serve(worker));
        }
        let pool = Spinning {
            workers,
            shared: &shared,
        };
        for &(name, c_in, c_out, size) in LAYERS {
            if name.contains(&filter) {
                layer(isa, &pool, &columns, name, [c_in, c_out], size);
            }
        }
        shared.job.store(0, Ordering::Release);
        shared.round.fetch_add(1, Ordering::AcqRel);
    });
}

fn layer(
    isa: Isa,
    pool: &Spinning<'_>,
    columns: &[String],
    name: &str,
    [c_in, c_out]: [usize; 2],
    size: usize,
) {
    let s = ConvShape {
        batch: 1,
        c_in,
        c_out,
        groups: 1,
        window: Window {
            input: [size; 2],
            output: [size; 2],
            kernel: [3; 2],
            strides: [1; 2],
            dilations: [1; 2],
            pads_begin: [1; 2],
            pads_end: [0; 2],
        },
    };
    let input = Aligned::new(c_in.next_multiple_of(LANES) * size * size, 0.5);
    let mut output = Aligned::new(s.panels() * LANES * size * size, 0.0);
    let epilogue = Epilogue {
        activation: Activation::Relu,
        residual: Residual::None,
    };
    let weights_of = |floats: usize| Aligned::new(floats * (COLD_BYTES / 4 / floats).max(1), 0.01);
    let rate = |seconds: f64| 2e-9 * s.multiply_adds() as f64 / seconds;
    let panels = s.panels();
    let raw_floats = panels * panel_floats(s.k());
    let raw = weights_of(raw_floats);
    let wanted = |column: &str| columns.iter().any(|c| c == column);
    print!("{name:24}");
    if wanted("direct") {
        let direct = measure(|run| {
            let w = copy(&raw, raw_floats, run);
            conv_blocked(isa, pool, &s, 0..panels, w, &input, &mut output, epilogue).unwrap();
        });
        print!(" {:>8.0}", rate(direct));
    }
    for tile in Tile::ALL {
        for (form, suffix) in FORMS {
            if !wanted(&format!("{tile:?}{suffix}")) {
                continue;
            }
            let bytes = match suffix {
                "wide" => wide_workspace_bytes(isa, tile, &s, panels, pool.workers),
                _ => workspace_bytes(isa, tile, form, &s, panels, pool.workers),
            };
            let mut workspace = Aligned::new(bytes / 4, 0.0);
            let floats = match form {
                WeightForm::Raw => raw_floats,
                WeightForm::Prepared => panels * prepared_panel_floats(tile, c_in),
            };
            let prepared = match form {
                WeightForm::Raw => Aligned::new(0, 0.0),
                WeightForm::Prepared => weights_of(floats),
            };
            let seconds = measure(|run| {
                let weights = match form {
                    WeightForm::Raw => Weights::Raw(copy(&raw, floats, run).into()),
                    WeightForm::Prepared => Weights::Prepared(copy(&prepared, floats, run)),
                };
                conv_winograd(
                    isa,
                    pool,
                    tile,
                    &s,
                    0..panels,
                    weights,
                    &input,
                    &mut output,
                    epilogue,
                    &mut workspace,
                )
                .unwrap();
            });
            print!(" {:>8.0}", rate(seconds));
        }
    }
    let bytes = workspace_bytes(isa, Tile::F4, WeightForm::Raw, &s, panels, pool.workers);
    println!("   {:.2}", bytes as f64 / 1e6);
}
