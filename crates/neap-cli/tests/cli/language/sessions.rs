//! `--save-session`: what is kept from one command to the next, and files that do not fit.

use super::super::support::Bench;
use super::{bench, tiny, with_input};

const ARGS: &str = "-n 20 --context 512";

fn text(bench: &Bench, more: &str) -> (String, String) {
    let ran = bench.neap(&format!("generate m.gguf {ARGS} {more}")).ok();
    (ran.stdout, ran.stderr)
}

#[test]
fn a_text_goes_on_without_computing_its_beginning_again() {
    let bench = bench();
    let long = "once_upon_a_time_".repeat(8);
    bench.write("a.txt", long.as_bytes());
    bench.write("b.txt", format!("{long}and then").as_bytes());
    let (first, _) = text(&bench, "-f a.txt --save-session s");
    assert_eq!(first, text(&bench, "-f a.txt").0);
    let kept = std::fs::read(bench.path("s")).unwrap();
    for more in ["", "--threads 1 --memory-budget 24MiB --draft 0"] {
        bench.write("s", &kept);
        let (second, told) = text(&bench, &format!("-f b.txt --save-session s {more}"));
        assert_eq!(second, text(&bench, "-f b.txt").0);
        assert!(
            told.contains(&format!("and {} known", long.len())),
            "{told}"
        );
    }
    // The model's file may move, as long as its bytes are the same.
    std::fs::copy(bench.path("m.gguf"), bench.path("copy.gguf")).unwrap();
    let moved = bench.neap(&format!(
        "generate copy.gguf {ARGS} -f b.txt --save-session s"
    ));
    let told = moved.ok().stderr;
    assert!(told.contains(" known"), "{told}");
    assert!(bench.leftovers().is_empty());
}

#[test]
fn a_conversation_goes_on() {
    let bench = bench();
    let chat = format!("chat m.gguf {ARGS} --save-session s");
    let whole = with_input(&bench, &format!("chat m.gguf {ARGS}"), "hi\nand\n").ok();
    let first = with_input(&bench, &chat, "hi\n").ok();
    let second = with_input(&bench, &chat, "and\n").ok();
    assert_eq!(first.stdout + &second.stdout, whole.stdout);
    let told = &second.stderr;
    assert!(
        told.contains("a conversation of 2 messages goes on") && told.contains(" known"),
        "{told}"
    );
    let mut other = bench.command(&chat);
    let ran = other.args(["--system", "be brief"]).output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&ran.stderr).contains("--system"));
    // Told again what it began with, it goes on, too.
    let system = |input| {
        with_input(
            &bench,
            &format!("chat m.gguf {ARGS} --save-session t --system brief"),
            input,
        )
        .ok()
    };
    system("hi\n");
    assert!(system("and\n").stderr.contains("3 messages"));
}

#[test]
fn what_does_not_fit_is_refused_and_left_as_it_is() {
    let bench = bench();
    let long = "once_upon_a_time_".repeat(8);
    bench.write("a.txt", long.as_bytes());
    text(&bench, "-f a.txt --save-session s");
    let kept = std::fs::read(bench.path("s")).unwrap();
    bench.write("other.gguf", &tiny::tiny(8));
    for (args, said) in [
        ("generate other.gguf -p a -n 2", "of another model"),
        ("chat other.gguf", "of another model"),
        ("generate m.gguf -p a -n 2 --kv int8", "cache f16"),
        (
            "generate m.gguf -p a -n 2 --context 128",
            "155 positions, and the context is 128",
        ),
    ] {
        let line = bench
            .neap(&format!("{args} --save-session s"))
            .fails(2, &[said, "--save-session s", "left as it is"]);
        assert!(line.len() < 400, "{line}");
        assert_eq!(std::fs::read(bench.path("s")).unwrap(), kept, "{args}");
    }
    let mut damaged = vec![
        (Vec::new(), "not a saved session"),
        (b"a letter to somebody".to_vec(), "not a saved session"),
        ([&kept[..], b"x"].concat(), "damaged"),
    ];
    for at in [20, 60, kept.len() / 2, kept.len() - 1] {
        let mut bytes = kept.clone();
        bytes[at] ^= 4;
        damaged.push((bytes, ""));
        damaged.push((kept[..at].to_vec(), "damaged"));
    }
    for (bytes, said) in damaged {
        bench.write("d", &bytes);
        bench
            .neap("generate m.gguf -p a -n 2 --context 512 --save-session d")
            .fails(2, &[said, "left as it is"]);
        assert_eq!(std::fs::read(bench.path("d")).unwrap(), bytes);
    }
    bench
        .neap("generate m.gguf --jsonl a.txt --save-session s")
        .fails(2, &["cannot be used with"]);
}
