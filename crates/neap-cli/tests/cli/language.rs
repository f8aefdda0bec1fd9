//! Language models: texts, conversations, many at once, budgets. With a small seeded model.

use super::support::{Bench, Ran, can_enforce};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

mod sessions;
#[path = "../../../neap-chat/tests/runner/tiny.rs"]
mod tiny;

fn bench() -> Bench {
    let bench = Bench::new();
    bench.write("m.gguf", &tiny::tiny(7));
    bench
}

fn with_input(bench: &Bench, args: &str, input: &str) -> Ran {
    let mut child = bench
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_text_goes_on_the_same_way_under_every_budget() {
    let bench = bench();
    let plain = bench
        .neap("generate m.gguf -p hello -n 30 --context 256")
        .ok();
    assert!(plain.stderr.contains("answer: "), "{}", plain.stderr);
    bench.write("p.txt", b"hello");
    for args in [
        "-f p.txt --memory-budget 24MiB",
        "-p hello --threads 1 --draft 0 --chunk 4 --quiet",
    ] {
        let ran = bench
            .neap(&format!("generate m.gguf {args} -n 30 --context 256"))
            .ok();
        assert_eq!(ran.stdout, plain.stdout, "{args}");
    }
    let read = with_input(&bench, "generate m.gguf -n 30 --context 256", "hello").ok();
    assert_eq!(read.stdout, plain.stdout);
    if can_enforce(&bench) {
        let args = "generate m.gguf -p hello -n 30 --context 256 --memory-budget 24MiB --enforce";
        assert_eq!(bench.neap(args).ok().stdout, plain.stdout);
    }
}

#[test]
fn a_model_in_several_files_answers_as_in_one() {
    let bench = bench();
    let part = |number| format!("p-{number:05}-of-00003.gguf");
    for (number, bytes) in (1..).zip(tiny::writer(7).split(3)) {
        bench.write(&part(number), &bytes);
    }
    let of = |model: &str| {
        let args = format!("generate {model} -p hello -n 20 --context 256 --memory-budget 24MiB");
        bench.neap(&args)
    };
    let whole = of("m.gguf").ok().stdout;
    for number in 1..=3 {
        assert_eq!(of(&part(number)).ok().stdout, whole);
    }
    let facts = bench.json(&format!("inspect {} --format json", part(1)));
    assert_eq!(facts["files"], 3);
    bench.neap(&format!("plan {}", part(2))).ok();
    std::fs::remove_file(bench.path(&part(3))).unwrap();
    of(&part(1)).fails(2, &["p-00003-of-00003.gguf"]);
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_one_that_is_enough() {
    let bench = bench();
    bench
        .neap("generate m.gguf -p hello --memory-budget 1MiB")
        .fails(3, &["are too little", "needs"]);
    bench
        .neap("generate m.gguf -p hello --memory-budget 25%")
        .fails(2, &["write a size"]);
    bench
        .neap("generate m.gguf -p hello -n 300 --context 128")
        .fails(2, &["the context has 128"]);
    bench
        .neap("generate none.gguf -p hello")
        .fails(2, &["none.gguf"]);
}

#[test]
fn many_texts_come_out_in_their_order() {
    let bench = bench();
    let lines = "{\"prompt\": \"hello\"}\n\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"max_tokens\": 3}\n{\"prompt\": \"he\"}\n";
    bench.write("in.jsonl", lines.as_bytes());
    let ran = bench.neap("generate m.gguf --jsonl in.jsonl -n 12").ok();
    let told: Vec<Value> = ran
        .stdout
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(told.len(), 3);
    let one = bench.neap("generate m.gguf -p hello -n 12").ok();
    // On standard output what a terminal would obey is an escape.
    let escaped = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    let shown = told[0]["text"].as_str().unwrap().chars();
    let shown: String = shown.map(escaped).collect();
    assert_eq!(format!("{shown}\n"), one.stdout);
    assert_eq!(told[1]["completion_tokens"], 3);
    bench.write("bad.jsonl", b"{\"prompt\": \"x\"}\n{\"promt\": 1}\n");
    bench
        .neap("generate m.gguf --jsonl bad.jsonl")
        .fails(2, &["bad.jsonl:2: "]);
}

#[test]
fn a_conversation_is_read_line_by_line() {
    let bench = bench();
    let ran = with_input(
        &bench,
        "chat m.gguf -n 8 --context 512",
        "hi\n\nand\n/exit\nnever\n",
    )
    .ok();
    assert!(ran.stdout.lines().count() >= 2, "{}", ran.stdout);
    assert!(
        ran.stderr.contains("and ") && ran.stderr.contains(" known"),
        "{}",
        ran.stderr
    );
    let plan = bench.json("plan m.gguf --format json --context 256");
    assert!(
        plan[0]["predicted_tokens_per_second"].as_f64().unwrap() > 0.0,
        "{plan}"
    );
}
