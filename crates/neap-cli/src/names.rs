//! Names that a model chose, made safe: for a terminal, and as names of files.

/// The longest file name that is made of a name, without its ending. File systems allow 255 bytes, and temporary names are longer.
pub const MOST_FILE_BYTES: usize = 200;
const DIGEST_DIGITS: usize = 16;

/// On one line of a terminal: what would move the cursor, colour text or turn its direction is written as an escape.
pub fn shown(name: &str) -> String {
    escaped(name, |_| false)
}

/// Text of several lines. Names in it have gone through [`shown`]; this is for what else it may hold.
pub fn printable(text: &str) -> String {
    escaped(text, |c| c == '\n' || c == '\t')
}

fn escaped(text: &str, may: impl Fn(char) -> bool) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match acts(c) && !may(c) {
            true => safe.extend(c.escape_default()),
            false => safe.push(c),
        }
    }
    safe
}

/// Whether a terminal does something else with it than to show it.
fn acts(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// For a file: other characters than letters, digits, `.`, `_` and `-` become `_`; a long name ends with a digest of the
/// whole.
pub fn for_file(name: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let replaced = name.chars().map(|c| if safe(c) { c } else { '_' });
    let mut file: String = replaced.collect();
    if file.trim_matches('.').is_empty() {
        file.insert(0, '_');
    }
    if file.len() > MOST_FILE_BYTES {
        file.truncate(MOST_FILE_BYTES - DIGEST_DIGITS - 1);
        file.push('_');
        file.push_str(&blake3::hash(name.as_bytes()).to_hex()[..DIGEST_DIGITS]);
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_escaped() {
        let name = "y\nneap: ok\x1b[31m\u{9b}\u{202e}é";
        let safe = "y\\nneap: ok\\u{1b}[31m\\u{9b}\\u{202e}é";
        assert_eq!(shown(name), safe);
        assert_eq!(printable("a\tb\n\x1b"), "a\tb\n\\u{1b}");
    }

    #[test]
    fn long_names_become_short_and_stay_different() {
        let (a, b) = ("é".repeat(400), format!("{}x", "é".repeat(400)));
        assert_eq!(for_file(&a).len(), MOST_FILE_BYTES);
        assert_ne!(for_file(&a), for_file(&b));
        assert_eq!(for_file(&"a".repeat(200)), "a".repeat(200));
    }
}
