//! Adapters of a training: which weights get one, what they are called, and the model's weights with what they learned.

use crate::error::{Result, TrainError, bad};
use crate::recipe::{matches, names_of};
use crate::stored::{narrowed, widened};
use crate::tensors::Tensors;
use neap_autodiff::{WeightForm, adaptable, add_adapters};
use neap_ir::{DType, Graph, TensorType, ValueId};
use neaptide::Adapters;
use std::collections::{BTreeMap, BTreeSet};

/// Names in files of PEFT, which is what programs that take adapters read, begin so.
const USUAL_PREFIX: &str = "base_model.model.";

/// What is wanted of adapters.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraOptions {
    pub rank: usize,
    /// What adapters give is multiplied by this over the rank. `None` is the rank itself.
    pub alpha: Option<f32>,
    /// Patterns of names of the weights that get one; all matrices of products where there is none.
    pub targets: Vec<String>,
}

/// The adapters of a training.
#[derive(Debug, Clone)]
pub struct Lora {
    pub adapters: Adapters,
    /// By the weight's name.
    pub parts: BTreeMap<String, LoraPart>,
}

/// A weight's two matrices, by name and type.
#[derive(Debug, Clone)]
pub struct LoraPart {
    form: WeightForm,
    /// A weight's inputs and outputs.
    sides: [usize; 2],
    pub down: (String, TensorType),
    pub up: (String, TensorType),
}

impl Lora {
    /// Adapters for those of `initializers` that are asked for.
    ///
    /// # Errors
    /// A pattern names no weight that can have an adapter, there is none at all, or one has fewer inputs or outputs than the rank.
    pub(crate) fn choose(
        graph: &Graph,
        initializers: &BTreeMap<String, TensorType>,
        options: &LoraOptions,
    ) -> Result<Lora> {
        if options.rank == 0 {
            return Err(bad("--lora is a rank, from 1"));
        }
        let alpha = options.alpha.unwrap_or(options.rank as f32);
        if !alpha.is_finite() || alpha <= 0.0 {
            return Err(bad("--lora-alpha must be above 0"));
        }
        let possible: BTreeMap<&str, (ValueId, WeightForm)> = adaptable(graph)
            .into_iter()
            .map(|(value, form)| (graph.value(value).name.as_str(), (value, form)))
            .filter(|(name, _)| initializers.contains_key(*name))
            .collect();
        for pattern in &options.targets {
            if !possible.keys().any(|name| matches(pattern, name)) {
                return Err(bad(format!(
                    "--lora-targets {pattern} names no weight that can have an adapter{}",
                    names_of(possible.keys().copied())
                )));
            }
        }
        let is_wanted = |name: &str, form: WeightForm| match &options.targets[..] {
            [] => form != WeightForm::Convolution,
            patterns => patterns.iter().any(|p| matches(p, name)),
        };
        let chosen: Vec<ValueId> = (possible.iter())
            .filter(|(name, (_, form))| is_wanted(name, *form))
            .map(|(_, (value, _))| *value)
            .collect();
        if chosen.is_empty() {
            return Err(bad(format!(
                "--lora finds no matrix that can have an adapter{}",
                names_of(possible.keys().copied())
            )));
        }
        let adapters = Adapters {
            rank: options.rank,
            alpha,
            weights: (chosen.iter())
                .map(|&v| graph.value(v).name.clone())
                .collect::<BTreeSet<String>>(),
        };
        let (adapted, found) =
            add_adapters(graph.clone(), &chosen, options.rank, adapters.scale())?;
        let named = |v: ValueId| (adapted.value(v).name.clone(), adapted.ty(v).clone());
        let parts = found.iter().map(|adapter| {
            let (name, ty) = named(adapter.weight);
            let part = LoraPart {
                form: adapter.form,
                sides: adapter.form.sides(&ty.shape),
                down: named(adapter.down),
                up: named(adapter.up),
            };
            (name, part)
        });
        Ok(Lora {
            parts: parts.collect(),
            adapters,
        })
    }

    /// All matrices, in the order of the weights' names.
    pub fn tensors(&self) -> impl Iterator<Item = &(String, TensorType)> {
        self.parts.values().flat_map(|p| [&p.down, &p.up])
    }

    /// What other programs call the matrices, in the order of [`Lora::tensors`].
    pub(crate) fn usual_names(&self) -> Vec<String> {
        let names = self.parts.keys().flat_map(|weight| {
            // A layer's name, unless that is another weight's own.
            let layer = weight.strip_suffix(".weight");
            let layer = layer.filter(|l| !l.is_empty() && !self.parts.contains_key(*l));
            let layer = layer.unwrap_or(weight);
            ["A", "B"].map(|which| format!("{USUAL_PREFIX}{layer}.lora_{which}.weight"))
        });
        names.collect()
    }

