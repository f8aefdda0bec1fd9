//! How fast products with blocks are, on one thread: bytes of weights and operations a second.
//!
//! Each number is the least of many short repetitions, for machines that are busy.

use neap_blocks::{Activations, BlockType, Isa, Output, product, scratch_bytes};
use std::time::{Duration, Instant};

/// Output rows and k of each type: of SmolLM2-135M, and of Qwen2.5-1.5B.
const SHAPES: &[(BlockType, usize, usize)] = &[
    (BlockType::Q4_1, 1536, 576),
    (BlockType::Q8_0, 1536, 576),
    (BlockType::Q4K, 1536, 1536),
    (BlockType::Q6K, 1536, 1536),
    (BlockType::Q4K, 1536, 8960),
    (BlockType::Q6K, 1536, 8960),
    (BlockType::Q4_0, 1536, 1536),
    (BlockType::Q5_0, 1536, 1536),
    (BlockType::Q5_1, 1536, 1536),
    (BlockType::Q5K, 1536, 1536),
    (BlockType::Q2K, 1536, 1536),
    (BlockType::Q3K, 1536, 1536),
    (BlockType::Iq4Nl, 1536, 1536),
    (BlockType::Iq4Xs, 1536, 1536),
    (BlockType::Mxfp4, 1536, 1536),
    (BlockType::F16, 1536, 576),
    (BlockType::Bf16, 1536, 576),
    (BlockType::F32, 1536, 576),
];

/// More than caches hold.
const MEMORY_BYTES: usize = 64 << 20;

fn main() {
    let isa = std::env::var("ISA").ok();
    let isa = isa.map_or(Isa::detect(), |name| {
        let found = Isa::available().find(|isa| isa.name() == name);
        found.expect("an instruction set of this processor")
    });
    println!("{} on one thread; GB/s of weights, GFLOP/s", isa.name());
    println!(
        "{:28} {:>15} {:>15} {:>15} {:>15} {:>15}",
        "rows", "1 (memory)", 1, 4, 16, 128
    );
    for &(ty, columns, k) in SHAPES {
        let many = MEMORY_BYTES / ty.row_bytes(k);
        // Bytes that are floats of usual sizes in every type: subnormal ones are slow on some processors.
        let bytes = (0..many * ty.row_bytes(k)).map(|i| (i * 31 % 251) as u8 & 0x0f | 0x30);
        let weights: Vec<u8> = bytes.collect();
        print!("{:28}", format!("{ty:?} {columns} x {k}"));
        // So few output rows that nobody else gets a turn meanwhile, but where they come from memory.
        let few = |rows: usize| (rows, columns.min((6144 / rows).max(48)));
        for (rows, columns) in [(1, many), few(1), few(4), few(16), few(128)] {
            let weights = &weights[..columns * ty.row_bytes(k)];
            let seconds = least(isa, ty, k, weights, rows).as_secs_f64();
            let flops = 2.0 * (columns * k * rows) as f64;
            let (bytes, flops) = (weights.len() as f64 / seconds, flops / seconds);
            print!(" {:6.2} {:8.1}", bytes / 1e9, flops / 1e9);
        }
        println!();
    }
}

fn least(isa: Isa, ty: BlockType, k: usize, weights: &[u8], rows: usize) -> Duration {
    let columns = weights.len() / ty.row_bytes(k);
    let x: Vec<f32> = (0..rows * k).map(|i| (i % 29) as f32 - 14.0).collect();
    let mut buffer = vec![0; Activations::bytes(rows, k)];
    let x = Activations::quantise(&x, rows, k, &mut buffer);
    let mut y = vec![0.0; rows * columns];
    let mut scratch = vec![0; scratch_bytes(ty, k, rows)];
    let mut least = Duration::MAX;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(300) {
        let start = Instant::now();
        let mut y = Output::new(&mut y, rows, columns, 0..columns);
        product(isa, ty, k, weights, &x, &mut y, &mut scratch);
        least = least.min(start.elapsed());
    }
    least
}
