//! Element types of fewer bits than any of ours: integers of 2 and 4 bits, floats of 4 and 8 bits, and powers of two in 8
//! bits. Their values are carried by wider types, which hold them exactly. The builder keeps which values are such, for
//! operators whose result has the type of an operand.

use neap_ir::{DType, Float8};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Narrow {
    Integer {
        bits: u32,
        signed: bool,
    },
    /// A sign, two bits of exponent, one of mantissa; neither infinities nor NaN.
    Float4,
    Float8(Float8),
    /// An exponent alone, from -127 on, and NaN. Such are the scales of microscaling formats.
    Power,
}

/// Those without a sign, by their bits.
pub(crate) const FLOAT4S: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// What a power of two in 8 bits stands for.
pub(crate) fn power(code: u8) -> f32 {
    match code {
        0xff => f32::NAN,
        // The least is half of what an exponent of f32 says.
        0 => f32::MIN_POSITIVE / 2.0,
        code => f32::from_bits(u32::from(code) << 23),
    }
}

impl Narrow {
    /// Of ONNX's number of an element type.
    pub(crate) fn of(data_type: i64) -> Option<Narrow> {
        Some(match data_type {
            17 => Narrow::Float8(Float8::E4M3Fn),
            18 => Narrow::Float8(Float8::E4M3FnUz),
            19 => Narrow::Float8(Float8::E5M2),
            20 => Narrow::Float8(Float8::E5M2FnUz),
            21 | 22 => Narrow::Integer {
                bits: 4,
                signed: data_type == 22,
            },
            23 => Narrow::Float4,
            24 => Narrow::Power,
            25 | 26 => Narrow::Integer {
                bits: 2,
                signed: data_type == 26,
            },
            _ => return None,
        })
    }

    /// The type of its values in the graph.
    pub(crate) fn carrier(self) -> DType {
        match self {
            Narrow::Integer { signed: false, .. } => DType::U8,
            Narrow::Integer { signed: true, .. } => DType::I8,
            Narrow::Float4 | Narrow::Float8(_) | Narrow::Power => DType::F32,
        }
    }
}
