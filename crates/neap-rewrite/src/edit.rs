//! A graph under edit: who makes and who reads each value, and tombstones for fused nodes.

use neap_ir::{DType, Graph, Node, TensorType, ValueId};

pub(crate) struct Editor {
    pub graph: Graph,
    dead: Vec<bool>,
    producer: Vec<Option<usize>>,
    users: Vec<Vec<usize>>,
    is_output: Vec<bool>,
}

impl Editor {
    pub fn new(graph: Graph) -> Editor {
        let dead = vec![false; graph.nodes.len()];
        let mut editor = Editor {
            graph,
            dead,
            producer: vec![],
            users: vec![],
            is_output: vec![],
        };
        editor.refresh();
        editor
    }

    /// Finds producers and users of all values.
    fn refresh(&mut self) {
        let count = self.graph.values.len();
        self.producer = vec![None; count];
        self.users = vec![Vec::new(); count];
        self.is_output = vec![false; count];
        for at in 0..self.graph.nodes.len() {
            if !self.dead[at] {
                self.link(at);
            }
        }
        for output in &self.graph.outputs {
            self.is_output[output.index()] = true;
        }
    }

    /// Enters what the node at `at` makes and reads.
    fn link(&mut self, at: usize) {
        let count = self.graph.values.len();
        self.producer.resize(count, None);
        self.users.resize(count, Vec::new());
        self.is_output.resize(count, false);
        let node = &self.graph.nodes[at];
        for output in node.present_outputs() {
            self.producer[output.index()] = Some(at);
        }
        for input in node.present_inputs() {
            self.users[input.index()].push(at);
        }
    }

    /// Takes that back.
    fn unlink(&mut self, at: usize) {
        let node = &self.graph.nodes[at];
        for output in node.present_outputs() {
            let producer = &mut self.producer[output.index()];
            *producer = producer.filter(|&p| p != at);
        }
        for input in node.present_inputs() {
            self.users[input.index()].retain(|&user| user != at);
        }
    }

    /// Applies `rule` at every live node, again and again at the same place while it matches.
    pub fn each(&mut self, mut rule: impl FnMut(&mut Editor, usize) -> bool) {
        let mut at = 0;
        while at < self.graph.nodes.len() {
            while !self.dead[at] && rule(self, at) {}
            at += 1;
        }
    }

    pub fn node(&self, at: usize) -> &Node {
        &self.graph.nodes[at]
    }

    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// The live node that makes `value`.
    pub fn producer(&self, value: ValueId) -> Option<usize> {
        self.producer.get(value.index()).copied().flatten()
    }

    /// The only reader of `value`, when it has exactly one use and is no graph output.
    pub fn sole_user(&self, value: ValueId) -> Option<usize> {
        let users = self.users.get(value.index()).map_or(&[][..], Vec::as_slice);
        match *users {
            [user] if !self.is_output[value.index()] => Some(user),
            _ => None,
        }
    }

    pub fn is_output(&self, value: ValueId) -> bool {
        self.is_output[value.index()]
    }

    pub fn kill(&mut self, at: usize) {
        if !std::mem::replace(&mut self.dead[at], true) {
            self.unlink(at);
        }
    }

    /// Puts `node` in place of the one at `at`; `absorbed` nodes die. Its outputs must be those
    /// of the node at `at`, so that order and producers stay right.
    pub fn replace(&mut self, at: usize, node: Node, absorbed: &[usize]) {
        for &dead in absorbed {
            self.kill(dead);
        }
        self.kill(at);
        self.dead[at] = false;
        self.graph.nodes[at] = node;
        self.link(at);
    }

    /// Puts a node before the one at `at`, which moves on by one place.
    pub fn insert(&mut self, at: usize, node: Node) {
        self.graph.nodes.insert(at, node);
        self.dead.insert(at, false);
        self.refresh();
    }

    /// The live nodes that read `value`, once for each use.
    pub fn users(&self, value: ValueId) -> &[usize] {
        self.users.get(value.index()).map_or(&[][..], Vec::as_slice)
    }

    /// Lets every reader of `old` read `new` instead. Graph outputs keep their value.
    pub fn redirect(&mut self, old: ValueId, new: ValueId) {
        let users = std::mem::take(&mut self.users[old.index()]);
        for &at in &users {
            for input in &mut self.graph.nodes[at].inputs {
                if *input == Some(old) {
                    *input = Some(new);
                }
            }
        }
        self.users[new.index()].extend(users);
    }

    /// The single element of a small float constant.
    pub fn scalar(&self, value: ValueId) -> Option<f32> {
        let literal = self.graph.literal(value)?;
        match literal.as_f32()? {
            [x] => Some(*x),
            _ => None,
        }
    }

    pub fn is_const(&self, value: ValueId) -> bool {
        self.graph.value(value).constant.is_some()
    }

    /// Drops nodes nobody reads, and tombstones.
    pub fn remove_dead(&mut self) {
        // Readers come after what they read.
        for at in (0..self.graph.nodes.len()).rev() {
            let unused = self.node(at).present_outputs().all(|output| {
                !self.is_output[output.index()] && self.users[output.index()].is_empty()
            });
            if unused {
                self.kill(at);
            }
        }
        let dead = std::mem::take(&mut self.dead);
        let mut at = 0;
        self.graph.nodes.retain(|_| {
            at += 1;
            !dead[at - 1]
        });
        self.dead = vec![false; self.graph.nodes.len()];
        self.refresh();
    }
}

pub(crate) fn is_const_f32(editor: &Editor, value: ValueId) -> bool {
    editor.is_const(value) && editor.ty(value).dtype == DType::F32
}

pub(crate) fn output(editor: &Editor, at: usize) -> ValueId {
    editor.node(at).outputs[0].expect("compute nodes have a first output")
}
