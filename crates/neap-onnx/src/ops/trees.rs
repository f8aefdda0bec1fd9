//! Ensembles of decision trees: TreeEnsemble of `ai.onnx.ml` 5, and TreeEnsembleRegressor and TreeEnsembleClassifier before it.
//!
//! ```text
//!   lists of nodes and leaves ─► Forest ─► one operator: what the trees say together ─► base values, labels, post_transform
//! ```

use super::classes::{self, Transform, rows_of};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one, to_f64_vec};
use crate::proto::AttributeValue;
use neap_ir::learned::{Aggregate, Branch, Test, TreeNode, Trees, Vote};
use neap_ir::op::{Binary, Unary};
use neap_ir::{DType, Op, ValueId};
use std::collections::HashMap;

/// More than any real model has; sums of them must not overflow.
const MOST: usize = 1 << 24;

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "TreeEnsemble" => one(tree_ensemble(c)),
        "TreeEnsembleRegressor" => one(regressor(c)),
        "TreeEnsembleClassifier" => classifier(c),
        _ => return None,
    })
}

/// Lists of nodes, with an entry for each.
#[derive(Default)]
struct Forest {
    features: Vec<usize>,
    tests: Vec<Test>,
    splits: Vec<f64>,
    missing: Vec<bool>,
    /// Of both branches: the index, and whether it is a leaf's.
    passed: Vec<(usize, bool)>,
    failed: Vec<(usize, bool)>,
    /// The first of each tree; the index of a leaf where it is one.
    roots: Vec<(usize, bool)>,
    leaves: Vec<Vec<Vote>>,
    members: Vec<f64>,
    targets: usize,
}

impl Forest {
    /// As an operator's attributes, in which no node leads back.
    fn trees(&self, c: &Ctx, aggregate: Aggregate) -> Result<Trees, OnnxError> {
        let lists = [
            self.tests.len(),
            self.splits.len(),
            self.missing.len(),
            self.passed.len(),
            self.failed.len(),
        ];
        let count = self.features.len();
        if lists.iter().any(|&len| len != count) || self.features.iter().any(|&f| f >= MOST) {
            return Err(c.bad("its lists of nodes have different lengths"));
        }
        let mut votes = self.leaves.iter().flatten();
        if votes.any(|vote| vote.target as usize >= self.targets) || self.targets > MOST {
            return Err(c.bad("its leaves do not fit its targets"));
        }
        let mut order = Order {
            forest: self,
            made: Vec::new(),
        };
        let roots = order
            .trees()
            .ok_or_else(|| c.bad("its nodes are no trees"))?;
        let nodes = order.made;
        let ends = self.leaves.iter().scan(0u32, |end, votes| {
            *end += votes.len() as u32;
            Some(*end)
        });
        Ok(Trees {
            aggregate,
            targets: self.targets,
            features: self.features.iter().max().map_or(0, |&most| most + 1),
            roots,
            nodes,
            leaves: ends.collect(),
            votes: self.leaves.concat(),
            members: self.members.clone(),
        })
    }

    /// Whether some tree's leaves all say something about a target.
    fn always_names(&self, trees: &Trees, target: u32) -> bool {
        let named = |leaf: u32| {
            let votes = trees.votes_of(leaf as usize);
            votes.iter().any(|vote| vote.target == target)
        };
        trees.roots.iter().any(|&root| {
            let mut waiting = vec![root];
            while let Some(branch) = waiting.pop() {
                match branch {
                    Branch::Leaf(leaf) if !named(leaf) => return false,
                    Branch::Leaf(_) => {}
                    Branch::Node(node) => {
                        let node = &trees.nodes[node as usize];
                        waiting.extend([node.passed, node.failed]);
                    }
                }
            }
            true
        })
    }
}

