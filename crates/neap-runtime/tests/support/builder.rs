//! Builds small programs by hand, with random weights in a packed file.

use super::{Model, Random, floats, workload};
use neap_ir::op::{Activation, Binary, Unary, Window};
use neap_ir::panel::{
    ConvForm, Epilogue, PanelConv, PanelDepthwise, PanelFormat, PanelLinear, panel_bytes,
    panel_count,
};
use neap_ir::program::{Buffer, Storage};
use neap_ir::recipe::{Packed, PackedForm};
use neap_ir::{
    Const, DType, Layout, Literal, Node, NodeId, Op, PackedId, Program, TensorType, ValueId,
};
use neap_plan::BufferId;
use neap_store::BLOCK;
use std::sync::Arc;

/// Builds a program node by node, each value in a buffer of its own unless said otherwise.
pub struct Builder {
    program: Program,
    file: Vec<u8>,
    inputs: Vec<Vec<u8>>,
    random: Random,
    /// Buffers that survive runs.
    states: Vec<BufferId>,
}

impl Builder {
    pub fn new(seed: u64) -> Builder {
        Builder {
            program: Program {
                graph: Default::default(),
                steps: Vec::new(),
                packed: Vec::new(),
                storage: Vec::new(),
                buffers: Vec::new(),
                digest: format!("model-{seed}"),
            },
            file: vec![0; BLOCK],
            inputs: Vec::new(),
            states: Vec::new(),
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        }
    }

    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.program.graph.ty(value).shape.clone()
    }

    pub fn storage(&self, value: ValueId) -> Storage {
        self.program.storage[value.index()]
    }

    fn value(&mut self, name: &str, ty: TensorType, layout: Layout, storage: Storage) -> ValueId {
        let id = self.program.graph.add_value(name, ty);
        self.program.graph.values[id.index()].layout = layout;
        self.program.storage.push(storage);
        id
    }

    /// A random f32 input.
    pub fn input(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let ty = TensorType::new(DType::F32, shape);
        let bytes = floats(&mut self.random, ty.elements(), 1.0);
        self.input_of(name, ty, bytes)
    }

    pub fn input_of(&mut self, name: &str, ty: TensorType, bytes: Vec<u8>) -> ValueId {
        let index = self.program.graph.inputs.len() as u32;
        let id = self.value(name, ty, Layout::Plain, Storage::Input(index));
        self.program.graph.inputs.push(id);
        self.inputs.push(bytes);
        id
    }

    /// Random int64 indices in `-rows..rows`.
    pub fn indices(&mut self, name: &str, shape: &[usize], rows: usize) -> ValueId {
        let ty = TensorType::new(DType::I64, shape);
        let random = &mut self.random;
        let bytes = (0..ty.elements())
            .flat_map(|_| (random.below(2 * rows) as i64 - rows as i64).to_le_bytes())
            .collect();
        self.input_of(name, ty, bytes)
    }

    pub fn literal(&mut self, literal: Literal) -> ValueId {
        let id = self.program.graph.add_literal("literal", literal);
        self.program.storage.push(Storage::Inline);
        id
    }

    /// A random constant that is an extent of the file.
    pub fn packed(&mut self, shape: &[usize]) -> ValueId {
        let ty = TensorType::new(DType::F32, shape);
        let bytes = floats(&mut self.random, ty.elements(), 1.0);
        let packed = self.extent("constant", bytes, PackedForm::Raw);
        let graph = &mut self.program.graph;
        let id = graph.add_const("constant", ty, Const::Packed(packed));
        self.program.storage.push(Storage::Packed);
        id
    }

    /// A value of zeros in a buffer that survives runs.
    pub fn state(&mut self, shape: &[usize]) -> ValueId {
        let literal = Literal::zeros(DType::F32, shape);
        let buffer = self.program.buffers.len() as u32;
        self.program.buffers.push(Buffer {
            bytes: literal.len_bytes().next_multiple_of(BLOCK) as u64,
            live: 0..1,
        });
        self.program.storage.push(Storage::Buffer {
            buffer,
            offset_bytes: 0,
        });
        self.states.push(BufferId(buffer));
        self.program.graph.add_literal("state", literal)
    }

    fn extent(&mut self, name: &str, bytes: Vec<u8>, form: PackedForm) -> PackedId {
        let id = PackedId(self.program.packed.len() as u32);
        self.program.packed.push(Packed {
            name: format!("{name} {}", id.0),
            offset: self.file.len() as u64,
            bytes: bytes.len() as u64,
            form,
        });
        self.file.extend(bytes);
        self.file.resize(self.file.len().next_multiple_of(BLOCK), 0);
        id
    }

    /// Random panels of `n` output channels with `k` inner steps.
    fn panels(&mut self, k: usize, n: usize) -> PackedId {
        let scale = 1.0 / (k as f32).sqrt();
        let mut bytes = Vec::new();
        for panel in 0..panel_count(n) {
            for _ in 0..=k {
                for lane in 0..16 {
                    let inside = panel * 16 + lane < n;
                    let x = if inside {
                        self.random.float() * scale
                    } else {
                        0.0
                    };
                    bytes.extend(x.to_le_bytes());
                }
            }
        }
        let form = PackedForm::Panels {
            panels: panel_count(n) as u32,
            panel_bytes: panel_bytes(k) as u64,
            format: PanelFormat::default(),
        };
        self.extent("panels", bytes, form)
    }

    /// Adds a step; its output gets a buffer of its own, or shares that of `onto`.
    pub fn step(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        panels: Option<PackedId>,
        ty: TensorType,
        layout: Layout,
        onto: Option<ValueId>,
    ) -> ValueId {
        let node = NodeId(self.program.graph.nodes.len() as u32);
        let now = self.program.steps.len() as u32;
        let storage = match onto {
            Some(value) => self.program.storage[value.index()],
            None => {
                self.program.buffers.push(Buffer {
                    bytes: ty.layout_bytes(layout) as u64,
                    live: now..now + 1,
                });
                Storage::Buffer {
                    buffer: self.program.buffers.len() as u32 - 1,
                    offset_bytes: 0,
                }
            }
        };
        let name = format!("{}{}", op.name(), node.0);
        let output = self.value(&name, ty, layout, storage);
        for &value in inputs.iter().chain([&output]) {
            self.keep(value, now + 1);
        }
        self.program.graph.nodes.push(Node {
            name,
            op,
            inputs: inputs.iter().map(|&v| Some(v)).collect(),
            outputs: vec![Some(output)],
            panels,
        });
        self.program.steps.push(node);
        output
    }

    fn keep(&mut self, value: ValueId, until: u32) {
        if let Storage::Buffer { buffer, .. } = self.program.storage[value.index()] {
            let live = &mut self.program.buffers[buffer as usize].live;
            live.end = live.end.max(until);
        }
    }

    /// `x [rows, k]` to `[rows, n]`; with a residual of that shape, optionally in its place.
    pub fn linear(
        &mut self,
        x: ValueId,
        n: usize,
        activation: Activation,
        residual: Option<(ValueId, bool)>,
    ) -> ValueId {
        let mut shape = self.shape(x);
        let k = shape.pop().expect("rank 2");
        shape.push(n);
        let panels = self.panels(k, n);
        let op = Op::PanelLinear(PanelLinear {
            k,
            n,
            epilogue: Epilogue {
                activation,
                residual: residual.is_some(),
                ..Epilogue::default()
            },
            rounds: None,
            in_bf16: false,
        });
        let mut inputs = vec![x];
        inputs.extend(residual.map(|(r, _)| r));
        let onto = residual.and_then(|(r, in_place)| in_place.then_some(r));
        let ty = TensorType::new(DType::F32, &shape);
        self.step(op, &inputs, Some(panels), ty, Layout::Plain, onto)
    }

    /// A linear layer whose output takes the memory of `onto`.
    pub fn linear_onto(&mut self, x: ValueId, n: usize, onto: ValueId) -> ValueId {
        let ty = TensorType::new(DType::F32, &[self.shape(x)[0], n]);
        let k = self.shape(x)[1];
        let panels = self.panels(k, n);
        let op = Op::PanelLinear(PanelLinear {
            k,
            n,
            epilogue: Epilogue::default(),
            rounds: None,
            in_bf16: false,
        });
        self.step(op, &[x], Some(panels), ty, Layout::Plain, Some(onto))
    }

    pub fn unary(&mut self, x: ValueId, unary: Unary, in_place: bool) -> ValueId {
        let ty = self.program.graph.ty(x).clone();
        let layout = self.program.graph.value(x).layout;
        let onto = in_place.then_some(x);
        self.step(Op::Unary(unary), &[x], None, ty, layout, onto)
    }

    /// The result has the type of `a`.
    pub fn binary(&mut self, binary: Binary, a: ValueId, b: ValueId) -> ValueId {
        let ty = self.program.graph.ty(a).clone();
        let layout = self.program.graph.value(a).layout;
        self.step(Op::Binary(binary), &[a, b], None, ty, layout, None)
    }

    pub fn concat(&mut self, a: ValueId, b: ValueId) -> ValueId {
        let mut shape = self.shape(a);
        shape[1] += self.shape(b)[1];
        let ty = TensorType::new(DType::F32, &shape);
        let op = Op::Concat { axis: 1 };
        self.step(op, &[a, b], None, ty, Layout::Plain, None)
    }

    /// The same memory under another shape; no step.
    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> ValueId {
        let storage = self.program.storage[x.index()];
        let ty = TensorType::new(DType::F32, shape);
        let output = self.value("reshaped", ty, Layout::Plain, storage);
        self.program.graph.nodes.push(Node {
            name: format!("Reshape{}", output.0),
            op: Op::Reshape {
                shape: shape.to_vec(),
            },
            inputs: vec![Some(x)],
            outputs: vec![Some(output)],
            panels: None,
        });
        output
    }

    /// Rows of a random table, for an int64 value of indices.
    pub fn gather_rows(&mut self, indices: ValueId, rows: usize, row_elements: usize) -> ValueId {
        let bytes = floats(&mut self.random, rows * row_elements, 1.0);
        let table = self.extent("table", bytes, PackedForm::Raw);
        let mut shape = self.shape(indices);
        shape.push(row_elements);
        let op = Op::GatherRows {
            stored: DType::F32,
            table,
            rows,
            row_elements,
        };
        let ty = TensorType::new(DType::F32, &shape);
        self.step(op, &[indices], None, ty, Layout::Plain, None)
    }

    /// Square convolution with same padding; plain input when it has few channels.
    pub fn conv(&mut self, x: ValueId, c_out: usize, kernel: usize, stride: usize) -> ValueId {
        let shape = self.shape(x);
        let window = square(kernel, stride);
        let form = match self.program.graph.value(x).layout {
            Layout::Plain => ConvForm::FirstLayer,
            Layout::Blocked => ConvForm::Blocked,
        };
        let conv = PanelConv {
            form,
            window,
            groups: 1,
            c_in: shape[1],
            c_out,
            epilogue: Epilogue {
                activation: Activation::Relu,
                residual: false,
                ..Epilogue::default()
            },
            in_bf16: false,
        };
        let panels = self.panels(conv.k(), c_out);
        let out = [
            shape[0],
            c_out,
            (shape[2] - 1) / stride + 1,
            (shape[3] - 1) / stride + 1,
        ];
        let ty = TensorType::new(DType::F32, &out);
        let op = Op::PanelConv(conv);
        self.step(op, &[x], Some(panels), ty, Layout::Blocked, None)
    }

    pub fn depthwise(&mut self, x: ValueId) -> ValueId {
        let shape = self.shape(x);
        let depthwise = PanelDepthwise {
            window: square(3, 1),
            channels: shape[1],
            epilogue: Epilogue::default(),
        };
        let panels = self.panels(depthwise.k(), shape[1]);
        let ty = TensorType::new(DType::F32, &shape);
        let op = Op::PanelDepthwise(depthwise);
        self.step(op, &[x], Some(panels), ty, Layout::Blocked, None)
    }

    /// Channel-blocked to plain.
    pub fn reorder(&mut self, x: ValueId) -> ValueId {
        let ty = self.program.graph.ty(x).clone();
        self.step(Op::Reorder, &[x], None, ty, Layout::Plain, None)
    }

    pub fn output(&mut self, value: ValueId) {
        self.program.graph.outputs.push(value);
    }

    pub fn finish(mut self) -> Model {
        let steps = self.program.steps.len() as u32;
        for output in self.program.graph.outputs.clone() {
            self.keep(output, steps);
        }
        for state in &self.states {
            self.program.buffers[state.index()].live = 0..steps;
        }
        self.program.check().expect("a sound program");
        let mut workload = workload(&self.program);
        for state in &self.states {
            workload.buffers[state.index()].align = BLOCK as u64;
        }
        workload.states = self.states;
        Model {
            workload,
            program: Arc::new(self.program),
            file: self.file.into(),
            inputs: self.inputs,
        }
    }
}

fn square(kernel: usize, stride: usize) -> Window {
    Window {
        kernel: vec![kernel; 2],
        strides: vec![stride; 2],
        dilations: vec![1; 2],
        pads_begin: vec![kernel / 2; 2],
        pads_end: vec![kernel / 2; 2],
    }
}
