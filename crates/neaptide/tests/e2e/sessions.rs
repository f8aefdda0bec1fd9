//! Packs a graph into a temporary file and opens sessions on it under plans of the test's choice.

use crate::nets::RandomNet;
use crate::toc::Toc;
use neap_ir::{Const, ConstId, DType, FileId, FileRange, Graph, Literal, Program, SourceFile};
use neap_kernels::simd::Isa;
use neap_plan::{Checked, ExecutionPlan, Workload};
use neap_planner::{Planner, Strategy};
use neap_rewrite::{BandLimits, OrderLimits};
use neap_runtime::{
    BackingStore, Clock, InputTensor, Options, OutputTensor, RuntimeError, Session,
};
use neap_sim::CostProfile;
use neap_store::{
    BLOCK, FaultScript, IoMode, MemoryModel, MemorySource, PackWriter, PackedFile, Spill,
    StoreError, VirtualClock,
};
use neaptide::BandMode;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Other orders of steps even where they gain hardly anything.
pub const ANY_GAIN: OrderLimits = OrderLimits {
    enough_bytes: 0,
    peak_gain: 0.0,
    most_nodes: 4096,
};

/// A graph that was packed.
pub struct Packed {
    pub path: PathBuf,
    pub program: Arc<Program>,
    /// With row bands or strips wherever they can be, worth it or not.
    pub banded: Option<Arc<Program>>,
    model: neaptide::Model,
    _folder: tempfile::TempDir,
}

/// How to run it.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub arena_bytes: u64,
    pub threads: usize,
    pub strategy: Strategy,
    pub io: IoMode,
    /// The program with row bands or in strips.
    pub banded: bool,
}

impl Packed {
    pub fn new(graph: Graph) -> Packed {
        Packed::with_strips(graph, None)
    }

    /// The second program is in strips of so many bytes, where anything is longer.
    pub fn with_strips(graph: Graph, strip_bytes: Option<u64>) -> Packed {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.neap");
        neaptide::pack_graph(graph, &path, &Default::default(), &mut |_| {})
            .unwrap_or_else(|e| panic!("packing: {e}"));
        add_other(&path, strip_bytes);
        Packed::of(path, folder)
    }

    fn of(path: PathBuf, folder: tempfile::TempDir) -> Packed {
        let model =
            neaptide::Model::open(&path, &neaptide::OpenOptions::of_own_process(), &mut |_| {})
                .unwrap_or_else(|e| panic!("opening: {e}"));
        Packed {
            program: model.program().clone(),
            banded: model.banded().cloned(),
            model,
            path,
            _folder: folder,
        }
    }

