//! Names of a model's classes, in its metadata.

/// Their name among a model's metadata: a JSON list, in the order of the classes.
pub const CLASSES_KEY: &str = "neaptide.classes";

/// Where Ultralytics's exporter writes them: `{0: 'person', 1: 'bicycle'}`.
const OTHER_KEY: &str = "names";

/// All names under which classes are found.
pub const KEYS_OF_CLASSES: [&str; 2] = [CLASSES_KEY, OTHER_KEY];

/// For a model's metadata.
pub fn classes_text(classes: &[String]) -> String {
    // Text can always be written.
    serde_json::to_string(classes).unwrap_or_default()
}

/// What a model's metadata call its classes; empty where they say nothing that is understood.
pub fn names_of_classes(metadata: &[(String, String)]) -> Vec<String> {
    let of = |key: &str| {
        metadata
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    };
    let own = of(CLASSES_KEY).and_then(|text| serde_json::from_str(text).ok());
    own.or_else(|| of(OTHER_KEY).and_then(numbered))
        .unwrap_or_default()
}

/// A dictionary as Python writes it, from the numbers 0, 1, … to names.
fn numbered(text: &str) -> Option<Vec<String>> {
    let mut rest = text.trim().strip_prefix('{')?;
    let mut names = Vec::new();
    loop {
        rest = rest.trim_start();
        if let Some(end) = rest.strip_prefix('}') {
            return end.trim().is_empty().then_some(names);
        }
        let (number, after) = rest.split_once(':')?;
        if number.trim().trim_matches(['\'', '"']).parse() != Ok(names.len()) {
            return None;
        }
        let after = after.trim_start();
        let quote = after.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
        let (name, after) = quoted(&after[1..], quote)?;
        names.push(name);
        rest = after.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// The text up to the closing quote, and what follows it.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.push(chars.next()?.1),
            c if c == quote => return Some((name, &text[at + 1..])),
            c => name.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(key: &str, value: &str) -> Vec<String> {
        names_of_classes(&[("x".into(), "y".into()), (key.into(), value.into())])
    }

    #[test]
    fn names_are_read_back_also_those_of_other_exporters() {
        let names = ["a cat".to_string(), "d'og \"x\"".to_string()];
        assert_eq!(read(CLASSES_KEY, &classes_text(&names)), names);
        assert_eq!(read("names", "{0: 'a cat', 1: \"d'og \\\"x\\\"\"}"), names);
        for wrong in ["{1: 'a'}", "{0: 'a'", "{0: a}", "[]", "", "{0: 'a'} x"] {
            assert!(read("names", wrong).is_empty(), "{wrong}");
        }
        assert!(read(CLASSES_KEY, "{").is_empty());
    }
}
