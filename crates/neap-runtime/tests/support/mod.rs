//! Small models made by hand, and what it takes to run them: plans, sources, clocks.
#![allow(dead_code, reason = "each test binary uses its own part")]

mod builder;
pub mod link;

pub use builder::Builder;

use neap_ir::op::{Activation, Binary, Unary};
use neap_ir::program::Storage as Place;
use neap_ir::recipe::PackedForm;
use neap_ir::{Const, Op, Program, ValueId};
use neap_kernels::simd::Isa;
use neap_plan::{
    BufferId, BufferSpec, Checked, ExecutionPlan, Extent, PanelSpec, RowTable, StepRange, StepSpec,
    Violation, Workload,
};
use neap_runtime::{
    BackingStore, CancelToken, Clock, Device, InputTensor, Monotonic, Options, OutputTensor,
    Replaced, RuntimeError, Session,
};
use neap_store::{
    BLOCK, FaultScript, MemoryModel, MemorySource, Source, Spill, Verifier, VirtualClock,
};
use std::sync::Arc;
use std::time::Duration;

/// Most workers that workloads leave workspace for.
pub const MAX_WORKERS: usize = 3;

/// A program, the file that it reads, and inputs for it.
#[derive(Clone)]
pub struct Model {
    pub program: Arc<Program>,
    pub workload: Workload,
    /// The whole packed file; its first block stands for the header.
    pub file: Arc<[u8]>,
    pub inputs: Vec<Vec<u8>>,
}

/// Reproducible numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 20) % n as u64) as usize
    }

    /// In -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

pub fn floats(random: &mut Random, count: usize, scale: f32) -> Vec<u8> {
    (0..count)
        .flat_map(|_| (random.float() * scale).to_le_bytes())
        .collect()
}

/// What a planner needs to know of a program.
fn workload(program: &Program) -> Workload {
    let graph = &program.graph;
    let steps = program.steps.iter().map(|id| {
        let node = &graph.nodes[id.index()];
        let describe = |v: &Option<ValueId>| v.map(|v| (graph.ty(v), graph.value(v).layout));
        let inputs: Vec<_> = node.inputs.iter().map(describe).collect();
        let outputs: Vec<_> = node.outputs.iter().map(describe).collect();
        let panels = node.panels.map(|id| {
            let packed = &program.packed[id.index()];
            let PackedForm::Panels {
                panels,
                panel_bytes,
                ..
            } = packed.form
            else {
                panic!("panels");
            };
            PanelSpec {
                file_offset: packed.offset,
                panel_bytes,
                panels,
                granule: 1,
            }
        });
        let extents = node.present_inputs().filter_map(|v| {
            let Some(Const::Packed(id)) = graph.constant(v) else {
                return None;
            };
            let packed = &program.packed[id.index()];
            Some(Extent {
                file_offset: packed.offset,
                bytes: packed.bytes,
            })
        });
        let rows = match node.op {
            Op::GatherRows {
                table,
                row_elements,
                ..
            } => {
                let packed = &program.packed[table.index()];
                Some(RowTable {
                    file_offset: packed.offset,
                    bytes: packed.bytes,
                    rows_workspace_bytes: 3
                        * ((row_elements * 4 + 2 * (BLOCK - 1)) / BLOCK * BLOCK) as u64,
                })
            }
            _ => None,
        };
        let workspace_bytes = match node.op {
            Op::GatherRows { .. } => 0,
            _ => neap_ops::workspace_bytes(&node.op, &inputs, &outputs, MAX_WORKERS, Isa::detect()),
        };
        StepSpec {
            name: node.name.clone(),
            workspace_bytes: workspace_bytes as u64,
            flops: 1_000_000,
            touched_bytes: 10_000,
            panels,
            extents: extents.collect(),
            rows,
            reads: buffers(program, &node.inputs),
            writes: buffers(program, &node.outputs),
            ..StepSpec::default()
        }
    });
    Workload {
        digest: program.digest.clone(),
        steps: steps.collect(),
        buffers: program
            .buffers
            .iter()
            .enumerate()
            .map(|(i, b)| BufferSpec {
                name: format!("buffer {i}"),
                bytes: b.bytes,
                align: 64,
                live: StepRange::new(b.live.start, b.live.end),
                kept: false,
            })
            .collect(),
        constants_bytes: 0,
        states: Vec::new(),
    }
}

