//! Results that are found without a node: views of stored bytes, rows of tables, and what is computed here and now.

use super::{At, Builder, FOLD_BYTES};
use crate::error::OnnxError;
use crate::tensor;
use neap_ir::recipe::INLINE_LIMIT_BYTES;
use neap_ir::{Const, DType, FileRange, Layout, Literal, Op, TensorType, ValueId};
use neap_ops::OpError;

/// Results above the inline limit that folding may keep in memory, all together.
const FOLDED_TOTAL_BYTES: usize = 8 << 20;
const FOLD_FLOPS: u64 = 200_000_000;

impl Builder {
    /// Results that are the input under another type: no-ops, and new views of stored bytes.
    pub(super) fn alias(
        &mut self,
        op: &Op,
        inputs: &[Option<ValueId>],
        results: &[TensorType],
    ) -> Option<Vec<ValueId>> {
        let &[Some(input), ..] = inputs else {
            return None;
        };
        let from = self.ty(input).clone();
        let unchanged = results.len() == 1 && results[0] == from;
        let view = match op {
            Op::Reshape { .. } | Op::Expand { .. } | Op::Cast { .. } if unchanged => {
                return Some(vec![input]);
            }
            Op::Concat { .. } if unchanged && inputs.len() == 1 => return Some(vec![input]),
            Op::Tile { repeats } if repeats.iter().all(|&r| r == 1) => return Some(vec![input]),
            Op::Pad { pads, .. } if pads.iter().all(|&p| p == (0, 0)) => return Some(vec![input]),
            Op::Slice { ranges } if unchanged && ranges.iter().all(|r| r.step == 1) => {
                return Some(vec![input]);
            }
            Op::Transpose { perm } if perm.iter().enumerate().all(|(i, &p)| i == p) => {
                return Some(vec![input]);
            }
            Op::Clip {
                low: None,
                high: None,
            } => return Some(vec![input]),
            Op::Reshape { .. } => vec![0],
            Op::Cast { to: DType::F32 } if matches!(from.dtype, DType::F16 | DType::BF16) => {
                vec![0]
            }
            Op::Split { axis, sizes } if from.shape[..*axis].iter().all(|&d| d == 1) => {
                let inner: usize = from.shape[axis + 1..].iter().product();
                sizes
                    .iter()
                    .scan(0, |at, &size| {
                        let start = *at;
                        *at += size * inner;
                        Some(start)
                    })
                    .collect()
            }
            Op::Slice { ranges } => {
                // Contiguous: after the first axis longer than one, everything is taken whole.
                let first = ranges.iter().position(|r| r.len != 1)?;
                let whole = ranges[first + 1..]
                    .iter()
                    .zip(&from.shape[first + 1..])
                    .all(|(r, &d)| r.step == 1 && r.len == d);
                if !whole || ranges[first].step != 1 || ranges[first].len == 0 {
                    return None;
                }
                let start = ranges
                    .iter()
                    .zip(&from.shape)
                    .fold(0, |n, (r, &d)| n * d + r.start);
                vec![start]
            }
            _ => return None,
        };
        if self.parameters.contains(&input) {
            return None;
        }
        let &Const::Stored {
            range,
            stored_dtype,
        } = self.graph.constant(input)?
        else {
            return None;
        };
        let size = stored_dtype.size_bytes();
        let mut values = Vec::new();
        for (start, ty) in view.into_iter().zip(results) {
            let data = Const::Stored {
                range: FileRange {
                    file: range.file,
                    offset: range.offset + (start * size) as u64,
                    bytes: (ty.elements() * size) as u64,
                },
                stored_dtype,
            };
            values.push(self.constant(ty.clone(), data));
        }
        Some(values)
    }

    /// Rows of a table in the file that follow each other, such as the positions of a text: part of the table, which
    /// is not read for them.
    pub(super) fn rows(
        &mut self,
        op: &Op,
        inputs: &[Option<ValueId>],
        results: &[TensorType],
    ) -> Result<Option<ValueId>, OnnxError> {
        let (Op::Gather { axis: 0 }, &[Some(table), Some(indices)], [ty]) = (op, inputs, results)
        else {
            return Ok(None);
        };
        let Some(&Const::Stored {
            range,
            stored_dtype,
        }) = self.graph.constant(table)
        else {
            return Ok(None);
        };
        if self.parameters.contains(&table) {
            return Ok(None);
        }
        let rows = self.ty(table).shape.first().copied().unwrap_or(0);
        let indices = self.graph.literal(indices).and_then(Literal::to_i64_vec);
        let Some(first) = indices.and_then(|indices| first_of_run(&indices, rows)) else {
            return Ok(None);
        };
        let row_bytes = range.bytes / rows as u64;
        let part = FileRange {
            offset: range.offset + first as u64 * row_bytes,
            bytes: (ty.elements() * stored_dtype.size_bytes()) as u64,
            ..range
        };
        let data = if ty.len_bytes() > INLINE_LIMIT_BYTES {
            Const::Stored {
                range: part,
                stored_dtype,
            }
        } else {
            let literal = tensor::read(&mut self.files, part, stored_dtype, &ty.shape)?;
            Const::Inline(tensor::converted(literal, ty.dtype))
        };
        Ok(Some(self.constant(ty.clone(), data)))
    }

