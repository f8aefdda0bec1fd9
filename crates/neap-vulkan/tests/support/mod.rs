//! One job on the device and on the processor, in memory with the same contents.

pub mod gathers;
pub mod layers;
pub mod without_weights;

use neap_ir::panel::{PanelElement, PanelFormat, PanelScales};
use neap_ir::{DType, Layout, Node, Op, TensorType};
use neap_kernels::simd::Isa;
use neap_ops::{Choice, PanelSlice, TensorMut, TensorRef};
use neap_runtime::{Cpu, Device, Job, JobError, Meanwhile, MemoryRange, Pool};
use neap_vulkan::{Gpu, Limits, Options, VulkanDevice};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::alloc::{Layout as Allocation, alloc_zeroed, dealloc};
use std::sync::Arc;

/// A device with validation; without one here, the test is skipped.
pub fn gpu(limits: Option<Limits>) -> Option<Arc<Gpu>> {
    opened(&Options {
        validate: true,
        limits,
        ..Options::default()
    })
}

/// The same with the kernels that devices have which are no processors.
pub fn gpu_without_lanes() -> Option<Arc<Gpu>> {
    opened(&Options {
        validate: true,
        no_lanes: true,
        ..Options::default()
    })
}

fn opened(options: &Options) -> Option<Arc<Gpu>> {
    match Gpu::open(options) {
        Ok(gpu) => Some(gpu),
        Err(e) => {
            neap_testing::skip(e.to_string());
            None
        }
    }
}

/// As if the device were small: bindings of 32 KiB, imports of 128.
pub fn small() -> Limits {
    Limits {
        allocation_bytes: 128 << 10,
        binding_bytes: 32 << 10,
        binding_align: 256,
        import_align: 4096,
        groups: [65_535; 3],
    }
}

/// Memory in whole pages.
struct Memory {
    start: *mut u8,
    layout: Allocation,
}

impl Memory {
    fn new(bytes: usize) -> Memory {
        let layout = Allocation::from_size_align(bytes.next_multiple_of(4096).max(4096), 4096);
        let layout = layout.expect("a small size");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        assert!(!start.is_null());
        Memory { start, layout }
    }

