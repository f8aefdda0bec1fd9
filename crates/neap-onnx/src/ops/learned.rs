//! Classical models: n-grams, and the operators of the domain ai.onnx.ml that tensors go through.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one, to_f64_vec};
use neap_ir::learned::{Aggregate, Branch, Gram, Leaf, Test, TfIdf, TreeNode, Trees, Weighting};
use neap_ir::op::{Activation, Binary, Softmax, Unary};
use neap_ir::{Op, ValueId};

/// Of classical models.
pub(super) const DOMAIN: &str = "ai.onnx.ml";

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "TfIdfVectorizer" => one(tf_idf(c)),
        _ => return None,
    })
}

pub(super) fn lower_classical(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "ArrayFeatureExtractor" => one(array_feature_extractor(c)),
        "Binarizer" => one(binarizer(c)),
        "TreeEnsemble" => one(tree_ensemble(c)),
        _ => return None,
    })
}

fn tf_idf(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let missing = |name: &str| c.bad(format!("attribute '{name}' is missing"));
    let Some(pool) = c.ints("pool_int64s")? else {
        return Err(c.unsupported("n-grams of strings"));
    };
    let weighting = match c.string("mode", "")? {
        "TF" => Weighting::Tf,
        "IDF" => Weighting::Idf,
        "TFIDF" => Weighting::TfIdf,
        _ => return Err(c.bad("attribute 'mode' is unknown or missing")),
    };
    let size = |name: &str| {
        let value = c.optional_int(name)?.ok_or_else(|| missing(name))?;
        c.checked_size(name, value)
    };
    let lengths = (size("min_gram_length")?, size("max_gram_length")?);
    let starts = c.sizes("ngram_counts")?;
    let starts = starts.ok_or_else(|| missing("ngram_counts"))?;
    let places = c.sizes("ngram_indexes")?;
    let places = places.ok_or_else(|| missing("ngram_indexes"))?;
    let weights = c.floats("weights")?;
    let weights = weights.unwrap_or_else(|| vec![1.0; places.len()]);
    let mut grams = Vec::new();
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(pool.len());
        let items = pool.get(start..end);
        let items = items.filter(|items| items.len().is_multiple_of(i + 1));
        let items = items.ok_or_else(|| c.bad("its ngram_counts do not fit its pool"))?;
        for gram in items.chunks_exact(i + 1) {
            let at = grams.len();
            let place = places.get(at).copied().filter(|&p| p <= 1 << 30);
            let (Some(place), Some(&weight)) = (place, weights.get(at)) else {
                return Err(c.bad("its ngram_indexes or weights do not fit its pool"));
            };
            grams.push(Gram {
                items: gram.to_vec(),
                place,
                weight,
            });
        }
    }
    if lengths.0 == 0 || lengths.0 > lengths.1 || places.len() != grams.len() {
        return Err(c.bad("its n-grams or their lengths do not fit"));
    }
    grams.sort_by(|a, b| a.items.cmp(&b.items));
    if grams.windows(2).any(|pair| pair[0].items == pair[1].items) {
        return Err(c.unsupported("an n-gram that is listed twice"));
    }
    let attrs = TfIdf {
        weighting,
        lengths,
        max_skip: size("max_skip_count")?,
        grams,
        width: places.iter().max().map_or(0, |&most| most + 1),
    };
    c.emit(Op::TfIdf(Box::new(attrs)), &[x])
}

/// Columns of the last axis.
fn array_feature_extractor(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, columns) = (c.input(0)?, c.input(1)?);
    let shape = c.shape_of_rank(x, 1)?;
    let count = c.ty(columns).elements();
    let columns = c.reshape(columns, &[count])?;
    let axis = shape.len() - 1;
    let picked = c.emit(Op::Gather { axis }, &[x, columns])?;
    match axis {
        0 => c.reshape(picked, &[1, count]),
        _ => Ok(picked),
    }
}

fn binarizer(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let dtype = c.dtype(x);
    let threshold = f64::from(c.float("threshold", 0.0)?);
    if !dtype.is_float() && threshold.fract() != 0.0 {
        return Err(c.unsupported("a threshold between integers"));
    }
    let threshold = c.scalar(dtype, threshold)?;
    let above = c.binary(Binary::Greater, x, threshold)?;
    c.cast(above, dtype)
}

/// Attributes of all nodes; each list has an entry for each.
struct Nodes {
    features: Vec<usize>,
    modes: Vec<i64>,
    splits: Vec<f64>,
    missing: Vec<i64>,
    /// Of both branches: the index, and whether it is a leaf's.
    passed: Vec<(usize, bool)>,
    failed: Vec<(usize, bool)>,
    /// Of nodes that ask for membership: where their set is.
    sets: Vec<(u32, u32)>,
}

fn tree_ensemble(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let (nodes, members) = nodes(c)?;
    let targets = c.size("n_targets", 1)?;
    let weights = numbers(c, "leaf_weights")?.unwrap_or_default();
    let ids = c.sizes("leaf_targetids")?.unwrap_or_default();
    if weights.len() != ids.len() || ids.iter().any(|&id| id >= targets) || targets > 1 << 24 {
        return Err(c.bad("its leaves do not fit its targets"));
    }
    let leaves = weights.iter().zip(&ids);
    let leaves: Vec<Leaf> = leaves
        .map(|(&weight, &target)| Leaf {
            target: target as u32,
            weight,
        })
        .collect();
    let aggregate = match c.int("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        _ => return Err(c.bad("attribute 'aggregate_function' is unknown")),
    };
    let roots = c.sizes("tree_roots")?.unwrap_or_default();
    let features = nodes.features.iter().max().map_or(0, |&most| most + 1);
    let mut order = Order {
        nodes: &nodes,
        leaves: leaves.len(),
        made: Vec::new(),
    };
    let found = order.trees(&roots);
    let roots = found.ok_or_else(|| c.bad("its nodes are no trees"))?;
    let trees = Trees {
        aggregate,
        targets,
        features,
        roots,
        nodes: order.made,
        leaves,
        members,
    };
    let y = c.emit(Op::Trees(Box::new(trees)), &[x])?;
    match c.int("post_transform", 0)? {
        0 => Ok(y),
        1 => {
            let kind = Softmax::Softmax;
            c.emit(Op::Softmax { axis: 1, kind }, &[y])
        }
        2 => c.unary(Unary::Activation(Activation::Sigmoid), y),
        _ => Err(c.unsupported("this post_transform")),
    }
}

