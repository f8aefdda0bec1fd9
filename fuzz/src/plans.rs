//! Plans of small models, and what must hold of any that the validator accepts.

use crate::nets::RandomNet;
use neap_ir::{Literal, Program};
use neap_plan::{Checked, ExecutionPlan, Workload, validate};
use neap_runtime::{
    BackingStore, Clock, InputTensor, Options, OutputTensor, RuntimeError, Session,
};
use neap_sim::CostProfile;
use neap_store::{FaultScript, MemoryModel, MemorySource, PackedFile, VirtualClock};
use neaptide::{Isa, Model, RunOptions, Strategy};
use serde_json::Value;
use std::sync::Arc;

/// What a changed plan may ask of this machine.
const MOST_ARENA_BYTES: u64 = 64 << 20;
const MOST_ACTIONS: usize = 20_000;

/// A model with a plan of it, and its results.
pub struct Subject {
    pub workload_json: Value,
    pub plan_json: Value,
    program: Arc<Program>,
    workload: Workload,
    file: Arc<[u8]>,
    path: std::path::PathBuf,
    inputs: Vec<Literal>,
    expected: Vec<Vec<u8>>,
}

/// Models of several kinds, each with a plan that keeps all weights, one that streams, and one that stores.
///
/// # Panics
/// Where one cannot be made.
pub fn subjects() -> Vec<Subject> {
    let folder = crate::scratch();
    let mut subjects = Vec::new();
    for seed in [0, 1, 2, 6] {
        let path = folder.join(format!("model-{seed}.neap"));
        let mut net = RandomNet::new(seed);
        let inputs = net.inputs();
        neaptide::pack_graph(net.net.graph, &path, &Default::default(), &mut |_| {})
            .expect("packs");
        let model = || Model::open(&path, &Default::default(), &mut |_| {}).expect("opens");
        let options = RunOptions {
            threads: 1,
            costs: Some(CostProfile::default()),
            ..RunOptions::default()
        };
        let free = model().plan(&options).expect("feasible");
        let planner = neap_planner::Planner::new(&free.workload);
        let least = planner.smallest_feasible_bytes();
        let most = planner.unlimited_high_water_bytes();
        for arena_bytes in [least, least + (most - least) / 3, most] {
            let planned = planner.plan(arena_bytes, Strategy::Preload, &CostProfile::default());
            let Ok(planned) = planned else { continue };
            let mut subject = Subject {
                workload_json: serde_json::to_value(&free.workload).expect("plain data"),
                plan_json: serde_json::to_value(&planned.plan).expect("plain data"),
                program: free.program.clone(),
                workload: free.workload.clone(),
                file: std::fs::read(&path).expect("readable").into(),
                path: path.clone(),
                inputs: inputs.clone(),
                expected: Vec::new(),
            };
            subject.expected = subject.run(planned.plan).expect("a right plan runs");
            subjects.push(subject);
        }
    }
    subjects
}

/// What the validator accepts comes to an end in the simulator.
///
/// # Panics
/// When it does not.
pub fn check(workload: &Workload, plan: &ExecutionPlan) {
    let actions = plan.loads.len() + plan.computes.len() + plan.stores.len();
    if actions > MOST_ACTIONS || validate(workload, plan).is_err() {
        return;
    }
    let costs = CostProfile::default();
    let predicted = neap_sim::predict(workload, plan, &costs);
    assert!(predicted.latency_ns < u64::MAX, "an accepted plan is stuck");
    let timeline = neap_sim::simulate(workload, plan, &costs, 2);
    assert_eq!(timeline.runs.len(), 2);
}

impl Subject {
    /// A plan that is accepted gives the same bits.
    ///
    /// # Panics
    /// When it gives others.
    pub fn execute(&self, plan: ExecutionPlan) {
        if plan.memory_bytes() > MOST_ARENA_BYTES || plan.spill_bytes() > MOST_ARENA_BYTES {
            return;
        }
        let Ok(plan) = Checked::new(self.workload.clone(), plan) else {
            return;
        };
        match self.run(plan) {
            Ok(found) => assert!(found == self.expected, "an accepted plan gives other bits"),
            Err(RuntimeError::Store(e)) => panic!("an accepted plan: {e}"),
            Err(_) => {}
        }
    }

    fn run(&self, plan: Checked) -> Result<Vec<Vec<u8>>, RuntimeError> {
        let mut file = PackedFile::open(&self.path).expect("opens");
        let verifier = file.take_verifier().expect("the first time");
        let time = VirtualClock::new();
        let device = MemoryModel {
            piece_bytes: 16 << 10,
            max_loads: 64,
            ..MemoryModel::default()
        };
        let faults = FaultScript::default;
        let spill = MemorySource::spill(
            plan.verdict().spill_bytes.next_multiple_of(4096) as usize,
            device,
            time.clone(),
            faults(),
        )?;
        let source = MemorySource::new(self.file.clone(), device, time.clone(), faults())?;
        let storage = BackingStore {
            source: Box::new(source),
            verifier,
            spill: Some(Box::new(spill)),
        };
        let options = Options {
            threads: 1,
            isa: Isa::detect(),
        };
        let mut session = Session::open_with_clock(
            self.program.clone(),
            plan,
            storage,
            options,
            Computing(time),
        )?;
        let mut outputs = Vec::new();
        // The second run's loads begin during the first.
        for _ in 0..2 {
            outputs = self.run_once(&mut session)?;
        }
        Ok(outputs)
    }

    fn run_once(&self, session: &mut Session<Computing>) -> Result<Vec<Vec<u8>>, RuntimeError> {
        let graph = &self.program.graph;
        let inputs = graph.inputs.iter().zip(&self.inputs);
        let inputs: Vec<InputTensor> = inputs
            .map(|(&v, literal)| InputTensor {
                ty: graph.ty(v),
                bytes: literal.bytes(),
            })
            .collect();
        let sizes = graph.outputs.iter().map(|&v| graph.ty(v).len_bytes());
        let mut results: Vec<Vec<u8>> = sizes.map(|n| vec![0; n]).collect();
        let outputs = graph.outputs.iter().zip(&mut results);
        let mut outputs: Vec<OutputTensor> = outputs
            .map(|(&v, bytes)| OutputTensor {
                ty: graph.ty(v),
                bytes,
            })
            .collect();
        session.run(&inputs, &mut outputs)?;
        Ok(results)
    }
}

/// Virtual time, in which every compute takes equally long.
struct Computing(VirtualClock);

impl Clock for Computing {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn passes(&mut self, _compute: usize) -> bool {
        self.0.advance_ns(20_000);
        false
    }
}
