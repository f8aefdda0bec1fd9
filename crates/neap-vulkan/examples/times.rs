//! What the steps of models take on the device: `times CACHE RUNS MODEL.onnx...`. One line for each step: its operator, its
//! shapes, the least time of several runs, what was predicted, and rates. Times of the processor are of all threads.

use neap_plan::LaneId;
use neap_vulkan::{Options, Vulkan};
use neaptide::{Accelerator, Cache, Model, OpenOptions, RunOptions};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let cache = arguments.next().ok_or("times CACHE RUNS MODEL...")?;
    let runs: usize = arguments
        .next()
        .ok_or("times CACHE RUNS MODEL...")?
        .parse()?;
    let open = OpenOptions {
        cache: Cache::Folder(cache.into()),
        ..OpenOptions::default()
    };
    for model in arguments {
        times(&model, &open, runs)?;
    }
    Ok(())
}

fn times(path: &str, open: &OpenOptions, runs: usize) -> Result<(), Box<dyn Error>> {
    let model = Model::open(Path::new(path), open, &mut |_| {})?;
    let device: Arc<dyn Accelerator> = Arc::new(Vulkan::open(&Options {
        program: Some(model.program().clone()),
        ..Options::default()
    })?);
    let rates = device.rates();
    let options = RunOptions {
        threads: 2,
        accelerator: Some(device),
        ..RunOptions::default()
    };
    let plan = model.plan(&options)?;
    let (workload, execution, costs) = (
        plan.workload().clone(),
        plan.execution().clone(),
        plan.costs.clone(),
    );
    let program = model.program().clone();
    let mut session = model.into_session(plan, &options)?;
    let inputs: Vec<Vec<u8>> = session
        .inputs()
        .iter()
        .map(|i| vec![0; i.len_bytes()])
        .collect();
    let mut outputs: Vec<Vec<u8>> = session
        .outputs()
        .iter()
        .map(|o| vec![0; o.len_bytes()])
        .collect();
    let mut run = |session: &mut neaptide::Session| -> Result<f64, Box<dyn Error>> {
        let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut taken: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let started = Instant::now();
        session.run(&given, &mut taken)?;
        Ok(started.elapsed().as_secs_f64())
    };
    run(&mut session)?;
    session.record_timeline(runs + 1);
    let cpu = cpu_seconds();
    let mut least = f64::MAX;
    for _ in 0..=runs {
        least = least.min(run(&mut session)?);
    }
    let cpu = (cpu_seconds() - cpu) / (runs + 1) as f64;
    let timeline = session.timeline().ok_or("no timeline")?;
    let mut step_ns = vec![vec![0; runs + 1]; workload.steps.len()];
    for span in timeline.spans.iter().filter(|s| s.lane == LaneId::COMPUTE) {
        let step = execution.computes[span.action as usize].step;
        step_ns[step.index()][span.run as usize] += span.end_ns - span.start_ns;
    }
    let (mut all, mut predicted_all) = (0, 0);
    for (i, step) in workload.steps.iter().enumerate() {
        step_ns[i].sort_unstable();
        let ns = step_ns[i][runs.div_ceil(2)];
        let predicted = costs.step_ns(i, step) + costs.compute_overhead_ns;
        all += ns;
        predicted_all += predicted;
        let node = &program.graph.nodes[program.steps[i].index()];
        let shape = |id: Option<neap_ir::ValueId>| {
            id.map(|id| format!("{:?}", program.graph.values[id.index()].ty.shape))
        };
        println!(
            "{:28} {:?} -> {:?} {:8.1} us, predicted {:8.1}, {:6.2} GFLOP/s {:6.2} GB/s {}",
            node.op.name(),
            shape(node.inputs[0]),
            shape(node.outputs[0]),
            ns as f64 / 1e3,
            predicted as f64 / 1e3,
            step.flops as f64 / ns as f64,
            step.touched_bytes as f64 / ns as f64,
            step.name
        );
    }
    println!(
        "{path}: run {:.1} ms, steps {:.1} ms, predicted {:.1} ms, {:.1} ms of all threads; {rates:?}, VmHWM {}",
        least * 1e3,
        all as f64 / 1e6,
        predicted_all as f64 / 1e6,
        cpu * 1e3,
        std::fs::read_to_string("/proc/self/status")?
            .lines()
            .find(|l| l.starts_with("VmHWM"))
            .unwrap_or("")
    );
    Ok(())
}

/// Of this process, all threads.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |i: usize| {
        fields
            .get(i)
            .and_then(|f| f.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    (ticks(11) + ticks(12)) / 100.0
}
