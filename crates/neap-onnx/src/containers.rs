//! Sequences and optionals while a model is read: lists of tensors that only the reader knows.
//!
//! A name of a model may stand for one. The value that it has in scopes is a *marker*: no node reads it
//! ([`crate::builder::Builder::emit`] refuses that), and the operators on sequences look up what it stands for.

use neap_ir::ValueId;
use std::collections::HashMap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Container {
    /// Its elements, which are tensors.
    Sequence(Vec<ValueId>),
    /// What it holds, if anything: a tensor, or the marker of a sequence.
    Optional(Option<ValueId>),
}

/// What each marker stands for.
#[derive(Default)]
pub(crate) struct Containers(HashMap<ValueId, Container>);

impl Containers {
    pub(crate) fn get(&self, value: ValueId) -> Option<&Container> {
        self.0.get(&value)
    }

    pub(crate) fn insert(&mut self, marker: ValueId, container: Container) {
        self.0.insert(marker, container);
    }
}

impl Container {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Container::Sequence(_) => "a sequence",
            Container::Optional(_) => "an optional",
        }
    }
}