    /// A weight with its adapter in it: `bytes` are the model's own, of the type `stored`, and so is what is given.
    ///
    /// # Errors
    /// `learned` lacks the adapter.
    pub(crate) fn merged(
        &self,
        weight: &str,
        bytes: Vec<u8>,
        stored: DType,
        learned: &Tensors,
    ) -> Result<Vec<u8>> {
        let Some(part) = self.parts.get(weight) else {
            return Ok(bytes);
        };
        let read = |(name, ty): &(String, TensorType)| {
            let bytes = learned.bytes(name, ty)?;
            Ok::<_, TrainError>(widened(&bytes, DType::F32))
        };
        let (down, up) = (read(&part.down)?, read(&part.up)?);
        let [inputs, outputs] = part.sides;
        if bytes.len() != inputs * outputs * stored.size_bytes() {
            return Err(TrainError::Defect(format!("'{weight}' has another size")));
        }
        let product = Product::of(part, self.adapters.rank, down, up);
        Ok(product.added(bytes, stored, self.adapters.scale()))
    }
}

/// Two matrices whose product lies as a weight does.
struct Product {
    /// `[rows, rank]`.
    left: Vec<f32>,
    /// `[rank, columns]`.
    right: Vec<f32>,
    rank: usize,
    columns: usize,
}

impl Product {
    fn of(part: &LoraPart, rank: usize, down: Vec<f32>, up: Vec<f32>) -> Product {
        let [inputs, outputs] = part.sides;
        let (left, right, columns) = match part.form {
            WeightForm::OutputsFirst | WeightForm::Convolution => (up, down, inputs),
            WeightForm::InputsFirst => (turned(&down, inputs), turned(&up, rank), outputs),
        };
        Product {
            left,
            right,
            rank,
            columns,
        }
    }

    /// The weight plus `scale` times the product. Sums are in f64 and rounded once, to float32, and then to the stored type.
    fn added(&self, mut bytes: Vec<u8>, stored: DType, scale: f32) -> Vec<u8> {
        let row_bytes = self.columns * stored.size_bytes();
        let mut sums = vec![0.0f64; self.columns];
        let rows = bytes.chunks_exact_mut(row_bytes);
        for (row, factors) in rows.zip(self.left.chunks_exact(self.rank)) {
            sums.fill(0.0);
            for (&factor, right) in factors.iter().zip(self.right.chunks_exact(self.columns)) {
                let factor = f64::from(scale) * f64::from(factor);
                for (sum, &value) in sums.iter_mut().zip(right) {
                    *sum += factor * f64::from(value);
                }
            }
            let own = widened(row, stored);
            let merged = own.iter().zip(&sums);
            let merged = merged.flat_map(|(&w, sum)| ((f64::from(w) + sum) as f32).to_le_bytes());
            row.copy_from_slice(&narrowed(merged.collect(), stored));
        }
        bytes
    }
}

/// Rows as columns, of a matrix with so many columns.
fn turned(matrix: &[f32], columns: usize) -> Vec<f32> {
    let rows = matrix.len() / columns.max(1);
    let places = (0..columns).flat_map(|c| (0..rows).map(move |r| r * columns + c));
    places.map(|at| matrix[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    fn part(form: WeightForm, sides: [usize; 2]) -> LoraPart {
        let none = || (String::new(), TensorType::new(DType::F32, &[]));
        LoraPart {
            form,
            sides,
            down: none(),
            up: none(),
        }
    }

    /// A = [1 2 3], B = [10 20]ᵀ.
    #[test]
    fn products_lie_as_the_weight_does() {
        let (down, up) = (vec![1.0, 2.0, 3.0], vec![10.0, 20.0]);
        let of = |form| {
            let product = Product::of(&part(form, [3, 2]), 1, down.clone(), up.clone());
            product.added(bytes(&[0.5; 6]), DType::F32, 2.0)
        };
        let expected = [20.5, 40.5, 60.5, 40.5, 80.5, 120.5];
        assert_eq!(of(WeightForm::OutputsFirst), bytes(&expected));
        assert_eq!(of(WeightForm::Convolution), bytes(&expected));
        let expected = [20.5, 40.5, 40.5, 80.5, 60.5, 120.5];
        assert_eq!(of(WeightForm::InputsFirst), bytes(&expected));
    }

    #[test]
    fn ranks_are_summed_over() {
        // A is 2 x 3, B is 2 x 2.
        let down = vec![1.0, 2.0, 3.0, 0.5, 0.0, -1.0];
        let up = vec![1.0, 4.0, 0.0, 2.0];
        let product = |form| Product::of(&part(form, [3, 2]), 2, down.clone(), up.clone());
        let zeros = bytes(&[0.0; 6]);
        let found = product(WeightForm::OutputsFirst).added(zeros.clone(), DType::F32, 1.0);
        assert_eq!(found, bytes(&[3.0, 2.0, -1.0, 1.0, 0.0, -2.0]));
        let found = product(WeightForm::InputsFirst).added(zeros, DType::F32, 1.0);
        assert_eq!(found, bytes(&[3.0, 1.0, 2.0, 0.0, -1.0, -2.0]));
    }

    #[test]
    fn half_floats_stay_half_floats() {
        let stored = narrowed(bytes(&[1.0, -2.0]), DType::F16);
        let product = Product::of(
            &part(WeightForm::OutputsFirst, [2, 1]),
            1,
            vec![1.0, 4.0],
            vec![0.5],
        );
        let found = product.added(stored, DType::F16, 1.0);
        assert_eq!(found, narrowed(bytes(&[1.5, 0.0]), DType::F16));
    }
}
