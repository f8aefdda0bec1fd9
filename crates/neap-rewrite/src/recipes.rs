//! The recipes of a program, in the order of their extents. Equal ones are one: layers that share weights share
//! the extent, which is packed, loaded and kept once.

use neap_ir::recipe::Recipe;
use neap_ir::{PackedId, ValueId};
use std::collections::HashMap;

#[derive(Default)]
pub(crate) struct Recipes {
    list: Vec<Recipe>,
    /// Extents that are made of a constant.
    of: HashMap<ValueId, Vec<PackedId>>,
}

impl Recipes {
    /// The extent that a recipe makes.
    pub fn add(&mut self, recipe: Recipe) -> PackedId {
        let made = self.of.entry(recipe.constant()).or_default();
        let same = made.iter().find(|id| self.list[id.index()] == recipe);
        if let Some(&same) = same {
            return same;
        }
        let id = PackedId(self.list.len() as u32);
        made.push(id);
        self.list.push(recipe);
        id
    }

    pub fn get(&self, id: PackedId) -> &Recipe {
        &self.list[id.index()]
    }

    pub fn into_list(self) -> Vec<Recipe> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_ir::DType;
    use neap_ir::recipe::Affine;

    fn matrix(weight: u32, bias: Option<f32>) -> Recipe {
        Recipe::Matrix {
            weight: ValueId(weight),
            k: 2,
            n: 1,
            transposed: false,
            affine: Affine {
                bias: bias.map(|b| vec![b]),
                ..Affine::default()
            },
        }
    }

    #[test]
    fn only_what_is_the_same_to_the_bit_is_shared() {
        let mut recipes = Recipes::default();
        let raw = Recipe::Raw {
            constant: ValueId(1),
            to: DType::F32,
        };
        let all = [
            matrix(1, None),
            matrix(1, Some(0.0)),
            matrix(1, Some(-0.0)),
            matrix(2, None),
            raw,
        ];
        for _ in 0..2 {
            let ids: Vec<PackedId> = all.iter().map(|r| recipes.add(r.clone())).collect();
            assert_eq!(ids, [0, 1, 2, 3, 4].map(PackedId));
        }
        assert_eq!(recipes.into_list().len(), all.len());
    }
}