    fn fill(&self, seed: u64) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for i in 0..self.layout.size() / 4 {
            let value = random.next_u32() as f32 / u32::MAX as f32 * 2.0 - 1.0;
            // SAFETY: the element lies in the memory.
            unsafe { self.start.cast::<f32>().add(i).write(value) };
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated so.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// What is computed.
pub struct Case {
    pub op: Op,
    pub inputs: Vec<(Vec<usize>, Layout)>,
    pub output: (Vec<usize>, Layout),
    /// Inner length of a panel, and the slice.
    pub panels: Option<(usize, std::ops::Range<usize>)>,
    /// How the panels hold their weights.
    pub format: PanelFormat,
    /// The input whose place the output takes.
    pub in_place: Option<usize>,
    /// Inputs that lie outside of the attached memory.
    pub elsewhere: Vec<usize>,
    /// Of the inputs, and of the output.
    pub types: (Vec<DType>, DType),
    /// What an input of integers holds.
    pub numbers: Option<(usize, Vec<i64>)>,
    /// The device computes it by Winograd, in so many bytes.
    pub scratch: Option<usize>,
}

impl Case {
    pub fn new(op: Op, inputs: &[(&[usize], Layout)], output: (&[usize], Layout)) -> Case {
        Case {
            op,
            inputs: inputs.iter().map(|(s, l)| (s.to_vec(), *l)).collect(),
            output: (output.0.to_vec(), output.1),
            panels: None,
            format: PanelFormat::default(),
            in_place: None,
            elsewhere: Vec::new(),
            types: (vec![DType::F32; inputs.len()], DType::F32),
            numbers: None,
            scratch: None,
        }
    }

    /// With elements that are no floats.
    pub fn types(self, inputs: &[DType], output: DType) -> Case {
        Case {
            types: (inputs.to_vec(), output),
            ..self
        }
    }

    pub fn numbers(self, input: usize, numbers: &[i64]) -> Case {
        Case {
            numbers: Some((input, numbers.to_vec())),
            ..self
        }
    }

    pub fn panels(self, k: usize, panels: std::ops::Range<usize>) -> Case {
        Case {
            panels: Some((k, panels)),
            ..self
        }
    }

    pub fn format(self, format: PanelFormat) -> Case {
        Case { format, ..self }
    }

    /// By Winograd.
    pub fn scratch(self, bytes: usize) -> Case {
        Case {
            scratch: Some(bytes),
            ..self
        }
    }

    /// Bytes of the largest, weights apart.
    pub fn largest_operand(&self) -> usize {
        let all = self.inputs.iter().chain([&self.output]);
        let bytes = all.map(|(shape, layout)| {
            let ty = TensorType::new(DType::F32, shape);
            ty.layout_bytes(*layout)
        });
        bytes.max().unwrap_or(0)
    }

    pub fn in_place(self, input: usize) -> Case {
        Case {
            in_place: Some(input),
            ..self
        }
    }

    pub fn elsewhere(self, inputs: &[usize]) -> Case {
        Case {
            elsewhere: inputs.to_vec(),
            ..self
        }
    }
}

pub struct Bench {
    pub gpu: Arc<Gpu>,
    device: VulkanDevice,
    cpu: Cpu,
}

impl Bench {
    pub fn new(gpu: &Arc<Gpu>) -> Bench {
        let cpu = || Cpu::new(Arc::new(Pool::new(1).expect("no threads")), Isa::detect());
        Bench {
            gpu: gpu.clone(),
            device: VulkanDevice::new(gpu.clone(), cpu()).expect("a device"),
            cpu: cpu(),
        }
    }

    /// Both, compared; whether the device computed it.
    pub fn check(&mut self, case: &Case) -> bool {
        let before = self.device.computed();
        let expected = compute(&mut self.cpu, case);
        let found = compute(&mut self.device, case);
        agree(&expected, &found, case);
        let after = self.device.computed();
        assert_eq!(before.0 + before.1 + 1, after.0 + after.1);
        after.0 > before.0
    }

    /// Cases that the device computes while all of them are in flight.
    pub fn check_at_once(&mut self, cases: &[&Case]) {
        let before = self.device.computed().0;
        let expected = compute_all(&mut self.cpu, cases, false);
        let found = compute_all(&mut self.device, cases, true);
        for (case, (expected, found)) in cases.iter().zip(expected.iter().zip(&found)) {
            agree(expected, found, case);
        }
        assert_eq!(self.device.computed().0 - before, cases.len() as u64);
    }

    /// How cases end on both, all of them in flight on the device; those that end well agree.
    pub fn endings(&mut self, cases: &[&Case]) -> [Vec<String>; 2] {
        let expected = run_all(&mut self.cpu, cases, false);
        let found = run_all(&mut self.device, cases, true);
        for (case, (expected, found)) in cases.iter().zip(expected.iter().zip(&found)) {
            if let (Ok(expected), Ok(found)) = (expected, found) {
                agree(expected, found, case);
            }
        }
        [expected, found].map(|all| {
            let endings = all.into_iter().map(|result| result.map(drop));
            endings.map(|ending| format!("{ending:?}")).collect()
        })
    }

    /// The bits that the device computes.
    pub fn bits(&mut self, case: &Case) -> Vec<u32> {
        let results = compute(&mut self.device, case);
        results.iter().map(|v| v.to_bits()).collect()
    }
}

fn agree(expected: &[f32], found: &[f32], case: &Case) {
    assert_eq!(expected.len(), found.len());
    let scale = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
    for (i, (e, f)) in expected.iter().zip(found).enumerate() {
        let off = (e - f).abs() / scale;
        assert!(
            off <= 1e-4,
            "{:?}: element {i} of {:?} is {f}, not {e}",
            case.op,
            case.output.0
        );
    }
}

/// Weights in steps that are numbers of the panel's type: those that are f32 already stay.
///
/// # Safety
/// The bytes are writable.
unsafe fn fill_panel(start: *mut u8, bytes: usize, format: PanelFormat) {
    if let PanelScales::Blocks { len, half } = format.scales {
        // SAFETY: passed on.
        return unsafe { fill_blocks(start, bytes, format.element, (len.into(), half)) };
    }
    let head = match format.scales {
        PanelScales::PerChannelWithZero => 192,
        PanelScales::PerChannel => 128,
        _ => 64,
    };
    for at in head..bytes {
        // From -1 to 1 in halves of either kind; small numbers in bytes.
        let number = ((at * 37) % 61) as u8;
        let byte = match (format.element, at % 2) {
            (PanelElement::F32 | PanelElement::I4, _) => continue,
            (PanelElement::I8, _) => number.wrapping_sub(30),
            (PanelElement::F16, 1) => 0x34 + number % 8 + (number & 1) * 0x80,
            (PanelElement::BF16, 1) => 0x3e + number % 2 + (number & 4) * 0x20,
            _ => number,
        };
        // SAFETY: passed on.
        unsafe { start.add(at).write(byte) };
    }
}

/// The output's elements, without padding lanes.
fn compute(device: &mut dyn Device, case: &Case) -> Vec<f32> {
    compute_all(device, &[case], false).remove(0)
}

/// The same of a panel in blocks.
///
/// # Safety
/// The bytes are writable.
unsafe fn fill_blocks(
    start: *mut u8,
    bytes: usize,
    element: PanelElement,
    (len, half): (usize, bool),
) {
    let step_bytes = if element == PanelElement::I4 { 8 } else { 16 };
    let scale_bytes = if half { 32 } else { 64 };
    let mut at = 64;
    while at < bytes {
        let integers = at + scale_bytes + 16;
        let end = bytes.min(integers + len * step_bytes);
        for i in at..end {
            let number = (i * 37 % 61) as u8;
            let byte = match (i < at + scale_bytes, half) {
                (true, true) if i % 2 == 1 => 0x2c + number % 4,
                (true, true) => number,
                // Those that are there are floats.
                (true, false) => continue,
                (false, _) if i < integers => number % 8,
                _ => number.wrapping_mul(5),
            };
            // SAFETY: passed on.
            unsafe { start.add(i).write(byte) };
        }
        at = end;
    }
}

/// Where the operands of a case begin, and what they are.
struct Placed {
    types: Vec<TensorType>,
    out_type: TensorType,
    inputs_at: Vec<usize>,
    panels_at: usize,
    panels_len: usize,
    out_at: usize,
    scratch_at: usize,
}

fn placed(case: &Case, place: &mut dyn FnMut(usize) -> usize) -> Placed {
    let types = case.inputs.iter().zip(&case.types.0);
    let types: Vec<TensorType> = types
        .map(|((shape, _), &dtype)| TensorType::new(dtype, shape))
        .collect();
    let out_type = TensorType::new(case.types.1, &case.output.0);
    let inputs_at: Vec<usize> = (types.iter().zip(&case.inputs))
        .map(|(ty, (_, layout))| place(ty.layout_bytes(*layout)))
        .collect();
    let panels_len = (case.panels.as_ref()).map_or(0, |(k, p)| panel_bytes(case, *k) * p.len());
    let panels_at = place(panels_len);
    let out_at = match case.in_place {
        Some(input) => inputs_at[input],
        None => place(out_type.layout_bytes(case.output.1)),
    };
    Placed {
        types,
        out_type,
        inputs_at,
        panels_at,
        panels_len,
        out_at,
        scratch_at: place(case.scratch.unwrap_or(0)),
    }
}

fn panel_bytes(case: &Case, k: usize) -> usize {
    case.format.panel_bytes(k as u128).expect("a size") as usize
}

/// Small numbers of any other type than floats, of both signs where it has them. Floats stay as they are, or are those numbers, of which the
/// least means minus infinity, and the largest the lowest float.
///
/// # Safety
/// So many elements lie there.
unsafe fn fill_numbers(start: *mut u8, ty: &TensorType, numbers: Option<&[i64]>) {
    for i in 0..ty.elements() {
        let number = numbers.map_or((i * 37 % 61) as i64 - 30, |numbers| numbers[i]);
        // SAFETY: passed on.
        unsafe {
            match ty.dtype {
                DType::F32 if numbers.is_none() => return,
                DType::F32 => start.cast::<f32>().add(i).write(match number {
                    i64::MIN => f32::NEG_INFINITY,
                    i64::MAX => f32::MIN,
                    number => number as f32,
                }),
                DType::I64 => start.cast::<i64>().add(i).write_unaligned(number),
                DType::I32 => start.cast::<i32>().add(i).write_unaligned(number as i32),
                DType::Bool => start.add(i).write(u8::from(number % 3 == 0)),
                DType::U8 => start.add(i).write(number as u8),
                other => panic!("no numbers of {other:?}"),
            }
        }
    }
}

/// Elements as floats.
///
/// # Safety
/// So many elements lie there.
unsafe fn floats(start: *const u8, dtype: DType, count: usize) -> Vec<f32> {
    let at = |i: usize| {
        // SAFETY: passed on.
        unsafe {
            match dtype {
                DType::F32 => start.cast::<f32>().add(i).read(),
                DType::I64 => start.cast::<i64>().add(i).read() as f32,
                DType::I32 => start.cast::<i32>().add(i).read() as f32,
                DType::Bool | DType::U8 => start.add(i).read().into(),
                other => panic!("no numbers of {other:?}"),
            }
        }
    };
    (0..count).map(at).collect()
}

/// The outputs of cases that end well.
fn compute_all(device: &mut dyn Device, cases: &[&Case], at_once: bool) -> Vec<Vec<f32>> {
    let results = run_all(device, cases, at_once).into_iter();
    results
        .map(|result| result.expect("the job ends well"))
        .collect()
}

/// The outputs of cases in one memory, one after the other or all in flight at once.
fn run_all(
    device: &mut dyn Device,
    cases: &[&Case],
    at_once: bool,
) -> Vec<Result<Vec<f32>, JobError>> {
    let mut bytes = 64;
    let mut place = |len: usize| {
        let at = bytes;
        bytes = (bytes + len).next_multiple_of(64);
        at
    };
    let all: Vec<Placed> = cases.iter().map(|case| placed(case, &mut place)).collect();
    let memory = Memory::new(bytes);
    memory.fill(7);
    let range = MemoryRange {
        start: memory.start,
        bytes: memory.layout.size() as u64,
    };
    // SAFETY: the memory lives until the device is detached, below.
    unsafe { device.attach(&[range]) }.expect("the device sees the memory");
    let mut ended = Vec::new();
    let mut kept = Kept::default();
    for (number, (case, placed)) in cases.iter().zip(&all).enumerate() {
        // SAFETY: everything lives until the job is reported.
        unsafe { submit(device, number as u64, case, placed, &memory, &mut kept) };
        if !at_once {
            device.poll(true, &mut |number, result| ended.push((number, result)));
        }
    }
    while ended.len() < cases.len() {
        device.poll(true, &mut |number, result| ended.push((number, result)));
    }
    device.detach();
    let all = cases.iter().zip(&all).enumerate().zip(ended);
    all.map(|((at, (case, placed)), (number, result))| {
        assert_eq!(number, at as u64);
        result.map(|()| outcome(case, placed, &memory))
    })
    .collect()
}

/// What jobs have beside their memory, until they are reported.
#[derive(Default)]
struct Kept {
    others: Vec<Memory>,
    workspaces: Vec<Vec<u8>>,
}

/// # Safety
/// As [`Device::submit`]; `memory` and what is kept live as long.
unsafe fn submit(
    device: &mut dyn Device,
    number: u64,
    case: &Case,
    placed: &Placed,
    memory: &Memory,
    kept: &mut Kept,
) {
    let at = |offset: usize| memory.start.wrapping_add(offset);
    if let Some((k, range)) = &case.panels {
        for panel in 0..range.len() {
            let start = at(placed.panels_at + panel * panel_bytes(case, *k));
            // SAFETY: the panel lies in the memory.
            unsafe { fill_panel(start, panel_bytes(case, *k), case.format) };
        }
    }
    let inputs: Vec<Option<TensorRef>> = (placed.types.iter().enumerate())
        .map(|(i, ty)| {
            let layout = case.inputs[i].1;
            let start = match case.elsewhere.contains(&i) {
                // Not at the beginning of a page.
                true => {
                    let other = Memory::new(ty.layout_bytes(layout) + 4096);
                    other.fill(8);
                    let start = other.start.wrapping_add(40);
                    kept.others.push(other);
                    start
                }
                false => at(placed.inputs_at[i]),
            };
            let numbers = case.numbers.as_ref().filter(|(input, _)| *input == i);
            let numbers = numbers.map(|(_, numbers)| numbers.as_slice());
            // SAFETY: the tensor lies in memory that lives.
            Some(unsafe {
                fill_numbers(start, ty, numbers);
                TensorRef::new(ty, layout, start)
            })
        })
        .collect();
    // SAFETY: as above.
    let output = unsafe { TensorMut::new(&placed.out_type, case.output.1, at(placed.out_at)) };
    let panels = case.panels.as_ref().map(|(_, range)| PanelSlice {
        range: range.clone(),
        format: case.format,
        // SAFETY: as above.
        bytes: unsafe { std::slice::from_raw_parts(at(placed.panels_at), placed.panels_len) },
    });
    let node = Node {
        name: "job".into(),
        op: case.op.clone(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        panels: None,
    };
    let (choice, workspace) = match case.scratch {
        Some(bytes) if device.imports_memory() => {
            // SAFETY: as above.
            let scratch = unsafe { std::slice::from_raw_parts_mut(at(placed.scratch_at), bytes) };
            (Choice::DEVICE_WINOGRAD, scratch)
        }
        _ => {
            kept.workspaces.push(vec![0; 1 << 20]);
            let workspace = kept.workspaces.last_mut().expect("it was pushed");
            (Choice::default(), workspace.as_mut_slice())
        }
    };
    let job = Job {
        node: &node,
        choice,
        inputs: &inputs,
        outputs: &[Some(output)],
        panels,
        prepared: None,
        workspace,
        actual: &mut [],
    };
    let meanwhile = Meanwhile {
        work: None,
        repeats: false,
        cancel: None,
    };
    // SAFETY: passed on.
    unsafe { device.submit(number, job, meanwhile) };
}

/// The output's elements, without padding lanes.
fn outcome(case: &Case, placed: &Placed, memory: &Memory) -> Vec<f32> {
    let dtype = placed.out_type.dtype;
    let len = placed.out_type.layout_bytes(case.output.1) / dtype.size_bytes();
    // SAFETY: the output lies in the memory, and nothing writes it any more.
    let all = unsafe { floats(memory.start.wrapping_add(placed.out_at), dtype, len) };
    let channels = case.output.0.get(1).copied().unwrap_or(1);
    let positions: usize = case.output.0.iter().skip(2).product();
    let is_real = |i: usize| match case.output.1 {
        Layout::Plain => true,
        Layout::Blocked => {
            let block = i / (positions * 16) % channels.div_ceil(16);
            block * 16 + i % 16 < channels
        }
    };
    let real = all.iter().enumerate().filter(|(i, _)| is_real(*i));
    real.map(|(_, &v)| v).collect()
}
