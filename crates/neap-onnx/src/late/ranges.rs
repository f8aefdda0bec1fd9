//! Ranges of small integer values: the least and the most that each element can be.

use super::{LateSizes, Symbol};
use crate::builder::Builder;
use crate::error::OnnxError;
use neap_ir::op::{Binary, Unary};
use neap_ir::{DType, Literal, Op, ValueId};

/// Longer values give no sizes.
const MOST_ELEMENTS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub low: Vec<i64>,
    pub high: Vec<i64>,
    /// Elements that are the size of a late axis, whatever it is.
    pub symbols: Vec<Option<Symbol>>,
}

impl Range {
    fn exact(values: Vec<i64>) -> Range {
        Range {
            symbols: vec![None; values.len()],
            low: values.clone(),
            high: values,
        }
    }

    /// The element, if it can be one value only.
    pub(crate) fn known(&self, index: usize) -> Option<i64> {
        (self.low[index] == self.high[index]).then(|| self.low[index])
    }

    pub(crate) fn len(&self) -> usize {
        self.low.len()
    }
}

impl LateSizes {
    pub(super) fn note(&mut self, value: ValueId, range: Range) {
        self.ranges.insert(value, range);
    }
}

impl Builder {
    /// What a small integer value can be: a constant, or one that is computed from late sizes.
    pub(crate) fn range(&mut self, value: ValueId) -> Result<Option<Range>, OnnxError> {
        if let Some(range) = self.late.ranges.get(&value) {
            return Ok(Some(range.clone()));
        }
        if self.ty(value).elements() > MOST_ELEMENTS {
            return Ok(None);
        }
        let values = self.known(value)?.and_then(|literal| literal.to_i64_vec());
        Ok(values.map(Range::exact))
    }

    pub(crate) fn note_range(&mut self, value: ValueId, range: Range) {
        self.late.note(value, range);
    }

    /// Notes what the results of a node can be, if all its operands have ranges.
    pub(crate) fn pass_ranges(
        &mut self,
        op: &Op,
        inputs: &[Option<ValueId>],
        outputs: &[Option<ValueId>],
    ) -> Result<(), OnnxError> {
        let ranged = |v: &ValueId| self.late.ranges.contains_key(v);
        if self.late.ranges.is_empty() || !inputs.iter().flatten().any(ranged) {
            return Ok(());
        }
        if matches!(op, Op::Where | Op::Binary(Binary::Equal)) {
            return self.pass_choices(op, inputs, outputs);
        }
        let is_small = |v: &ValueId| {
            let ty = self.ty(*v);
            matches!(ty.dtype, DType::I64 | DType::I32) && ty.elements() <= MOST_ELEMENTS
        };
        if !inputs.iter().chain(outputs).flatten().all(is_small) {
            return Ok(());
        }
        let mut ranges = Vec::new();
        for &input in inputs.iter().flatten() {
            match self.range(input)? {
                Some(range) => ranges.push((input, range)),
                None => return Ok(()),
            }
        }
        let evaluate = |op: &Op, pick: &dyn Fn(usize, &Range) -> Vec<i64>| {
            let literals = ranges.iter().enumerate().map(|(i, (input, range))| {
                let ty = self.ty(*input);
                literal(ty.dtype, &ty.shape, &pick(i, range))
            });
            let literals: Vec<Literal> = literals.collect();
            let operands: Vec<Option<&Literal>> = literals.iter().map(Some).collect();
            let values = neap_ops::evaluate_outputs(op, &operands, outputs.len()).ok()?;
            values
                .iter()
                .map(Literal::to_i64_vec)
                .collect::<Option<Vec<_>>>()
        };
        let low = |_: usize, r: &Range| r.low.clone();
        let high = |_: usize, r: &Range| r.high.clone();
        let least_is_positive = |from: usize| {
            let all = ranges.iter().skip(from);
            all.flat_map(|(_, r)| &r.low).all(|&x| x > 0)
        };
        let none_is_negative = ranges.iter().flat_map(|(_, r)| &r.low).all(|&x| x >= 0);
        let (least, most) = match op {
            // The right-hand operand counts the other way.
            Op::Binary(Binary::Sub) => (
                evaluate(op, &|i, r| {
                    if i == 0 {
                        r.low.clone()
                    } else {
                        r.high.clone()
                    }
                }),
                evaluate(op, &|i, r| {
                    if i == 0 {
                        r.high.clone()
                    } else {
                        r.low.clone()
                    }
                }),
            ),
            Op::Binary(Binary::Div) if none_is_negative && least_is_positive(1) => (
                evaluate(op, &|i, r| {
                    if i == 0 {
                        r.low.clone()
                    } else {
                        r.high.clone()
                    }
                }),
                evaluate(op, &|i, r| {
                    if i == 0 {
                        r.high.clone()
                    } else {
                        r.low.clone()
                    }
                }),
            ),
            Op::Binary(Binary::Mul) if none_is_negative => {
                (evaluate(op, &low), evaluate(op, &high))
            }
            Op::Binary(Binary::Add | Binary::Min | Binary::Max) => {
                (evaluate(op, &low), evaluate(op, &high))
            }
            _ if moves(op) => (evaluate(op, &low), evaluate(op, &high)),
            _ => return Ok(()),
        };
        let (Some(least), Some(most)) = (least, most) else {
            return Ok(());
        };
        let gathers = matches!(op, Op::Gather { .. });
        if gathers && ranges.iter().skip(1).any(|(_, r)| r.low != r.high) {
            return Ok(());
        }
        let symbols = moves(op).then(|| {
            evaluate(op, &|i, r| match gathers && i > 0 {
                true => r.low.clone(),
                false => numbers(&r.symbols),
            })
        });
        let symbols = symbols.flatten();
        for (index, output) in outputs.iter().enumerate() {
            let Some(output) = *output else { continue };
            let symbols = match &symbols {
                Some(symbols) => symbols[index].iter().map(|&n| symbol(n)).collect(),
                None => vec![None; least[index].len()],
            };
            let range = Range {
                low: least[index].clone(),
                high: most[index].clone(),
                symbols,
            };
            self.late.note(output, range);
        }
        Ok(())
    }
}

