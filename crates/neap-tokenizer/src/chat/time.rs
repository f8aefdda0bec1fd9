//! Dates as templates ask for them: in the words of C's `strftime`, in UTC.

use minijinja::{Error, ErrorKind};
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// From the day of the epoch on.
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

pub(super) fn strftime(format: &str, now: SystemTime) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let month_name = MONTHS[month as usize - 1];
    let day_name = DAYS[(days % 7) as usize];
    let of_twelve = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let mut asked = letters.next();
        // As GNU's library has it: without a zero before it.
        let is_short = asked == Some('-');
        if is_short {
            asked = letters.next();
        }
        let number = |number: u64| match is_short {
            true => number.to_string(),
            false => format!("{number:02}"),
        };
        out += &match asked {
            Some('Y') => year.to_string(),
            Some('y') => number(year % 100),
            Some('m') => number(month),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('d') => number(day),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => number(hour),
            Some('I') => number(of_twelve),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => number(minute),
            Some('S') => number(second),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let what = format!("strftime_now does not know %{}", other.unwrap_or(' '));
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        };
    }
    Ok(out)
}

/// Year, month and day from days since the epoch, in years that begin in March, so that leap days are last.
///
/// Source: H. Hinnant, "chrono-compatible low-level date algorithms".
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::strftime;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 Thursday 12 AM"),
            (951_782_400, "2000-02-29 00:00:00 Tuesday 12 AM"),
            (1_709_251_199, "2024-02-29 23:59:59 Thursday 11 PM"),
            (4_107_542_399, "2100-02-28 23:59:59 Sunday 11 PM"),
            (4_107_542_400, "2100-03-01 00:00:00 Monday 12 AM"),
        ] {
            let now = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(strftime("%F %T %A %I %p", now).unwrap(), expected);
        }
        let now = UNIX_EPOCH + Duration::from_secs(951_782_400);
        assert_eq!(
            strftime("%d %b %Y, %-m/%-d/%y", now).unwrap(),
            "29 Feb 2000, 2/29/00"
        );
        assert!(strftime("%Q", now).is_err());
    }
}