    /// Evaluates a node whose inputs are all known, unless that would hold big weights in memory.
    pub(super) fn fold(
        &mut self,
        at: At,
        op: &Op,
        inputs: &[Option<ValueId>],
        types: &[Option<TensorType>],
        results: &[TensorType],
        wanted: &[bool],
    ) -> Result<Option<Vec<Option<ValueId>>>, OnnxError> {
        // What the data say decides how long these take.
        if matches!(op, Op::Sampling(_) | Op::TfIdf(_) | Op::Trees(_)) {
            return Ok(None);
        }
        let constant =
            |v: &ValueId| self.graph.constant(*v).is_some() && !self.parameters.contains(v);
        if inputs.is_empty() || !inputs.iter().flatten().all(constant) {
            return Ok(None);
        }
        let in_bytes: usize = types.iter().flatten().map(TensorType::len_bytes).sum();
        let out_bytes: usize = results.iter().map(TensorType::len_bytes).sum();
        let kept_bytes: usize = results
            .iter()
            .map(TensorType::len_bytes)
            .filter(|&n| n > INLINE_LIMIT_BYTES)
            .sum();
        if in_bytes.saturating_add(out_bytes) > FOLD_BYTES
            || self.folded_bytes + kept_bytes > FOLDED_TOTAL_BYTES
            // The rewriter lets the packer transpose weights.
            || (kept_bytes > 0 && matches!(op, Op::Transpose { .. }))
            // And the kernels dequantise them.
            || (kept_bytes > 0 && widens_steps(op, types))
        {
            return Ok(None);
        }
        let in_operands: Vec<_> = types
            .iter()
            .map(|t| t.as_ref().map(|t| (t, Layout::Plain)))
            .collect();
        let out_operands: Vec<_> = results.iter().map(|t| Some((t, Layout::Plain))).collect();
        if neap_ops::flops(op, &in_operands, &out_operands) > FOLD_FLOPS {
            return Ok(None);
        }
        let mut literals = Vec::new();
        for input in inputs {
            literals.push(match input {
                Some(v) => match self.known(*v)? {
                    Some(literal) => Some(literal),
                    None => return Ok(None),
                },
                None => None,
            });
        }
        let refs: Vec<Option<&Literal>> = literals.iter().map(Option::as_ref).collect();
        let values = match neap_ops::evaluate_outputs(op, &refs, wanted.len()) {
            Ok(values) => values,
            // Not computable here may still be fine: the result may never be needed.
            Err(OpError::Unsupported { .. } | OpError::BadData { .. }) => return Ok(None),
            Err(error) => return Err(at.bad(error.to_string())),
        };
        self.folded_bytes += kept_bytes;
        let values = values.into_iter().zip(wanted);
        Ok(Some(
            values
                .map(|(literal, &wanted)| wanted.then(|| self.literal(literal)))
                .collect(),
        ))
    }
}

/// Whether weights of 8 or 4 bits become larger.
fn widens_steps(op: &Op, types: &[Option<TensorType>]) -> bool {
    let stored = types.first().and_then(Option::as_ref).map(|ty| ty.dtype);
    matches!(stored, Some(DType::I8 | DType::U8))
        && matches!(
            op,
            Op::Dequantize { .. }
                | Op::DequantizeBlocks { .. }
                | Op::Nibbles { .. }
                | Op::Float8s { .. }
                | Op::Cast { to: DType::F32 }
        )
}

/// Where indices begin that follow each other within `count`; `None` for any others.
fn first_of_run(indices: &[i64], count: usize) -> Option<usize> {
    let first = usize::try_from(*indices.first()?).ok()?;
    let is_inside = first.checked_add(indices.len())? <= count;
    let mut places = indices.iter().zip(first..);
    (is_inside && places.all(|(&i, place)| i == place as i64)).then_some(first)
}
