//! Numbers in place of a file: `--input sr=16000`.

use half::{bf16, f16};
use neaptide::{DType, TensorInfo, shape_text};

/// Whether a text is one number or several, and so no file's name.
pub fn is_one(text: &str) -> bool {
    let mut numbers = text.split(',').map(str::trim);
    numbers.all(|n| n.parse::<f64>().is_ok() || matches!(n, "true" | "false"))
}

/// The tensor of as many numbers as it has elements.
pub fn tensor(text: &str, info: &TensorInfo) -> Result<Vec<u8>, String> {
    let numbers: Vec<&str> = text.split(',').map(str::trim).collect();
    let (count, elements) = (numbers.len(), info.ty.elements());
    if count != elements {
        let shape = shape_text(&info.ty.shape);
        return Err(format!(
            "'{text}' is {count} numbers, {shape} has {elements}: give a file such as .npy"
        ));
    }
    let mut bytes = Vec::with_capacity(info.len_bytes());
    for number in numbers {
        let element = element(number, info.ty.dtype)
            .ok_or_else(|| format!("'{number}' is not a value of {}", info.ty.dtype))?;
        bytes.extend(element);
    }
    Ok(bytes)
}

fn element(text: &str, dtype: DType) -> Option<Vec<u8>> {
    let float = || text.parse::<f64>().ok();
    Some(match dtype {
        DType::F32 => text.parse::<f32>().ok()?.to_le_bytes().to_vec(),
        DType::F64 => float()?.to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(float()?).to_le_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(float()?).to_le_bytes().to_vec(),
        DType::Bool => vec![match text {
            "true" | "1" => 1,
            "false" | "0" => 0,
            _ => return None,
        }],
        DType::U64 => text.parse::<u64>().ok()?.to_le_bytes().to_vec(),
        _ => {
            let number = text.parse::<i64>().ok()?;
            let bits = 8 * dtype.size_bytes() as u32;
            let (least, most) = match (dtype.is_signed_int(), bits) {
                (true, 64) => (i64::MIN, i64::MAX),
                (true, bits) => (-1 << (bits - 1), (1 << (bits - 1)) - 1),
                (false, bits) => (0, (1 << bits) - 1),
            };
            let bytes = number.to_le_bytes();
            let fits = (least..=most).contains(&number);
            fits.then(|| bytes[..dtype.size_bytes()].to_vec())?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_values_of_the_inputs_type() {
        let of =
            |text: &str, dtype, shape: &[usize]| tensor(text, &TensorInfo::new("x", dtype, shape));
        assert_eq!(
            of("16000", DType::I64, &[]),
            Ok(16000i64.to_le_bytes().to_vec())
        );
        assert_eq!(
            of("1.5", DType::F32, &[1]),
            Ok(1.5f32.to_le_bytes().to_vec())
        );
        assert_eq!(of("1,-2", DType::I8, &[2]), Ok(vec![1, 254]));
        assert_eq!(of("true", DType::Bool, &[1, 1]), Ok(vec![1]));
        assert!(of("1.5", DType::I64, &[]).unwrap_err().contains("1.5"));
        assert!(of("300", DType::U8, &[]).is_err() && of("-1", DType::U8, &[]).is_err());
        assert!(of("1", DType::F32, &[2]).unwrap_err().contains("1 numbers"));
        assert!(is_one("1e-3") && is_one("1, 2") && is_one("true") && !is_one("x.npy"));
    }
}
