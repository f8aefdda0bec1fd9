//! Language models in GGUF: `neap inspect` says what is in one, and commands that compute refuse it.

use super::support::Bench;

/// A file with these texts and numbers, and one tensor of two rows of 32 elements in 8 bits.
fn file(pairs: &[(&str, &[u8])]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut bytes = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    bytes.extend((pairs.len() as u64).to_le_bytes());
    for (key, value) in pairs {
        bytes.extend(text(key));
        bytes.extend(*value);
    }
    bytes.extend(text("token_embd.weight"));
    for number in [2u32, 32, 0, 2, 0, 8, 0, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32) + 68, 0);
    bytes
}

fn number(value: u8) -> Vec<u8> {
    vec![4, 0, 0, 0, value, 0, 0, 0]
}

fn word(value: &str) -> Vec<u8> {
    [
        &[8, 0, 0, 0, value.len() as u8, 0, 0, 0, 0, 0, 0, 0],
        value.as_bytes(),
    ]
    .concat()
}

#[test]
fn a_language_model_is_inspected_and_has_its_own_commands() {
    let bench = Bench::new();
    let pairs: [(&str, &[u8]); 6] = [
        ("general.architecture", &word("llama")),
        ("general.name", &word("a\u{1b}[2Jb")),
        ("llama.block_count", &number(3)),
        ("llama.embedding_length", &number(32)),
        ("llama.attention.head_count", &number(2)),
        ("llama.attention.head_count_kv", &number(1)),
    ];
    // Whatever it is called.
    bench.write("m.bin", &file(&pairs));
    let facts = bench.json("inspect m.bin --format json");
    assert_eq!(facts["architecture"], "llama");
    assert_eq!(facts["parameters"], 64);
    assert_eq!(facts["weights"][0]["type"], "Q8_0");
    assert_eq!(facts["bytes_of_a_token"], 68);
    assert_eq!(facts["bytes_of_a_position"], 3 * (16 + 16) * 2);
    let text = bench.neap("inspect m.bin").ok().stdout;
    assert!(
        text.contains("llama, 0.0 million parameters, 3 layers"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(text.contains("neap chat"), "{text}");
    for command in ["run", "pack -o p.neap", "bench"] {
        let ran = bench.neap(&format!("{command} m.bin"));
        ran.fails(
            2,
            &[
                "'m.bin' is not an ONNX model but a language model in GGUF",
                "neap chat",
            ],
        );
    }
    // It has one tensor only.
    for command in ["plan", "generate -p x", "chat"] {
        bench
            .neap(&format!("{command} m.bin"))
            .fails(2, &["error: "]);
    }
}

#[test]
fn a_language_model_that_is_cut_short_is_refused_in_a_line() {
    let bench = Bench::new();
    let whole = file(&[("general.architecture", &word("llama"))]);
    for len in [4, 20, 60, whole.len() - 1] {
        bench.write("m.gguf", &whole[..len]);
        bench.neap("inspect m.gguf").fails(2, &["'m.gguf': "]);
    }
}
