//! Every operator over operands whose axes may have no elements: nothing outside of an operand is read or written, each element of
//! a result is written, and what it is depends on neither workers nor on what memory held before.
//!
//! Operands are drawn at random with sizes of 0 among others. Memory around each is guarded, and each case runs twice over memory
//! that holds other bytes; then as an operator over late sizes.

mod compute; // products, reductions, norms, windows, recurrent layers, attention
mod elements; // one by one
mod moving; // what moves elements, or makes indices
mod training; // backward passes and updates

use neap_ir::late::{Bound, Late, LateOp};
use neap_ir::{DType, Layout, Literal, Op, TensorType, infer};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::Isa;
use neap_ops::{Context, OpError, OperandForm, TensorMut, TensorRef};
use neap_ops::{execute, execute_late, supported, workspace_bytes};

/// An operator and its operands.
pub(super) struct Case {
    pub op: Op,
    pub inputs: Vec<Option<Literal>>,
    pub outputs: usize,
    /// What each element of the first result is where some operand is empty.
    pub of_nothing: Option<f64>,
}

impl Case {
    pub fn of(op: Op, inputs: Vec<Literal>) -> Case {
        Case {
            op,
            inputs: inputs.into_iter().map(Some).collect(),
            outputs: 1,
            of_nothing: None,
        }
    }

    pub fn giving(self, outputs: usize) -> Case {
        Case { outputs, ..self }
    }

    pub fn of_nothing(self, value: f64) -> Case {
        let of_nothing = Some(value);
        Case { of_nothing, ..self }
    }

    fn has_empty(&self) -> bool {
        let mut inputs = self.inputs.iter().flatten();
        inputs.any(|input| input.elements() == 0)
    }
}

/// Seeded numbers (splitmix64).
pub(super) struct Draw(u64);

impl Draw {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }

    pub fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// The size of an axis.
    pub fn size(&mut self) -> usize {
        self.pick(&[0, 0, 1, 2, 3, 4, 7, 18])
    }

    pub fn shape(&mut self, rank: usize) -> Vec<usize> {
        (0..rank).map(|_| self.size()).collect()
    }

    /// A tensor of small numbers.
    pub fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Literal {
        let count = shape.iter().product::<usize>();
        let bytes: Vec<u8> = (0..count)
            .flat_map(|_| {
                let number = self.below(9) as f32 - 4.0;
                match dtype {
                    DType::F32 => (number * 0.5).to_le_bytes().to_vec(),
                    DType::F64 => f64::from(number * 0.5).to_le_bytes().to_vec(),
                    DType::F16 => half::f16::from_f32(number).to_le_bytes().to_vec(),
                    DType::BF16 => half::bf16::from_f32(number).to_le_bytes().to_vec(),
                    DType::Bool => vec![u8::from(number > 0.0)],
                    other => (number as i64).to_le_bytes()[..other.size_bytes()].to_vec(),
                }
            })
            .collect();
        Literal::from_bytes(dtype, shape, &bytes).expect("as many bytes as elements")
    }

    pub fn floats(&mut self, shape: &[usize]) -> Literal {
        self.tensor(DType::F32, shape)
    }

    /// Indices of an axis of that size.
    pub fn indices(&mut self, shape: &[usize], size: usize) -> Literal {
        let count = shape.iter().product::<usize>();
        let data: Vec<i64> = (0..count)
            .map(|_| self.below(2 * size.max(1)) as i64 - size as i64)
            .collect();
        Literal::from_i64(shape, &data)
    }
}

/// Bytes around a tensor that nobody may touch.
const GUARD_WORDS: usize = 32;
const GUARD: u64 = 0x7ff8_dead_beef_7ff8;

/// Memory of a tensor, aligned as tensors are.
struct Guarded {
    words: Vec<u64>,
    bytes: usize,
}

impl Guarded {
    fn new(bytes: usize, fill: u8) -> Guarded {
        let mut words = vec![GUARD; 2 * GUARD_WORDS + bytes.div_ceil(8)];
        let inside = &mut bytemuck::cast_slice_mut(&mut words)[8 * GUARD_WORDS..][..bytes];
        inside.fill(fill);
        Guarded { words, bytes }
    }

    fn holding(data: &[u8]) -> Guarded {
        let mut memory = Guarded::new(data.len(), 0);
        memory.inside_mut().copy_from_slice(data);
        memory
    }

    fn inside(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[8 * GUARD_WORDS..][..self.bytes]
    }

    fn inside_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[8 * GUARD_WORDS..][..self.bytes]
    }

    fn is_sound(&self) -> bool {
        let whole = Guarded::new(self.bytes, 0).words;
        let all: &[u8] = bytemuck::cast_slice(&self.words);
        let expected: &[u8] = bytemuck::cast_slice(&whole);
        let inside = 8 * GUARD_WORDS..8 * GUARD_WORDS + self.bytes;
        all[..inside.start] == expected[..inside.start]
            && all[inside.end..] == expected[inside.end..]
    }
}

/// Several workers, one after the other; the last task first.
struct Turns(usize);

impl Parallel for Turns {
    fn workers(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        (0..tasks).rev().for_each(|task| body(task, task % self.0));
    }
}