fn nodes(c: &mut Ctx) -> Result<(Nodes, Vec<f64>), OnnxError> {
    let features = c.sizes("nodes_featureids")?.unwrap_or_default();
    let count = features.len();
    let modes = numbers(c, "nodes_modes")?.unwrap_or_default();
    let splits = numbers(c, "nodes_splits")?.unwrap_or_default();
    let missing = c.ints("nodes_missing_value_tracks_true")?;
    let missing = missing.unwrap_or_else(|| vec![0; count]);
    let branches = |ids: &str, leaves: &str| {
        let ids = c.sizes(ids)?.unwrap_or_default();
        let leaves = c.ints(leaves)?.unwrap_or_default();
        if ids.len() != count || leaves.len() != count {
            return Err(c.bad("its lists of nodes have different lengths"));
        }
        let pairs = ids.into_iter().zip(leaves);
        Ok(pairs.map(|(id, leaf)| (id, leaf != 0)).collect())
    };
    let passed = branches("nodes_truenodeids", "nodes_trueleafs")?;
    let failed = branches("nodes_falsenodeids", "nodes_falseleafs")?;
    let lengths = [modes.len(), splits.len(), missing.len()];
    if lengths.iter().any(|&n| n != count) || features.iter().any(|&f| f >= 1 << 24) {
        return Err(c.bad("its lists of nodes have different lengths"));
    }
    let modes: Vec<i64> = modes.into_iter().map(|mode| mode as i64).collect();
    let listed = numbers(c, "membership_values")?.unwrap_or_default();
    let mut members = Vec::new();
    let mut sets = vec![(0, 0); count];
    // Each set ends with NaN.
    let mut lists = listed.split(|value| value.is_nan());
    for (set, _) in sets.iter_mut().zip(&modes).filter(|(_, mode)| **mode == 6) {
        let list = lists.next();
        let list = list.ok_or_else(|| c.bad("its membership_values are too few"))?;
        let start = members.len();
        members.extend_from_slice(list);
        members[start..].sort_by(f64::total_cmp);
        *set = (start as u32, members.len() as u32);
    }
    let nodes = Nodes {
        features,
        modes,
        splits,
        missing,
        passed,
        failed,
        sets,
    };
    Ok((nodes, members))
}

/// The elements of a tensor attribute.
fn numbers(c: &mut Ctx, name: &str) -> Result<Option<Vec<f64>>, OnnxError> {
    let Some(tensor) = c.tensor(name)? else {
        return Ok(None);
    };
    let value = c.builder.tensor(name, tensor)?;
    let literal = c.known(value, name)?;
    to_f64_vec(&literal)
        .map(Some)
        .ok_or_else(|| c.bad(format!("attribute '{name}' has no numbers")))
}

/// Puts nodes in an order in which none leads back.
struct Order<'a> {
    nodes: &'a Nodes,
    leaves: usize,
    made: Vec<TreeNode>,
}

impl Order<'_> {
    /// `None` where a branch leads nowhere or a node is in two trees, or in a circle.
    fn trees(&mut self, roots: &[usize]) -> Option<Vec<Branch>> {
        let mut placed = Vec::with_capacity(roots.len());
        let mut waiting = Vec::new();
        for &root in roots {
            placed.push(self.branch((root, false), &mut waiting)?);
            while let Some((index, at)) = waiting.pop() {
                let passed = self.branch(self.nodes.passed[index], &mut waiting)?;
                let failed = self.branch(self.nodes.failed[index], &mut waiting)?;
                let node: &mut TreeNode = &mut self.made[at];
                (node.passed, node.failed) = (passed, failed);
            }
        }
        Some(placed)
    }

    fn branch(
        &mut self,
        (index, is_leaf): (usize, bool),
        waiting: &mut Vec<(usize, usize)>,
    ) -> Option<Branch> {
        if is_leaf {
            return (index < self.leaves).then_some(Branch::Leaf(index as u32));
        }
        // No more nodes than there are: each is in one place.
        if self.made.len() >= self.nodes.features.len() {
            return None;
        }
        let test = match *self.nodes.modes.get(index)? {
            0 => Test::LessOrEqual,
            1 => Test::Less,
            2 => Test::GreaterOrEqual,
            3 => Test::Greater,
            4 => Test::Equal,
            5 => Test::NotEqual,
            6 => {
                let (start, end) = self.nodes.sets[index];
                Test::Member { start, end }
            }
            _ => return None,
        };
        let at = self.made.len();
        self.made.push(TreeNode {
            feature: self.nodes.features[index] as u32,
            test,
            value: self.nodes.splits[index],
            missing_passes: self.nodes.missing[index] != 0,
            passed: Branch::Leaf(0),
            failed: Branch::Leaf(0),
        });
        waiting.push((index, at));
        Some(Branch::Node(at as u32))
    }
}
