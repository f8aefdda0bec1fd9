//! Circles of files within a crate: who uses whom, by the paths that files name.
//!
//! A file may use what an ancestor declares (`simd/avx2.rs` uses the trait of `simd/mod.rs`): together they are one
//! module. A name that is only passed on (`pub use`) belongs to the file that it comes from.

use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Larger circles are faults.
const MOST_FILES: usize = 3;

/// A path below the crate's root.
type Names = Vec<String>;

#[derive(Default)]
struct Module {
    file: String,
    /// Paths that the code names.
    uses: Vec<Names>,
    /// What is passed on, by its name here.
    passed_on: BTreeMap<String, Names>,
}

/// Adds a fault for each circle of more than three files below `dir/src`.
pub fn check(dir: &Path, files: &[PathBuf], faults: &mut Vec<String>) -> Result<()> {
    let src = dir.join("src");
    let mut texts: BTreeMap<Names, (String, String)> = BTreeMap::new();
    for path in files {
        let Ok(below) = path.strip_prefix(&src) else {
            continue;
        };
        let mut names: Names = below
            .with_extension("")
            .iter()
            .map(|part| part.to_string_lossy().into_owned())
            .collect();
        if names.last().is_some_and(|n| n == "tests" || n == "testing") {
            continue;
        }
        names.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
        texts.insert(
            names,
            (
                below.display().to_string(),
                code_of(&fs::read_to_string(path)?),
            ),
        );
    }
    let known: BTreeSet<Names> = texts.keys().cloned().collect();
    let modules: BTreeMap<Names, Module> = texts
        .into_iter()
        .map(|(names, (file, text))| {
            let mut module = read(&names, &text, &known);
            module.file = file;
            (names, module)
        })
        .collect();
    for circle in circles(&edges(&modules)) {
        if circle.len() > MOST_FILES {
            let files: Vec<&str> = circle.iter().map(|m| modules[m].file.as_str()).collect();
            let name = dir.file_name().unwrap_or_default().to_string_lossy();
            faults.push(format!(
                "{name}: {} files use each other in a circle: {}",
                files.len(),
                files.join(", ")
            ));
        }
    }
    Ok(())
}

/// Without comments, texts and the tests at the end.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let next = lines.peek().copied().unwrap_or_default();
        if line.starts_with("#[cfg(test)]") && next.contains('{') {
            break;
        }
        let mut in_text = false;
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '\\' if in_text => _ = chars.next(),
                '"' => in_text = !in_text,
                '\'' if !in_text && chars.peek() == Some(&'"') => _ = chars.next(),
                '/' if !in_text && chars.peek() == Some(&'/') => break,
                c if !in_text => code.push(c),
                _ => {}
            }
        }
        code.push('\n');
    }
    code
}

/// The paths in a file's code, from the crate's root on.
fn read(at: &Names, code: &str, known: &BTreeSet<Names>) -> Module {
    let mut module = Module::default();
    let mut names: BTreeMap<String, Names> = BTreeMap::new();
    let mut rest = String::new();
    for statement in code.split_inclusive(';') {
        let begin = statement.rfind("use ").filter(|&b| {
            let before = &statement[..b];
            let whole = before.ends_with(['\n', ' ', '{', '}']) || before.is_empty();
            whole && !statement[b..].contains("=")
        });
        let Some(begin) = begin else {
            rest.push_str(statement);
            continue;
        };
        let before = statement[..begin].lines().last().unwrap_or_default().trim();
        let tree = statement[begin + 4..].trim_end_matches(';');
        let mut leaves = Vec::new();
        expand(&[], tree, &mut leaves);
        for (path, name) in leaves {
            let Some(path) = from_root(at, &path, known) else {
                continue;
            };
            if before.starts_with("pub") {
                module.passed_on.insert(name, path);
            } else {
                names.insert(name, path.clone());
                module.uses.push(path);
            }
        }
    }
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for word in rest.split(|c| !is_part(c)).filter(|w| w.contains("::")) {
        let parts: Names = word
            .split("::")
            .filter(|p| !p.is_empty())
            .map(str::to_owned)
            .collect();
        let Some(first) = parts.first() else { continue };
        let path = match (from_root(at, &parts, known), names.get(first)) {
            (Some(path), _) => path,
            (None, Some(named)) => [named.as_slice(), &parts[1..]].concat(),
            (None, None) => continue,
        };
        module.uses.push(path);
    }
    module
}

