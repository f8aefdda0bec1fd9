//! Which shapes a model is bound to, and which are asked for.

use super::skeleton::SkeletonAt;
use crate::error::{Error, Result};
use crate::shapes::{Shapes, shape_text};
use neap_compile::StepOrder;
use neap_ir::Literal;
use neap_onnx::{OnnxError, Unsaid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything that a graph depends on beside its model.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Binding {
    /// Of every input, by name.
    pub shapes: Shapes,
    /// Of the inputs that are constants.
    pub values: BTreeMap<String, Literal>,
    /// Of sizes that are known only when running.
    pub size_bounds: BTreeMap<String, usize>,
}

/// What a user says of a binding.
pub(crate) struct Asked<'a> {
    pub shapes: &'a Shapes,
    /// Shapes of the data at hand, believed where `shapes` leaves dimensions open.
    pub hints: &'a Shapes,
    /// Inputs that are constants.
    pub values: &'a BTreeMap<String, Literal>,
    /// Of sizes that are known only when running.
    pub size_bounds: &'a BTreeMap<String, usize>,
    /// Of an open first dimension, where all else says nothing.
    pub batch: Option<usize>,
}

/// A binding that was asked for.
pub(crate) struct Wanted {
    pub binding: Binding,
    /// Inputs whose first dimension nothing said.
    pub unsaid_batches: Vec<String>,
}

/// A batch is taken for an open first dimension; others are asked for.
pub(crate) fn unsaid(batch: Option<usize>) -> Unsaid {
    Unsaid {
        first: batch,
        others: None,
    }
}

/// What an open model knows of its packed file. The rest is read again when the model is bound anew.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    /// `None` for a model without symbolic dimensions: packed from a graph.
    pub skeleton: Option<SkeletonAt>,
    /// Of the programs in use.
    pub binding: Binding,
    pub order: StepOrder,
    /// What packing it took of memory.
    pub opening_bytes: u64,
}

impl Package {
    /// The binding that is asked for. What the options leave open is an error, or as it is now.
    ///
    /// # Errors
    /// The shapes do not fit the model, or leave dimensions open.
    pub fn wanted(&self, asked: &Asked, keep_open: bool) -> Result<Wanted> {
        let Some(skeleton) = &self.skeleton else {
            let binding = self.wanted_of_fixed(asked)?;
            return Ok(Wanted {
                binding,
                unsaid_batches: Vec::new(),
            });
        };
        let try_with = |shapes: Shapes, batch: Option<usize>| {
            let onnx = neap_onnx::OpenOptions {
                shapes,
                unsaid: unsaid(batch),
                bindings: self.values(asked, keep_open),
                size_bounds: self.size_bounds(asked, keep_open),
                ..Default::default()
            };
            let shapes = skeleton.inputs.shapes(&onnx)?;
            let unsaid_batches = skeleton.inputs.unsaid_batches(&onnx)?;
            let binding = Binding {
                shapes,
                values: onnx.bindings,
                size_bounds: onnx.size_bounds,
            };
            Ok::<_, OnnxError>(Wanted {
                binding,
                unsaid_batches,
            })
        };
        // Of what is known, the surest first; an input has its shape from the first that knows it.
        let mut known = skeleton.inputs.scalars_given(asked.hints);
        known.retain(|name, _| !asked.values.contains_key(name));
        known.extend(asked.shapes.clone());
        let mut found = try_with(known.clone(), None);
        let others = [asked.hints, &self.binding.shapes];
        for more in others.into_iter().take(1 + usize::from(keep_open)) {
            if !matches!(found, Err(OnnxError::DynamicInput { .. })) {
                break;
            }
            let values = self.values(asked, keep_open);
            for (name, shape) in more.iter().filter(|(name, _)| !values.contains_key(*name)) {
                known.entry(name.clone()).or_insert_with(|| shape.clone());
            }
            found = try_with(known.clone(), None);
        }
        if matches!(found, Err(OnnxError::DynamicInput { .. })) && asked.batch.is_some() {
            found = try_with(known, asked.batch);
        }
        Ok(found?)
    }

    /// Inputs that are constants: those asked for, or those that are so now.
    fn values(&self, asked: &Asked, keep_open: bool) -> BTreeMap<String, Literal> {
        if keep_open && asked.values.is_empty() {
            self.binding.values.clone()
        } else {
            asked.values.clone()
        }
    }

    fn size_bounds(&self, asked: &Asked, keep_open: bool) -> BTreeMap<String, usize> {
        match keep_open && asked.size_bounds.is_empty() {
            true => self.binding.size_bounds.clone(),
            false => asked.size_bounds.clone(),
        }
    }

    fn wanted_of_fixed(&self, asked: &Asked) -> Result<Binding> {
        for (name, shape) in asked.shapes {
            let reason = match self.binding.shapes.get(name) {
                None => format!("the model has no input '{name}'"),
                Some(fixed) if fixed != shape => format!(
                    "input '{name}' has the fixed shape {}, not {}",
                    shape_text(fixed),
                    shape_text(shape)
                ),
                Some(_) => continue,
            };
            return Err(Error::BadInput(reason));
        }
        Ok(self.binding.clone())
    }
}
