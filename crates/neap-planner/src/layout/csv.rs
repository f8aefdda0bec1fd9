//! Problems and layouts as comma-separated text, in MiniMalloc's format.
//!
//! ```text
//!   id,lower,upper,size[,alignment][,offset]      any order of columns
//!   a,0,3,4096                                    live in lower..upper, half-open; start and end, too
//! ```
//!
//! `offset`, in what is read, is ignored; what is written has the same buffers in the same order with theirs.

use super::{Block, StaticLayout};
use neap_plan::StepRange;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use thiserror::Error;

/// All sizes and alignments together: leaves room to compute with sums.
const MOST_BYTES: u64 = 1 << 62;

/// Buffers as they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub ids: Vec<String>,
    /// Lower and upper, as they were written.
    pub times: Vec<(i64, i64)>,
    /// Their live ranges are steps in the order of times.
    pub blocks: Vec<Block>,
    /// Whether alignments were given.
    pub aligned: bool,
}

/// What is wrong, and in which line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {what}")]
pub struct Malformed {
    pub line: usize,
    pub what: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Column {
    Id,
    Lower,
    Upper,
    Size,
    Alignment,
    Offset,
}

const COLUMNS: [(Column, &[&str]); 6] = [
    (Column::Id, &["id", "buffer", "buffer_id"]),
    (Column::Lower, &["lower", "start", "begin"]),
    (Column::Upper, &["upper", "end"]),
    (Column::Size, &["size"]),
    (Column::Alignment, &["alignment"]),
    (Column::Offset, &["offset"]),
];

/// Reads a problem.
///
/// # Errors
/// [`Malformed`] names the line.
pub fn read(text: &str) -> Result<Table, Malformed> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.trim().is_empty());
    let (number, header) = lines
        .next()
        .ok_or_else(|| malformed(1, "there is no header"))?;
    let columns = columns(header).map_err(|what| malformed(number, what))?;
    let at = |column| columns.iter().position(|c| *c == column);
    let needed = |column, name: &str| {
        at(column).ok_or_else(|| malformed(number, format!("the header has no column '{name}'")))
    };
    let (id, size) = (needed(Column::Id, "id")?, needed(Column::Size, "size")?);
    let (lower, upper) = (
        needed(Column::Lower, "lower")?,
        needed(Column::Upper, "upper")?,
    );
    let alignment = at(Column::Alignment);
    let mut table = Table {
        aligned: alignment.is_some(),
        ..Table::default()
    };
    let mut seen = HashSet::new();
    let mut total_bytes = 0u64;
    for (number, line) in lines {
        let wrong = |what: String| malformed(number, what);
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if fields.len() != columns.len() {
            let (have, want) = (fields.len(), columns.len());
            return Err(wrong(format!("{have} fields where the header has {want}")));
        }
        if !seen.insert(fields[id]) {
            return Err(wrong(format!("id '{}' is there twice", shown(fields[id]))));
        }
        let times = (
            number_in::<i64>(fields[lower], "lower").map_err(wrong)?,
            number_in::<i64>(fields[upper], "upper").map_err(wrong)?,
        );
        if times.0 >= times.1 {
            return Err(wrong(format!(
                "lower {} is not below upper {}",
                times.0, times.1
            )));
        }
        let bytes = number_in::<u64>(fields[size], "size").map_err(wrong)?;
        let align = match alignment {
            Some(at) => number_in::<u64>(fields[at], "alignment").map_err(wrong)?,
            None => 1,
        };
        if bytes == 0 {
            return Err(wrong("size is 0".into()));
        }
        if !align.is_power_of_two() {
            return Err(wrong(format!("alignment {align} is no power of two")));
        }
        total_bytes = bytes
            .checked_add(align - 1)
            .and_then(|b| b.checked_add(total_bytes))
            .filter(|&total| total <= MOST_BYTES)
            .ok_or_else(|| wrong(format!("sizes add up to more than {MOST_BYTES}")))?;
        table.ids.push(fields[id].to_owned());
        table.times.push(times);
        table.blocks.push(Block {
            bytes,
            align,
            live: StepRange::new(0, 0),
        });
    }
    let steps = steps(&table.times).ok_or_else(|| malformed(number, "too many buffers"))?;
    for (block, live) in table.blocks.iter_mut().zip(steps) {
        block.live = live;
    }
    Ok(table)
}

/// The problem with the offsets of a layout.
pub fn write(table: &Table, layout: &StaticLayout) -> String {
    let mut text = String::from("id,lower,upper,size");
    text.push_str(if table.aligned {
        ",alignment,offset\n"
    } else {
        ",offset\n"
    });
    for (i, block) in table.blocks.iter().enumerate() {
        let (lower, upper) = table.times[i];
        // Writing to a string cannot fail.
        let _ = write!(text, "{},{lower},{upper},{}", table.ids[i], block.bytes);
        if table.aligned {
            let _ = write!(text, ",{}", block.align);
        }
        let _ = writeln!(text, ",{}", layout.offsets[i]);
    }
    text
}

fn columns(header: &str) -> Result<Vec<Column>, String> {
    let mut columns = Vec::new();
    for name in header.split(',').map(str::trim) {
        let lower = name.to_ascii_lowercase();
        let known = COLUMNS
            .iter()
            .find(|(_, names)| names.contains(&lower.as_str()));
        let (column, _) = known.ok_or_else(|| format!("unknown column '{}'", shown(name)))?;
        if columns.contains(column) {
            return Err(format!("column '{}' is there twice", shown(name)));
        }
        columns.push(*column);
    }
    Ok(columns)
}

