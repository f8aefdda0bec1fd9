//! The table of weights: which extents there are, what each is made of, and how.

use neap_ir::panel::PanelFormat;
use neap_ir::recipe::{Packed, PackedForm, Recipe, WeightKey};
use neap_ir::{Const, DType, FileRange, Graph};
use neap_onnx::Stored;
use neap_rewrite::weight_key;
use neap_store::BLOCK;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// One extent of the packed file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Weight {
    pub packed: Packed,
    pub key: WeightKey,
    /// Of an extent that holds a constant as it stands in the model's files, maybe widened: its place there.
    pub source: Option<SourceRange>,
}

/// Where a constant stands in the model's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SourceRange {
    pub range: FileRange,
    pub dtype: DType,
    /// Of the elements in the packed file.
    pub packed_dtype: DType,
}

/// The whole table, for finding extents.
#[derive(Debug)]
pub(crate) struct Table {
    weights: Vec<Weight>,
    by_key: HashMap<WeightKey, usize>,
}

impl Weight {
    /// An entry without offset for what a recipe makes.
    pub fn new(source: &Graph, recipe: &Recipe) -> Weight {
        Weight {
            packed: neap_rewrite::describe(source, recipe),
            key: weight_key(source, recipe),
            source: raw_source(source, recipe),
        }
    }
}

impl Weight {
    /// Of its panels; of no importance for a raw extent.
    pub fn panel_format(&self) -> PanelFormat {
        match self.packed.form {
            PackedForm::Panels { format, .. } => format,
            PackedForm::Raw => PanelFormat::default(),
        }
    }
}

impl SourceRange {
    /// Where in the extent the bytes of `part` begin, and how many they are there; `None` when it is no part.
    fn find(&self, part: &SourceRange) -> Option<(u64, u64)> {
        let skip = part.range.offset.checked_sub(self.range.offset)?;
        let is_part = part.range.file == self.range.file
            && (part.dtype, part.packed_dtype) == (self.dtype, self.packed_dtype)
            && skip.checked_add(part.range.bytes)? <= self.range.bytes;
        let (stored, packed) = (
            self.dtype.size_bytes() as u64,
            self.packed_dtype.size_bytes() as u64,
        );
        let scale = |bytes: u64| {
            bytes
                .is_multiple_of(stored)
                .then_some(bytes / stored * packed)
        };
        is_part.then_some((scale(skip)?, scale(part.range.bytes)?))
    }
}

impl Table {
    pub fn new(weights: Vec<Weight>) -> Table {
        let keys = weights.iter().enumerate();
        Table {
            by_key: keys.map(|(index, w)| (w.key, index)).collect(),
            weights,
        }
    }

    pub fn into_weights(self) -> Vec<Weight> {
        self.weights
    }

    /// The extent that a recipe makes, or would be part of.
    pub fn find(&self, source: &Graph, recipe: &Recipe) -> Option<Packed> {
        if let Some(&index) = self.by_key.get(&weight_key(source, recipe)) {
            return Some(self.weights[index].packed.clone());
        }
        let wanted = raw_source(source, recipe)?;
        self.weights.iter().find_map(|weight| {
            let (skip_bytes, bytes) = weight.source?.find(&wanted)?;
            // Loads begin at blocks.
            skip_bytes.is_multiple_of(BLOCK as u64).then(|| Packed {
                name: weight.packed.name.clone(),
                offset: weight.packed.offset + skip_bytes,
                bytes,
                form: PackedForm::Raw,
            })
        })
    }

    /// Where in the packed file bytes of the model's files stand as they are.
    pub fn place_of(&self, range: FileRange) -> Option<u64> {
        self.weights.iter().find_map(|weight| {
            let source = weight.source.filter(|s| s.dtype == s.packed_dtype)?;
            let skip = range.offset.checked_sub(source.range.offset)?;
            let is_part = range.file == source.range.file
                && skip.checked_add(range.bytes)? <= source.range.bytes;
            is_part.then_some(weight.packed.offset + skip)
        })
    }
}