fn tree_ensemble(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let mut forest = nodes(c)?;
    forest.targets = c.size("n_targets", 1)?;
    let weights = numbers(c, "leaf_weights")?.unwrap_or_default();
    let ids = c.sizes("leaf_targetids")?.unwrap_or_default();
    if weights.len() != ids.len() {
        return Err(c.bad("its leaves do not fit its targets"));
    }
    let leaves = weights.iter().zip(&ids);
    forest.leaves = leaves.map(|(&w, &id)| vec![vote(id, w)]).collect();
    let aggregate = match c.int("aggregate_function", 1)? {
        0 => Aggregate::Average,
        1 => Aggregate::Sum,
        2 => Aggregate::Min,
        3 => Aggregate::Max,
        _ => return Err(c.bad("attribute 'aggregate_function' is unknown")),
    };
    let roots = c.sizes("tree_roots")?.unwrap_or_default();
    forest.roots = roots.into_iter().map(|root| (root, false)).collect();
    let trees = forest.trees(c, aggregate)?;
    let y = c.emit(Op::Trees(Box::new(trees)), &[x])?;
    let transform = match c.int("post_transform", 0)? {
        0 => Transform::None,
        1 => Transform::Softmax,
        2 => Transform::Logistic,
        3 => Transform::SoftmaxZero,
        4 => Transform::Probit,
        _ => return Err(c.bad("attribute 'post_transform' is unknown")),
    };
    transform.of_targets(c, y, forest.targets)
}

fn vote(target: usize, weight: f64) -> Vote {
    Vote {
        target: u32::try_from(target).unwrap_or(u32::MAX),
        weight,
    }
}

