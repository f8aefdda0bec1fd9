//! A `Gather` of an activation is a slice where its positions are constant and equally far apart. Most such slices are
//! parts of their input's memory, and no step at all.
//!
//! ```text
//!   Gather(x, [2, 3, 4])      Slice(x, 2..5)
//!   Gather(x, 7)              Reshape(Slice(x, 7..8))
//! ```

use crate::edit::Editor;
use neap_ir::op::{Op, SliceRange};
use neap_ir::{Literal, Node, TensorType};

pub(crate) fn run(editor: &mut Editor) {
    editor.each(as_slice);
}

fn as_slice(editor: &mut Editor, at: usize) -> bool {
    let node = editor.node(at).clone();
    let (Op::Gather { axis }, Some(x), Some(indices), [Some(output)]) =
        (&node.op, node.input(0), node.input(1), &node.outputs[..])
    else {
        return false;
    };
    let shape = editor.ty(x).shape.clone();
    let positions = editor.graph.literal(indices).and_then(Literal::to_i64_vec);
    // Tables are read by rows.
    let range = positions.filter(|_| !editor.is_const(x));
    let Some(range) = range.and_then(|positions| equally_apart(&positions, shape[*axis])) else {
        return false;
    };
    let whole = |&len: &usize| SliceRange {
        start: 0,
        step: 1,
        len,
    };
    let mut ranges: Vec<SliceRange> = shape.iter().map(whole).collect();
    ranges[*axis] = range;
    let mut sliced = shape;
    sliced[*axis] = range.len;
    let slice = Node {
        op: Op::Slice { ranges },
        inputs: vec![Some(x)],
        ..node.clone()
    };
    let result = editor.ty(*output).clone();
    if result.shape == sliced {
        editor.replace(at, slice, &[]);
        return true;
    }
    let name = format!("{}.slice", editor.graph.value(*output).name);
    let part = editor
        .graph
        .add_value(name, TensorType::new(result.dtype, &sliced));
    let reshape = Node {
        op: Op::Reshape {
            shape: result.shape,
        },
        inputs: vec![Some(part)],
        ..node
    };
    editor.replace(at, reshape, &[]);
    let slice = Node {
        outputs: vec![Some(part)],
        ..slice
    };
    editor.insert(at, slice);
    true
}

/// The positions as a range. `None` where distances differ, or where one is outside of the axis: the operator says so
/// when it runs.
fn equally_apart(positions: &[i64], size: usize) -> Option<SliceRange> {
    let size = i64::try_from(size).ok()?;
    let from_front = |&p: &i64| if p < 0 { p.checked_add(size) } else { Some(p) };
    let places: Vec<i64> = positions.iter().map(from_front).collect::<Option<_>>()?;
    let all_inside = places.iter().all(|place| (0..size).contains(place));
    let &first = places.first().filter(|_| all_inside)?;
    let step = places.get(1).map_or(1, |second| second - first);
    let is_even = places.windows(2).all(|pair| pair[1] - pair[0] == step);
    (is_even && step != 0).then_some(SliceRange {
        start: usize::try_from(first).ok()?,
        step: isize::try_from(step).ok()?,
        len: places.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_a_range_or_none() {
        let range = |start, step, len| Some(SliceRange { start, step, len });
        let cases: [(&[i64], Option<SliceRange>); 9] = [
            (&[3], range(3, 1, 1)),
            (&[-1], range(7, 1, 1)),
            (&[2, 3, 4], range(2, 1, 3)),
            (&[-3, -2, -1], range(5, 1, 3)),
            (&[6, 4, 2, 0], range(6, -2, 4)),
            (&[1, 2, 4], None),
            (&[5, 5], None),
            (&[7, 8], None),
            (&[-9], None),
        ];
        for (positions, expected) in cases {
            assert_eq!(equally_apart(positions, 8), expected, "{positions:?}");
        }
        assert_eq!(equally_apart(&[], 8), None);
    }
}
