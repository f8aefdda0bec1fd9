//! Operators of onnxruntime on weights that are quantised in blocks.

use super::quantize::dequantize_blocks;
use crate::error::OnnxError;
use crate::node::{Ctx, to_f64_vec};
use neap_ir::op::{Binary, Reduce, SliceRange};
use neap_ir::{DType, Literal, Op, ValueId};

/// An indicator matrix that is made while reading has at most so many elements.
const MADE_ELEMENTS: usize = 1 << 24;

/// `a [.., K]` times weights of N outputs that are stored `[N][K]` in blocks of `block_size` along K, the last one whole:
/// bytes `[N, blocks, bytes of a block]`, scales `[N * blocks]`, and zero points `[N, bytes of a row's]` or as the scales.
pub(super) fn matmul(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (a, weights, scale) = (c.input(0)?, c.input(1)?, c.input(2)?);
    let (k, n) = (c.size("K", 0)?, c.size("N", 0)?);
    let (bits, block) = (c.size("bits", 4)?, c.size("block_size", 0)?);
    if !matches!(bits, 2 | 4 | 8) {
        return Err(c.unsupported(format!("weights of {bits} bits")));
    }
    if c.int("weight_prepacked", 0)? != 0 {
        return Err(c.unsupported("weights in one device's order (weight_prepacked)"));
    }
    // The least accuracy of `a` that the model asks for; 4 stands for 8-bit integers in the weights' blocks.
    let rounds = c.int("accuracy_level", 0)? == 4;
    if k == 0 || n == 0 || block < 2 || !block.is_multiple_of(2) {
        return Err(c.bad(format!(
            "K {k}, N {n} and block_size {block} make no weights"
        )));
    }
    if let Some(order) = c.optional(4) {
        let order = c.known_i64(order, "the order of its weights")?;
        if order
            .iter()
            .zip(0..)
            .any(|(&group, i)| group != i / block as i64)
        {
            return Err(c.unsupported("weights in another order (g_idx)"));
        }
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
    let (zero, float_zero) = match c.optional(3) {
        Some(zero) if c.dtype(zero) == DType::U8 => {
            let per_byte = 8 / bits;
            let row = blocks.next_multiple_of(per_byte);
            let whole = self::steps(c, zero, [n, row], bits)?;
            (columns(c, whole, blocks)?, None)
        }
        Some(zero) => {
            if c.ty(zero).elements() != n * blocks {
                return Err(c.bad("its zero points do not fit its weights"));
            }
            let zero = c.reshape(zero, &[n, blocks])?;
            match as_integers(c, zero, bits)? {
                Some(whole) => (whole, None),
                None => (middle(c, bits)?, Some(zero)),
            }
        }
        None => (middle(c, bits)?, None),
    };
    let widened = dequantize_blocks(c, 1, block, rounds, [Some(steps), Some(scale), Some(zero)])?;
    let widened = columns(c, widened, k)?;
    let turned = c.emit(Op::Transpose { perm: vec![1, 0] }, &[widened])?;
    let mut product = c.emit(Op::MatMul, &[a, turned])?;
    if let Some(float_zero) = float_zero {
        let of = Shifted {
            a,
            zero: float_zero,
            middle: f64::from(1u32 << (bits - 1)),
            scale,
            block,
        };
        product = of.added_to(c, product)?;
    }
    match c.optional(5) {
        Some(bias) => c.binary(Binary::Add, product, bias),
        None => Ok(product),
    }
}

/// Zero points of a floating type as bytes, where they are known and whole numbers of so many bits.
fn as_integers(c: &mut Ctx, zero: ValueId, bits: usize) -> Result<Option<ValueId>, OnnxError> {
    let known = c.builder.known(zero)?;
    let numbers = known.as_ref().and_then(to_f64_vec);
    let most = f64::from((1u32 << bits) - 1);
    let is_whole = |x: &f64| x.fract() == 0.0 && (0.0..=most).contains(x);
    match numbers.is_some_and(|numbers| numbers.iter().all(is_whole)) {
        true => c.cast(zero, DType::U8).map(Some),
        false => Ok(None),
    }
}

/// Zero points between integers. Weights are stored about their middle, so each block's sum of `a` is missing as often as
/// the zero point lies below the middle.
struct Shifted {
    a: ValueId,
    /// `[N, blocks]`, as the scales.
    zero: ValueId,
    middle: f64,
    scale: ValueId,
    block: usize,
}

impl Shifted {
    fn added_to(self, c: &mut Ctx, product: ValueId) -> Result<ValueId, OnnxError> {
        let dtype = c.dtype(self.a);
        let sums = self.sums_of_blocks(c)?;
        let middle = c.scalar(c.dtype(self.zero), self.middle)?;
        let below = c.binary(Binary::Sub, middle, self.zero)?;
        let (below, scale) = (c.cast(below, dtype)?, c.cast(self.scale, dtype)?);
        let each = c.binary(Binary::Mul, below, scale)?;
        let each = c.emit(Op::Transpose { perm: vec![1, 0] }, &[each])?;
        let missing = c.emit(Op::MatMul, &[sums, each])?;
        c.binary(Binary::Add, product, missing)
    }

    /// `[.., blocks]` of `a [.., K]`.
    fn sums_of_blocks(&self, c: &mut Ctx) -> Result<ValueId, OnnxError> {
        let mut shape = c.shape_of_rank(self.a, 1)?;
        let blocks = c.shape(self.zero)[1];
        let last = shape.len() - 1;
        let k = shape[last];
        if !c.builder.is_late(self.a) && k == blocks * self.block {
            shape[last] = blocks;
            shape.push(self.block);
            let apart = c.reshape(self.a, &shape)?;
            let op = Op::Reduce {
                kind: Reduce::Sum,
                axes: vec![last + 1],
                keep_dims: false,
            };
            return c.emit(op, &[apart]);
        }
        if k.saturating_mul(blocks) > MADE_ELEMENTS {
            return Err(c.unsupported("zero points between integers of so large a matrix"));
        }
        let is_of = |i: usize| f32::from(u8::from(i / blocks / self.block == i % blocks));
        let data: Vec<f32> = (0..k * blocks).map(is_of).collect();
        let which = c.constant(Literal::from_f32(&[k, blocks], &data));
        let which = c.cast(which, c.dtype(self.a))?;
        c.emit(Op::MatMul, &[self.a, which])
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
    if c.rank(scale) != rank || !matches!(bits, 2 | 4 | 8) || block == 0 {
        return Err(c.bad("its scales do not fit its data"));
    }
    // Four-bit integers of their own type are counted from 0, bytes from their middle.
    let mut is_bytes = bits == 8 && c.dtype(table) == DType::U8;
    if let Some(whole) = packed(c, table, scale, axis, block, bits)? {
        is_bytes = true;
        table = integers(c, table, &whole, bits)?;
        if let Some(bytes) = zero {
            let blocks = c.shape(scale);
            let mut padded = blocks.clone();
            padded[rank - 1] = padded[rank - 1].next_multiple_of(8 / bits);
            let all = integers(c, bytes, &padded, bits)?;
            zero = Some(columns(c, all, blocks[rank - 1])?);
        }
    }
    if zero.is_none() && is_bytes {
        zero = Some(middle(c, bits)?);
    }
    let widened = dequantize_blocks(c, axis, block, false, [Some(table), Some(scale), zero])?;
    c.emit(Op::Gather { axis: gathered }, &[widened, indices])
}

/// The shape of the integers in a table of bytes that hold several each, along the last axis; `None` for a table whose
/// elements are integers. The scales tell.
fn packed(
    c: &Ctx,
    table: ValueId,
    scale: ValueId,
    axis: usize,
    block: usize,
    bits: usize,
) -> Result<Option<Vec<usize>>, OnnxError> {
    let single = c.shape(table);
    let mut longer = single.clone();
    if let Some(last) = longer.last_mut() {
        *last *= 8 / bits;
    }
    let fits = |shape: &[usize]| {
        let mut blocks = shape.to_vec();
        blocks[axis] = blocks[axis].div_ceil(block);
        blocks == c.shape(scale)
    };
    let may_be_packed = bits < 8 && c.dtype(table) == DType::U8 && fits(&longer);
    match (may_be_packed, fits(&single)) {
        (false, _) => Ok(None),
        (true, false) => Ok(Some(longer)),
        // Bytes in the model's file are what they are declared as; four-bit ones are computed from such.
        (true, true) if c.is_stored(table) => Ok(Some(longer)),
        (true, true) => Err(c.unsupported("a table narrower than its blocks")),
    }
}

/// The zero point where there is none.
fn middle(c: &mut Ctx, bits: usize) -> Result<ValueId, OnnxError> {
    c.scalar(DType::U8, f64::from(1u32 << (bits - 1)))
}

/// Bytes as integers of 2, 4 or 8 bits `[rows][columns]`.
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
    integers(c, bytes, &[rows, columns], bits)
}

/// Integers of so many bits from bytes, those of the lower bits first.
fn integers(
    c: &mut Ctx,
    bytes: ValueId,
    shape: &[usize],
    bits: usize,
) -> Result<ValueId, OnnxError> {
    if bits == 8 {
        return c.reshape(bytes, shape);
    }
    let count: usize = shape.iter().product();
    let op = Op::Nibbles {
        shape: match bits {
            4 => shape.to_vec(),
            _ => vec![count.div_ceil(2), 1],
        },
        signed: false,
    };
    let halves = c.emit(op, &[bytes])?;
    if bits == 4 {
        return Ok(halves);
    }
    let (low, two) = (c.scalar(DType::U8, 3.0)?, c.scalar(DType::U8, 2.0)?);
    let parts = [
        c.binary(Binary::BitAnd, halves, low)?,
        c.binary(Binary::ShiftRight, halves, two)?,
    ];
    let apart = c.emit(Op::Concat { axis: 1 }, &parts)?;
    c.reshape(apart, shape)
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
