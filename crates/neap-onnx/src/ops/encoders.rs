//! Numbers by other numbers: LabelEncoder and OneHotEncoder of `ai.onnx.ml`.

use super::classes::numbers_of;
use crate::error::OnnxError;
use crate::late::Axis;
use crate::node::{Ctx, Outputs, one};
use neap_ir::late::LateOp;
use neap_ir::op::{Binary, Reduce, Unary};
use neap_ir::{DType, Literal, Op, ValueId};

/// Of a table that is made while reading, or of its keys.
const MOST_KEYS: usize = 1 << 16;
/// Of a table as wide as it is high.
const MOST_CATEGORIES: usize = 1 << 11;

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "LabelEncoder" => one(label_encoder(c)),
        "OneHotEncoder" => one(one_hot_encoder(c)),
        _ => return None,
    })
}

/// `[.., 1]`, whatever the sizes.
fn with_last_axis(c: &mut Ctx, x: ValueId) -> Result<ValueId, OnnxError> {
    if !c.builder.is_late(x) {
        let mut shape = c.shape(x);
        shape.push(1);
        return c.reshape(x, &shape);
    }
    let mut axes = c.builder.axes(x);
    let new = axes.len();
    axes.push(Axis::known(1));
    let dtype = c.dtype(x);
    let op = LateOp::Unsqueeze { axes: vec![new] };
    c.emit_late(op, &[Some(x)], dtype, axes)
}

/// Where the elements of `x` are among keys.
struct Found {
    /// `[.., keys]`, 1 where they are equal.
    each: ValueId,
    /// `[..]`, whether there is one.
    any: ValueId,
}

fn among(c: &mut Ctx, x: ValueId, keys: ValueId) -> Result<Found, OnnxError> {
    let last = c.rank(x);
    let x = with_last_axis(c, x)?;
    let equal = c.binary(Binary::Equal, x, keys)?;
    let each = c.cast(equal, DType::F32)?;
    let op = Op::Reduce {
        kind: Reduce::Max,
        axes: vec![last],
        keep_dims: false,
    };
    let most = c.emit(op, &[each])?;
    let nothing = c.scalar(DType::F32, 0.0)?;
    let any = c.binary(Binary::Greater, most, nothing)?;
    Ok(Found { each, any })
}

impl Found {
    /// The first equal key.
    fn place(&self, c: &mut Ctx) -> Result<ValueId, OnnxError> {
        let op = Op::ArgReduce {
            largest: true,
            axis: c.rank(self.each) - 1,
            keep_dims: false,
            select_last: false,
        };
        c.emit(op, &[self.each])
    }
}

/// The table's keys, values or default, in one of the attributes that may hold them.
fn column(c: &mut Ctx, of: &str) -> Result<Option<ValueId>, OnnxError> {
    // A default is one number.
    let (floats, ints, tensor, strings) = match of {
        "default" => ("", "", "default_tensor", "default_string"),
        _ => (
            &*format!("{of}_floats"),
            &*format!("{of}_int64s"),
            &*format!("{of}_tensor"),
            &*format!("{of}_strings"),
        ),
    };
    if let Some(numbers) = c.floats(floats)?.filter(|list| !list.is_empty()) {
        let literal = Literal::from_f32(&[numbers.len()], &numbers);
        return Ok(Some(c.constant(literal)));
    }
    if let Some(numbers) = c.ints(ints)?.filter(|list| !list.is_empty()) {
        let literal = Literal::from_i64(&[numbers.len()], &numbers);
        return Ok(Some(c.constant(literal)));
    }
    if let Some(given) = c.tensor(tensor)? {
        let value = c.builder.tensor(tensor, given)?;
        let count = c.ty(value).elements();
        return c.reshape(value, &[count]).map(Some);
    }
    if of != "default" && c.attribute(strings).is_some() {
        return Err(c.unsupported("a table of strings"));
    }
    Ok(None)
}

fn label_encoder(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    if c.attribute("classes_strings").is_some() {
        return Err(c.unsupported("a table of strings"));
    }
    let x = c.input(0)?;
    let (Some(keys), Some(values)) = (column(c, "keys")?, column(c, "values")?) else {
        return Err(c.bad("its keys or values are missing"));
    };
    let (count, dtype) = (c.ty(keys).elements(), c.dtype(values));
    if count != c.ty(values).elements() || count > MOST_KEYS || c.dtype(keys) != c.dtype(x) {
        return Err(c.bad("its keys do not fit its values or its input"));
    }
    let default = match column(c, "default")? {
        Some(default) => c.reshape(default, &[])?,
        None if dtype.is_float() => c.scalar(dtype, c.float("default_float", -0.0)?.into())?,
        None => {
            let default = Literal::from_i64(&[], &[c.int("default_int64", -1)?]);
            let default = c.constant(default);
            c.cast(default, dtype)?
        }
    };
    let found = among(c, x, keys)?;
    let place = found.place(c)?;
    let known = c.emit(Op::Gather { axis: 0 }, &[values, place])?;
    let mut y = c.emit(Op::Where, &[found.any, known, default])?;
    // From opset 4 on, NaN is a key like others.
    let key_numbers = c.known_f32(keys, "its keys")?;
    if let Some(at) = key_numbers.iter().position(|key| key.is_nan())
        && c.version >= 4
    {
        let at = c.constant(Literal::from_i64(&[], &[at as i64]));
        let of_nan = c.emit(Op::Gather { axis: 0 }, &[values, at])?;
        let is_nan = c.unary(Unary::IsNan, x)?;
        y = c.emit(Op::Where, &[is_nan, of_nan, y])?;
    }
    Ok(y)
}

/// A column for each category. Where another number is an error, a table is read beyond its end.
fn one_hot_encoder(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    if c.attribute("cats_strings").is_some() {
        return Err(c.unsupported("categories that are strings"));
    }
    let categories = c.ints("cats_int64s")?.unwrap_or_default();
    let count = categories.len();
    let mut sorted = categories.clone();
    sorted.sort_unstable();
    if count == 0 || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(c.bad("its categories are missing, or one is listed twice"));
    }
    let x = c.input(0)?;
    let x = c.cast(x, DType::I64)?;
    let keys = c.constant(Literal::from_i64(&[count], &categories));
    let found = among(c, x, keys)?;
    if c.flag("zeros", true)? {
        return Ok(found.each);
    }
    if count > MOST_CATEGORIES {
        return Err(c.unsupported("so many categories without zeros"));
    }
    let place = found.place(c)?;
    let beyond = c.constant(Literal::from_i64(&[], &[count as i64]));
    let place = c.emit(Op::Where, &[found.any, place, beyond])?;
    let ones = (0..count * count).map(|i| f64::from(u8::from(i / count == i % count)));
    let ones: Vec<f64> = ones.collect();
    let table = numbers_of(c, DType::F32, &[count, count], &ones)?;
    c.emit(Op::Gather { axis: 0 }, &[table, place])
}
