//! The C library: installed as a user installs it, its examples built with sanitizers and run.

use crate::check::check;
use crate::models;
use crate::skips::Skips;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiler and source of each example.
const EXAMPLES: [(&str, &str, &[&str]); 4] = [
    ("run", "cc", &["-std=c11", "run.c"]),
    ("misuse", "cc", &["-std=c11", "misuse.c"]),
    ("sizes", "cc", &["-std=c11", "sizes.c"]),
    ("cancel", "c++", &["-std=c++17", "-pthread", "cancel.cpp"]),
];

/// Installs the library into `target/c`, builds the examples against it and runs them.
///
/// # Errors
/// When anything of that fails; without compilers or pkg-config it is skipped.
pub fn run(root: &Path, skips: &Skips) -> Result<()> {
    for tool in ["cc", "c++", "nm", "pkg-config"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skips.skip(&format!("the C library: there is no {tool}"));
        }
    }
    let prefix = root.join("target/c");
    let mut install = Command::new(root.join("scripts/install_c.sh"));
    check(install.arg(&prefix), "installing the C library")?;
    check_symbols(&prefix)?;
    for (name, compiler, arguments) in EXAMPLES {
        build(root, &prefix, name, compiler, arguments)?;
    }
    let model = models::zoo_model(root, "squeezenet1_1")?;
    let model = model.to_str().context("a path that is UTF-8")?;

    // The same bits within a budget as without.
    let free = example(&prefix, "run", &[model, "none", "exact"])?;
    let small = example(&prefix, "run", &[model, "3MiB", "exact"])?;
    let values = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().skip(1).map(String::from).collect::<Vec<_>>()
    };
    expect(&free, 0, "the first is")?;
    expect(&small, 0, "the first is")?;
    if values(&free) != values(&small) {
        bail!(
            "within a budget: {:?}, without: {:?}",
            values(&small),
            values(&free)
        );
    }
    expect(
        &example(&prefix, "run", &[model, "100K"])?,
        3,
        "try a budget of",
    )?;
    expect(&example(&prefix, "run", &["no.onnx"])?, 2, "no.onnx")?;
    let absent = prefix.join("absent");
    let absent = absent.to_str().context("a path that is UTF-8")?;
    expect(
        &example(&prefix, "misuse", &[model, absent])?,
        0,
        "0 faults",
    )?;
    expect(&example(&prefix, "cancel", &[model])?, 0, "a run was ended")?;
    let sizes = prefix.join("nonzero.onnx");
    fs::write(&sizes, nonzero())?;
    let sizes = sizes.to_str().context("a path that is UTF-8")?;
    let found = example(&prefix, "sizes", &[sizes])?;
    expect(&found, 0, "room for 96 bytes, 32 are used: (0, 1) (1, 2)")
}

/// The library has the functions of its header, and no other name that a program's own could meet.
fn check_symbols(prefix: &Path) -> Result<()> {
    let mut list = Command::new("nm");
    list.args(["--dynamic", "--defined-only", "--format=posix"]);
    let listed = list.arg(prefix.join("lib/libneaptide.so")).output()?;
    if !listed.status.success() {
        bail!("nm: {}", String::from_utf8_lossy(&listed.stderr).trim());
    }
    let listed = String::from_utf8(listed.stdout)?;
    let exported: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let header = fs::read_to_string(prefix.join("include/neaptide.h"))?;
    let declared = functions(&header);
    if exported != declared {
        let differ: Vec<_> = exported.symmetric_difference(&declared).collect();
        bail!("only in the library, or only in its header: {differ:?}");
    }
    Ok(())
}

/// Names of the functions that a header declares.
fn functions(header: &str) -> BTreeSet<&str> {
    let code = header.lines().filter(|line| !line.starts_with("//"));
    let before = code.filter_map(|line| line.split_once('(').map(|(before, _)| before));
    let names = before.filter_map(|text| text.rsplit([' ', '*']).next());
    names.filter(|name| name.starts_with("neap_")).collect()
}

/// A model that finds what is not zero in 2x3 numbers, as ONNX writes it.
fn nonzero() -> Vec<u8> {
    let number = |field: u8, value: u8| vec![field << 3, value];
    let part = |field: u8, parts: &[Vec<u8>]| {
        let bytes = parts.concat();
        [vec![field << 3 | 2, bytes.len() as u8], bytes].concat()
    };
    let text = |field: u8, text: &str| part(field, &[text.as_bytes().to_vec()]);
    let tensor = |field: u8, name: &str, kind: u8, dims: &[Vec<u8>]| {
        let dims: Vec<Vec<u8>> = dims
            .iter()
            .map(|dim| part(1, std::slice::from_ref(dim)))
            .collect();
        let ty = part(1, &[number(1, kind), part(2, &dims)]);
        part(field, &[text(1, name), part(2, &[ty])])
    };
    let node = part(1, &[text(1, "x"), text(2, "y"), text(4, "NonZero")]);
    let graph = [
        node,
        text(2, "g"),
        tensor(11, "x", 1, &[number(1, 2), number(1, 3)]),
        tensor(12, "y", 7, &[number(1, 2), text(2, "n")]),
    ];
    [number(1, 8), part(7, &graph), part(8, &[number(2, 17)])].concat()
}

/// With AddressSanitizer, which also tells of memory that nobody freed.
fn build(root: &Path, prefix: &Path, name: &str, compiler: &str, arguments: &[&str]) -> Result<()> {
    let mut flags = Command::new("pkg-config");
    flags.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = flags.args(["--cflags", "--libs", "neaptide"]).output()?;
    let flags = String::from_utf8(flags.stdout)?;
    let mut build = Command::new(compiler);
    build.current_dir(root.join("crates/neap-c/examples"));
    build.args([
        "-Wall",
        "-Wextra",
        "-Werror",
        "-g",
        "-fsanitize=address,undefined",
    ]);
    build.args(arguments).args(flags.split_whitespace());
    build.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    check(
        build.arg("-o").arg(program(prefix, name)),
        &format!("building {name}"),
    )
}

fn example(prefix: &Path, name: &str, arguments: &[&str]) -> Result<Output> {
    let mut run = Command::new(program(prefix, name));
    Ok(run.args(arguments).output()?)
}

fn program(prefix: &Path, name: &str) -> PathBuf {
    prefix.join(name)
}

/// The exit code, and words on either stream.
fn expect(output: &Output, code: i32, words: &str) -> Result<()> {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    match output.status.code() == Some(code) && text.contains(words) {
        true => Ok(()),
        false => bail!("{}, not {code} and '{words}':\n{text}", output.status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_a_header_are_found() {
        let header = "// neap_no(it) is\nconst char *neap_a(void);\nenum E neap_b(struct S *s,\n         \
                      int (*neap_no)(int));\ntypedef void (*Hear)(int);\nuint64_t neap_c(void);\n";
        assert_eq!(
            functions(header),
            BTreeSet::from(["neap_a", "neap_b", "neap_c"])
        );
    }
}
