//! Times as users write them.

use std::time::Duration;

/// A year is as good as for ever, and any clock can hold it.
const MOST_SECONDS: f64 = 3.2e7;

/// `500us`, `250ms`, `1.5s`, `2m` or `2min`, `1h`; up to a year.
///
/// # Errors
/// What to write instead.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let bad = || format!("'{text}' is no time: write 5s, 250ms, 500us, 2m or 1h");
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit_seconds = match unit.trim() {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let seconds = number.parse::<f64>().map_err(|_| bad())? * unit_seconds;
    if seconds > MOST_SECONDS {
        return Err(format!("'{text}' is out of range"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit() {
        for (text, ms) in [
            ("500us", 0.5),
            (" 250 ms ", 250.0),
            ("1.5s", 1500.0),
            ("2m", 120e3),
            ("2min", 120e3),
            ("1h", 3600e3),
            ("0s", 0.0),
        ] {
            let time = Duration::from_secs_f64(ms / 1e3);
            assert_eq!(parse_duration(text), Ok(time), "{text}");
        }
    }

    #[test]
    fn mistakes() {
        for text in [
            "",
            "5",
            "s",
            "5x",
            "-1s",
            "1.2.3s",
            "nan",
            "2days",
            "99999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
