//! Time that a session takes to go over to other shapes, and what one packed file for all of them takes.
//!
//! Each shape is bound three times: the first time programs are lowered and planned; later ones find them kept.

use crate::models;
use anyhow::{Context, Result, ensure};
use clap::Args;
use neaptide::{
    Budget, Cache, Calibration, Model, OpenOptions, Rebinding, RunOptions, Session, shape_text,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct BindingsArgs {
    /// Only these zoo models.
    only: Vec<String>,
    /// Each session anew; the fastest time of each change counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A network with free sizes, and the shapes of its input that are bound in turn.
struct Case {
    network: &'static str,
    shapes: Vec<Vec<usize>>,
}

fn cases() -> Vec<Case> {
    let images = |height: usize, widths: &[usize]| {
        let shape = |&width: &usize| vec![1, 3, height, width];
        widths.iter().map(shape).collect()
    };
    let case = |network, shapes| Case { network, shapes };
    // Lines of text, which are as wide as they are; images; texts of different lengths.
    vec![
        case("mobilenet_v2", images(64, &[160, 320, 480, 640, 800, 960])),
        case("resnet152", images(224, &[160, 224, 320, 480])),
        case(
            "gpt2",
            [8, 16, 32, 64, 128, 256].map(|n| vec![1, n]).to_vec(),
        ),
    ]
}

pub fn run(root: &Path, args: &BindingsArgs) -> Result<()> {
    println!("| network | input | budget | lowering ms | planning ms | all ms | kept ms |");
    println!("|---|---|---|--:|--:|--:|--:|");
    let mut files = Vec::new();
    for case in cases() {
        if !args.only.is_empty() && args.only.iter().all(|o| o != case.network) {
            continue;
        }
        let model = free_model(root, case.network)?;
        let first = open(root, &model, &case.shapes[0])?;
        let packed = first.packed_path().context("it is packed")?.to_path_buf();
        let weights_bytes = first.weight_bytes();
        drop(first);
        let before = std::fs::metadata(&packed)?;
        for budget in [
            Budget::Unlimited,
            Budget::Engine(weights_bytes / 2 + BESIDE_BYTES),
        ] {
            measure(root, &model, &case, budget, args.rounds)?;
        }
        let after = std::fs::metadata(&packed)?;
        ensure!(
            (before.len(), before.modified()?) == (after.len(), after.modified()?),
            "{} was written again",
            packed.display()
        );
        files.push((case.network, weights_bytes, after.len()));
    }
    println!();
    println!("| network | weights in use, bytes | packed file for all shapes, bytes |");
    println!("|---|--:|--:|");
    for (network, weights_bytes, file_bytes) in files {
        println!("| {network} | {weights_bytes} | {file_bytes} |");
    }
    Ok(())
}

/// For the engine, beside half of the weights: activations of the largest shapes, workspaces, tables.
const BESIDE_BYTES: u64 = 32 << 20;

fn measure(root: &Path, model: &Path, case: &Case, budget: Budget, rounds: usize) -> Result<()> {
    let mut best: Vec<Option<(Rebinding, u64)>> = vec![None; case.shapes.len()];
    for _ in 0..rounds.max(1) {
        let mut session = session(open(root, model, &case.shapes[0])?, budget)?;
        for (shape, best) in case.shapes.iter().zip(&mut best).skip(1) {
            let change = bind(&mut session, shape)?;
            ensure!(!change.was_kept, "a shape that was never in use is kept");
            // There and back again.
            bind(&mut session, &case.shapes[0])?;
            let kept = bind(&mut session, shape)?;
            bind(&mut session, &case.shapes[0])?;
            let kept_ns = if kept.was_kept {
                kept.total_ns
            } else {
                u64::MAX
            };
            let is_better = best.is_none_or(|(old, _)| change.total_ns < old.total_ns);
            let least_ns = best.map_or(kept_ns, |(_, old_ns)| old_ns.min(kept_ns));
            *best = match (is_better, *best) {
                (false, Some((old, _))) => Some((old, least_ns)),
                _ => Some((change, least_ns)),
            };
        }
    }
    let budget = match budget {
        Budget::Engine(bytes) => format!("{} MiB", bytes >> 20),
        _ => "none".into(),
    };
    for (shape, best) in case.shapes.iter().zip(best).skip(1) {
        let Some((change, kept_ns)) = best else {
            continue;
        };
        let ms = |ns: u64| ns as f64 / 1e6;
        let kept = match kept_ns {
            u64::MAX => "-".into(),
            ns => format!("{:.1}", ms(ns)),
        };
        println!(
            "| {} | {} | {budget} | {:.1} | {:.1} | {:.1} | {kept} |",
            case.network,
            shape_text(shape),
            ms(change.lowering_ns),
            ms(change.planning_ns),
            ms(change.total_ns),
        );
    }
    Ok(())
}

fn bind(session: &mut Session, shape: &[usize]) -> Result<Rebinding> {
    let name = session.inputs()[0].name.clone();
    let change = session.bind(&[(name, shape.to_vec())].into())?;
    // As between requests: what it reads is there before the next change.
    session.settle()?;
    Ok(change)
}

fn open(root: &Path, model: &Path, shape: &[usize]) -> Result<Model> {
    let name = match shape.len() {
        2 => "input_ids",
        _ => "input",
    };
    let shapes: BTreeMap<String, Vec<usize>> = [(name.to_string(), shape.to_vec())].into();
    let options = OpenOptions {
        shapes,
        cache: Cache::Folder(root.join("target/models/packed")),
        ..OpenOptions::default()
    };
    Ok(Model::open(model, &options, &mut |_| {})?)
}

fn session(model: Model, budget: Budget) -> Result<Session> {
    let options = RunOptions {
        budget,
        threads: 2,
        calibration: Calibration::Off,
        ..RunOptions::default()
    };
    let plan = model.plan(&options)?;
    Ok(model.into_session(plan, &options)?)
}

/// Writes a zoo model with free sizes unless it is there already.
fn free_model(root: &Path, name: &str) -> Result<PathBuf> {
    let options = neap_zoo::Options {
        free_size: true,
        ..neap_zoo::Options::default()
    };
    models::zoo_model_as(root, name, &format!("{name}.free"), &options)
}
