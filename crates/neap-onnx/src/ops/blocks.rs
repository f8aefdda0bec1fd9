//! Operators of onnxruntime on weights that are quantised in blocks.

use super::quantize::dequantize_blocks;
use crate::error::OnnxError;
use crate::node::Ctx;
use neap_ir::op::{Binary, SliceRange};
use neap_ir::{DType, Op, ValueId};

/// `a [.., K]` times weights of N outputs that are stored `[N][K]` in blocks of `block_size` along K, the last one whole:
/// bytes `[N, blocks, bytes of a block]`, scales `[N * blocks]`, and zero points `[N, bytes of a row's]` or as the scales.
pub(super) fn matmul(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, weights, scale) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (k, n) = (c.size("K", 0)?, c.size("N", 0)?);
    let (bits, block) = (c.size("bits", 4)?, c.size("block_size", 0)?);
    if !matches!(bits, 4 | 8) {
        return Err(c.unsupported(format!("weights of {bits} bits")));
    }
    // The least accuracy of `a` that the model asks for; 4 stands for 8-bit integers in the weights' blocks.
    let rounds = c.int("accuracy_level", 0)? == 4;
    if c.optional(4).is_some() {
        return Err(c.unsupported("weights in another order (g_idx)"));
    }
    if k == 0 || n == 0 || block < 2 || !block.is_multiple_of(2) {
        return Err(c.bad(format!(
            "K {k}, N {n} and block_size {block} make no weights"
        )));
    }
    let blocks = k.div_ceil(block);
    let steps = steps(c, weights, [n, blocks * block], bits)?;
    let flat = c.ty(scale).elements();
    if flat != n * blocks {
        return Err(c.bad(format!(
            "{flat} scales do not fit {n} rows of {blocks} blocks"
        )));
    }
    let scale = c.reshape(scale, &[n, blocks])?;
    let zero = match c.optional(3) {
        Some(zero) if c.dtype(zero) == DType::U8 => {
            let per_byte = 8 / bits;
            let row = blocks.next_multiple_of(per_byte);
            let whole = self::steps(c, zero, [n, row], bits)?;
            columns(c, whole, blocks)?
        }
        Some(_) => return Err(c.unsupported("zero points that are no integers")),
        None => middle(c, bits)?,
    };
    let widened = dequantize_blocks(c, 1, block, rounds, [Some(steps), Some(scale), Some(zero)])?;
    let widened = columns(c, widened, k)?;
    let turned = c.emit(Op::Transpose { perm: vec![1, 0] }, &[widened])?;
    let product = c.emit(Op::MatMul, &[a, turned])?;
    match c.optional(5) {
        Some(bias) => c.binary(Binary::Add, product, bias),
        None => Ok(product),
    }
}

/// Rows, or slices along another axis, of a table that is quantised in blocks along one axis.
pub(super) fn gather(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (mut table, indices, scale) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let mut zero = c.optional(3);
    let (bits, block) = (c.size("bits", 4)?, c.size("block_size", 128)?);
    let rank = c.shape_of_rank(table, 1)?.len();
    let axis = c.axis(c.int("quantize_axis", 1)?, rank)?;
    let gathered = c.axis(c.int("gather_axis", 0)?, rank)?;
    if c.rank(scale) != rank || !matches!(bits, 4 | 8) || block == 0 {
        return Err(c.bad("its scales do not fit its data"));
    }
    // Four-bit integers of their own type are counted from 0, bytes from their middle.
    let mut is_bytes = bits == 8 && c.dtype(table) == DType::U8;
    if let Some(whole) = pairs(c, table, scale, axis, block, bits)? {
        is_bytes = true;
        table = nibbles(c, table, &whole)?;
        if let Some(bytes) = zero {
            let blocks = c.shape(scale);
            let mut padded = blocks.clone();
            padded[rank - 1] = padded[rank - 1].next_multiple_of(2);
            let all = nibbles(c, bytes, &padded)?;
            zero = Some(columns(c, all, blocks[rank - 1])?);
        }
    }
    if zero.is_none() && is_bytes {
        zero = Some(middle(c, bits)?);
    }
    let widened = dequantize_blocks(c, axis, block, false, [Some(table), Some(scale), zero])?;
    c.emit(Op::Gather { axis: gathered }, &[widened, indices])
}

/// The shape of the integers in a table of bytes that hold two each, along the last axis; `None` for a table whose
/// elements are integers. The scales tell.
fn pairs(
    c: &Ctx,
    table: ValueId,
    scale: ValueId,
    axis: usize,
    block: usize,
    bits: usize,
) -> Result<Option<Vec<usize>>, OnnxError> {
    let single = c.shape(table);
    let mut doubled = single.clone();
    if let Some(last) = doubled.last_mut() {
        *last *= 2;
    }
    let fits = |shape: &[usize]| {
        let mut blocks = shape.to_vec();
        blocks[axis] = blocks[axis].div_ceil(block);
        blocks == c.shape(scale)
    };
    let may_be_pairs = bits == 4 && c.dtype(table) == DType::U8 && fits(&doubled);
    match (may_be_pairs, fits(&single)) {
        (false, _) => Ok(None),
        (true, false) => Ok(Some(doubled)),
        // Bytes in the model's file are what they are declared as; four-bit ones are computed from such.
        (true, true) if c.is_stored(table) => Ok(Some(doubled)),
        (true, true) => Err(c.unsupported("a table narrower than its blocks")),
    }
}

/// The zero point where there is none.
fn middle(c: &mut Ctx, bits: usize) -> Result<ValueId, OnnxError> {
    c.scalar(DType::U8, f64::from(1u32 << (bits - 1)))
}

/// Bytes as integers of 4 or 8 bits `[rows][columns]`.
fn steps(
    c: &mut Ctx,
    bytes: ValueId,
    [rows, columns]: [usize; 2],
    bits: usize,
) -> Result<ValueId, OnnxError> {
    let (found, wanted) = (c.ty(bytes).elements(), (rows * columns).div_ceil(8 / bits));
    if c.dtype(bytes) != DType::U8 || found != wanted {
        return Err(c.bad(format!(
            "{found} bytes do not hold {rows} rows of {columns} integers"
        )));
    }
    if bits == 8 {
        return c.reshape(bytes, &[rows, columns]);
    }
    nibbles(c, bytes, &[rows, columns])
}

fn nibbles(c: &mut Ctx, bytes: ValueId, shape: &[usize]) -> Result<ValueId, OnnxError> {
    let op = Op::Nibbles {
        shape: shape.to_vec(),
        signed: false,
    };
    c.emit(op, &[bytes])
}

/// The first `wanted` places of the last axis.
fn columns(c: &mut Ctx, x: ValueId, wanted: usize) -> Result<ValueId, OnnxError> {
    let shape = c.shape(x);
    let last = shape.len().saturating_sub(1);
    let lens = shape.iter().enumerate();
    let ranges = lens.map(|(axis, &len)| SliceRange {
        start: 0,
        step: 1,
        len: if axis == last { wanted } else { len },
    });
    let op = Op::Slice {
        ranges: ranges.collect(),
    };
    c.emit(op, &[x])
}