/// Results, or why there are none.
fn run(case: &Case, par: &dyn Parallel, fill: u8, is_late: bool) -> Result<Vec<Literal>, String> {
    let types: Vec<Option<TensorType>> = case
        .inputs
        .iter()
        .map(|l| l.as_ref().map(Literal::ty))
        .collect();
    let of_results =
        infer::output_types(&case.op, &types, case.outputs).map_err(|e| e.to_string())?;
    let plain = |ty: &'_ TensorType| -> (TensorType, Layout) { (ty.clone(), Layout::Plain) };
    let in_types: Vec<_> = types.iter().map(|t| t.as_ref().map(plain)).collect();
    let out_types: Vec<_> = of_results.iter().map(plain).collect();
    fn form(t: &(TensorType, Layout)) -> (&TensorType, Layout) {
        (&t.0, t.1)
    }
    let ins: Vec<OperandForm> = in_types.iter().map(|t| t.as_ref().map(form)).collect();
    let outs: Vec<OperandForm> = out_types.iter().map(|t| Some(form(t))).collect();
    let op = match is_late {
        false => case.op.clone(),
        true => {
            let bound = |ty: &TensorType| Bound {
                ty: ty.clone(),
                late: vec![true; ty.shape.len()],
            };
            Op::Late(Box::new(Late {
                op: LateOp::Over(case.op.clone()),
                bounds: of_results.iter().map(bound).collect(),
                is_guarded: false,
            }))
        }
    };
    supported(&op, &ins, &outs).map_err(|e| e.to_string())?;
    let isa = Isa::detect();
    let bytes = workspace_bytes(&op, &ins, &outs, par.workers(), isa);
    let mut workspace = Guarded::new(bytes, fill);
    let inputs: Vec<Option<Guarded>> = (case.inputs.iter())
        .map(|l| l.as_ref().map(|l| Guarded::holding(l.bytes())))
        .collect();
    let mut outputs: Vec<Guarded> = of_results
        .iter()
        .map(|t| Guarded::new(t.len_bytes(), fill))
        .collect();
    let refs: Vec<Option<TensorRef>> = (inputs.iter().zip(&types))
        .map(|(memory, ty)| {
            Some(TensorRef::from_bytes(ty.as_ref()?, memory.as_ref()?.inside()).expect("aligned"))
        })
        .collect();
    let muts: Vec<Option<TensorMut>> = (outputs.iter_mut().zip(&of_results))
        .map(|(memory, ty)| TensorMut::from_bytes(ty, memory.inside_mut()))
        .collect();
    let mut ctx = Context {
        par,
        isa,
        workspace: workspace.inside_mut(),
    };
    let mut actual = of_results.clone();
    let done = match &op {
        Op::Late(late) => execute_late(late, &refs, &muts, &mut actual, &mut ctx),
        op => execute(op, &refs, None, &muts, &mut ctx),
    };
    // What inference and planning accepted can be computed, unless the data say otherwise.
    if let Err(error @ OpError::BadOperand { .. }) = &done {
        panic!("{:?} of {types:?}: {error}", case.op);
    }
    done.map_err(|e| e.to_string())?;
    let mut all = inputs.iter().flatten().chain(&outputs).chain([&workspace]);
    assert!(
        all.all(Guarded::is_sound),
        "{:?} wrote outside of {types:?} or {of_results:?}",
        case.op
    );
    for (input, was) in inputs.iter().flatten().zip(case.inputs.iter().flatten()) {
        assert!(
            input.inside() == was.bytes(),
            "{:?} wrote to an input",
            case.op
        );
    }
    assert_eq!(actual, of_results, "{:?} of {types:?}", case.op);
    let results = outputs.iter().zip(&of_results);
    Ok(results
        .map(|(memory, ty)| {
            Literal::from_bytes(ty.dtype, &ty.shape, memory.inside()).expect("as planned")
        })
        .collect())
}

fn first_value(literal: &Literal) -> impl Iterator<Item = f64> {
    let op = Op::Cast { to: DType::F32 };
    let floats = crate::support::one(&op, &[literal]);
    let values: Vec<f32> = floats.as_f32().expect("f32").to_vec();
    values.into_iter().map(f64::from)
}

/// Draws `count` cases; fails where too few of those with an empty operand ran.
pub(super) fn check(name: &str, count: u64, draw: impl Fn(&mut Draw) -> Case) {
    let mut ran = 0;
    let name_bits = name
        .bytes()
        .fold(0u64, |n, b| n.wrapping_mul(31).wrapping_add(b.into()));
    for number in 0..count {
        let seed = neap_testing::seed() + number;
        let case = draw(&mut Draw(
            seed.wrapping_mul(0x1234_5678_9abc_def1) ^ name_bits,
        ));
        let shapes: Vec<_> = case
            .inputs
            .iter()
            .map(|l| l.as_ref().map(|l| l.shape().to_vec()))
            .collect();
        let what = format!(
            "{:?} of {shapes:?} (NEAP_SEED apart, case {number})",
            case.op
        );
        let first = run(&case, &Serial, 0x00, false);
        let second = run(&case, &Turns(3), 0xff, false);
        assert!(first == second, "{what}: {first:?} and then {second:?}");
        let Ok(results) = first else {
            continue;
        };
        ran += u64::from(case.has_empty());
        if let (Some(value), true) = (case.of_nothing, case.has_empty()) {
            for found in first_value(&results[0]) {
                let same = found == value || found.is_nan() && value.is_nan();
                assert!(same, "{what}: {found} where {value} is expected");
            }
        }
        if !matches!(case.op, Op::Late(_)) {
            let late = run(&case, &Turns(2), 0x77, true);
            // Not every operator goes over late sizes.
            assert!(
                late.is_err() || late == Ok(results),
                "{what}: late {late:?}"
            );
        }
    }
    assert!(
        ran * 20 >= count,
        "{name}: only {ran} of {count} cases with an empty operand ran"
    );
}
