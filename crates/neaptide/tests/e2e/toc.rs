//! The table of contents of a packed file, taken apart and put together, so that tests can change it.

use neap_ir::recipe::{Packed, WeightKey};
use neap_ir::{DType, FileRange, Literal, Program};
use neap_onnx::Inputs;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Fields in the order of the file, after its versions.
#[derive(Serialize, Deserialize)]
pub struct Toc {
    pub weights: Vec<Weight>,
    pub skeleton: Option<Skeleton>,
    pub shapes: BTreeMap<String, Vec<usize>>,
    pub values: BTreeMap<String, Literal>,
    pub size_bounds: BTreeMap<String, usize>,
    pub keeps_order: bool,
    pub opening_bytes: u64,
    pub parts: Vec<Part>,
    pub plain: Program,
    pub banded: Option<Program>,
}

#[derive(Clone, Serialize, Deserialize)]
pub struct Weight {
    pub packed: Packed,
    pub key: WeightKey,
    pub source: Option<(FileRange, DType, DType)>,
}

#[derive(Serialize, Deserialize)]
pub struct Skeleton {
    pub offset: u64,
    pub bytes: u64,
    pub inputs: Inputs,
}

#[derive(Serialize, Deserialize)]
pub struct Part {
    pub weight: u32,
    pub piece: Option<(u64, u64)>,
}

impl Toc {
    /// Of the bytes after the versions; the plain program gets its weights.
    pub fn read(table: &[u8]) -> Toc {
        let mut toc: Toc = postcard::from_bytes(table).expect("the table is readable");
        let weights = toc.parts.iter().map(|part| {
            assert!(part.piece.is_none(), "a whole weight");
            toc.weights[part.weight as usize].packed.clone()
        });
        toc.plain.packed = weights.collect();
        toc
    }

    /// With the plain program's weights as the only ones, of which both programs have all.
    pub fn encode(mut self) -> Vec<u8> {
        let weights = std::mem::take(&mut self.plain.packed).into_iter();
        self.weights = weights
            .enumerate()
            .map(|(index, packed)| Weight {
                packed,
                key: self
                    .weights
                    .get(index)
                    .map_or(WeightKey([0; 16]), |w| w.key),
                source: None,
            })
            .collect();
        let all = 0..self.weights.len() as u32;
        self.parts = all
            .map(|weight| Part {
                weight,
                piece: None,
            })
            .collect();
        if let Some(banded) = &mut self.banded {
            banded.packed = Vec::new();
        }
        postcard::to_allocvec(&self).expect("encodes")
    }
}
