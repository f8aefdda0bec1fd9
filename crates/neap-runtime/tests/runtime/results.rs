//! Results are computed where the caller wants them, if the device can; nothing around them is touched.

use crate::support::{Builder, Model, image_model, mixed_model, skip_model};
use neap_ir::op::{Activation, Unary};
use neap_kernels::simd::Isa;
use neap_plan::ExecutionPlan;
use neap_planner::Strategy;
use neap_runtime::{Cpu, Device, InputTensor, Job, JobError, Meanwhile, OutputTensor, Pool};
use neap_store::{FaultScript, MemoryModel, VirtualClock};
use std::sync::{Arc, Mutex};

/// The processor, and where it wrote.
struct Watched {
    cpu: Cpu,
    sees_plans_memory_only: bool,
    written: Arc<Mutex<Vec<usize>>>,
}

impl Device for Watched {
    fn name(&self) -> &'static str {
        "watched"
    }

    fn most_in_flight(&self) -> usize {
        1
    }

    unsafe fn submit(&mut self, number: u64, job: Job<'_>, meanwhile: Meanwhile<'_>) {
        let outputs = job.outputs.iter().flatten();
        let starts = outputs.map(|output| output.as_ptr().addr());
        self.written.lock().expect("not poisoned").extend(starts);
        // SAFETY: the caller's promise is passed on.
        unsafe { self.cpu.submit(number, job, meanwhile) };
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), JobError>)) {
        self.cpu.poll(wait, done);
    }

    fn drain(&mut self) -> bool {
        self.cpu.drain()
    }

    fn imports_memory(&self) -> bool {
        self.sees_plans_memory_only
    }
}

/// By output, whether something was computed in the caller's memory, which is aligned to elements and to nothing more.
fn is_computed_in_place(
    model: &Model,
    plan: &ExecutionPlan,
    sees_plans_memory_only: bool,
) -> Vec<bool> {
    const MARGIN: usize = 64;
    let expected = model.expected();
    let written = Arc::new(Mutex::new(Vec::new()));
    let device = Watched {
        cpu: Cpu::new(Arc::new(Pool::new(1).expect("a pool")), Isa::detect()),
        sees_plans_memory_only,
        written: written.clone(),
    };
    let (storage, faults) = (MemoryModel::default(), FaultScript::default());
    let time = VirtualClock::new();
    let mut session = model.open_on(plan, Box::new(device), storage, faults, time);
    let graph = &model.program.graph;
    let inputs: Vec<InputTensor> = (graph.inputs.iter().zip(&model.inputs))
        .map(|(&v, bytes)| InputTensor {
            ty: graph.ty(v),
            bytes,
        })
        .collect();
    let mut places: Vec<Vec<u8>> = (graph.outputs.iter())
        .map(|&v| vec![0xEE; 2 * MARGIN + graph.ty(v).len_bytes()])
        .collect();
    // Aligned to four bytes, and to nothing more.
    let begins = places.iter().map(|p| p.as_ptr().align_offset(8) + 4);
    let begins: Vec<usize> = begins.collect();
    let mut in_place = Vec::new();
    for _ in 0..3 {
        written.lock().expect("not poisoned").clear();
        let mut outputs: Vec<OutputTensor> = (graph.outputs.iter().zip(&mut places))
            .zip(&begins)
            .map(|((&v, place), &begin)| OutputTensor {
                ty: graph.ty(v),
                bytes: &mut place[begin..][..graph.ty(v).len_bytes()],
            })
            .collect();
        let starts: Vec<usize> = outputs.iter().map(|o| o.bytes.as_ptr().addr()).collect();
        session.run(&inputs, &mut outputs).expect("runs");
        for ((place, &begin), expected) in places.iter().zip(&begins).zip(&expected) {
            let (before, rest) = place.split_at(begin);
            let (found, after) = rest.split_at(expected.len());
            assert!(found == expected);
            assert!(before.iter().chain(after).all(|&b| b == 0xEE));
        }
        let written = written.lock().expect("not poisoned");
        in_place = starts.iter().map(|s| written.contains(s)).collect();
    }
    in_place
}

/// Within budgets from the smallest to everything resident.
fn check(model: &Model, wanted: &[bool]) {
    let (least, most) = (model.smallest_bytes(), model.unlimited_bytes());
    for budget in [least, u64::midpoint(least, most), most] {
        let plan = model.plan(budget, Strategy::Preload);
        assert_eq!(is_computed_in_place(model, &plan, false), wanted);
        assert!(!is_computed_in_place(model, &plan, true).contains(&true));
    }
}

#[test]
fn results_are_computed_in_the_callers_memory() {
    check(&image_model(3), &[true]);
    check(&skip_model(4), &[true]);
    // The second is read by later steps, too.
    check(&mixed_model(5), &[true, true]);
}

#[test]
fn a_result_over_what_it_was_made_of_is_computed_there_too() {
    let mut b = Builder::new(6);
    let x = b.input("x", &[7, 40]);
    let scores = b.linear(x, 33, Activation::None, None);
    let bent = b.unary(scores, Unary::Activation(Activation::Tanh), true);
    let flat = b.reshape(bent, &[1, 7 * 33]);
    b.output(flat);
    check(&b.finish(), &[true]);
}

#[test]
fn two_results_in_one_buffer_are_copied() {
    let mut b = Builder::new(7);
    let x = b.input("x", &[7, 40]);
    let scores = b.linear(x, 33, Activation::None, None);
    let flat = b.reshape(scores, &[1, 7 * 33]);
    b.output(scores);
    b.output(flat);
    check(&b.finish(), &[false, false]);
}
