//! Rows by indices.

use super::Case;
use neap_ir::Layout::Plain;
use neap_ir::{DType, Op};

/// Along an axis of `x`, at `numbers` in the shape `indices`.
pub fn gather(
    x: &[usize],
    axis: usize,
    indices: &[usize],
    numbers: &[i64],
    types: [DType; 2],
) -> Case {
    let [x_type, index_type] = types;
    let y = [&x[..axis], indices, &x[axis + 1..]].concat();
    let inputs = [(x, Plain), (indices, Plain)];
    Case::new(Op::Gather { axis }, &inputs, (&y, Plain))
        .types(&[x_type, index_type], x_type)
        .numbers(1, numbers)
}

pub fn gathers() -> Vec<Case> {
    use DType::{F32, I32, I64};
    let mut cases = Vec::new();
    for types in [[F32, I64], [F32, I32], [I64, I64], [I32, I32]] {
        cases.extend([
            gather(&[7, 5], 0, &[4], &[0, -1, 6, -7], types),
            gather(&[3, 9, 5], 1, &[2, 3], &[8, 0, -9, 3, 3, -1], types),
            gather(&[4, 6], 1, &[3], &[-6, 5, 2], types),
            gather(&[2, 3, 4, 5], 2, &[1, 1], &[-2], types),
            gather(&[3, 5], 0, &[], &[-3], types),
            gather(&[1, 1, 17], 0, &[5], &[0, -1, 0, -1, 0], types),
        ]);
    }
    // More than one group, and operands elsewhere.
    let many: Vec<i64> = (0..200).map(|i| i * 77 % 600 - 300).collect();
    let large = || gather(&[300, 33], 0, &[200], &many, [F32, I64]);
    cases.extend([
        large(),
        large().elsewhere(&[0]),
        large().elsewhere(&[1]),
        large().elsewhere(&[0, 1]),
    ]);
    cases
}
