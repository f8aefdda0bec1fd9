//! Options that have another name now. The old one still works, and a line says which to write.
//!
//! ```text
//!   run --task FILE            tasks FILE
//!   bench … -o md              bench … --format md          plan, inspect, profile, doctor, too
//!   plan --seed N              plan --search-seed N
//!   plan --device raspberry-pi-4    plan --machine raspberry-pi-4
//!   admit -o FILE.json         admit --trace-events FILE.json
//! ```

use crate::compute::Compute;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Commands whose `-o` was a form.
const PRINTING: [&str; 5] = ["plan", "bench", "inspect", "profile", "doctor"];

/// What `-o` took in place of a file.
const FORMS: [&str; 6] = ["text", "json", "csv", "md", "toml", "table"];

/// The words of a command line as they are written now, with what to say of those that were written otherwise.
pub fn renamed(words: Vec<OsString>) -> (Vec<OsString>, Vec<String>) {
    let mut remarks = Vec::new();
    let is_command = |word: &OsString| !word.as_bytes().starts_with(b"-");
    let Some(at) = words.iter().skip(1).position(is_command) else {
        return (words, remarks);
    };
    let at = at + 1;
    let command = words[at].to_str().unwrap_or_default().to_string();
    let mut new = words[..=at].to_vec();
    let mut rest = words[at + 1..].iter().cloned();
    while let Some(word) = rest.next() {
        if word == "--" {
            new.push(word);
            break;
        }
        let Some((option, attached)) = option_of(&word) else {
            new.push(word);
            continue;
        };
        if !may_move(&command, option) {
            new.push(word);
            continue;
        }
        let Some(value) = attached.or_else(|| rest.next()) else {
            new.push(word);
            break;
        };
        match now(&command, option, &value) {
            Some(words) => {
                let written: Vec<_> = words.iter().map(|w| w.to_string_lossy()).collect();
                remarks.push(match command.as_str() {
                    "run" => format!("neap run --task is now: neap tasks {}", value.display()),
                    _ => format!(
                        "neap {command} {option} {} is now: {}",
                        value.display(),
                        written.join(" ")
                    ),
                });
                if command == "run" {
                    new[at] = "tasks".into();
                }
                new.extend(words);
            }
            None => new.extend([option.into(), value]),
        }
    }
    new.extend(rest);
    (new, remarks)
}

/// An option, and its value where it is in the same word.
fn option_of(word: &OsStr) -> Option<(&str, Option<OsString>)> {
    let bytes = word.as_bytes();
    if let Some(value) = bytes.strip_prefix(b"-o") {
        let value = value.strip_prefix(b"=").unwrap_or(value);
        let value = (!value.is_empty()).then(|| OsStr::from_bytes(value).to_owned());
        return Some(("-o", value));
    }
    if !bytes.starts_with(b"--") {
        return None;
    }
    let end = bytes.iter().position(|&b| b == b'=');
    let name = std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]).ok()?;
    let value = end.map(|end| OsStr::from_bytes(&bytes[end + 1..]).to_owned());
    Some((name, value))
}

fn may_move(command: &str, option: &str) -> bool {
    let prints = PRINTING.contains(&command) || command == "admit";
    match option {
        "-o" | "--output" => prints,
        "--seed" | "--device" => command == "plan",
        "--task" => command == "run",
        _ => false,
    }
}

/// What is written now in place of an option with this value; `None` where it stays.
fn now(command: &str, option: &str, value: &OsStr) -> Option<Vec<OsString>> {
    let text = value.to_str();
    match option {
        "--task" => Some(vec![value.into()]),
        "--seed" => Some(vec!["--search-seed".into(), value.into()]),
        "--device" if text.is_some_and(|name| name.parse::<Compute>().is_ok()) => None,
        "--device" => Some(vec!["--machine".into(), value.into()]),
        _ if command == "admit" => {
            let is_trace = value.as_bytes().ends_with(b".json");
            is_trace.then(|| vec!["--trace-events".into(), value.into()])
        }
        _ => {
            let form = FORMS.iter().find(|form| text == Some(form))?;
            let form = if *form == "table" { "text" } else { form };
            Some(vec!["--format".into(), form.into()])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(line: &str) -> (String, Vec<String>) {
        let (words, remarks) = renamed(line.split(' ').map(OsString::from).collect());
        let words: Vec<_> = words.iter().map(|w| w.to_str().unwrap()).collect();
        (words.join(" "), remarks)
    }

    #[test]
    fn old_options_become_the_new_ones() {
        for (old, new) in [
            (
                "neap -q run --task t.toml --enforce",
                "neap -q tasks t.toml --enforce",
            ),
            (
                "neap run --enforce --task=t.toml",
                "neap tasks --enforce t.toml",
            ),
            ("neap bench m.onnx -o md", "neap bench m.onnx --format md"),
            (
                "neap bench -ojson m.onnx",
                "neap bench --format json m.onnx",
            ),
            ("neap bench --output=table m", "neap bench --format text m"),
            ("neap plan m --seed 3", "neap plan m --search-seed 3"),
            ("neap plan m --device phone", "neap plan m --machine phone"),
            (
                "neap plan m --device=a.toml",
                "neap plan m --machine a.toml",
            ),
            (
                "neap admit t -o g.json",
                "neap admit t --trace-events g.json",
            ),
        ] {
            let (words, remarks) = rewritten(old);
            assert_eq!(words, new);
            assert_eq!(remarks.len(), 1, "{old}");
        }
    }

    #[test]
    fn other_words_stay() {
        for line in [
            "neap",
            "neap --version",
            "neap run m.onnx --input -o",
            "neap bench m.onnx -o rows.csv",
            "neap inspect m.onnx --output ./json",
            "neap plan m.onnx --device vulkan:1",
            "neap plan m.onnx -o",
            "neap pack m.onnx -o json",
            "neap zoo x --seed 3 -o text",
            "neap admit t -o g.svg",
            "neap gpu run -- python --task t",
        ] {
            assert_eq!(rewritten(line), (line.to_string(), Vec::new()));
        }
    }
}
