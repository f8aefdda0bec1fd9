//! What a vocabulary of Qwen2's size takes, as the allocator counts it. Alone in its binary, as all of the process is counted.

use neap_gguf::Header;
use neap_testing::{Counting, kept_bytes, most_bytes};
use neap_tokenizer::Tokenizer;
use std::io::{Cursor, Write};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const TOKENS: usize = 151_936;
const MERGES: usize = TOKENS - 256;
const MOST: u64 = 4 << 20;

/// Bytes, pairs of letters, some fours, and sixes up to the end: as many bytes as Qwen2's vocabulary has, or nearly so.
fn file(pre: &str) -> Vec<u8> {
    let mut texts: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
    let mut merges = Vec::with_capacity(MERGES);
    let mut merge = |left: usize, right: usize, texts: &mut Vec<Vec<u8>>| {
        texts.push([&*texts[left], &*texts[right]].concat());
        merges.push((left, right));
        texts.len() - 1
    };
    let letters: Vec<usize> = (b'A'..=b'Z').chain(b'a'..=b'z').map(usize::from).collect();
    let places = letters
        .iter()
        .flat_map(|left| letters.iter().map(move |right| (*left, *right)));
    let pairs: Vec<usize> = places
        .map(|(left, right)| merge(left, right, &mut texts))
        .collect();
    let fours: Vec<usize> = pairs
        .windows(2)
        .take(400)
        .map(|two| merge(two[0], two[1], &mut texts))
        .collect();
    for (four, pair) in fours
        .iter()
        .flat_map(|four| pairs.iter().map(move |pair| (*four, *pair)))
    {
        if texts.len() < TOKENS {
            merge(four, pair, &mut texts);
        }
    }
    assert_eq!(merges.len(), MERGES);
    let mut file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0".to_vec();
    let text = |text: &[u8]| {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text);
        bytes
    };
    let letters = |bytes: &[u8]| -> String {
        bytes
            .iter()
            .map(|byte| match byte {
                0x21..=0x7E => char::from(*byte),
                // Bytes alone are not of this test: any letter does that is none of the others.
                _ => char::from_u32(0x4E00 + u32::from(*byte)).unwrap(),
            })
            .collect()
    };
    for (key, value) in [("model", "gpt2"), ("pre", pre)] {
        file.extend(text(format!("tokenizer.ggml.{key}").as_bytes()));
        file.extend(8u32.to_le_bytes());
        file.extend(text(value.as_bytes()));
    }
    for (key, count) in [("tokens", TOKENS), ("merges", MERGES)] {
        file.extend(text(format!("tokenizer.ggml.{key}").as_bytes()));
        file.write_all(&[9, 0, 0, 0, 8, 0, 0, 0]).unwrap();
        file.extend((count as u64).to_le_bytes());
        for index in 0..count {
            let written = match key {
                "tokens" => letters(&texts[index]),
                _ => format!(
                    "{} {}",
                    letters(&texts[merges[index].0]),
                    letters(&texts[merges[index].1])
                ),
            };
            file.extend(text(written.as_bytes()));
        }
    }
    file
}

#[test]
fn a_vocabulary_takes_what_it_tells_and_little_more_while_it_is_read() {
    for pre in ["qwen2", "llama-bpe"] {
        let file = file(pre);
        let header = Header::read(Cursor::new(&file), file.len() as u64).unwrap();
        let open = || Tokenizer::open(&header, Cursor::new(&file)).unwrap();
        let most = most_bytes(|| drop(open()));
        assert!(most <= MOST, "{pre}: {most} bytes while it is read");
        let mut tokenizer = None;
        let kept = kept_bytes(|| tokenizer = Some(open()));
        let tokenizer = tokenizer.unwrap();
        assert_eq!(tokenizer.len(), TOKENS);
        assert_eq!(kept, tokenizer.memory_bytes() as u64, "{pre}");
    }
}