    /// With its steps in another order, though little be gained; `None` where no program has a better one.
    pub fn reordered(&self) -> Option<Packed> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.neap");
        let mut is_changed = false;
        let mut ordered = |program: Program| {
            let found = neap_rewrite::with_less_memory(&program, &ANY_GAIN);
            is_changed |= found.is_some();
            found.unwrap_or(program)
        };
        change_programs(&self.path, &path, |program, banded| {
            (ordered(program), banded.map(&mut ordered))
        });
        is_changed.then(|| Packed::of(path, folder))
    }

    pub fn workload(&self, threads: usize, banded: bool) -> Workload {
        let mode = if banded { BandMode::On } else { BandMode::Off };
        self.model.workloads(threads, mode).remove(0)
    }

    fn program(&self, banded: bool) -> Arc<Program> {
        let program = self.banded.as_ref().filter(|_| banded);
        program.unwrap_or(&self.program).clone()
    }

    /// Arena sizes between which plans differ: smallest feasible, everything resident.
    pub fn arena_range(&self, threads: usize, banded: bool) -> (u64, u64) {
        let workload = self.workload(threads, banded);
        let planner = Planner::new(&workload);
        (
            planner.smallest_feasible_bytes(),
            planner.unlimited_high_water_bytes(),
        )
    }

    /// `None` when the strategy cannot do with so little.
    pub fn plan(&self, workload: &Workload, setting: &Setting) -> Option<ExecutionPlan> {
        let costs = CostProfile::default();
        let planned = Planner::new(workload)
            .plan(setting.arena_bytes, setting.strategy, &costs)
            .ok()?;
        let memory_bytes = planned.plan.memory_bytes();
        assert!(
            memory_bytes <= setting.arena_bytes,
            "{memory_bytes} {setting:?}"
        );
        Some(planned.plan)
    }

    /// A session on the file. `None` when the setting is not feasible or not possible here.
    pub fn open(&self, setting: &Setting) -> Option<Session> {
        let workload = self.workload(setting.threads, setting.banded);
        let plan = self.plan(&workload, setting)?;
        let mut file = PackedFile::open(&self.path).expect("opens");
        let verifier = file.take_verifier().expect("first time");
        let source = match file.open_source(setting.io) {
            Ok(source) => source,
            Err(e) if setting.io == IoMode::Uring => {
                neap_testing::skip(format_args!("no io_uring here: {e}"));
                return None;
            }
            Err(e) => panic!("{e}"),
        };
        let spill = self.spill(plan.spill_bytes(), setting.io);
        let program = self.program(setting.banded);
        let session = Session::open(
            program,
            Checked::new(workload, plan).expect("valid"),
            BackingStore {
                source,
                verifier,
                spill,
            },
            options(setting.threads),
        );
        Some(session.unwrap_or_else(|e| panic!("{setting:?}: {e}")))
    }

    /// Beside the packed file; in memory where that folder is no place for it.
    fn spill(&self, bytes: u64, io: IoMode) -> Option<Box<dyn Spill>> {
        let folder = self.path.parent().expect("a folder");
        match neap_store::open_spill(folder, bytes, io) {
            Ok(spill) => Some(spill),
            Err(StoreError::NoSpill { .. }) => {
                let device = MemoryModel::default();
                let (clock, faults) = (VirtualClock::new(), FaultScript::default());
                let spill = MemorySource::spill(bytes as usize, device, clock, faults);
                Some(Box::new(spill.expect("a device")))
            }
            Err(e) => panic!("{e}"),
        }
    }

    /// A session on a device that misbehaves, under virtual time.
    pub fn open_faulty(
        &self,
        setting: &Setting,
        faults: FaultScript,
    ) -> Result<Session<TestClock>, RuntimeError> {
        let workload = self.workload(setting.threads, setting.banded);
        let plan = self.plan(&workload, setting).expect("feasible");
        let bytes: Arc<[u8]> = std::fs::read(&self.path).expect("readable").into();
        let mut file = PackedFile::open(&self.path).expect("opens");
        let verifier = file.take_verifier().expect("first time");
        let time = VirtualClock::new();
        let device = MemoryModel {
            piece_bytes: 16 << 10,
            max_loads: 64,
            ..MemoryModel::default()
        };
        let spill = MemorySource::spill(
            plan.spill_bytes() as usize,
            device,
            time.clone(),
            faults.clone(),
        )?;
        let source = MemorySource::new(bytes, device, time.clone(), faults)?;
        Session::open_with_clock(
            self.program(setting.banded),
            Checked::new(workload, plan)?,
            BackingStore {
                source: Box::new(source),
                verifier,
                spill: Some(Box::new(spill)),
            },
            options(setting.threads),
            TestClock(time),
        )
    }
}

/// Gives a packed model a second program, in strips or with row bands, even where they are hardly worth it.
pub fn add_other(path: &Path, strip_bytes: Option<u64>) {
    let limits = BandLimits {
        weight_bytes: 1 << 20,
        least_line_bytes: 0,
        most_line_bytes: 8192,
        enough_bytes: 0,
        enough_in_integers_bytes: 0,
    };
    change_programs(path, path, |program, _| {
        let in_strips = strip_bytes.and_then(|bytes| neap_rewrite::with_strips(&program, bytes));
        let other = in_strips.or_else(|| neap_rewrite::with_bands(&program, &limits));
        (program, other)
    });
}