/// Buffers that hold any of these values, each once.
fn buffers(program: &Program, values: &[Option<ValueId>]) -> Vec<BufferId> {
    let storage = values.iter().flatten().map(|v| program.storage[v.index()]);
    let mut buffers: Vec<BufferId> = storage
        .filter_map(|storage| match storage {
            Place::Buffer { buffer, .. } => Some(BufferId(buffer)),
            _ => None,
        })
        .collect();
    buffers.sort_unstable();
    buffers.dedup();
    buffers
}

/// Virtual time, in which every compute takes equally long.
pub struct TestClock {
    pub time: VirtualClock,
    pub compute_ns: u64,
}

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn passes(&mut self, _compute: usize) -> bool {
        self.time.advance_ns(self.compute_ns);
        false
    }
}

impl Model {
    pub fn verifier(&self) -> Verifier {
        Verifier::from_data(BLOCK as u64, &self.file[BLOCK..]).expect("whole blocks")
    }

    /// A session over a virtual device.
    pub fn open(
        &self,
        plan: &ExecutionPlan,
        threads: usize,
        model: MemoryModel,
        faults: FaultScript,
    ) -> Result<Session<TestClock>, RuntimeError> {
        self.open_file(plan, threads, self.file.clone(), model, faults)
    }

    pub fn checked(&self, plan: &ExecutionPlan) -> Result<Checked, Violation> {
        Checked::new(self.workload.clone(), plan.clone())
    }

    /// [`Model::open`] on another file.
    pub fn open_file(
        &self,
        plan: &ExecutionPlan,
        threads: usize,
        file: Arc<[u8]>,
        model: MemoryModel,
        faults: FaultScript,
    ) -> Result<Session<TestClock>, RuntimeError> {
        let time = VirtualClock::new();
        let spill = MemorySource::spill(
            plan.spill_bytes() as usize,
            model,
            time.clone(),
            faults.clone(),
        )?;
        let source = MemorySource::new(file, model, time.clone(), faults)?;
        Session::open_with_clock(
            self.program.clone(),
            self.checked(plan)?,
            BackingStore {
                source: Box::new(source),
                verifier: self.verifier(),
                spill: Some(Box::new(spill)),
            },
            options(threads),
            TestClock {
                time,
                compute_ns: 20_000,
            },
        )
    }

    /// On these devices, under the time that they go by.
    pub fn open_with(
        &self,
        plan: &ExecutionPlan,
        time: VirtualClock,
        source: MemorySource,
        spill: Option<MemorySource>,
    ) -> Result<Session<TestClock>, RuntimeError> {
        Session::open_with_clock(
            self.program.clone(),
            self.checked(plan)?,
            BackingStore {
                source: Box::new(source),
                verifier: self.verifier(),
                spill: spill.map(|spill| Box::new(spill) as Box<dyn Spill>),
            },
            options(2),
            TestClock {
                time,
                compute_ns: 20_000,
            },
        )
    }

    /// By a clock that goes by this time.
    pub fn open_at<C: Clock>(
        &self,
        plan: &ExecutionPlan,
        time: VirtualClock,
        clock: C,
    ) -> Result<Session<C>, RuntimeError> {
        let (device, faults) = (MemoryModel::default(), FaultScript::default());
        let spill_bytes = plan.spill_bytes() as usize;
        let spill = MemorySource::spill(spill_bytes, device, time.clone(), faults.clone())?;
        let source = MemorySource::new(self.file.clone(), device, time, faults)?;
        Session::open_with_clock(
            self.program.clone(),
            self.checked(plan)?,
            BackingStore {
                source: Box::new(source),
                verifier: self.verifier(),
                spill: Some(Box::new(spill)),
            },
            options(2),
            clock,
        )
    }

    /// On another device than the processor, which goes by the storage's virtual time.
    pub fn open_on(
        &self,
        plan: &ExecutionPlan,
        device: Box<dyn Device>,
        storage: MemoryModel,
        faults: FaultScript,
        time: VirtualClock,
    ) -> Session<TestClock> {
        let spill_bytes = plan.spill_bytes() as usize;
        let spill = MemorySource::spill(spill_bytes, storage, time.clone(), faults.clone());
        let source = MemorySource::new(self.file.clone(), storage, time.clone(), faults);
        let storage = BackingStore {
            source: Box::new(source.expect("a source")),
            verifier: self.verifier(),
            spill: Some(Box::new(spill.expect("a spill file"))),
        };
        let clock = TestClock {
            time,
            compute_ns: 20_000,
        };
        let session = Session::open_on(
            device,
            self.program.clone(),
            self.checked(plan).expect("valid"),
            storage,
            options(1),
            clock,
        );
        session.expect("opens")
    }

