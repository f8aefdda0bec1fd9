//! Operators whose attributes are what a classical model has learned: tables of n-grams, decision trees.

use serde::{Deserialize, Serialize};

/// x, integers `[C]` or `[N,C]` → f32 with one element for each n-gram: how often it is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TfIdf {
    pub weighting: Weighting,
    /// Lengths of n-grams that count.
    pub lengths: (usize, usize),
    /// How many elements may lie between two of an n-gram.
    pub max_skip: usize,
    /// Sorted by their elements.
    pub grams: Vec<Gram>,
    /// Elements of one result.
    pub width: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gram {
    pub items: Vec<i64>,
    /// Its place in the result.
    pub place: usize,
    /// Of its count.
    pub weight: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weighting {
    /// The count.
    Tf,
    /// The weight where it is there.
    Idf,
    /// Both, multiplied.
    TfIdf,
}

/// x `[N,F]` → `[N,targets]`: what the leaves say to which x comes in each tree, together. A target that no leaf names is 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trees {
    pub aggregate: Aggregate,
    pub targets: usize,
    pub features: usize,
    /// First of each tree.
    pub roots: Vec<Branch>,
    pub nodes: Vec<TreeNode>,
    /// Where each leaf's votes end; they begin where those of the leaf before end.
    pub leaves: Vec<u32>,
    pub votes: Vec<Vote>,
    /// Members of all sets, each set's sorted and together.
    pub members: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Branch {
    Node(u32),
    Leaf(u32),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TreeNode {
    pub feature: u32,
    pub test: Test,
    pub value: f64,
    /// Whether NaN passes the test.
    pub missing_passes: bool,
    /// Both later in `nodes` than this node, so that no walk is endless.
    pub passed: Branch,
    pub failed: Branch,
}

/// How a feature is compared with a node's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Test {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
    /// One of `members[start..end]`.
    Member {
        start: u32,
        end: u32,
    },
}

impl Trees {
    /// The votes of a leaf.
    pub fn votes_of(&self, leaf: usize) -> &[Vote] {
        let start = leaf.checked_sub(1).map_or(0, |before| self.leaves[before]);
        &self.votes[start as usize..self.leaves[leaf] as usize]
    }
}

/// What a leaf says about a target.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Vote {
    pub target: u32,
    pub weight: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Aggregate {
    Sum,
    Average,
    Min,
    Max,
}