impl Builder {
    /// As exporters spell sizes out that may be -1: `Where(Equal(shape, -1), other, shape)`.
    fn pass_choices(
        &mut self,
        op: &Op,
        inputs: &[Option<ValueId>],
        outputs: &[Option<ValueId>],
    ) -> Result<(), OnnxError> {
        let &[Some(output)] = outputs else {
            return Ok(());
        };
        let count = self.ty(output).elements();
        if count > MOST_ELEMENTS {
            return Ok(());
        }
        let mut ranges = Vec::new();
        for &input in inputs.iter().flatten() {
            let range = self.range(input)?;
            let fits = |r: &Range| r.len() == count || r.len() == 1;
            ranges.push(range.filter(fits));
        }
        let element = |r: &Range, i: usize| {
            let i = i.min(r.len() - 1);
            (r.low[i], r.high[i], r.symbols[i])
        };
        let pick: Box<dyn Fn(usize) -> (i64, i64, Option<Symbol>)> = match (op, &ranges[..]) {
            (Op::Where, [condition, Some(a), Some(b)]) if self.ty(output).dtype == DType::I64 => {
                Box::new(move |i| {
                    let (a, b) = (element(a, i), element(b, i));
                    match condition.as_ref().map(|c| element(c, i)) {
                        Some((1, ..)) => a,
                        Some((_, 0, _)) => b,
                        _ => {
                            let symbol = a.2.filter(|_| a.2 == b.2);
                            (a.0.min(b.0), a.1.max(b.1), symbol)
                        }
                    }
                })
            }
            (Op::Binary(Binary::Equal), [Some(a), Some(b)]) => Box::new(move |i| {
                let (a, b) = (element(a, i), element(b, i));
                let never = a.1 < b.0 || b.1 < a.0;
                let always = a.0 == a.1 && b.0 == b.1 && a.0 == b.0;
                (i64::from(always), i64::from(!never), None)
            }),
            _ => return Ok(()),
        };
        let elements: Vec<_> = (0..count).map(pick).collect();
        let range = Range {
            low: elements.iter().map(|e| e.0).collect(),
            high: elements.iter().map(|e| e.1).collect(),
            symbols: elements.iter().map(|e| e.2).collect(),
        };
        self.late.note(output, range);
        Ok(())
    }
}

/// Operators whose results are elements of their operands.
fn moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Concat { .. }
            | Op::Gather { .. }
            | Op::Reshape { .. }
            | Op::Slice { .. }
            | Op::Split { .. }
            | Op::Expand { .. }
            | Op::Cast { .. }
            | Op::Unary(Unary::Identity)
    )
}

/// Symbols as numbers that operators move like values; none is -1.
fn numbers(symbols: &[Option<Symbol>]) -> Vec<i64> {
    let number = |s: &Option<Symbol>| s.map_or(-1, |s| i64::from(s.0));
    symbols.iter().map(number).collect()
}

fn symbol(number: i64) -> Option<Symbol> {
    u32::try_from(number).ok().map(Symbol)
}

fn literal(dtype: DType, shape: &[usize], values: &[i64]) -> Literal {
    match dtype {
        DType::I32 => {
            let bytes = values.iter().flat_map(|&v| (v as i32).to_le_bytes());
            let bytes: Vec<u8> = bytes.collect();
            Literal::from_bytes(dtype, shape, &bytes)
                .unwrap_or_else(|| Literal::zeros(dtype, shape))
        }
        _ => Literal::from_i64(shape, values),
    }
}