/// Writes a packed model again with other programs over the same weights.
fn change_programs(
    from: &Path,
    to: &Path,
    change: impl FnOnce(Program, Option<Program>) -> (Program, Option<Program>),
) {
    let file = PackedFile::open(from).expect("opens");
    let (versions, table) = file.toc().split_first_chunk::<8>().expect("versions");
    let mut toc = Toc::read(table);
    let banded = toc.banded.take().map(|banded| Program {
        packed: toc.plain.packed.clone(),
        ..banded
    });
    (toc.plain, toc.banded) = change(toc.plain, banded);
    let range = file.data_range();
    let data = std::fs::read(from).expect("readable");
    let mut writer = PackWriter::create(to).expect("created");
    let weights = &data[range.start as usize..range.end as usize];
    writer.append(weights).expect("written");
    writer.align(BLOCK as u64).expect("written");
    let toc = [&versions[..], &toc.encode()].concat();
    writer.finish(&toc).expect("written");
}

fn options(threads: usize) -> Options {
    Options {
        threads,
        isa: Isa::detect(),
    }
}

/// Virtual time, in which every compute takes equally long.
pub struct TestClock(VirtualClock);

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    fn passes(&mut self, _compute: usize) -> bool {
        self.0.advance_ns(20_000);
        false
    }
}

/// Bytes of all outputs.
pub fn run<C: Clock>(
    session: &mut Session<C>,
    inputs: &[Literal],
) -> Result<Vec<Vec<u8>>, RuntimeError> {
    let program = session.program().clone();
    let graph = &program.graph;
    let tensors: Vec<InputTensor> = graph
        .inputs
        .iter()
        .zip(inputs)
        .map(|(&v, literal)| InputTensor {
            ty: graph.ty(v),
            bytes: literal.bytes(),
        })
        .collect();
    let mut results: Vec<Literal> = graph
        .outputs
        .iter()
        .map(|&v| Literal::zeros(graph.ty(v).dtype, &graph.ty(v).shape))
        .collect();
    let mut outputs: Vec<OutputTensor> = graph
        .outputs
        .iter()
        .zip(&mut results)
        .map(|(&v, literal)| OutputTensor {
            ty: graph.ty(v),
            bytes: literal.bytes_mut(),
        })
        .collect();
    session.run(&tensors, &mut outputs)?;
    Ok(results.iter().map(|l| l.bytes().to_vec()).collect())
}

/// Whether storage, and nothing else, was at fault.
pub fn is_storage_error(error: &RuntimeError) -> bool {
    matches!(
        error,
        RuntimeError::Store(
            StoreError::Read { .. } | StoreError::Write { .. } | StoreError::Corrupt { .. }
        )
    )
}

/// Moves constants to a file where `choose` says so, as a reader of large models would find them.
pub fn with_stored_constants(net: &mut RandomNet, folder: &std::path::Path) -> Graph {
    let mut graph = net.net.graph.clone();
    let path = folder.join("weights.bin");
    let mut bytes = Vec::new();
    for value in 0..graph.values.len() {
        let Some(ConstId(index)) = graph.values[value].constant else {
            continue;
        };
        let Const::Inline(literal) = &graph.consts[index as usize] else {
            continue;
        };
        let scalar = literal.elements() == 1;
        if literal.dtype() != DType::F32 || scalar || net.net.random.chance(50) {
            continue;
        }
        // Not at any boundary.
        bytes.resize(bytes.len() + 4 * net.net.random.below(5), 0x77);
        let offset = bytes.len() as u64;
        bytes.extend_from_slice(literal.bytes());
        graph.consts[index as usize] = Const::Stored {
            range: FileRange {
                file: FileId(0),
                offset,
                bytes: literal.len_bytes() as u64,
            },
            stored_dtype: DType::F32,
        };
    }
    std::fs::write(&path, bytes).expect("written");
    graph.files = vec![SourceFile::At(path.display().to_string())];
    graph
}

/// Everything resident, one thread: what all other settings must reproduce.
pub fn plain_setting(packed: &Packed) -> Setting {
    Setting {
        arena_bytes: packed.arena_range(1, false).1,
        threads: 1,
        strategy: Strategy::Resident,
        io: IoMode::Pread,
        banded: false,
    }
}
