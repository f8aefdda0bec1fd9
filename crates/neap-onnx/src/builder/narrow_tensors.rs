//! Constants of the model, also of types of fewer bits than any of ours.

use super::{At, Builder};
use crate::error::OnnxError;
use crate::narrow::{self, FLOAT4S, Narrow};
use crate::proto::TensorProto;
use crate::tensor;
use neap_ir::{DType, Float8, Literal, Op, ValueId};

impl Builder {
    /// The constant of the model that a tensor describes; `is_weights` of a layer, and nothing else.
    pub(crate) fn tensor_of(
        &mut self,
        name: &str,
        tensor: &TensorProto,
        is_weights: bool,
    ) -> Result<ValueId, OnnxError> {
        let Some(narrow) = Narrow::of(tensor.data_type) else {
            return self.held(name, tensor, is_weights);
        };
        let values = match narrow {
            Narrow::Float8(kind) => self.float8s(name, tensor, kind)?,
            Narrow::Float4 => self.float4s(name, tensor)?,
            Narrow::Power => self.powers(name, tensor)?,
            Narrow::Integer { bits: 2, signed } => {
                let literal = tensor::pairs_of_bits(&mut self.files, tensor, signed)?;
                self.literal(literal)
            }
            Narrow::Integer { signed, .. } => self.nibbles(name, tensor, signed, is_weights)?,
        };
        self.set_narrow(values, narrow);
        Ok(values)
    }

    /// A tensor of a type of ours; where it is large its elements stay in the file.
    fn held(
        &mut self,
        name: &str,
        tensor: &TensorProto,
        is_weights: bool,
    ) -> Result<ValueId, OnnxError> {
        let (ty, data) = match is_weights && self.leaves_weights {
            true => tensor::load_weights(&mut self.files, tensor, self.widen)?,
            false => tensor::load(&mut self.files, tensor, self.widen)?,
        };
        Ok(self.initializer(name, ty, data))
    }

    /// Four-bit integers: the bytes that hold them, which may be left in the file, and what they stand for.
    fn nibbles(
        &mut self,
        name: &str,
        tensor: &TensorProto,
        signed: bool,
        is_weights: bool,
    ) -> Result<ValueId, OnnxError> {
        let (held, shape) = tensor::nibbles(tensor)?;
        let id = self.held(name, &held, is_weights)?;
        let at = At {
            node: name,
            op: "tensor of four-bit integers",
        };
        let op = Op::Nibbles { shape, signed };
        self.only(at, op, &[id])
    }

    /// Four-bit floats: each is a place in a table of all of them.
    fn float4s(&mut self, name: &str, tensor: &TensorProto) -> Result<ValueId, OnnxError> {
        let codes = self.nibbles(name, tensor, false, false)?;
        let at = At {
            node: name,
            op: "tensor of four-bit floats",
        };
        let all = [FLOAT4S, FLOAT4S.map(|x| -x)].concat();
        self.listed(at, codes, &all)
    }

    /// Powers of two, from a table as well.
    fn powers(&mut self, name: &str, tensor: &TensorProto) -> Result<ValueId, OnnxError> {
        let codes = self.held(name, &tensor::as_bytes(tensor), false)?;
        let at = At {
            node: name,
            op: "tensor of powers of two",
        };
        let all: Vec<f32> = (0..=u8::MAX).map(narrow::power).collect();
        self.listed(at, codes, &all)
    }

    /// What a table has at these places.
    fn listed(&mut self, at: At, places: ValueId, table: &[f32]) -> Result<ValueId, OnnxError> {
        let places = self.only(at, Op::Cast { to: DType::I32 }, &[places])?;
        let table = self.literal(Literal::from_f32(&[table.len()], table));
        self.only(at, Op::Gather { axis: 0 }, &[table, places])
    }

    /// 8-bit floats: their bytes, which are left in the file where they are many, and what they stand for.
    fn float8s(
        &mut self,
        name: &str,
        tensor: &TensorProto,
        kind: Float8,
    ) -> Result<ValueId, OnnxError> {
        let id = self.held(name, &tensor::as_bytes(tensor), false)?;
        let at = At {
            node: name,
            op: "tensor of 8-bit floats",
        };
        self.only(at, Op::Float8s { kind }, &[id])
    }

    /// The one result of an operator on constants.
    fn only(&mut self, at: At, op: Op, inputs: &[ValueId]) -> Result<ValueId, OnnxError> {
        let inputs: Vec<Option<ValueId>> = inputs.iter().copied().map(Some).collect();
        let values = self.emit(at, op, &inputs, &[true])?;
        values[0].ok_or_else(|| at.bad("it has no elements"))
    }
}