/// Of a recipe that takes a constant's elements as they are.
fn raw_source(source: &Graph, recipe: &Recipe) -> Option<SourceRange> {
    let &Recipe::Raw { constant, to } = recipe else {
        return None;
    };
    match source.constant(constant) {
        Some(&Const::Stored {
            range,
            stored_dtype,
        }) => Some(SourceRange {
            range,
            dtype: stored_dtype,
            packed_dtype: to,
        }),
        _ => None,
    }
}

/// Constants of a model of which extents and what was read hold no more than parts: other bindings may need the rest.
pub(crate) fn uncovered(
    stored: &[Stored],
    source: &Graph,
    recipes: &[Recipe],
    read: &[FileRange],
) -> Vec<Stored> {
    let packed = recipes
        .iter()
        .flat_map(Recipe::constants)
        .filter_map(|constant| match source.constant(constant) {
            Some(&Const::Stored { range, .. }) => Some(range),
            _ => None,
        });
    let held = neap_onnx::merged(packed.chain(read.iter().copied()).collect());
    let mut found: Vec<Stored> = Vec::new();
    for constant in stored {
        let wanted = constant.range;
        let after = held.partition_point(|h| (h.file, h.offset) <= (wanted.file, wanted.offset));
        let is_held = after.checked_sub(1).is_some_and(|index| {
            let held = held[index];
            held.file == wanted.file && held.offset + held.bytes >= wanted.offset + wanted.bytes
        });
        if !is_held && !found.iter().any(|f| f.range == wanted) {
            found.push(constant.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_ir::{FileId, TensorType, ValueId};

    fn stored(graph: &mut Graph, offset: u64, rows: usize) -> ValueId {
        let ty = TensorType::new(DType::F32, &[rows, 1024]);
        let data = Const::Stored {
            range: range(offset, ty.len_bytes() as u64),
            stored_dtype: DType::F32,
        };
        graph.add_const(format!("at {offset}"), ty, data)
    }

    fn range(offset: u64, bytes: u64) -> FileRange {
        FileRange {
            file: FileId(0),
            offset,
            bytes,
        }
    }

    fn raw(constant: ValueId) -> Recipe {
        Recipe::Raw {
            constant,
            to: DType::F32,
        }
    }

    #[test]
    fn parts_of_an_extent_are_found_where_loads_can_begin() {
        let mut graph = Graph::default();
        let whole = stored(&mut graph, 100, 8);
        let part = stored(&mut graph, 100 + 2 * 4096, 3);
        let askew = stored(&mut graph, 104, 1);
        let beyond = stored(&mut graph, 100 + 6 * 4096, 3);
        let mut weight = Weight::new(&graph, &raw(whole));
        weight.packed.offset = 40960;
        let table = Table::new(vec![weight]);
        let found = |constant| table.find(&graph, &raw(constant));
        let place = |p: Packed| (p.offset, p.bytes);
        assert_eq!(found(whole).map(place), Some((40960, 8 * 4096)));
        assert_eq!(found(part).map(place), Some((40960 + 2 * 4096, 3 * 4096)));
        assert!(found(askew).is_none() && found(beyond).is_none());
        assert_eq!(table.place_of(range(104, 16)), Some(40964));
        assert_eq!(table.place_of(range(90, 16)), None);
        assert_eq!(table.place_of(range(100 + 8 * 4096 - 4, 8)), None);
    }

    #[test]
    fn what_no_extent_holds_whole_is_found() {
        let mut graph = Graph::default();
        let (a, b) = (stored(&mut graph, 0, 2), stored(&mut graph, 8192, 2));
        let constant = |name: &str, offset, bytes| Stored {
            name: name.into(),
            ty: TensorType::new(DType::F32, &[bytes as usize / 4]),
            range: range(offset, bytes),
            stored_dtype: DType::F32,
        };
        let all = [
            constant("both", 0, 16384),
            constant("more", 8192, 16384),
            constant("read", 50000, 16),
            constant("more again", 8192, 16384),
        ];
        let missing = uncovered(&all, &graph, &[raw(a), raw(b)], &[range(50000, 16)]);
        let names: Vec<&str> = missing.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["more"]);
    }
}
