//! Programs that were built with `libneaptide.so.0` run with every later one: what the header declares is kept in a list, of which nothing
//! changes or goes. `NEAP_WRITE=1 cargo test -p neap-c` adds what is new. Where fields lie is checked in `src/layout.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const LIST: &str = "tests/libneaptide.so.0.txt";

#[test]
fn what_programs_were_built_with_stays() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
    assert!(
        read("build.rs").contains("-soname,libneaptide.so.0\""),
        "another name of the library has another list"
    );
    let declared = declarations(&read("include/neaptide.h"));
    let kept: BTreeSet<String> = read(LIST).lines().map(String::from).collect();
    let broken: Vec<_> = kept.difference(&declared).collect();
    assert!(
        broken.is_empty(),
        "programs need what was changed or is gone; give what is new another name: {broken:#?}"
    );
    if std::env::var_os("NEAP_WRITE").is_some() {
        let lines: Vec<&str> = declared.iter().map(String::as_str).collect();
        fs::write(folder.join(LIST), lines.join("\n") + "\n").expect("it can be written");
    } else {
        let new: Vec<_> = declared.difference(&kept).collect();
        assert!(
            new.is_empty(),
            "not in {LIST}, NEAP_WRITE=1 adds it: {new:#?}"
        );
    }
}

/// Functions and structures as they are declared, and each number that has a name: a line each, without comments.
fn declarations(header: &str) -> BTreeSet<String> {
    let mut code = String::new();
    let mut is_cpp = false;
    for line in header.lines() {
        is_cpp |= line.starts_with("#ifdef __cplusplus");
        if !is_cpp && !line.starts_with('#') {
            code += line.split("//").next().unwrap_or_default();
            code.push(' ');
        }
        is_cpp &= !line.starts_with("#endif");
    }
    let mut found = BTreeSet::new();
    for declaration in statements(&code) {
        let words: Vec<&str> = declaration.split_whitespace().collect();
        let line = words.join(" ");
        match line.strip_prefix("typedef enum ").and_then(enumerators) {
            Some((name, numbers)) => {
                let numbers = numbers.split(',').map(str::trim).filter(|n| !n.is_empty());
                found.extend(numbers.map(|number| format!("enum {name}: {number}")));
            }
            None => found.extend(Some(line).filter(|line| !line.is_empty())),
        }
    }
    found
}

/// `NAME { A = 1, B = 2, } NAME`, taken apart.
fn enumerators(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.split_once('{')?;
    let (numbers, _) = rest.rsplit_once('}')?;
    Some((name.trim(), numbers))
}

/// What semicolons end that are in no braces.
fn statements(code: &str) -> Vec<&str> {
    let (mut depth, mut begin) = (0, 0);
    let mut found = Vec::new();
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ';' if depth == 0 => {
                found.push(&code[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found
}

#[test]
fn each_change_of_a_declaration_is_one_of_the_list() {
    let header = "// About it; all of it.\n#ifndef X\n#include <a.h>\ntypedef enum E {\n  // One.\n  A = 0,\n  B = 2,\n} E;\n\
                  typedef struct S S;\ntypedef struct P {\n  int *a; // first\n  size_t b;\n} P;\n\
                  #ifdef __cplusplus\nextern \"C\" {\n#endif // __cplusplus\nenum E f(struct S *s,\n          int n);\n\
                  #ifdef __cplusplus\n}  // extern \"C\"\n#endif\n#endif\n";
    let all = declarations(header);
    let expected = [
        "enum E f(struct S *s, int n)",
        "enum E: A = 0",
        "enum E: B = 2",
        "typedef struct P { int *a; size_t b; } P",
        "typedef struct S S",
    ];
    assert_eq!(all.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    for (from, to) in [
        ("B = 2", "B = 3"),
        ("int n", "long n"),
        ("size_t b;", "size_t b; int c;"),
        ("struct S *s,\n", ""),
    ] {
        let changed = declarations(&header.replace(from, to));
        assert_eq!(all.difference(&changed).count(), 1, "{from} to {to}");
    }
    let more =
        declarations(&header.replace("typedef struct S S;", "typedef struct S S;\nint g(void);"));
    assert!(more.is_superset(&all) && more.len() == all.len() + 1);
}
