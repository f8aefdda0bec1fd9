//! Ranges of small integer values, which give sizes: the least and the most that each element can be.

use super::bounds::{Bounds, MOST_ELEMENTS};
use super::interval::Interval;
use super::{LateSizes, Symbol};
use crate::builder::Builder;
use crate::error::OnnxError;
use neap_ir::ValueId;

/// What can be as much, or more, says no more than its type does.
const NO_SIZE: i64 = i32::MAX as i64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    /// `i64::MIN` where nothing says how little it can be.
    pub low: Vec<i64>,
    /// `i64::MAX` where nothing says how much.
    pub high: Vec<i64>,
    /// Elements that are the size of a late axis, whatever it is.
    pub symbols: Vec<Option<Symbol>>,
}

impl Range {
    fn of(elements: impl Iterator<Item = Interval>) -> Range {
        // Conversions saturate.
        let pair = |e: Interval| ((e.low as i64, e.high as i64), e.symbol);
        let (ends, symbols): (Vec<_>, _) = elements.map(pair).unzip();
        let (low, high) = ends.into_iter().unzip();
        Range { low, high, symbols }
    }

    pub(super) fn bounds(&self) -> Bounds {
        let ends = self.low.iter().zip(&self.high).zip(&self.symbols);
        let open = |end: i64, is_open: bool, infinite: f64| match is_open {
            true => infinite,
            false => end as f64,
        };
        let each = ends.map(|((&low, &high), &symbol)| Interval {
            low: open(low, low == i64::MIN && high != low, f64::NEG_INFINITY),
            high: open(high, high == i64::MAX && high != low, f64::INFINITY),
            symbol,
        });
        Bounds::each(each.collect())
    }

    /// The element, if it can be one value only.
    pub(crate) fn known(&self, index: usize) -> Option<i64> {
        (self.low[index] == self.high[index]).then(|| self.low[index])
    }

    /// Whether anything says how much the element can be.
    pub(crate) fn is_bounded(&self, index: usize) -> bool {
        self.high[index] < NO_SIZE || self.known(index).is_some()
    }

    pub(crate) fn len(&self) -> usize {
        self.low.len()
    }
}

impl LateSizes {
    pub(super) fn note(&mut self, value: ValueId, range: Range) {
        self.ranges.insert(value, range);
    }

    /// Whether a value gives sizes that are late.
    pub(crate) fn gives_sizes(&self, value: ValueId) -> bool {
        self.ranges.contains_key(&value)
    }
}

impl Builder {
    /// What each element of a small integer value can be; `None` where nothing says anything.
    pub(crate) fn range(&mut self, value: ValueId) -> Result<Option<Range>, OnnxError> {
        if let Some(range) = self.late.ranges.get(&value) {
            return Ok(Some(range.clone()));
        }
        let ty = self.ty(value);
        let count = ty.elements();
        if ty.dtype.is_float() || count > MOST_ELEMENTS || self.is_late(value) {
            return Ok(None);
        }
        if let Some(literal) = self.known(value)? {
            let values = literal.to_i64_vec();
            return Ok(values.map(|values| Range {
                symbols: vec![None; values.len()],
                low: values.clone(),
                high: values,
            }));
        }
        let bounds = self.bounds(value)?;
        let range = Range::of((0..count).map(|index| bounds.at(index)));
        let says = |i: usize| range.low[i] > i64::MIN || range.high[i] < i64::MAX;
        Ok((0..count).any(says).then_some(range))
    }

    /// What a number of any type can be.
    pub(crate) fn ends(&mut self, value: ValueId) -> Result<(f64, f64), OnnxError> {
        let first = self.bounds(value)?.at(0);
        Ok((first.low, first.high))
    }

    pub(crate) fn note_range(&mut self, value: ValueId, range: Range) {
        self.late.note(value, range);
    }
}
