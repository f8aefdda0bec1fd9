//! Sizes that are known only when running, while a model is read.
//!
//! A late axis has a *symbol*: axes with the same symbol have the same size in every run, and its bound is the most that
//! it can be. Small integer values that give sizes have *ranges*, element by element, as the nodes say that compute them, so
//! that a `Reshape` to them has a bound, too.

mod bounds;
mod emit;
mod interval;
mod ranges;

pub(crate) use ranges::Range;

use neap_ir::ValueId;
use std::collections::{BTreeMap, HashMap};

/// A size that is known when running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Symbol(pub u32);

/// One axis of a value: the most that it can be, and its symbol where a run may give it less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Axis {
    pub most: usize,
    pub symbol: Option<Symbol>,
}

impl Axis {
    pub(crate) fn known(size: usize) -> Axis {
        Axis {
            most: size,
            symbol: None,
        }
    }
}

/// What is known of late sizes.
#[derive(Default)]
pub(crate) struct LateSizes {
    /// Of values with late axes.
    axes: HashMap<ValueId, Vec<Option<Symbol>>>,
    /// Bounds of symbols, by number.
    most: Vec<usize>,
    ranges: HashMap<ValueId, Range>,
    /// Given by the user: by the name of a node's first result, the most of each of its sizes that nothing else bounds.
    pub bounds: BTreeMap<String, usize>,
}

impl LateSizes {
    pub(crate) fn is_late(&self, value: ValueId) -> bool {
        self.axes.contains_key(&value)
    }

    fn symbol(&self, value: ValueId, axis: usize) -> Option<Symbol> {
        self.axes.get(&value)?.get(axis).copied().flatten()
    }

    pub(crate) fn fresh(&mut self, most: usize) -> Axis {
        self.most.push(most);
        Axis {
            most,
            symbol: Some(Symbol(self.most.len() as u32 - 1)),
        }
    }
}