    pub fn open_source(
        &self,
        plan: &ExecutionPlan,
        threads: usize,
        source: Box<dyn Source>,
        verifier: Verifier,
    ) -> Result<Session<Monotonic>, RuntimeError> {
        let storage = BackingStore {
            source,
            verifier,
            spill: None,
        };
        self.open_storage(plan, threads, storage)
    }

    pub fn open_storage(
        &self,
        plan: &ExecutionPlan,
        threads: usize,
        storage: BackingStore,
    ) -> Result<Session<Monotonic>, RuntimeError> {
        Session::open(
            self.program.clone(),
            self.checked(plan)?,
            storage,
            options(threads),
        )
    }

    /// The same model, with every activation kept after the run.
    pub fn keeping(mut self) -> Model {
        let graph = &self.program.graph;
        let outputs = graph.outputs.iter().map(|&v| Some(v)).collect::<Vec<_>>();
        let outputs = buffers(&self.program, &outputs);
        let steps = self.workload.steps.len() as u32;
        for (index, buffer) in self.workload.buffers.iter_mut().enumerate() {
            if !outputs.contains(&BufferId(index as u32)) && !buffer.live.is_empty() {
                buffer.live.end = steps;
                buffer.kept = true;
            }
        }
        self
    }

    pub fn run<C: Clock>(&self, session: &mut Session<C>) -> Result<Vec<Vec<u8>>, RuntimeError> {
        self.run_on(session, &self.inputs)
    }

    /// A run that may be cancelled.
    pub fn run_unless<C: Clock>(
        &self,
        session: &mut Session<C>,
        cancel: &CancelToken,
    ) -> Result<Vec<Vec<u8>>, RuntimeError> {
        self.run_as(&self.inputs, |inputs, outputs| {
            session.run_unless(cancel, inputs, outputs)
        })
    }

    pub fn run_on<C: Clock>(
        &self,
        session: &mut Session<C>,
        inputs: &[Vec<u8>],
    ) -> Result<Vec<Vec<u8>>, RuntimeError> {
        self.run_as(inputs, |inputs, outputs| session.run(inputs, outputs))
    }

    fn run_as(
        &self,
        inputs: &[Vec<u8>],
        run: impl FnOnce(&[InputTensor], &mut [OutputTensor]) -> Result<(), RuntimeError>,
    ) -> Result<Vec<Vec<u8>>, RuntimeError> {
        let graph = &self.program.graph;
        let tensors: Vec<InputTensor> = graph
            .inputs
            .iter()
            .zip(inputs)
            .map(|(&v, bytes)| InputTensor {
                ty: graph.ty(v),
                bytes,
            })
            .collect();
        let mut results: Vec<Vec<u8>> = graph
            .outputs
            .iter()
            .map(|&v| vec![0xEE; graph.ty(v).len_bytes()])
            .collect();
        let mut outputs: Vec<OutputTensor> = graph
            .outputs
            .iter()
            .zip(&mut results)
            .map(|(&v, bytes)| OutputTensor {
                ty: graph.ty(v),
                bytes,
            })
            .collect();
        run(&tensors, &mut outputs)?;
        Ok(results)
    }

    /// Results with everything resident and one thread.
    pub fn expected(&self) -> Vec<Vec<u8>> {
        let plan = self.plan(u64::MAX, neap_planner::Strategy::Resident);
        let mut session = self
            .open(&plan, 1, MemoryModel::default(), FaultScript::default())
            .expect("opens");
        self.run(&mut session).expect("runs")
    }

    pub fn plan(&self, budget_bytes: u64, strategy: neap_planner::Strategy) -> ExecutionPlan {
        neap_planner::plan(&self.workload, budget_bytes, strategy, &Default::default())
            .expect("feasible")
            .plan
    }

    pub fn smallest_bytes(&self) -> u64 {
        neap_planner::smallest_feasible_bytes(&self.workload)
    }

    /// Only preloading spills: others may need more.
    pub fn smallest_bytes_of(&self, strategy: neap_planner::Strategy) -> u64 {
        neap_planner::Planner::new(&self.workload).smallest_bytes_of(strategy)
    }

    pub fn unlimited_bytes(&self) -> u64 {
        neap_planner::unlimited_high_water_bytes(&self.workload)
    }
}

/// Another plan of the same program, with the planner's transition.
pub trait ReplacePlan {
    fn replace_plan(
        &mut self,
        plan: ExecutionPlan,
        workload: &Workload,
    ) -> Result<Replaced, RuntimeError>;
}

impl<C: Clock> ReplacePlan for Session<C> {
    fn replace_plan(
        &mut self,
        plan: ExecutionPlan,
        workload: &Workload,
    ) -> Result<Replaced, RuntimeError> {
        let plan = Checked::new(workload.clone(), plan)?;
        let transition = neap_planner::transition(&self.held()?, plan.plan());
        self.replace(self.program().clone(), plan, &transition, None)
    }
}

