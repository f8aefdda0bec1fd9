//! Seeded random inputs: the same seed gives the same values on every machine.

use neaptide::{DType, TensorInfo};

/// Integers stay below this, which every vocabulary and table in use has.
const MAX_INTEGER: u64 = 100;

/// Floats from the standard normal distribution; integers from 0 to 99; masks are all ones and token
/// types all zeros, told by the input's name.
pub fn tensor(info: &TensorInfo, seed: u64, index: usize) -> Result<Vec<u8>, String> {
    let dtype = info.ty.dtype;
    let mut random = SplitMix(seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let elements = info.ty.elements();
    let mut bytes = super::room(info.len_bytes())?;
    match dtype {
        DType::F32 => (0..elements).for_each(|_| bytes.extend(random.normal().to_le_bytes())),
        DType::F64 => {
            (0..elements).for_each(|_| bytes.extend(f64::from(random.normal()).to_le_bytes()));
        }
        DType::F16 => (0..elements).for_each(|_| {
            bytes.extend(half::f16::from_f32(random.normal()).to_le_bytes());
        }),
        DType::BF16 => (0..elements).for_each(|_| {
            bytes.extend(half::bf16::from_f32(random.normal()).to_le_bytes());
        }),
        DType::Bool => (0..elements).for_each(|_| bytes.push((random.next() & 1) as u8)),
        _ => {
            let constant = match &info.name {
                name if name.contains("mask") => Some(1),
                name if name.contains("type") => Some(0),
                _ => None,
            };
            for _ in 0..elements {
                let value = constant.unwrap_or_else(|| random.next() % MAX_INTEGER);
                bytes.extend(&value.to_le_bytes()[..dtype.size_bytes()]);
            }
        }
    }
    Ok(bytes)
}

struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A sum of twelve uniform values less six: near enough to normal, and the same on every machine,
    /// which logarithms are not.
    fn normal(&mut self) -> f32 {
        let sum: u64 = (0..3)
            .map(|_| {
                let bits = self.next();
                (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum::<u64>()
            })
            .sum();
        (sum as f64 / 65535.0 - 6.0) as f32
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What a model says of an input.
    pub fn info(dtype: &str, shape: &[usize]) -> TensorInfo {
        let dtype = match dtype {
            "float32" => DType::F32,
            "int64" => DType::I64,
            "uint8" => DType::U8,
            "bool" => DType::Bool,
            other => panic!("add {other} here"),
        };
        TensorInfo::new("x", dtype, shape)
    }

    #[test]
    fn normal_values() {
        let info = info("float32", &[100, 100]);
        let bytes = tensor(&info, 0, 0).unwrap();
        let values: Vec<f64> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into())
            .collect();
        let mean = values.iter().sum::<f64>() / 1e4;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(
            mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05,
            "{mean} {variance}"
        );
        assert_eq!(bytes, tensor(&info, 0, 0).unwrap());
        assert_ne!(bytes, tensor(&info, 1, 0).unwrap());
        assert_ne!(bytes, tensor(&info, 0, 1).unwrap());
    }

    #[test]
    fn integers_are_small_and_masks_are_ones() {
        let mut info = info("int64", &[50]);
        let values = |info: &TensorInfo| -> Vec<i64> {
            let bytes = tensor(info, 3, 0).unwrap();
            bytes
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()))
                .collect()
        };
        let ids = values(&info);
        assert!(ids.iter().all(|v| (0..100).contains(v)) && ids.iter().any(|&v| v != ids[0]));
        info.name = "attention_mask".into();
        assert!(values(&info).iter().all(|&v| v == 1));
    }
}
