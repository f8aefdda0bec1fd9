//! The smallest budgets of a network of the zoo with and without strips, part by part, and whether a run within the smallest has the
//! bits of one that has all memory.
//!
//! ```text
//! cargo run --release -p neaptide --example smallest_budgets -- MODEL [HEIGHT WIDTH] [--run]
//! ```

use neaptide::{BandMode, Budget, Bytes, Model, OpenOptions, RunOptions};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let runs = arguments.iter().any(|argument| argument == "--run");
    arguments.retain(|argument| argument != "--run");
    let [name, size @ ..] = &arguments[..] else {
        return Err("usage: smallest_budgets MODEL [HEIGHT WIDTH] [--run]".into());
    };
    let folder = std::env::temp_dir().join("smallest_budgets");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}-{}.onnx", size.len()));
    if !path.exists() {
        let zoo = neap_zoo::Options {
            free_size: !size.is_empty(),
            ..neap_zoo::Options::default()
        };
        neap_zoo::write(name, &path, &zoo, &mut |_, _| {})?;
    }
    let mut open = OpenOptions::default();
    if let [height, width] = size {
        let shape = vec![1, 3, height.parse()?, width.parse()?];
        open.shapes.insert("input".into(), shape);
    }
    let mut smallest = Vec::new();
    for bands in [BandMode::Off, BandMode::Auto] {
        let model = Model::open(&path, &open, &mut |_| {})?;
        let bounds = model.bounds(&options(Budget::Engine(0), bands));
        let bytes = bounds.smallest_feasible_bytes();
        println!(
            "{name} {size:?} {bands:?}: {} ({})",
            Bytes(bytes),
            bounds.smallest
        );
        smallest.push(bytes);
    }
    println!(
        "{name} {size:?}: {:.3}",
        smallest[1] as f64 / smallest[0] as f64
    );
    if runs {
        let within = outputs(
            &path,
            &open,
            options(Budget::Engine(smallest[1]), BandMode::Auto),
        )?;
        let all = outputs(
            &path,
            &open,
            options(Budget::Engine(1 << 40), BandMode::Auto),
        )?;
        println!("{name} {size:?}: the same bits: {}", within == all);
    }
    Ok(())
}

fn options(budget: Budget, bands: BandMode) -> RunOptions {
    RunOptions {
        budget,
        bands,
        exact: true,
        ..RunOptions::default()
    }
}

fn outputs(
    path: &Path,
    open: &OpenOptions,
    options: RunOptions,
) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let model = Model::open(path, open, &mut |_| {})?;
    let plan = model.plan(&options)?;
    let mut session = model.into_session(plan, &options)?;
    let mut state = 7u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0).to_le_bytes()
    };
    let count = session.inputs()[0].len_bytes() / 4;
    let input: Vec<u8> = (0..count).flat_map(|_| noise()).collect();
    let mut made: Vec<Vec<u8>> = session
        .outputs()
        .iter()
        .map(|o| vec![0; o.len_bytes()])
        .collect();
    let mut into: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
    session.run(&[&input], &mut into)?;
    println!("stored: {}", Bytes(session.stats().stored_bytes));
    Ok(made)
}