/// Nodes of `ai.onnx.ml` 5.
fn nodes(c: &mut Ctx) -> Result<Forest, OnnxError> {
    let features = c.sizes("nodes_featureids")?.unwrap_or_default();
    let count = features.len();
    let modes = numbers(c, "nodes_modes")?.unwrap_or_default();
    let branches = |ids: &str, leaves: &str| {
        let ids = c.sizes(ids)?.unwrap_or_default();
        let leaves = c.flags(leaves)?.unwrap_or_default();
        if ids.len() != count || leaves.len() != count {
            return Err(c.bad("its lists of nodes have different lengths"));
        }
        Ok(ids.into_iter().zip(leaves).collect())
    };
    let passed = branches("nodes_truenodeids", "nodes_trueleafs")?;
    let failed = branches("nodes_falsenodeids", "nodes_falseleafs")?;
    let missing = c.flags("nodes_missing_value_tracks_true")?;
    let listed = numbers(c, "membership_values")?.unwrap_or_default();
    let mut members = Vec::new();
    // Each set ends with NaN.
    let mut lists = listed.split(|value| value.is_nan());
    let mut tests = Vec::with_capacity(modes.len());
    for mode in modes {
        tests.push(match mode as i64 {
            0 => Test::LessOrEqual,
            1 => Test::Less,
            2 => Test::GreaterOrEqual,
            3 => Test::Greater,
            4 => Test::Equal,
            5 => Test::NotEqual,
            6 => {
                let list = lists.next();
                let list = list.ok_or_else(|| c.bad("its membership_values are too few"))?;
                let start = members.len();
                members.extend_from_slice(list);
                members[start..].sort_by(f64::total_cmp);
                Test::Member {
                    start: start as u32,
                    end: members.len() as u32,
                }
            }
            _ => return Err(c.bad("its nodes_modes are unknown")),
        });
    }
    Ok(Forest {
        features,
        tests,
        splits: numbers(c, "nodes_splits")?.unwrap_or_default(),
        missing: missing.unwrap_or_else(|| vec![false; count]),
        passed,
        failed,
        members,
        ..Forest::default()
    })
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

/// A list of numbers, or a tensor whose name ends in `_as_tensor`.
fn list_or_tensor(c: &mut Ctx, name: &str) -> Result<Vec<f64>, OnnxError> {
    if let Some(values) = numbers(c, &format!("{name}_as_tensor"))? {
        return Ok(values);
    }
    let values = c.floats(name)?.unwrap_or_default().into_iter();
    Ok(values.map(f64::from).collect())
}

/// Nodes of TreeEnsembleRegressor and TreeEnsembleClassifier, whose lists of what leaves say begin with `prefix`.
fn older_nodes(c: &mut Ctx, prefix: &str, targets: usize) -> Result<Forest, OnnxError> {
    let list = |c: &Ctx, name: &str| Ok::<_, OnnxError>(c.ints(name)?.unwrap_or_default());
    let keys: Vec<(i64, i64)> = {
        let (trees, ids) = (list(c, "nodes_treeids")?, list(c, "nodes_nodeids")?);
        trees.into_iter().zip(ids).collect()
    };
    let modes = match c.attribute("nodes_modes") {
        Some(AttributeValue::Strings(modes)) => modes.clone(),
        _ => return Err(c.bad("attribute 'nodes_modes' is missing")),
    };
    let features = c.sizes("nodes_featureids")?.unwrap_or_default();
    let splits = list_or_tensor(c, "nodes_values")?;
    let (passed, failed) = (
        list(c, "nodes_truenodeids")?,
        list(c, "nodes_falsenodeids")?,
    );
    let missing = c.flags("nodes_missing_value_tracks_true")?;
    let missing = missing.filter(|list| !list.is_empty());
    let missing = missing.unwrap_or_else(|| vec![false; keys.len()]);
    let lists = [
        modes.len(),
        features.len(),
        splits.len(),
        passed.len(),
        failed.len(),
        missing.len(),
    ];
    if lists.iter().any(|&len| len != keys.len()) {
        return Err(c.bad("its lists of nodes have different lengths"));
    }
    // Nodes and leaves are counted apart.
    let mut places = HashMap::new();
    let mut forest = Forest {
        targets,
        ..Forest::default()
    };
    let mut listed = Vec::new();
    for (at, (key, mode)) in keys.iter().zip(&modes).enumerate() {
        let test = match &mode[..] {
            b"LEAF" => None,
            b"BRANCH_LEQ" => Some(Test::LessOrEqual),
            b"BRANCH_LT" => Some(Test::Less),
            b"BRANCH_GTE" => Some(Test::GreaterOrEqual),
            b"BRANCH_GT" => Some(Test::Greater),
            b"BRANCH_EQ" => Some(Test::Equal),
            b"BRANCH_NEQ" => Some(Test::NotEqual),
            _ => return Err(c.bad("its nodes_modes are unknown")),
        };
        let place = match test {
            Some(test) => {
                forest.tests.push(test);
                forest.features.push(features[at]);
                forest.splits.push(splits[at]);
                forest.missing.push(missing[at]);
                listed.push(at);
                (forest.tests.len() - 1, false)
            }
            None => {
                forest.leaves.push(Vec::new());
                (forest.leaves.len() - 1, true)
            }
        };
        // A tree begins where its first node is listed.
        if at == 0 || keys[at - 1].0 != key.0 {
            forest.roots.push(place);
        }
        if places.insert(*key, place).is_some() {
            return Err(c.bad("a node is listed twice"));
        }
    }
    let nowhere = || c.bad("its nodes are no trees");
    for at in listed {
        let child = |id: i64| places.get(&(keys[at].0, id)).copied().ok_or_else(nowhere);
        forest.passed.push(child(passed[at])?);
        forest.failed.push(child(failed[at])?);
    }
    let named = |name: &str| format!("{prefix}_{name}");
    let (trees, ids) = (list(c, &named("treeids"))?, list(c, &named("nodeids"))?);
    let targets = c.sizes(&named("ids"))?.unwrap_or_default();
    let weights = list_or_tensor(c, &named("weights"))?;
    if [trees.len(), ids.len(), weights.len()] != [targets.len(); 3] {
        return Err(c.bad("its leaves do not fit its targets"));
    }
    for (i, key) in trees.into_iter().zip(ids).enumerate() {
        match places.get(&key) {
            Some(&(leaf, true)) => forest.leaves[leaf].push(vote(targets[i], weights[i])),
            // What is said of a node that is no leaf is never heard.
            Some(_) => {}
            None => return Err(c.bad("its leaves do not fit its nodes")),
        }
    }
    Ok(forest)
}

/// Rows of a floating type.
fn features(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let x = match c.dtype(x) {
        DType::F64 => x,
        _ => c.cast(x, DType::F32)?,
    };
    rows_of(c, x)
}

fn with_base(c: &mut Ctx, y: ValueId, base: &[f64]) -> Result<ValueId, OnnxError> {
    if base.is_empty() {
        return Ok(y);
    }
    let base = classes::numbers_of(c, c.dtype(y), &[base.len()], base)?;
    c.binary(Binary::Add, y, base)
}

fn regressor(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let targets = c.size("n_targets", 1)?;
    let forest = older_nodes(c, "target", targets)?;
    let aggregate = match c.string("aggregate_function", "SUM")? {
        "AVERAGE" => Aggregate::Average,
        "SUM" => Aggregate::Sum,
        "MIN" => Aggregate::Min,
        "MAX" => Aggregate::Max,
        _ => return Err(c.bad("attribute 'aggregate_function' is unknown")),
    };
    let base = list_or_tensor(c, "base_values")?;
    if !base.is_empty() && base.len() != targets {
        return Err(c.bad("its base_values do not fit its targets"));
    }
    let x = features(c)?;
    let trees = forest.trees(c, aggregate)?;
    let y = c.emit(Op::Trees(Box::new(trees)), &[x])?;
    let y = with_base(c, y, &base)?;
    let transform = Transform::of_node(c)?;
    let y = transform.of_targets(c, y, targets)?;
    c.cast(y, DType::F32)
}

fn classifier(c: &mut Ctx) -> Outputs {
    let labels = classes::Labels::of_node(c)?;
    let count = labels.len();
    let forest = older_nodes(c, "class", count)?;
    let base = list_or_tensor(c, "base_values")?;
    if count < 2 || base.len() > count {
        return Err(c.unsupported("a single class, or more base_values than classes"));
    }
    let x = features(c)?;
    let trees = forest.trees(c, Aggregate::Sum)?;
    let scores = c.emit(Op::Trees(Box::new(trees.clone())), &[x])?;
    let of = Classifier {
        forest,
        trees,
        base,
        labels,
        x,
        scores,
    };
    let (label, scores) = if count == 2 {
        of.two_classes(c)?
    } else {
        of.many_classes(c)?
    };
    let scores = c.cast(scores, DType::F32)?;
    Ok(vec![label, Some(scores)])
}

struct Classifier {
    forest: Forest,
    trees: Trees,
    base: Vec<f64>,
    labels: classes::Labels,
    x: ValueId,
    /// Sums of what leaves say.
    scores: ValueId,
}

/// The label, if anybody asks for it, and the scores of all classes.
type Classified = (Option<ValueId>, ValueId);

impl Classifier {
    /// Which classes some leaf has said something about, for each row; `None` where that holds of all.
    fn named(&self, c: &mut Ctx) -> Result<Option<ValueId>, OnnxError> {
        let mut targets = 0..self.trees.targets as u32;
        if targets.all(|target| self.forest.always_names(&self.trees, target)) {
            return Ok(None);
        }
        let mut counting = self.trees.clone();
        for vote in &mut counting.votes {
            vote.weight = 1.0;
        }
        let counts = c.emit(Op::Trees(Box::new(counting)), &[self.x])?;
        let none = c.scalar(c.dtype(counts), 0.0)?;
        c.binary(Binary::Greater, counts, none).map(Some)
    }

    /// The class of the largest score among those that are named.
    fn many_classes(&self, c: &mut Ctx) -> Result<Classified, OnnxError> {
        if !self.base.is_empty() && self.base.len() != self.trees.targets {
            return Err(c.unsupported("base_values of some classes alone"));
        }
        let scores = with_base(c, self.scores, &self.base)?;
        let label = match c.wants(0) {
            false => None,
            true => {
                let named = match self.base.is_empty() {
                    true => self.named(c)?,
                    false => None,
                };
                let mut candidates = scores;
                if let Some(named) = named {
                    let never = c.scalar(c.dtype(scores), f64::NEG_INFINITY)?;
                    candidates = c.emit(Op::Where, &[named, scores, never])?;
                }
                Some(self.labels.of_largest(c, candidates)?)
            }
        };
        let scores = Transform::of_node(c)?.of(c, scores)?;
        Ok((label, scores))
    }

    /// Of two classes onnxruntime looks at one score: the second's where a leaf names it, else the first's.
    fn two_classes(&self, c: &mut Ctx) -> Result<Classified, OnnxError> {
        let column = |c: &mut Ctx, x: ValueId, at: i64| {
            let at = c.constant(neap_ir::Literal::from_i64(&[1], &[at]));
            c.emit(Op::Gather { axis: 1 }, &[x, at])
        };
        let always = [0, 1].map(|class| self.forest.always_names(&self.trees, class));
        let named_once = |class: u32| self.trees.votes.iter().any(|vote| vote.target == class);
        let ever = [0, 1].map(named_once);
        if (0..2).any(|class| ever[class] && !always[class]) {
            return Err(c.unsupported("leaves that name one of two classes in some rows only"));
        }
        let transform = Transform::of_node(c)?;
        let dtype = c.dtype(self.scores);
        let mut parts = [column(c, self.scores, 0)?, column(c, self.scores, 1)?];
        let number = |c: &mut Ctx, value: f64| c.scalar(dtype, value);
        let mut is_one = !ever[1];
        match self.base[..] {
            [_, second] if ever[1] => {
                let second = number(c, second)?;
                parts[1] = c.binary(Binary::Add, parts[0], second)?;
                let nothing = number(c, 0.0)?;
                parts[0] = match ever[0] {
                    true => c.unary(Unary::Neg, parts[1])?,
                    false => c.binary(Binary::Mul, parts[1], nothing)?,
                };
            }
            [first, ..] => {
                is_one &= self.base.len() == 1;
                let first = number(c, if ever[0] { first } else { 0.0 })?;
                parts[0] = c.binary(Binary::Add, parts[0], first)?;
            }
            [] => {}
        }
        let decisive = parts[usize::from(ever[1])];
        let all_positive = self.trees.votes.iter().all(|vote| vote.weight >= 0.0);
        let is_binary = ever[0] != ever[1];
        let label = match c.wants(0) {
            false => None,
            true => {
                let bar = number(c, if is_binary && all_positive { 0.5 } else { 0.0 })?;
                let is_second = c.binary(Binary::Greater, decisive, bar)?;
                Some(match is_binary {
                    true => self.labels.of_second(c, is_second)?,
                    // Numbers, whatever the labels are.
                    false => classes::flat(c, is_second)?,
                })
            }
        };
        if !is_one {
            let both = c.emit(Op::Concat { axis: 1 }, &parts)?;
            return Ok((label, transform.of(c, both)?));
        }
        Ok((label, transform.of_one(c, parts[0], all_positive)?))
    }
}

/// Puts nodes in an order in which none leads back.
struct Order<'a> {
    forest: &'a Forest,
    made: Vec<TreeNode>,
}

impl Order<'_> {
    /// `None` where a branch leads nowhere or a node is in two trees, or in a circle.
    fn trees(&mut self) -> Option<Vec<Branch>> {
        let forest = self.forest;
        let mut placed = Vec::with_capacity(forest.roots.len());
        let mut waiting = Vec::new();
        for &root in &forest.roots {
            placed.push(self.branch(root, &mut waiting)?);
            while let Some((index, at)) = waiting.pop() {
                let passed = self.branch(forest.passed[index], &mut waiting)?;
                let failed = self.branch(forest.failed[index], &mut waiting)?;
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
        let forest = self.forest;
        if is_leaf {
            return (index < forest.leaves.len()).then_some(Branch::Leaf(index as u32));
        }
        // No more nodes than there are: each is in one place.
        if self.made.len() >= forest.features.len() {
            return None;
        }
        let at = self.made.len();
        self.made.push(TreeNode {
            feature: forest.features[index.min(forest.features.len() - 1)] as u32,
            test: *forest.tests.get(index)?,
            value: forest.splits[index],
            missing_passes: forest.missing[index],
            passed: Branch::Leaf(0),
            failed: Branch::Leaf(0),
        });
        waiting.push((index, at));
        Some(Branch::Node(at as u32))
    }
}
