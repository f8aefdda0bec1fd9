//! Appends operators over late sizes, with bounds for what they give.

use super::{Axis, Symbol};
use crate::builder::{At, Builder};
use crate::error::OnnxError;
use crate::tensor;
use neap_ir::late::{Bound, Late, LateOp};
use neap_ir::{DType, Literal, Op, TensorType, ValueId, infer};
use std::collections::{BTreeMap, BTreeSet};

/// Sizes of symbols other than their bounds.
type Sizes = BTreeMap<Symbol, usize>;

/// Larger results are computed when the model runs.
const MOST_EVALUATED_BYTES: usize = 8 << 20;

/// A symbol that an axis of a result follows, and whether it is as long in every run.
type Follows = (Symbol, bool);

impl Builder {
    pub(crate) fn is_late(&self, value: ValueId) -> bool {
        self.late.is_late(value)
    }

    /// The axes of a value.
    pub(crate) fn axes(&self, value: ValueId) -> Vec<Axis> {
        let shape = self.ty(value).shape.iter().enumerate();
        shape
            .map(|(axis, &most)| Axis {
                most,
                symbol: self.late.symbol(value, axis),
            })
            .collect()
    }

    /// Notes which axes of a new value are late.
    pub(crate) fn set_axes(&mut self, value: ValueId, axes: &[Axis]) {
        if axes.iter().any(|a| a.symbol.is_some()) {
            let symbols = axes.iter().map(|a| a.symbol).collect();
            self.late.axes.insert(value, symbols);
        }
    }

    /// Appends a late operator whose results have these types. Evaluates it at once where all operands are known.
    pub(crate) fn emit_late(
        &mut self,
        at: At,
        op: LateOp,
        inputs: &[Option<ValueId>],
        results: Vec<(DType, Vec<Axis>)>,
        wanted: &[bool],
    ) -> Result<Vec<Option<ValueId>>, OnnxError> {
        self.check_tensors(at, inputs)?;
        let bounds: Vec<Bound> = results
            .iter()
            .map(|(dtype, axes)| Bound {
                ty: TensorType {
                    dtype: *dtype,
                    shape: axes.iter().map(|a| a.most).collect(),
                },
                late: axes.iter().map(|a| a.symbol.is_some()).collect(),
            })
            .collect();
        for bound in &bounds {
            if bound.ty.shape.len() > tensor::MAX_RANK || tensor::is_huge(&bound.ty.shape) {
                let shape = &bound.ty.shape;
                return Err(at.bad(format!("its output {shape:?} may be impossibly large")));
            }
        }
        // A loop may take as long as it likes.
        let is_loop = matches!(op, LateOp::Repeat(_));
        let bytes = bounds.iter().map(|bound| bound.ty.len_bytes());
        let is_large = bytes.fold(0, usize::saturating_add) > MOST_EVALUATED_BYTES;
        if !is_loop
            && !is_large
            && let Some(known) = self.evaluated(&op, &bounds, inputs, wanted)?
        {
            return Ok(known);
        }
        let mut outputs = Vec::new();
        for ((dtype, axes), &wanted) in results.into_iter().zip(wanted) {
            let shape: Vec<usize> = axes.iter().map(|a| a.most).collect();
            let output = wanted.then(|| self.graph.add_value("", TensorType::new(dtype, &shape)));
            if let Some(output) = output {
                self.graph.values[output.index()].name = format!("{}:{}", at.node, output.0);
                self.set_axes(output, &axes);
            }
            outputs.push(output);
        }
        self.push_late(at, op, bounds, inputs, &outputs);
        Ok(outputs)
    }

    /// Appends a late node, behind the guard of the branch that it is of.
    pub(crate) fn push_late(
        &mut self,
        at: At,
        op: LateOp,
        bounds: Vec<Bound>,
        inputs: &[Option<ValueId>],
        outputs: &[Option<ValueId>],
    ) {
        let mut inputs = inputs.to_vec();
        inputs.extend(self.guard.map(Some));
        let late = Late {
            op,
            bounds,
            is_guarded: self.guard.is_some(),
        };
        self.push(at, Op::Late(Box::new(late)), inputs, outputs);
    }

