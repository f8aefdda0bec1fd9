//! What steps of training take: planned and real peak of the process, bytes moved, seconds.
//!
//! ```text
//! cargo run --release -p neaptide --example training_peak -- MODEL BATCH BUDGET [STEPS]
//! ```
//! `MODEL` is an image classifier of the zoo, or `gpt2_lm` with 64 tokens for each sample; `BUDGET` as for `neap run`. AdamW for
//! `gpt2_lm`, else SGD with momentum; batch normalisation by the batch. Inputs are noise, the same in each step.

use neap_plan::LaneId;
use neaptide::memory;
use neaptide::{
    BatchNorm, Budget, DType, Loss, OpenOptions, TensorType, TrainCosts, TrainOptions, Trainer,
    Update,
};
use std::error::Error;
use std::time::Instant;

const TOKENS: usize = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, batch, budget, rest @ ..] = &arguments[..] else {
        return Err("usage: training_peak MODEL BATCH BUDGET [STEPS]".into());
    };
    let batch: usize = batch.parse()?;
    let budget: Budget = budget.parse()?;
    let steps: usize = rest.first().map_or(Ok(3), |s| s.parse())?;
    let is_text = name.starts_with("gpt2");
    let folder = std::env::temp_dir().join("training_peak");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{name}-{batch}.onnx"));
    let mut open = OpenOptions::of_own_process();
    let zoo = neap_zoo::Options {
        free_size: is_text,
        batch: neap_zoo::Batch::Fixed(batch as u32),
        ..neap_zoo::Options::default()
    };
    if !path.exists() {
        neap_zoo::write(name, &path, &zoo, &mut |_, _| {})?;
    }
    if is_text {
        open.shapes.insert("input_ids".into(), vec![batch, TOKENS]);
    }
    let (adamw, sgd) = (
        Update::AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay: 0.01,
        },
        Update::Sgd {
            momentum: 0.9,
            nesterov: false,
            decay: 0.0,
        },
    );
    let update = if is_text { adamw } else { sgd };
    let options = TrainOptions {
        budget,
        costs: TrainCosts::Measured,
        loss: Loss::CrossEntropy {
            class_axis: if is_text { 2 } else { 1 },
            label_smoothing: 0.0,
            ignore_index: None,
        },
        batch_norm: match is_text {
            true => BatchNorm::Given,
            false => BatchNorm::Batch { momentum: 0.1 },
        },
        // The inputs, which are made when the trainer is open.
        reserve_bytes: match is_text {
            true => 1 << 20,
            false => (batch as u64 + 1) * 3 * 299 * 299 * 4,
        },
        state_dir: Some(folder),
        ..TrainOptions::default()
    };
    let started = Instant::now();
    let update_of = |_: &str, _: &TensorType| Some(update);
    let mut trainer = Trainer::open(&path, &open, &options, &update_of)?;
    let states: usize = trainer.states().iter().map(|s| s.ty.len_bytes()).sum();
    let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
    let (stored, loaded) = trainer.traffic_bytes();
    println!(
        "{name}, batch {batch}: states {:.1} MiB; planned {:.1} MiB ({}); a step stores {:.1} MiB and loads {:.1} MiB{}; \
         predicted {:.2} s; opened in {:.1} s",
        mib(states as u64),
        mib(trainer.high_water_bytes()),
        trainer.ledger(),
        mib(stored),
        mib(loaded),
        if trainer.recomputes() {
            ", recomputes"
        } else {
            ""
        },
        trainer.summary().predicted_ns as f64 / 1e9,
        started.elapsed().as_secs_f64()
    );
    take(&mut trainer, steps)?;
    println!("peak {:.1} MiB", mib(memory::peak(false).bytes));
    tell_lanes(&trainer);
    tell_operators(&trainer);
    Ok(())
}

/// What computed, what waited and what moved in the last step.
fn tell_lanes(trainer: &Trainer) {
    let Some(timeline) = trainer.timeline() else {
        return;
    };
    let Some(run) = timeline.runs.last() else {
        return;
    };
    let last = timeline.runs.len() as u32 - 1;
    let ms = |ns: u64| ns as f64 / 1e6;
    let spans = |lane| timeline.spans_of(lane, last).collect::<Vec<_>>();
    let computes = spans(LaneId::COMPUTE);
    let computed_ns = computes.iter().map(|s| s.end_ns - s.start_ns).sum();
    println!(
        "step {:.1} ms: computed {:.1}, waited {:.1}",
        ms(run.latency_ns()),
        ms(computed_ns),
        ms(run.stall_ns)
    );
    let begun = computes.first().map_or(0, |s| s.start_ns - run.start_ns);
    let ended = computes.last().map_or(0, |s| run.end_ns - s.end_ns);
    println!(
        "waited {:.1} ms before the first compute, {:.1} behind the last",
        ms(begun),
        ms(ended)
    );
    let (stored, loaded) = trainer.traffic_bytes();
    for (lane, bytes, what) in [
        (LaneId::LOAD, loaded, "loads"),
        (LaneId::STORE, stored, "stores"),
    ] {
        let mut times: Vec<(u64, u64)> =
            spans(lane).iter().map(|s| (s.start_ns, s.end_ns)).collect();
        times.sort_unstable();
        // Time in which at least one is on its way.
        let (mut busy_ns, mut until) = (0, 0);
        for &(start, end) in &times {
            busy_ns += end.saturating_sub(start.max(until));
            until = until.max(end);
        }
        println!(
            "{} {what}, on their way in {:.1} ms: {:.2} GB/s then",
            times.len(),
            ms(busy_ns),
            bytes as f64 / busy_ns.max(1) as f64
        );
    }
}

/// So many steps by the same noise.
fn take(trainer: &mut Trainer, steps: usize) -> Result<(), Box<dyn Error>> {
    let input = &trainer.inputs()[0];
    let count = input.ty.elements();
    let data: Vec<u8> = match input.ty.dtype == DType::I64 {
        true => (0..count)
            .flat_map(|i| (i as i64 * 977 % 50_000).to_le_bytes())
            .collect(),
        false => (0..count)
            .flat_map(|i| ((i as f32 * 0.37).sin()).to_le_bytes())
            .collect(),
    };
    let labels: Vec<u8> = (0..trainer.target().ty.elements())
        .flat_map(|i| (i as i64 * 37 % 1000).to_le_bytes())
        .collect();
    trainer.record_timeline(steps);
    for _ in 0..steps {
        let started = Instant::now();
        let loss = trainer.step(&[&data], &labels, 1e-3)?;
        println!("loss {loss:.6}, {:.2} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Where the last step's time went, by operator; the most first.
fn tell_operators(trainer: &Trainer) {
    let operators: Vec<&str> = trainer.operators().collect();
    let mut of: std::collections::BTreeMap<&str, (u64, u64)> = Default::default();
    let Some(timeline) = trainer.timeline() else {
        return;
    };
    // Without panels each step is one compute.
    let last = timeline.runs.len().saturating_sub(1) as u32;
    for span in timeline.spans_of(LaneId::COMPUTE, last) {
        let (ns, count) = of.entry(operators[span.action as usize]).or_default();
        *ns += span.end_ns - span.start_ns;
        *count += 1;
    }
    let mut of: Vec<_> = of.into_iter().collect();
    of.sort_by_key(|(_, (ns, _))| std::cmp::Reverse(*ns));
    for (operator, (ns, count)) in of.iter().take(12) {
        println!("{operator:24} {count:5} {:9.1} ms", *ns as f64 / 1e6);
    }
}
