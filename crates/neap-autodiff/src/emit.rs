//! Appends nodes to a graph, with the types that inference gives them.

use crate::error::AutodiffError;
use neap_ir::op::{Binary, Reduce, SliceRange, Unary};
use neap_ir::{DType, Graph, Literal, Node, Op, TensorType, ValueId, infer};

pub(crate) type Made = Result<ValueId, AutodiffError>;

/// A graph that grows at its end.
pub(crate) struct Emit {
    pub graph: Graph,
    /// Begins the names of new nodes and values.
    pub prefix: String,
}

impl Emit {
    pub fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    pub fn shape(&self, value: ValueId) -> Vec<usize> {
        self.ty(value).shape.clone()
    }

    pub fn dtype(&self, value: ValueId) -> DType {
        self.ty(value).dtype
    }

    /// Appends a node; outputs that are not wanted are left out.
    pub fn outputs(
        &mut self,
        op: Op,
        inputs: &[ValueId],
        wanted: &[bool],
    ) -> Result<Vec<Option<ValueId>>, AutodiffError> {
        let inputs: Vec<Option<ValueId>> = inputs.iter().map(|&v| Some(v)).collect();
        self.node(op, inputs, wanted)
    }

    /// As [`Emit::outputs`], for an operator whose inputs may be left out.
    pub fn node(
        &mut self,
        op: Op,
        inputs: Vec<Option<ValueId>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<ValueId>>, AutodiffError> {
        let types: Vec<_> = inputs
            .iter()
            .map(|i| i.map(|v| self.ty(v).clone()))
            .collect();
        let types = infer::output_types(&op, &types, wanted.len())?;
        let name = format!("{}/{}.{}", self.prefix, op.name(), self.graph.nodes.len());
        let mut outputs = Vec::new();
        for (i, (ty, &wanted)) in types.into_iter().zip(wanted).enumerate() {
            outputs.push(wanted.then(|| self.graph.add_value(format!("{name}.{i}"), ty)));
        }
        self.graph.nodes.push(Node {
            name,
            op,
            inputs,
            outputs: outputs.clone(),
            panels: None,
        });
        Ok(outputs)
    }

    /// Appends a node with one result.
    pub fn op(&mut self, op: Op, inputs: &[ValueId]) -> Made {
        let outputs = self.outputs(op, inputs, &[true])?;
        outputs
            .first()
            .copied()
            .flatten()
            .ok_or_else(|| AutodiffError::Request("an operator without a result".into()))
    }

    pub fn unary(&mut self, unary: Unary, x: ValueId) -> Made {
        self.op(Op::Unary(unary), &[x])
    }

    pub fn binary(&mut self, binary: Binary, a: ValueId, b: ValueId) -> Made {
        self.op(Op::Binary(binary), &[a, b])
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Made {
        self.binary(Binary::Mul, a, b)
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> Made {
        self.binary(Binary::Add, a, b)
    }

    /// `x * factor`, or `x` itself where the factor is 1.
    pub fn scale(&mut self, x: ValueId, factor: f64) -> Made {
        if factor == 1.0 {
            return Ok(x);
        }
        let factor = self.scalar(self.dtype(x), factor)?;
        self.mul(x, factor)
    }

    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Made {
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        let shape = shape.to_vec();
        self.op(Op::Reshape { shape }, &[x])
    }

    pub fn expand(&mut self, x: ValueId, shape: &[usize]) -> Made {
        if self.ty(x).shape == shape {
            return Ok(x);
        }
        let shape = shape.to_vec();
        self.op(Op::Expand { shape }, &[x])
    }

    pub fn transpose(&mut self, x: ValueId, perm: &[usize]) -> Made {
        if perm.iter().enumerate().all(|(i, &p)| i == p) {
            return Ok(x);
        }
        let perm = perm.to_vec();
        self.op(Op::Transpose { perm }, &[x])
    }

    /// Over some axes; of none, `x` itself (every kind that is used here leaves a single element as it is).
    pub fn reduce(&mut self, kind: Reduce, x: ValueId, axes: &[usize], keep_dims: bool) -> Made {
        if axes.is_empty() {
            return Ok(x);
        }
        let axes = axes.to_vec();
        self.op(
            Op::Reduce {
                kind,
                axes,
                keep_dims,
            },
            &[x],
        )
    }

    /// Elements `start..start + length` of an axis.
    pub fn part(&mut self, x: ValueId, axis: usize, start: usize, length: usize) -> Made {
        let shape = self.shape(x);
        let ranges = shape.iter().enumerate().map(|(i, &size)| SliceRange {
            start: if i == axis { start } else { 0 },
            step: 1,
            len: if i == axis { length } else { size },
        });
        let ranges = ranges.collect();
        self.op(Op::Slice { ranges }, &[x])
    }

    /// A constant without axes.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Made {
        let wide = Literal::from_bytes(DType::F64, &[], &value.to_le_bytes());
        let (Some(wide), true) = (wide, dtype.is_float()) else {
            return Err(AutodiffError::Request(format!("a constant of {dtype}")));
        };
        let literal = match dtype {
            DType::F64 => wide,
            DType::F32 => Literal::from_f32(&[], &[value as f32]),
            // 16-bit constants are rounded by the operator that would round them later.
            _ => {
                let name = format!("{}/constant.{}", self.prefix, self.graph.values.len());
                let wide = self.graph.add_literal(name, wide);
                return self.op(Op::Cast { to: dtype }, &[wide]);
            }
        };
        let name = format!("{}/constant.{}", self.prefix, self.graph.values.len());
        Ok(self.graph.add_literal(name, literal))
    }

    /// `x`, with 1 where it is 0: a divisor of what is 0 there.
    pub fn nonzero(&mut self, x: ValueId) -> Made {
        let zero = self.scalar(self.dtype(x), 0.0)?;
        let one = self.scalar(self.dtype(x), 1.0)?;
        let vanishes = self.binary(Binary::Equal, x, zero)?;
        self.op(Op::Where, &[vanishes, one, x])
    }

    pub fn indices(&mut self, shape: &[usize], data: &[i64]) -> ValueId {
        let name = format!("{}/indices.{}", self.prefix, self.graph.values.len());
        self.graph.add_literal(name, Literal::from_i64(shape, data))
    }

    /// A tensor of zeros, made when it is needed.
    pub fn zeros(&mut self, dtype: DType, shape: &[usize]) -> Made {
        let zero = self.scalar(dtype, 0.0)?;
        self.expand(zero, shape)
    }

    /// Undoes a broadcast: sums over the axes along which an operand of `shape` was repeated.
    pub fn sum_to(&mut self, x: ValueId, shape: &[usize]) -> Made {
        let from = self.shape(x);
        if from == shape {
            return Ok(x);
        }
        let lead = from.len() - shape.len();
        let repeated = |i: &usize| *i < lead || (shape[*i - lead] == 1 && from[*i] != 1);
        let axes: Vec<usize> = (0..from.len()).filter(repeated).collect();
        let sums = self.reduce(Reduce::Sum, x, &axes, true)?;
        self.reshape(sums, shape)
    }
}
