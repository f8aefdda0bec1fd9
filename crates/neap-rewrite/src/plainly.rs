//! Graphs as they are: nothing fused, every tensor plain, weights in no other form than the model's.
//!
//! A step of training is lowered so. Its weights change, so that panels made of them would be made anew in each step; its
//! backward pass wants the activations that fusion would lose; and its results have the bits of
//! [`neap_ops::interpret`].

use crate::{RewriteError, place};
use neap_ir::program::Storage;
use neap_ir::{Const, Graph, Program, ValueId};

/// Decides what shares memory, and nothing else. What replaces a state is computed where the state lies. `digest`
/// identifies the graph.
///
/// # Errors
/// [`RewriteError`] where the graph is malformed, a node reads a constant that is neither in the graph nor a state, or a
/// state is read after what replaces it has been computed.
pub fn lower_plainly(graph: Graph, digest: String) -> Result<Program, RewriteError> {
    graph.check()?;
    for node in &graph.nodes {
        let absent = |v: &ValueId| !matches!(graph.constant(*v), None | Some(Const::Inline(_)));
        if let Some(value) = node.present_inputs().find(absent) {
            return Err(RewriteError::Constant {
                name: graph.value(value).name.clone(),
                reason: "is neither in the graph nor a state".into(),
            });
        }
    }
    let program = place::run(graph, digest);
    for state in &program.graph.states {
        let at = program.storage[state.value.index()];
        let is_own = |&next: &ValueId| program.storage[next.index()] == at;
        if !matches!(at, Storage::Buffer { .. }) || !state.next.iter().all(is_own) {
            let name = program.graph.value(state.value).name.clone();
            return Err(RewriteError::State { name });
        }
    }
    program.check()?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_ir::op::{Binary, Unary};
    use neap_ir::{DType, Literal, Node, Op, State, TensorType};

    fn graph() -> (Graph, ValueId) {
        let mut graph = Graph::default();
        let x = graph.add_value("x", TensorType::new(DType::F32, &[4]));
        graph.inputs = vec![x];
        (graph, x)
    }

    fn push(graph: &mut Graph, op: Op, inputs: &[ValueId], shape: &[usize]) -> ValueId {
        let name = format!("n{}", graph.nodes.len());
        let y = graph.add_value(name.clone(), TensorType::new(DType::F32, shape));
        graph.nodes.push(Node {
            name,
            op,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(y)],
            panels: None,
        });
        y
    }

    fn state(graph: &mut Graph, name: &str) -> ValueId {
        graph.add_value(name, TensorType::new(DType::F32, &[4]))
    }

    #[test]
    fn a_sum_is_computed_where_its_state_lies() {
        let (mut graph, x) = graph();
        let value = state(&mut graph, "sum");
        let next = push(&mut graph, Op::Binary(Binary::Add), &[value, x], &[4]);
        let y = push(&mut graph, Op::Unary(Unary::Exp), &[next], &[4]);
        graph.states = vec![State {
            value,
            next: Some(next),
        }];
        graph.outputs = vec![y];
        let program = lower_plainly(graph, "digest".into()).unwrap();
        assert_eq!(
            program.storage[value.index()],
            program.storage[next.index()]
        );
        // The exponential must not overwrite what the next run finds.
        assert_ne!(program.storage[y.index()], program.storage[next.index()]);
        assert_eq!(program.buffers[0].live, 0..2);
    }

    #[test]
    fn a_state_that_is_read_too_late_is_refused() {
        let (mut graph, x) = graph();
        let value = state(&mut graph, "old");
        let next = push(&mut graph, Op::Unary(Unary::Exp), &[x], &[4]);
        let y = push(&mut graph, Op::Unary(Unary::Exp), &[value], &[4]);
        graph.states = vec![State {
            value,
            next: Some(next),
        }];
        graph.outputs = vec![y];
        let refused = lower_plainly(graph, "digest".into()).unwrap_err();
        assert!(matches!(refused, RewriteError::State { name } if name == "old"));
    }

    #[test]
    fn states_are_no_parts_of_anything() {
        let (mut graph, x) = graph();
        let (a, b) = (state(&mut graph, "a"), state(&mut graph, "b"));
        let y = push(&mut graph, Op::Concat { axis: 0 }, &[a, b], &[8]);
        let z = push(&mut graph, Op::Binary(Binary::Add), &[a, x], &[4]);
        graph.states = [a, b].map(|value| State { value, next: None }).to_vec();
        graph.outputs = vec![y, z];
        let program = lower_plainly(graph, "digest".into()).unwrap();
        let places = [a, b, y, z].map(|v| program.storage[v.index()]);
        for (i, place) in places.iter().enumerate() {
            assert!(matches!(place, Storage::Buffer { buffer, .. } if *buffer == i as u32));
        }
    }

    #[test]
    fn what_is_elsewhere_is_refused() {
        let (mut graph, x) = graph();
        let packed = Const::Packed(neap_ir::PackedId(0));
        let w = graph.add_const("w", TensorType::new(DType::F32, &[4]), packed);
        let y = push(&mut graph, Op::Binary(Binary::Add), &[x, w], &[4]);
        graph.outputs = vec![y];
        assert!(lower_plainly(graph.clone(), "digest".into()).is_err());
        let here = Const::Inline(Literal::from_f32(&[4], &[0.0; 4]));
        graph.consts[0] = here;
        assert!(lower_plainly(graph, "digest".into()).is_ok());
    }
}
