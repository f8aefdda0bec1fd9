//! One job on the device and on the processor, in memory with the same contents.

pub mod without_weights;

use neap_ir::panel::{PanelElement, PanelFormat, PanelScales};
use neap_ir::{DType, Layout, Node, Op, TensorType};
use neap_kernels::simd::Isa;
use neap_ops::{Choice, PanelSlice, TensorMut, TensorRef};
use neap_runtime::{Cpu, Device, Job, Meanwhile, MemoryRange, Pool};
use neap_vulkan::{Gpu, Limits, Options, VulkanDevice};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::alloc::{Layout as Allocation, alloc_zeroed, dealloc};
use std::sync::Arc;

/// A device with validation; without one here, the test is skipped.
pub fn gpu(limits: Option<Limits>) -> Option<Arc<Gpu>> {
    let options = Options {
        validate: true,
        limits,
        ..Options::default()
    };
    match Gpu::open(&options) {
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
        let scale = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        for (i, (e, f)) in expected.iter().zip(&found).enumerate() {
            let off = (e - f).abs() / scale;
            assert!(
                off <= 1e-4,
                "{}: element {i} is {f}, not {e}",
                case.op.name()
            );
        }
        let after = self.device.computed();
        assert_eq!(before.0 + before.1 + 1, after.0 + after.1);
        after.0 > before.0
    }

    /// The bits that the device computes.
    pub fn bits(&mut self, case: &Case) -> Vec<u32> {
        let results = compute(&mut self.device, case);
        results.iter().map(|v| v.to_bits()).collect()
    }
}

/// Weights in steps that are numbers of the panel's type: those that are f32 already stay.
///
/// # Safety
/// The bytes are writable.
unsafe fn fill_panel(start: *mut u8, bytes: usize, format: PanelFormat) {
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
    let mut bytes = 64;
    let mut place = |len: usize| {
        let at = bytes;
        bytes = (bytes + len).next_multiple_of(64);
        at
    };
    let ty = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let types: Vec<TensorType> = case.inputs.iter().map(|(s, _)| ty(s)).collect();
    let out_type = ty(&case.output.0);
    let lens: Vec<usize> = (types.iter().zip(&case.inputs))
        .map(|(ty, (_, layout))| ty.layout_bytes(*layout))
        .collect();
    let inputs_at: Vec<usize> = lens.iter().map(|&len| place(len)).collect();
    let panel_bytes = |k: usize| case.format.panel_bytes(k as u128).expect("a size") as usize;
    let panels_len = (case.panels.as_ref()).map_or(0, |(k, p)| panel_bytes(*k) * p.len());
    let panels_at = place(panels_len);
    let out_at = match case.in_place {
        Some(input) => inputs_at[input],
        None => place(out_type.layout_bytes(case.output.1)),
    };
    let memory = Memory::new(bytes);
    memory.fill(7);
    let others: Vec<Memory> = lens.iter().map(|&len| Memory::new(len + 4096)).collect();
    others.iter().for_each(|other| other.fill(8));
    let range = MemoryRange {
        start: memory.start,
        bytes: memory.layout.size() as u64,
    };
    // SAFETY: the memory lives until the device is detached, below.
    unsafe { device.attach(&[range]) }.expect("the device sees the memory");
    let at = |offset: usize| memory.start.wrapping_add(offset);
    if let Some((k, range)) = &case.panels {
        for panel in 0..range.len() {
            let start = at(panels_at + panel * panel_bytes(*k));
            // SAFETY: the panel lies in the memory.
            unsafe { fill_panel(start, panel_bytes(*k), case.format) };
        }
    }
    let inputs: Vec<Option<TensorRef>> = (0..types.len())
        .map(|i| {
            let start = match case.elsewhere.contains(&i) {
                // Not at the beginning of a page.
                true => others[i].start.wrapping_add(36),
                false => at(inputs_at[i]),
            };
            // SAFETY: the tensor lies in memory that lives.
            Some(unsafe { TensorRef::new(&types[i], case.inputs[i].1, start) })
        })
        .collect();
    // SAFETY: as above.
    let output = unsafe { TensorMut::new(&out_type, case.output.1, at(out_at)) };
    let outputs = [Some(output)];
    let panels = case.panels.as_ref().map(|(_, range)| PanelSlice {
        range: range.clone(),
        format: case.format,
        // SAFETY: as above.
        bytes: unsafe { std::slice::from_raw_parts(at(panels_at), panels_len) },
    });
    let node = Node {
        name: "job".into(),
        op: case.op.clone(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        panels: None,
    };
    let mut workspace = vec![0; 1 << 20];
    let job = Job {
        node: &node,
        choice: Choice::default(),
        inputs: &inputs,
        outputs: &outputs,
        panels,
        prepared: None,
        workspace: &mut workspace,
        actual: &mut [],
    };
    let meanwhile = Meanwhile {
        work: None,
        repeats: false,
    };
    let mut ended = Vec::new();
    // SAFETY: everything lives until the job is reported.
    unsafe { device.submit(0, job, meanwhile) };
    device.poll(true, &mut |number, result| ended.push((number, result)));
    assert_eq!(ended.len(), 1);
    let (_, result) = ended.remove(0);
    result.expect("the job ends well");
    device.detach();
    let len = out_type.layout_bytes(case.output.1) / 4;
    // SAFETY: the output lies in the memory, and nothing writes it any more.
    let all = unsafe { std::slice::from_raw_parts(at(out_at).cast::<f32>(), len) };
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
