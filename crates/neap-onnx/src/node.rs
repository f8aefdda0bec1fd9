//! One ONNX node while it is lowered: its operands, attributes and the operators it becomes.

use crate::builder::{At, Builder};
use crate::error::OnnxError;
use crate::late::Axis;
use crate::proto::{AttributeValue, NodeProto, TensorProto};
use crate::tensor;
use neap_ir::late::LateOp;
use neap_ir::op::{Binary, Unary};
use neap_ir::{DType, Literal, Op, TensorType, ValueId};

/// One entry per output of the ONNX node.
pub(crate) type Outputs = Result<Vec<Option<ValueId>>, OnnxError>;

pub(crate) fn one(value: Result<ValueId, OnnxError>) -> Outputs {
    value.map(|v| vec![Some(v)])
}

pub(crate) struct Ctx<'a> {
    pub(crate) builder: &'a mut Builder,
    pub(crate) node: &'a NodeProto,
    /// The node's name, or one made from its output.
    pub(crate) name: &'a str,
    /// Of the opset that the node's domain is imported with.
    pub(crate) version: i64,
    pub(crate) inputs: Vec<Option<ValueId>>,
}

impl<'a> Ctx<'a> {
    pub(crate) fn at(&self) -> At<'a> {
        At {
            node: self.name,
            op: &self.node.op_type,
        }
    }

    pub(crate) fn bad(&self, reason: impl Into<String>) -> OnnxError {
        self.at().bad(reason)
    }

    pub(crate) fn unsupported(&self, reason: impl Into<String>) -> OnnxError {
        self.at().unsupported(reason)
    }

    /// Nothing says how large the node's result may become, which this value decides.
    pub(crate) fn unbounded(&self, name: &str, by: ValueId) -> OnnxError {
        OnnxError::Unbounded {
            node: crate::error::shown(self.name),
            op: crate::error::shown(&self.node.op_type),
            name: crate::error::shown(name),
            inputs: self.builder.roots(by),
        }
    }

    // --- operands ---

    pub(crate) fn input(&self, index: usize) -> Result<ValueId, OnnxError> {
        self.optional(index)
            .ok_or_else(|| self.bad(format!("input {index} is missing")))
    }

    pub(crate) fn optional(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }

    /// All inputs of a variadic operator.
    pub(crate) fn variadic(&self) -> Result<Vec<ValueId>, OnnxError> {
        if self.inputs.is_empty() {
            return Err(self.bad("it has no inputs"));
        }
        (0..self.inputs.len()).map(|i| self.input(i)).collect()
    }

    pub(crate) fn ty(&self, value: ValueId) -> &TensorType {
        self.builder.ty(value)
    }

    pub(crate) fn dtype(&self, value: ValueId) -> DType {
        self.ty(value).dtype
    }

    pub(crate) fn shape(&self, value: ValueId) -> Vec<usize> {
        self.ty(value).shape.clone()
    }

    /// Whether it is a constant that is left in the model's file.
    pub(crate) fn is_stored(&self, value: ValueId) -> bool {
        let data = self.builder.graph.constant(value);
        matches!(data, Some(neap_ir::Const::Stored { .. }))
    }

    pub(crate) fn rank(&self, value: ValueId) -> usize {
        self.ty(value).shape.len()
    }

    /// Shape of an operand that must have at least that many axes.
    pub(crate) fn shape_of_rank(
        &self,
        value: ValueId,
        at_least: usize,
    ) -> Result<Vec<usize>, OnnxError> {
        let shape = self.shape(value);
        if shape.len() < at_least {
            return Err(self.bad(format!(
                "an operand of shape {shape:?} needs at least {at_least} dimensions"
            )));
        }
        Ok(shape)
    }

    pub(crate) fn wants(&self, output: usize) -> bool {
        self.node.outputs.get(output).is_some_and(|n| !n.is_empty())
    }

    /// The elements of an input that decides shapes; `what` names it in the question to the user.
    pub(crate) fn known(&mut self, value: ValueId, what: &str) -> Result<Literal, OnnxError> {
        match self.builder.known(value)? {
            Some(literal) => Ok(literal),
            None => Err(OnnxError::DynamicShape {
                node: crate::error::shown(self.name),
                op: crate::error::shown(&self.node.op_type),
                what: what.to_string(),
                inputs: self.builder.roots(value),
            }),
        }
    }

    pub(crate) fn known_i64(&mut self, value: ValueId, what: &str) -> Result<Vec<i64>, OnnxError> {
        let literal = self.known(value, what)?;
        literal
            .to_i64_vec()
            .ok_or_else(|| self.bad(format!("{what} has type {}", literal.dtype())))
    }

    pub(crate) fn known_f32(&mut self, value: ValueId, what: &str) -> Result<Vec<f32>, OnnxError> {
        let literal = self.known(value, what)?;
        to_f64_vec(&literal)
            .map(|v| v.into_iter().map(|x| x as f32).collect())
            .ok_or_else(|| self.bad(format!("{what} has type {}", literal.dtype())))
    }

    /// An optional input of one element.
    pub(crate) fn known_scalar(
        &mut self,
        index: usize,
        what: &str,
    ) -> Result<Option<i64>, OnnxError> {
        let Some(value) = self.optional(index) else {
            return Ok(None);
        };
        match self.known_i64(value, what)?[..] {
            [x] => Ok(Some(x)),
            _ => Err(self.bad(format!("{what} must have one element"))),
        }
    }

    /// A list that is an attribute before opset `since` and input `index` from then on.
    pub(crate) fn ints_or_input(
        &mut self,
        attribute: &str,
        index: usize,
        since: i64,
    ) -> Result<Option<Vec<i64>>, OnnxError> {
        if self.version < since {
            return self.ints(attribute);
        }
        match self.optional(index) {
            Some(value) => self.known_i64(value, &format!("its {attribute}")).map(Some),
            None => Ok(None),
        }
    }

    // --- attributes ---

    pub(crate) fn attribute(&self, name: &str) -> Option<&'a AttributeValue> {
        let found = self.node.attributes.iter().find(|a| a.name == name);
        found
            .map(|a| &a.value)
            .filter(|v| !matches!(v, AttributeValue::None))
    }

    fn wrong_type(&self, name: &str) -> OnnxError {
        self.bad(format!("attribute '{name}' has the wrong type"))
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> Result<i64, OnnxError> {
        Ok(self.optional_int(name)?.unwrap_or(default))
    }

    pub(crate) fn optional_int(&self, name: &str) -> Result<Option<i64>, OnnxError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Int(v)) => Ok(Some(*v)),
            Some(_) => Err(self.wrong_type(name)),
        }
    }

    pub(crate) fn flag(&self, name: &str, default: bool) -> Result<bool, OnnxError> {
        let value = self.int(name, default.into())?;
        self.checked_flag(name, value)
    }

    /// Other engines read other numbers as one or the other.
    pub(crate) fn checked_flag(&self, name: &str, value: i64) -> Result<bool, OnnxError> {
        match value {
            0 | 1 => Ok(value == 1),
            _ => Err(self.bad(format!("attribute '{name}' is {value}, neither 0 nor 1"))),
        }
    }

    /// A list of flags; `None` where the attribute is left out.
    pub(crate) fn flags(&self, name: &str) -> Result<Option<Vec<bool>>, OnnxError> {
        let checked = |values: Vec<i64>| {
            let flags = values.into_iter().map(|v| self.checked_flag(name, v));
            flags.collect()
        };
        self.ints(name)?.map(checked).transpose()
    }

    /// A count: not negative, and small enough for arithmetic.
    pub(crate) fn size(&self, name: &str, default: usize) -> Result<usize, OnnxError> {
        match self.optional_int(name)? {
            None => Ok(default),
            Some(v) => self.checked_size(name, v),
        }
    }

    pub(crate) fn checked_size(&self, what: &str, value: i64) -> Result<usize, OnnxError> {
        usize::try_from(value)
            .ok()
            .filter(|&v| v <= 1 << 40)
            .ok_or_else(|| self.bad(format!("{what} {value} is out of range")))
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> Result<f32, OnnxError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(AttributeValue::Float(v)) => Ok(*v),
            Some(AttributeValue::Int(v)) => Ok(*v as f32),
            Some(_) => Err(self.wrong_type(name)),
        }
    }

    pub(crate) fn ints(&self, name: &str) -> Result<Option<Vec<i64>>, OnnxError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Ints(v)) => Ok(Some(v.clone())),
            Some(_) => Err(self.wrong_type(name)),
        }
    }

    /// A list of counts; `None` when the attribute is absent.
    pub(crate) fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>, OnnxError> {
        let Some(values) = self.ints(name)? else {
            return Ok(None);
        };
        let values = values.into_iter().map(|v| self.checked_size(name, v));
        values.collect::<Result<_, _>>().map(Some)
    }

    pub(crate) fn floats(&self, name: &str) -> Result<Option<Vec<f32>>, OnnxError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Floats(v)) => Ok(Some(v.clone())),
            Some(AttributeValue::Ints(v)) if v.is_empty() => Ok(Some(Vec::new())),
            Some(_) => Err(self.wrong_type(name)),
        }
    }

    pub(crate) fn string(&self, name: &str, default: &'a str) -> Result<&'a str, OnnxError> {
        match self.attribute(name) {
            None => Ok(default),
            Some(AttributeValue::String(v)) => {
                std::str::from_utf8(v).map_err(|_| self.wrong_type(name))
            }
            Some(_) => Err(self.wrong_type(name)),
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Result<Option<&'a TensorProto>, OnnxError> {
        match self.attribute(name) {
            None => Ok(None),
            Some(AttributeValue::Tensor(t)) => Ok(Some(t)),
            Some(_) => Err(self.wrong_type(name)),
        }
    }

    /// An element type given as ONNX's number; half floats widen as the builder is told to.
    pub(crate) fn element_type(&self, number: i64) -> Result<DType, OnnxError> {
        let dtype = tensor::dtype(number).map_err(|e| self.bad(e))?;
        Ok(tensor::value_dtype(dtype, self.builder.widen))
    }

    /// An axis counted from the front or, when negative, from the back.
    pub(crate) fn axis(&self, axis: i64, rank: usize) -> Result<usize, OnnxError> {
        let positive = if axis < 0 {
            axis.checked_add(rank as i64)
        } else {
            Some(axis)
        };
        positive
            .and_then(|a| usize::try_from(a).ok())
            .filter(|&a| a < rank)
            .ok_or_else(|| self.bad(format!("axis {axis} is out of range for rank {rank}")))
    }

    /// Several axes, each at most once, in rising order.
    pub(crate) fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, OnnxError> {
        let mut resolved = axes
            .iter()
            .map(|&a| self.axis(a, rank))
            .collect::<Result<Vec<_>, _>>()?;
        resolved.sort_unstable();
        if resolved.windows(2).any(|w| w[0] == w[1]) {
            return Err(self.bad("an axis is named twice"));
        }
        Ok(resolved)
    }

    // --- operators to emit ---

    pub(crate) fn emit(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, OnnxError> {
        let inputs: Vec<Option<ValueId>> = inputs.iter().copied().map(Some).collect();
        self.emit_optional(op, &inputs)
    }

    pub(crate) fn emit_optional(
        &mut self,
        op: Op,
        inputs: &[Option<ValueId>],
    ) -> Result<ValueId, OnnxError> {
        let at = self.at();
        let outputs = self.builder.emit(at, op, inputs, &[true])?;
        outputs[0].ok_or_else(|| self.bad("it has no output"))
    }

    /// An operator over sizes that are known only when running, with one result.
    pub(crate) fn emit_late(
        &mut self,
        op: LateOp,
        inputs: &[Option<ValueId>],
        dtype: DType,
        axes: Vec<Axis>,
    ) -> Result<ValueId, OnnxError> {
        let at = self.at();
        let results = vec![(dtype, axes)];
        let outputs = self.builder.emit_late(at, op, inputs, results, &[true])?;
        outputs[0].ok_or_else(|| self.bad("it has no output"))
    }

    /// For operators whose outputs are ONNX's, those that nobody names left out.
    pub(crate) fn emit_outputs(&mut self, op: Op, inputs: &[Option<ValueId>]) -> Outputs {
        let used = self.node.outputs.iter().rposition(|n| !n.is_empty());
        let count = used.map_or(1, |last| last + 1);
        let wanted: Vec<bool> = (0..count).map(|i| self.wants(i)).collect();
        self.emit_wanted(op, inputs, &wanted)
    }

    pub(crate) fn emit_wanted(
        &mut self,
        op: Op,
        inputs: &[Option<ValueId>],
        wanted: &[bool],
    ) -> Outputs {
        let at = self.at();
        self.builder.emit(at, op, inputs, wanted)
    }

    pub(crate) fn unary(&mut self, op: Unary, x: ValueId) -> Result<ValueId, OnnxError> {
        self.emit(Op::Unary(op), &[x])
    }

    pub(crate) fn binary(
        &mut self,
        op: Binary,
        a: ValueId,
        b: ValueId,
    ) -> Result<ValueId, OnnxError> {
        self.emit(Op::Binary(op), &[a, b])
    }

    pub(crate) fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, OnnxError> {
        let shape = shape.to_vec();
        self.emit(Op::Reshape { shape }, &[x])
    }

    pub(crate) fn expand(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, OnnxError> {
        let shape = shape.to_vec();
        self.emit(Op::Expand { shape }, &[x])
    }

    pub(crate) fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, OnnxError> {
        if self.dtype(x) == to {
            return Ok(x);
        }
        self.emit(Op::Cast { to }, &[x])
    }

    pub(crate) fn constant(&mut self, literal: Literal) -> ValueId {
        self.builder.literal(literal)
    }

    /// A scalar constant of the given type.
    pub(crate) fn scalar(&mut self, dtype: DType, value: f64) -> Result<ValueId, OnnxError> {
        let literal = scalar(dtype, value);
        Ok(self.constant(literal))
    }

    /// A tensor with one value everywhere; an `Expand` when it is large.
    pub(crate) fn filled(
        &mut self,
        scalar: Literal,
        shape: &[usize],
    ) -> Result<ValueId, OnnxError> {
        if tensor::is_huge(shape) || shape.len() > tensor::MAX_RANK {
            return Err(self.bad(format!("its output {shape:?} is impossibly large")));
        }
        let scalar = self.constant(scalar.reshaped(&[]));
        self.expand(scalar, shape)
    }
}

/// One element of any type.
pub(crate) fn scalar(dtype: DType, value: f64) -> Literal {
    let mut literal = Literal::zeros(dtype, &[]);
    let bytes = literal.bytes_mut();
    match dtype {
        DType::F32 => bytes.copy_from_slice(&(value as f32).to_le_bytes()),
        DType::F64 => bytes.copy_from_slice(&value.to_le_bytes()),
        DType::F16 => bytes.copy_from_slice(&half::f16::from_f64(value).to_le_bytes()),
        DType::BF16 => bytes.copy_from_slice(&half::bf16::from_f64(value).to_le_bytes()),
        DType::U64 => bytes.copy_from_slice(&(value as u64).to_le_bytes()),
        DType::Bool => bytes[0] = (value != 0.0).into(),
        _ => {
            let size = bytes.len();
            bytes.copy_from_slice(&(value as i64).to_le_bytes()[..size]);
        }
    }
    literal
}

/// Elements as f64, whatever their type.
pub(crate) fn to_f64_vec(literal: &Literal) -> Option<Vec<f64>> {
    let bytes = literal.bytes();
    let pairs = || bytes.as_chunks::<2>().0.iter();
    Some(match literal.dtype() {
        DType::F32 => literal.as_f32()?.iter().map(|&x| x.into()).collect(),
        DType::F64 => {
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|&b| f64::from_le_bytes(b)).collect()
        }
        DType::F16 => pairs()
            .map(|&b| half::f16::from_le_bytes(b).to_f64())
            .collect(),
        DType::BF16 => pairs()
            .map(|&b| half::bf16::from_le_bytes(b).to_f64())
            .collect(),
        _ => literal
            .to_i64_vec()?
            .into_iter()
            .map(|x| x as f64)
            .collect(),
    })
}
