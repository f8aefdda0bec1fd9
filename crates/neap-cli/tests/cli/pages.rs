//! What the pages say: links lead somewhere, and commands in them are commands of this program.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

/// All pages, at the root and in `docs`.
fn pages() -> Vec<(PathBuf, String)> {
    let folders = [root(), root().join("docs")];
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.sort();
    assert!(pages.len() > 40);
    pages
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path, text)
        })
        .collect()
}

/// Blocks of code, with what stands after the marks; and the lines outside of them.
fn parts(text: &str) -> (Vec<(String, Vec<&str>)>, Vec<&str>) {
    let (mut blocks, mut prose) = (Vec::new(), Vec::new());
    let mut open: Option<(String, Vec<&str>)> = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), open.as_mut()) {
            (Some(kind), None) => open = Some((kind.trim().into(), Vec::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => prose.push(line),
        }
    }
    assert!(open.is_none(), "a block of code is not closed");
    (blocks, prose)
}

/// The names of a page's headings, as links to them have them.
fn anchors(text: &str) -> BTreeSet<String> {
    let (_, prose) = parts(text);
    let headings = prose.iter().filter(|line| line.starts_with('#'));
    let name = |line: &&str| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(name).collect()
}

/// Where the links of a line lead, code left out.
fn links(line: &str) -> Vec<&str> {
    let outside: Vec<&str> = line.split('`').step_by(2).collect();
    let mut found = Vec::new();
    // A link's text may be code, so the brackets are looked at in the whole line where there is one.
    let places = match outside.iter().any(|part| part.contains("](")) {
        true => line,
        false => return found,
    };
    for (at, _) in places.match_indices("](") {
        let rest = &places[at + 2..];
        found.extend(rest.find(')').map(|end| &rest[..end]));
    }
    found
}

#[test]
fn links_lead_to_pages_and_headings() {
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, text) in pages() {
        for link in parts(&text).1.iter().flat_map(|line| links(line)) {
            if link.contains("://") {
                continue;
            }
            count += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let is_right = match (target.exists(), anchor) {
                (exists, "") => exists,
                (true, anchor) => {
                    anchors(&fs::read_to_string(&target).unwrap_or_default()).contains(anchor)
                }
                (false, _) => false,
            };
            if !is_right {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(count > 150, "only {count} links are seen");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Commands of `neap` in blocks for a shell, each as its words.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (kind, lines) in parts(text).0 {
        if !matches!(kind.as_str(), "sh" | "console") {
            continue;
        }
        let text = lines.join("\n").replace("\\\n", " ");
        for line in text.lines() {
            let line = line.trim_start();
            let line = match kind.as_str() {
                "console" => line.strip_prefix("$ ").unwrap_or_default(),
                _ => line,
            };
            let words = words(line);
            if words.first().is_some_and(|word| word == "neap") {
                found.push(words);
            }
        }
    }
    found
}

/// As a shell divides a line: quotes, comments, and the end at a pipe or a redirection.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let (mut quote, mut is_word) = (None, false);
    for c in line.chars().chain([' ']) {
        match quote {
            Some(mark) if c == mark => quote = None,
            Some(_) => word.push(c),
            None if c == '\'' || c == '"' => (quote, is_word) = (Some(c), true),
            None if c == '#' && !is_word => break,
            None if c.is_whitespace() => {
                if is_word && is_end(&word) {
                    break;
                }
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            None => {
                word.push(c);
                is_word = true;
            }
        }
    }
    words
}

/// What is no word of the command any more.
fn is_end(word: &str) -> bool {
    matches!(word, "|" | "&" | "&&" | ";" | "<") || word.starts_with('>') || word.starts_with("2>")
}

#[test]
fn commands_in_pages_are_understood() {
    if !cfg!(feature = "serve") {
        return;
    }
    let mut wrong = Vec::new();
    let mut count = 0;
    for (page, text) in pages() {
        for words in commands(&text) {
            count += 1;
            // What an example leaves to the reader.
            if words
                .iter()
                .any(|word| word.starts_with('[') || word.contains("..."))
            {
                continue;
            }
            let command = neap_cli::command().args_override_self(true);
            if let Err(error) = command.try_get_matches_from(&words) {
                wrong.push(format!("{}: {}: {error}", page.display(), words.join(" ")));
            }
        }
    }
    assert!(count > 60, "only {count} commands are seen");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn shells_lines_are_divided_as_they_divide_them() {
    for (line, expected) in [
        (
            "neap run m.onnx   # a comment",
            vec!["neap", "run", "m.onnx"],
        ),
        (
            "neap chat m -p 'a # b' > out",
            vec!["neap", "chat", "m", "-p", "a # b"],
        ),
        (
            "neap imagine m 2>&1 | tail -1",
            vec!["neap", "imagine", "m"],
        ),
        ("", vec![]),
    ] {
        assert_eq!(words(line), expected);
    }
}

/// The table of contents of the book that mdBook makes.
#[test]
fn the_book_has_every_page_once() {
    let book = root().join("docs/SUMMARY.md");
    let summary = fs::read_to_string(&book).unwrap();
    let mut listed: Vec<PathBuf> = summary
        .lines()
        .flat_map(links)
        .map(|link| book.parent().unwrap().join(link).canonicalize().unwrap())
        .collect();
    listed.sort();
    let mut expected: Vec<PathBuf> = pages().into_iter().map(|(path, _)| path).collect();
    expected.retain(|path| *path != book);
    assert_eq!(listed, expected);
}