    fn evaluated(
        &mut self,
        op: &LateOp,
        bounds: &[Bound],
        inputs: &[Option<ValueId>],
        wanted: &[bool],
    ) -> Result<Option<Vec<Option<ValueId>>>, OnnxError> {
        let mut literals: Vec<Option<Literal>> = Vec::new();
        for input in inputs {
            literals.push(match input {
                Some(value) => match self.known(*value)? {
                    Some(literal) => Some(literal),
                    None => return Ok(None),
                },
                None => None,
            });
        }
        let operands: Vec<Option<&Literal>> = literals.iter().map(Option::as_ref).collect();
        let op = Op::Late(Box::new(Late {
            op: op.clone(),
            bounds: bounds.to_vec(),
            is_guarded: false,
        }));
        let Ok(values) = neap_ops::evaluate_wanted(&op, &operands, wanted) else {
            return Ok(None);
        };
        let values = values.into_iter();
        Ok(Some(values.map(|v| v.map(|v| self.literal(v))).collect()))
    }

    /// Appends an ordinary operator that reads late values.
    pub(crate) fn emit_over(
        &mut self,
        at: At,
        op: Op,
        inputs: &[Option<ValueId>],
        wanted: &[bool],
    ) -> Result<Vec<Option<ValueId>>, OnnxError> {
        if !holds_no_sizes(&op, self, inputs) {
            return Err(at.unsupported("a size that is known only when running"));
        }
        let results = self.bounds_over(at, &op, inputs, wanted.len())?;
        self.emit_late(at, LateOp::Over(op), inputs, results, wanted)
    }

    /// Bounds of an operator's results: its types over the bounds of its operands. Axes that follow a symbol are found
    /// by making the symbol larger.
    fn bounds_over(
        &mut self,
        at: At,
        op: &Op,
        inputs: &[Option<ValueId>],
        outputs: usize,
    ) -> Result<Vec<(DType, Vec<Axis>)>, OnnxError> {
        let infer = |sizes: &Sizes| {
            let types: Vec<Option<TensorType>> = inputs
                .iter()
                .map(|v| v.map(|v| self.with_sizes(v, sizes)))
                .collect();
            infer::output_types(op, &types, outputs)
        };
        let symbols: BTreeSet<Symbol> = (inputs.iter().flatten())
            .flat_map(|&v| self.axes(v))
            .filter_map(|axis| axis.symbol)
            .collect();
        let most = |s: Symbol| self.late.most[s.0 as usize];
        // A late axis beside one of a known size has that size, or none that fits.
        let mut pinned = Sizes::new();
        let base = match infer(&pinned) {
            Ok(base) => base,
            Err(error) => {
                let shapes = inputs.iter().flatten().map(|&v| &self.ty(v).shape);
                let sizes: BTreeSet<usize> = shapes.flatten().copied().collect();
                let tries = symbols
                    .iter()
                    .flat_map(|&s| sizes.iter().map(move |&d| (s, d)));
                let found = tries.filter(|&(s, d)| d < most(s)).find_map(|(s, d)| {
                    let sizes = Sizes::from([(s, d)]);
                    infer(&sizes).ok().map(|base| (sizes, base))
                });
                let (sizes, base) = found.ok_or_else(|| at.bad(error.reason))?;
                pinned = sizes;
                base
            }
        };
        // Windows that move by several places need more than one to give more.
        let beyond = |s: Symbol| most(s).saturating_mul(2).saturating_add(61);
        let mut axes: Vec<(DType, Vec<Vec<Follows>>)> = (base.iter())
            .map(|ty| (ty.dtype, vec![Vec::new(); ty.shape.len()]))
            .collect();
        let mut mixed = BTreeSet::new();
        for &symbol in symbols.iter().filter(|s| !pinned.contains_key(s)) {
            let mut sizes = pinned.clone();
            sizes.insert(symbol, beyond(symbol));
            let Ok(larger) = infer(&sizes) else {
                mixed.insert(symbol);
                continue;
            };
            for ((from, to), (_, axes)) in base.iter().zip(&larger).zip(&mut axes) {
                let changed = from.shape.iter().zip(&to.shape).zip(axes);
                for ((_, &to), axis) in changed.filter(|((a, b), _)| a != b) {
                    axis.push((symbol, to == beyond(symbol)));
                }
            }
        }
        // Symbols that go together only, such as two lengths that must be equal.
        let mut together = pinned.clone();
        together.extend(mixed.iter().map(|&s| (s, beyond(s))));
        let together = (!mixed.is_empty()).then(|| infer(&together).ok()).flatten();
        let mut results = Vec::new();
        for (index, (dtype, symbols)) in axes.into_iter().enumerate() {
            let mut given = Vec::new();
            for (axis, symbols) in symbols.into_iter().enumerate() {
                let size = base[index].shape[axis];
                let moves = |ty: &Vec<TensorType>| ty[index].shape[axis] != size;
                given.push(match symbols[..] {
                    [(symbol, true)] if size == self.late.most[symbol.0 as usize] => Axis {
                        most: size,
                        symbol: Some(symbol),
                    },
                    [] if !together.as_ref().is_some_and(moves) => Axis::known(size),
                    _ => self.late.fresh(size),
                });
            }
            results.push((dtype, given));
        }
        Ok(results)
    }

