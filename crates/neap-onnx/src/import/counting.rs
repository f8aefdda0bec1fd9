//! How often a loop goes round that gives no count, and whose condition no data decide: found by computing what decides it,
//! pass after pass.

use super::passes::Pass;
use crate::builder::{At, Builder};
use crate::error::OnnxError;
use neap_ir::{Graph, Layout, Literal, Node, Value, ValueId};
use std::collections::{HashMap, HashSet};

/// Operations that count as one node more.
const NODE_FLOPS: u64 = 64;
/// Elements of what decides a condition.
const MOST_ELEMENTS: usize = 1024;

impl Builder {
    /// The number of passes; `None` where data decide it, or where there are too many to find out.
    pub(super) fn counted(
        &mut self,
        at: At,
        pass: &Pass,
        first: &[Option<ValueId>],
    ) -> Result<Option<i64>, OnnxError> {
        let (deciding, is_needed) = deciding(pass);
        let needed = first.iter().zip(is_needed).filter(|(_, needed)| *needed);
        let Some(mut states) = self.all_known(needed.filter_map(|(first, _)| *first))? else {
            return Ok(None);
        };
        let (graph, shared) = self.taken_out(at, deciding);
        let Some(shared) = self.all_known(shared.into_iter())? else {
            return Ok(None);
        };
        let is_small = |v: &Value| v.ty.elements() <= MOST_ELEMENTS;
        if !graph.values.iter().all(is_small) || !graph.bodies().is_empty() {
            return Ok(None);
        }
        let each = cost(&graph);
        for passes in 1.. {
            let Some(left) = self.counting_left.checked_sub(each) else {
                break;
            };
            self.counting_left = left;
            let mut given = vec![Literal::from_i64(&[], &[passes - 1])];
            given.append(&mut states);
            given.extend(shared.iter().cloned());
            let Ok(mut made) = neap_ops::interpret(&graph, &given, &|_| None) else {
                return Ok(None);
            };
            states = made.split_off(1);
            if made[0].bytes() != [1] {
                return Ok(Some(passes));
            }
        }
        Ok(None)
    }

    /// The elements of small constants; `None` if one of these is none.
    fn all_known(
        &mut self,
        values: impl Iterator<Item = ValueId>,
    ) -> Result<Option<Vec<Literal>>, OnnxError> {
        let mut known = Vec::new();
        for value in values {
            if self.ty(value).elements() > MOST_ELEMENTS {
                return Ok(None);
            }
            match self.known(value)? {
                Some(literal) => known.push(literal),
                None => return Ok(None),
            }
        }
        Ok(Some(known))
    }
}

/// Of a pass, in nodes.
fn cost(graph: &Graph) -> u64 {
    let forms = |ids: &[Option<ValueId>]| -> Vec<_> {
        let form = |v: ValueId| (graph.ty(v), Layout::Plain);
        ids.iter().map(|id| id.map(form)).collect()
    };
    let nodes = graph.nodes.iter().map(|node| {
        let flops = neap_ops::flops(&node.op, &forms(&node.inputs), &forms(&node.outputs));
        1 + flops / NODE_FLOPS
    });
    nodes.fold(1, u64::saturating_add)
}

/// The part of a pass that decides whether there is another, now or after any number of passes; and which states it has.
fn deciding(pass: &Pass) -> (Pass, Vec<bool>) {
    let mut makers: HashMap<ValueId, &Node> = HashMap::new();
    for node in &pass.nodes {
        makers.extend(node.present_outputs().map(|output| (output, node)));
    }
    let mut is_needed = vec![false; pass.states.len()];
    let mut seen = HashSet::new();
    let mut next = vec![pass.condition];
    while let Some(value) = next.pop() {
        if !seen.insert(value) {
            continue;
        }
        if let Some(node) = makers.get(&value) {
            next.extend(node.present_inputs());
        } else if let Some(state) = pass.states.iter().position(|&state| state == value) {
            is_needed[state] = true;
            next.push(pass.next[state]);
        }
    }
    let is_part = |node: &&Node| node.present_outputs().any(|output| seen.contains(&output));
    let of_needed = |values: &[ValueId]| -> Vec<ValueId> {
        let each = values.iter().zip(&is_needed);
        each.filter(|(_, needed)| **needed)
            .map(|(v, _)| *v)
            .collect()
    };
    let deciding = Pass {
        nodes: pass.nodes.iter().filter(is_part).cloned().collect(),
        number: pass.number,
        states: of_needed(&pass.states),
        condition: pass.condition,
        next: of_needed(&pass.next),
        collected: Vec::new(),
    };
    (deciding, is_needed)
}