pub fn options(threads: usize) -> Options {
    Options {
        threads,
        ..Options::default()
    }
}

/// A chain with slices, a residual in place, a packed constant and a table of rows.
pub fn mixed_model(seed: u64) -> Model {
    let mut b = Builder::new(seed);
    let indices = b.indices("tokens", &[5], 300);
    let extra = b.input("extra", &[5, 100]);
    let rows = b.gather_rows(indices, 300, 100);
    let sum = b.binary(Binary::Add, rows, extra);
    let hidden = b.linear(sum, 150, Activation::Relu, None);
    let back = b.linear(hidden, 100, Activation::None, Some((sum, true)));
    let shift = b.packed(&[100]);
    let shifted = b.binary(Binary::Add, back, shift);
    let both = b.concat(shifted, hidden);
    let flat = b.reshape(both, &[1, 5 * 250]);
    let wide = b.reshape(flat, &[5, 250]);
    let out = b.linear(wide, 77, Activation::Sigmoid, None);
    b.output(out);
    b.output(shifted);
    b.finish()
}

/// A small image network in channel blocks.
pub fn image_model(seed: u64) -> Model {
    let mut b = Builder::new(seed);
    let image = b.input("image", &[1, 3, 17, 19]);
    let x = b.conv(image, 40, 3, 2);
    let x = b.conv(x, 64, 3, 1);
    let x = b.depthwise(x);
    let x = b.conv(x, 200, 1, 1);
    let x = b.conv(x, 24, 3, 2);
    let x = b.reorder(x);
    let shape = b.shape(x);
    let flat = b.reshape(x, &[1, shape.iter().product()]);
    let y = b.linear(flat, 50, Activation::None, None);
    b.output(y);
    b.finish()
}

/// Layers at random over `[rows, width]` tensors.
pub fn random_model(seed: u64, layers: usize, rows: usize) -> Model {
    let mut b = Builder::new(seed);
    let mut random = Random(seed ^ 0xABCD_EF01 | 1);
    let width = 8 + random.below(60);
    let x = b.input("x", &[rows, width]);
    let first = b.linear(x, 16 + random.below(80), Activation::Relu, None);
    let mut values = vec![first];
    for _ in 0..layers {
        let a = values[values.len() - 1 - random.below(values.len().min(3))];
        let last = *values.last().unwrap();
        let shape = b.shape(last);
        let twin = values
            .iter()
            .rev()
            .skip(1)
            .find(|&&v| b.shape(v) == shape)
            .copied();
        let y = match random.below(8) {
            0 => b.unary(last, Unary::Activation(Activation::Relu), false),
            1 => b.unary(last, Unary::Activation(Activation::Tanh), true),
            2 if twin.is_some() => b.binary(Binary::Add, last, twin.unwrap()),
            3 => b.concat(last, a),
            4 => {
                let constant = b.packed(&[shape[1]]);
                b.binary(Binary::Mul, last, constant)
            }
            5 => b.linear(
                a,
                shape[1],
                Activation::None,
                (a != last).then_some((last, false)),
            ),
            _ => b.linear(
                last,
                1 + random.below(120),
                Activation::LeakyRelu { alpha: 0.1 },
                None,
            ),
        };
        // In place: the value is gone.
        values.retain(|&v| b.storage(v) != b.storage(y));
        values.push(y);
    }
    b.output(*values.last().unwrap());
    b.finish()
}

/// A wide result that is wanted again at the end, with wider ones in between: within the smallest budget
/// it is away meanwhile.
pub fn skip_model(seed: u64) -> Model {
    let mut b = Builder::new(seed);
    let x = b.input("x", &[64, 32]);
    let skip = b.linear(x, 256, Activation::Relu, None);
    let narrow = b.linear(skip, 32, Activation::None, None);
    let wide = b.linear(narrow, 400, Activation::Relu, None);
    let wider = b.linear(wide, 400, Activation::Relu, None);
    let narrow = b.linear(wider, 32, Activation::None, Some((narrow, false)));
    let out = b.linear(narrow, 256, Activation::Sigmoid, Some((skip, false)));
    b.output(out);
    b.finish()
}

/// Fails the test when `body` takes longer than any sound run could.
pub fn within<T: Send + 'static>(limit: Duration, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(body());
    });
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(_) => match thread.join() {
            Err(payload) => std::panic::resume_unwind(payload),
            Ok(()) => panic!("no result"),
        },
    }
}
