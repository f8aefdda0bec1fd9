//! Numbers on the command line; a wrong one is refused by saying which are right.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// Whole numbers in a range; up to the largest of its type is no limit to speak of.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync {
    move |text| {
        let number = text.trim().parse::<u64>().ok();
        let number = number.filter(|number| range.contains(number));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| match *range.end() {
                u64::MAX => format!("'{text}' is no number from {}", range.start()),
                most => format!("'{text}' is no number from {} to {most}", range.start()),
            })
    }
}

/// Whole numbers from 0 to the largest of the type.
pub fn any<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let most = match size_of::<T>() {
        2 => u16::MAX.into(),
        4 => u32::MAX.into(),
        _ => u64::MAX,
    };
    whole(0..=most)(text)
}

/// Finite numbers from 0.
pub fn from_zero(text: &str) -> Result<f64, String> {
    finite(text, |number| number >= 0.0, "from 0")
}

fn finite(text: &str, is_right: impl Fn(f64) -> bool, which: impl Display) -> Result<f64, String> {
    let number = text.trim().parse::<f64>().ok();
    number
        .filter(|&number| number.is_finite() && is_right(number))
        .ok_or_else(|| format!("'{text}' is no number {which}"))
}

/// The same in fewer bits.
pub fn from_zero_f32(text: &str) -> Result<f32, String> {
    let most = f64::from(f32::MAX);
    finite(text, |number| (0.0..=most).contains(&number), "from 0").map(|number| number as f32)
}

/// Any finite number.
pub fn finite_f32(text: &str) -> Result<f32, String> {
    let most = f64::from(f32::MAX);
    let number = text.trim().parse::<f32>().ok();
    number
        .filter(|number| f64::from(number.abs()) <= most)
        .ok_or_else(|| format!("'{text}' is no finite number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_numbers_are_told_which_are_right() {
        let threads = whole::<u16>(1..=256);
        assert_eq!(threads("256"), Ok(256));
        for wrong in ["0", "257", "-1", "1e3", "", "2.5"] {
            let told = format!("'{wrong}' is no number from 1 to 256");
            assert_eq!(threads(wrong), Err(told));
        }
        assert_eq!(
            whole::<u64>(1..=u64::MAX)("0"),
            Err("'0' is no number from 1".into())
        );
        assert_eq!(any::<u32>("4294967295"), Ok(u32::MAX));
        assert!(any::<u32>("4294967296").is_err());
        assert_eq!(any::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(from_zero("3e-4"), Ok(3e-4));
        for wrong in ["nan", "inf", "-1", "x"] {
            assert!(from_zero(wrong).is_err() && from_zero_f32(wrong).is_err());
        }
        assert!(finite_f32("nan").is_err() && finite_f32("1e39").is_err());
        assert_eq!(finite_f32("-0.5"), Ok(-0.5));
    }
}
