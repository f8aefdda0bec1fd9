//! Names of extents that do not depend on the shapes a model is bound to.

use neap_ir::recipe::{Affine, Recipe, Steps, WeightKey};
use neap_ir::{Const, DType, Graph, ValueId};

/// Key of the extent that a recipe makes of the constants of `source`. A constant in a file is named by its place
/// there, one in memory by its content.
pub fn weight_key(source: &Graph, recipe: &Recipe) -> WeightKey {
    let mut key = Hash(blake3::Hasher::new());
    match recipe {
        Recipe::Conv {
            weight,
            form,
            c_out,
            c_in_per_group,
            groups,
            kernel,
            affine,
        } => {
            key.numbers(&[0, *form as usize, *c_out, *c_in_per_group, *groups]);
            key.numbers(kernel);
            key.constant(source, *weight);
            key.affine(affine);
        }
        Recipe::Depthwise {
            weight,
            channels,
            kernel,
            affine,
        } => {
            key.numbers(&[1, *channels]);
            key.numbers(kernel);
            key.constant(source, *weight);
            key.affine(affine);
        }
        Recipe::Matrix {
            weight,
            k,
            n,
            transposed,
            affine,
        } => {
            key.numbers(&[2, *k, *n, usize::from(*transposed)]);
            key.constant(source, *weight);
            key.affine(affine);
        }
        Recipe::Blocks {
            weight,
            scale,
            zero,
            k,
            n,
            block,
            transposed,
            bias,
        } => {
            key.numbers(&[4, *k, *n, *block, usize::from(*transposed)]);
            key.steps(source, *weight);
            key.constant(source, *scale);
            key.numbers(&[usize::from(zero.is_some())]);
            if let Some(zero) = zero {
                key.steps(source, *zero);
            }
            key.affine(bias);
        }
        Recipe::Raw { constant, to } => {
            key.numbers(&[3]);
            key.dtype(*to);
            key.constant(source, *constant);
        }
    }
    let bytes = *key.0.finalize().as_bytes();
    WeightKey(std::array::from_fn(|i| bytes[i]))
}

struct Hash(blake3::Hasher);

impl Hash {
    fn numbers(&mut self, numbers: &[usize]) {
        for &number in numbers {
            self.0.update(&(number as u64).to_le_bytes());
        }
    }

    fn dtype(&mut self, dtype: DType) {
        self.0.update(&[dtype as u8]);
    }

    fn constant(&mut self, source: &Graph, value: ValueId) {
        match source.constant(value) {
            Some(Const::Stored {
                range,
                stored_dtype,
            }) => {
                self.numbers(&[0, range.file.index()]);
                self.0.update(&range.offset.to_le_bytes());
                self.0.update(&range.bytes.to_le_bytes());
                self.dtype(*stored_dtype);
            }
            Some(Const::Inline(literal)) => {
                self.numbers(&[1, literal.len_bytes()]);
                self.dtype(literal.dtype());
                self.0.update(literal.bytes());
            }
            Some(Const::Packed(id)) => self.numbers(&[2, id.index()]),
            None => self.numbers(&[3]),
        }
    }

    fn steps(&mut self, source: &Graph, steps: Steps) {
        let kind = [steps.has_four_bits, steps.is_signed].map(usize::from);
        self.numbers(&kind);
        self.numbers(&[steps.row]);
        self.constant(source, steps.constant);
    }

    fn affine(&mut self, affine: &Affine) {
        for values in [&affine.scale, &affine.bias, &affine.zero] {
            self.numbers(&[values.as_ref().map_or(usize::MAX, Vec::len)]);
            let bytes = values.iter().flatten().map(|value| value.to_le_bytes());
            self.0.update(bytes.collect::<Vec<_>>().as_flattened());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_ir::{FileId, FileRange, Literal, TensorType};

    fn stored(graph: &mut Graph, offset: u64) -> ValueId {
        let data = Const::Stored {
            range: FileRange {
                file: FileId(0),
                offset,
                bytes: 24,
            },
            stored_dtype: DType::F32,
        };
        graph.add_const("w", TensorType::new(DType::F32, &[2, 3]), data)
    }

    fn matrix(weight: ValueId, bias: Option<Vec<f32>>) -> Recipe {
        Recipe::Matrix {
            weight,
            k: 2,
            n: 3,
            transposed: false,
            affine: Affine {
                bias,
                ..Affine::default()
            },
        }
    }

    #[test]
    fn keys_follow_places_and_contents_and_not_value_ids() {
        let mut graph = Graph::default();
        let (a, b) = (stored(&mut graph, 100), stored(&mut graph, 100));
        let elsewhere = stored(&mut graph, 124);
        let literal =
            |graph: &mut Graph, x: f32| graph.add_literal("l", Literal::from_f32(&[1], &[x]));
        let (one, same, other) = (
            literal(&mut graph, 1.0),
            literal(&mut graph, 1.0),
            literal(&mut graph, 2.0),
        );
        let key = |recipe: &Recipe| weight_key(&graph, recipe);
        assert_eq!(key(&matrix(a, None)), key(&matrix(b, None)));
        assert_ne!(key(&matrix(a, None)), key(&matrix(elsewhere, None)));
        let biased = |bias: f32| matrix(a, Some(vec![bias; 3]));
        assert_ne!(key(&matrix(a, None)), key(&biased(0.0)));
        assert_ne!(key(&biased(0.0)), key(&biased(-0.0)));
        let raw = |constant, to| Recipe::Raw { constant, to };
        assert_eq!(key(&raw(one, DType::F32)), key(&raw(same, DType::F32)));
        assert_ne!(key(&raw(one, DType::F32)), key(&raw(other, DType::F32)));
        assert_ne!(key(&raw(a, DType::F32)), key(&matrix(a, None)));
    }
}