/// The leaves of a tree of `use`, each with the name that it has here.
fn expand(before: &[String], tree: &str, leaves: &mut Vec<(Names, String)>) {
    let mut depth = 0;
    let parts = tree.split(|c| {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    for part in parts.map(str::trim).filter(|p| !p.is_empty()) {
        let (head, inner) = match part.split_once('{') {
            Some((head, inner)) => (head, inner.strip_suffix('}')),
            None => (part, None),
        };
        let (path, alias) = match head.split_once(" as ") {
            Some((path, alias)) => (path, Some(alias.trim())),
            None => (head, None),
        };
        let names = path.split("::").map(str::trim).filter(|n| !n.is_empty());
        let mut path: Names = before.to_vec();
        path.extend(names.map(str::to_owned));
        match inner {
            Some(inner) => expand(&path, inner, leaves),
            None => {
                if path.len() > 1 {
                    path.pop_if(|last| last == "self");
                }
                let last = path.last().cloned().unwrap_or_default();
                leaves.push((path, alias.map_or(last, str::to_owned)));
            }
        }
    }
}

fn from_root(at: &Names, path: &[String], known: &BTreeSet<Names>) -> Option<Names> {
    let mut base = at.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => return Some(rest[1..].to_vec()),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|n| n == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        first => {
            let child = [at.as_slice(), &[first.to_owned()]].concat();
            if !known.contains(&child) {
                return None;
            }
        }
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// For each module those whose names it uses, but for its ancestors.
fn edges(modules: &BTreeMap<Names, Module>) -> BTreeMap<Names, BTreeSet<Names>> {
    let used = |at: &Names, module: &Module| {
        let found = module.uses.iter().filter_map(|path| home(path, modules, 8));
        found.filter(|to| !at.starts_with(to)).collect()
    };
    modules
        .iter()
        .map(|(at, module)| (at.clone(), used(at, module)))
        .collect()
}

/// The module that a path's name comes from; `None` for a module itself, whose names are counted where they are used.
fn home(path: &[String], modules: &BTreeMap<Names, Module>, depth: usize) -> Option<Names> {
    let mut at = Names::new();
    for (i, name) in path.iter().enumerate() {
        let child = [at.as_slice(), std::slice::from_ref(name)].concat();
        if modules.contains_key(&child) {
            at = child;
            continue;
        }
        return match modules.get(&at)?.passed_on.get(name) {
            Some(target) if depth > 0 => {
                let target = [target.as_slice(), &path[i + 1..]].concat();
                home(&target, modules, depth - 1)
            }
            _ => Some(at),
        };
    }
    None
}

/// Sets of modules each of which reaches each other.
fn circles(edges: &BTreeMap<Names, BTreeSet<Names>>) -> Vec<Vec<Names>> {
    let reached = |from: &Names| {
        let mut found = BTreeSet::new();
        let mut next: Vec<&Names> = edges[from].iter().collect();
        while let Some(at) = next.pop() {
            if found.insert(at.clone()) {
                next.extend(&edges[at]);
            }
        }
        found
    };
    let reach: BTreeMap<&Names, BTreeSet<Names>> = edges.keys().map(|m| (m, reached(m))).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (&module, to) in &reach {
        if !to.contains(module) || seen.contains(module) {
            continue;
        }
        let circle: Vec<Names> = to
            .iter()
            .filter(|other| reach[*other].contains(module))
            .cloned()
            .collect();
        seen.extend(circle.iter().cloned());
        found.push(circle);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for (name, text) in files {
            let path = folder.path().join("src").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            paths.push(path);
        }
        let mut faults = Vec::new();
        check(folder.path(), &paths, &mut faults).unwrap();
        faults
    }

    #[test]
    fn circles_of_four_files_are_found() {
        let ring = |last: &'static str| {
            faults(&[
                ("lib.rs", "mod a; mod b; mod c; mod d;\npub use d::D;\n"),
                ("a.rs", "use crate::b::{self, B};\n"),
                ("b.rs", "fn f() { crate::c::g() }\n"),
                ("c.rs", "use crate::D;\n// use crate::a::A;\n"),
                ("d.rs", last),
            ])
        };
        let found = ring("use super::a::A;\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("a.rs, b.rs, c.rs, d.rs"), "{found:?}");
        assert!(ring("#[cfg(test)]\nmod tests { use super::a::A; }\n").is_empty());
        assert_eq!(
            ring("#[cfg(test)]\nmod tests;\nuse super::a::A;\n").len(),
            1
        );
        assert!(ring("use crate::c::C;\nconst A: &str = \"crate::a::A\";\n").is_empty());
    }

    #[test]
    fn children_may_use_what_their_parent_declares() {
        let found = faults(&[
            ("lib.rs", "mod a;\n"),
            (
                "a/mod.rs",
                "mod b; mod c; mod d; mod e;\nuse b::B;\nuse c::C;\nuse d::D;\nuse e::E;\n",
            ),
            ("a/b.rs", "use super::T;\n"),
            ("a/c.rs", "use super::T;\n"),
            ("a/d.rs", "use super::T;\n"),
            ("a/e.rs", "use crate::a::T;\n"),
        ]);
        assert!(found.is_empty(), "{found:?}");
    }
}