fn number_in<T: std::str::FromStr>(text: &str, column: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{column} '{}' is no number within range", shown(text)))
}

/// Times as steps: the same distances where these fit, else only the same order.
fn steps(times: &[(i64, i64)]) -> Option<Vec<StepRange>> {
    let first = times.iter().map(|t| t.0).min().unwrap_or(0);
    let last = times.iter().map(|t| t.1).max().unwrap_or(0);
    if let Ok(span) = u32::try_from(i128::from(last) - i128::from(first))
        && span < u32::MAX
    {
        let step = |t: i64| (i128::from(t) - i128::from(first)) as u32;
        return Some(
            times
                .iter()
                .map(|t| StepRange::new(step(t.0), step(t.1)))
                .collect(),
        );
    }
    let mut distinct: Vec<i64> = times.iter().flat_map(|t| [t.0, t.1]).collect();
    distinct.sort_unstable();
    distinct.dedup();
    u32::try_from(distinct.len()).ok()?;
    let step: HashMap<i64, u32> = distinct.into_iter().zip(0..).collect();
    Some(
        times
            .iter()
            .map(|t| StepRange::new(step[&t.0], step[&t.1]))
            .collect(),
    )
}

/// Enough of a field to find it by.
fn shown(field: &str) -> String {
    let mut text: String = field
        .chars()
        .take(40)
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    if field.chars().nth(40).is_some() {
        text.push('…');
    }
    text
}

fn malformed(line: usize, what: impl Into<String>) -> Malformed {
    Malformed {
        line,
        what: what.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_found_by_name() {
        let plain = read("id,lower,upper,size\na,0,3,4\nb,3,9,8\n").unwrap();
        assert_eq!(plain.ids, ["a", "b"]);
        assert_eq!(plain.blocks[1].live, StepRange::new(3, 9));
        let other =
            read("\u{feff}offset, Size ,END,start,id\r\n7,4,3,0,a\r\n\r\n,8,9,3,b\r\n").unwrap();
        assert_eq!(other, plain);
        let aligned = read("id,lower,upper,size,alignment\na,0,3,4,16").unwrap();
        assert_eq!((aligned.blocks[0].align, aligned.aligned), (16, true));
        assert!(read("id,lower,upper,size\n").unwrap().blocks.is_empty());
    }

    #[test]
    fn what_is_written_is_read_again() {
        for header in ["id,lower,upper,size", "id,lower,upper,size,alignment"] {
            let end = if header.ends_with('t') { ",8" } else { "" };
            let table = read(&format!("{header}\nx y,-5,3,4{end}\nb,3,9,8{end}")).unwrap();
            let layout = StaticLayout {
                offsets: vec![8, 0],
                high_water_bytes: 12,
            };
            let text = write(&table, &layout);
            assert!(
                text.contains(",offset\nx y,-5,3,4") && text.ends_with(",0\n"),
                "{text}"
            );
            assert_eq!(read(&text).unwrap(), table);
        }
    }

    #[test]
    fn times_of_any_size() {
        let (low, high) = (i64::MIN, i64::MAX);
        let table = read(&format!(
            "id,lower,upper,size\na,{low},0,1\nb,0,{high},1\nc,-1,1,1"
        ))
        .unwrap();
        let live: Vec<_> = table.blocks.iter().map(|b| b.live).collect();
        let expected = [(0, 2), (2, 4), (1, 3)].map(|(b, e)| StepRange::new(b, e));
        assert_eq!(live, expected);
    }

    #[test]
    fn hostile_tables_are_told_by_line() {
        let cases = [
            ("", "line 1: there is no header"),
            ("\n \n", "no header"),
            ("id,lower,upper", "'size'"),
            ("lower,upper,size", "'id'"),
            ("id,lower,upper,size,price", "'price'"),
            ("id,lower,start,upper,size", "'start' is there twice"),
            ("id,lower,upper,size\na,1,2", "line 2: 3 fields"),
            ("id,lower,upper,size\na,1,2,3,4", "5 fields"),
            ("id,lower,upper,size\n\n\na,2,2,3", "line 4: lower 2"),
            ("id,lower,upper,size\na,3,2,3", "lower 3"),
            ("id,lower,upper,size\na,1,2,0", "size is 0"),
            ("id,lower,upper,size\na,1,2,-3", "size '-3'"),
            ("id,lower,upper,size\na,1,2,1.5", "size '1.5'"),
            ("id,lower,upper,size\na,x,2,1", "lower 'x'"),
            (
                "id,lower,upper,size\na,1,99999999999999999999,1",
                "upper '9",
            ),
            ("id,lower,upper,size\na,1,2,18446744073709551615", "add up"),
            (
                "id,lower,upper,size\na,1,2,4611686018427387904\nb,1,2,1",
                "line 3: sizes add up",
            ),
            ("id,lower,upper,size\na,1,2,1\na,1,2,1", "id 'a'"),
            ("id,lower,upper,size,alignment\na,1,2,1,0", "alignment 0"),
            ("id,lower,upper,size,alignment\na,1,2,1,3", "alignment 3"),
            (
                "id,lower,upper,size,alignment\na,1,2,1,9223372036854775808",
                "add up",
            ),
        ];
        for (text, part) in cases {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error} does not say {part}");
        }
        let long = format!("id,lower,upper,size\na,1,2,{}", "x\u{7}".repeat(500));
        assert!(read(&long).unwrap_err().to_string().len() < 120);
    }
}
