//! Values of templates, and how Python writes them as JSON.

use super::ChatError;
use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// A value of JSON whose objects keep the order of their keys, which a prompt shows.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Json(pub(super) Value);

impl Json {
    /// # Errors
    /// The text is not JSON.
    pub fn parse(text: &str) -> Result<Self, ChatError> {
        Ok(serde_json::from_str(text)?)
    }

    /// What a value looks like in JSON.
    pub fn of(value: &impl Serialize) -> Self {
        Json(Value::from(Serde(value)))
    }
}

/// As Python's `json.dumps`, which does not escape letters where Hugging Face calls it.
struct Style {
    ascii_only: bool,
    indent: Option<String>,
    sorted: bool,
    between: String,
    after_key: String,
}

/// The filter `tojson`.
pub(super) fn dumps(value: &Value, options: &Kwargs) -> Result<String, Error> {
    let indent = options.get::<Option<Value>>("indent")?;
    let indent = indent
        .filter(|indent| !indent.is_none())
        .map(|indent| match indent.as_i64() {
            Some(spaces) => " ".repeat(usize::try_from(spaces).unwrap_or(0).min(16)),
            None => indent.to_string(),
        });
    let separators = options.get::<Option<Vec<String>>>("separators")?;
    let (between, after_key) = match separators.as_deref() {
        Some([between, after_key]) => (between.clone(), after_key.clone()),
        _ if indent.is_some() => (",".into(), ": ".into()),
        _ => (", ".into(), ": ".into()),
    };
    let style = Style {
        ascii_only: options
            .get::<Option<bool>>("ensure_ascii")?
            .unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        between,
        after_key,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 1, &mut out)?;
    Ok(out)
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.write_text(value.as_str().unwrap_or_default(), out),
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.write_all('{', keys, '}', depth, out, |key, out| {
                    self.write_text(&key.to_string(), out);
                    out.push_str(&self.after_key);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.collect();
                self.write_all('[', items, ']', depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            kind => {
                let what = format!("tojson of a value that is {kind}");
                return Err(Error::new(ErrorKind::InvalidOperation, what));
            }
        }
        Ok(())
    }

    fn write_all(
        &self,
        begin: char,
        items: Vec<Value>,
        end: char,
        depth: usize,
        out: &mut String,
        mut each: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.push_str(&indent.repeat(depth));
            }
        };
        out.push(begin);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(&self.between);
            }
            line(depth, out);
            each(item, out)?;
        }
        if !items.is_empty() {
            line(depth - 1, out);
        }
        out.push(end);
        Ok(())
    }

    fn write_text(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{C}' => out.push_str("\\f"),
                _ if c < ' ' || self.ascii_only && !c.is_ascii() => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                _ => out.push(c),
            }
        }
        out.push('"');
    }
}

/// As Python writes it: the fewest digits that tell it apart, and powers of ten from 1e16 on and below 1e-4.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        }
        .into();
    }
    let size = number.abs();
    if size == 0.0 || (1e-4..1e16).contains(&size) {
        return format!("{number:?}");
    }
    let short = format!("{number:e}");
    match short.split_once('e') {
        Some((digits, power)) => {
            let (sign, power) = match power.strip_prefix('-') {
                Some(power) => ('-', power),
                None => ('+', power),
            };
            format!("{digits}e{sign}{power:0>2}")
        }
        None => short,
    }
}