    fn with_sizes(&self, value: ValueId, sizes: &Sizes) -> TensorType {
        let axes = self.axes(value).into_iter();
        let size = |axis: Axis| {
            let size = axis.symbol.and_then(|s| sizes.get(&s).copied());
            size.unwrap_or(axis.most)
        };
        TensorType {
            dtype: self.ty(value).dtype,
            shape: axes.map(size).collect(),
        }
    }
}

/// Whether an operator means the same over other sizes of the late axes.
fn holds_no_sizes(op: &Op, builder: &Builder, inputs: &[Option<ValueId>]) -> bool {
    let axes = |v: &ValueId| builder.axes(*v).into_iter().enumerate();
    let late = |from: usize| {
        let mut all = inputs.iter().flatten().flat_map(axes);
        all.any(|(axis, a)| axis >= from && a.symbol.is_some())
    };
    match op {
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Clip { .. }
        | Op::Where
        | Op::Cast { .. }
        | Op::BitCast { .. }
        | Op::Quantize { .. }
        | Op::Dequantize { .. }
        | Op::MatMul
        | Op::Gemm { .. }
        | Op::Einsum { .. }
        | Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::CumSum { .. }
        | Op::Softmax { .. }
        | Op::LayerNorm { .. }
        | Op::RmsNorm { .. }
        | Op::LpNorm { .. }
        | Op::Concat { .. }
        | Op::Transpose { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::ScatterElements { .. }
        | Op::ScatterNd { .. }
        | Op::Trilu { .. }
        | Op::RoundToFloat8 { .. }
        | Op::Conv(..)
        | Op::BatchNorm { .. }
        | Op::GlobalPool(_)
        | Op::Lstm(_)
        | Op::Gru { .. }
        | Op::Rnn(_)
        | Op::Stft(_)
        | Op::Det
        | Op::Inverse
        | Op::Sampling(_)
        | Op::TfIdf(_)
        | Op::Trees(_) => true,
        Op::Split { axis, .. } => {
            let x = inputs.iter().flatten().next();
            x.is_some_and(|&x| {
                builder
                    .axes(x)
                    .get(*axis)
                    .is_some_and(|a| a.symbol.is_none())
            })
        }
        // What it gives over spatial axes is of the bound.
        Op::Pool { .. } => !late(2),
        _ => false,
    }
}
