//! Encodes texts from standard input, for scripts/compare_tokens.py: `encode MODEL.gguf [--parse]`.
//!
//! A text is its length in bytes and its bytes; an answer is the number of tokens and their ids. Numbers have four bytes, the lowest
//! first.

use neap_gguf::Header;
use neap_tokenizer::{Special, Tokenizer};
use std::error::Error;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: encode MODEL.gguf [--parse]")?;
    let special = match arguments.next() {
        Some(_) => Special::Parse,
        None => Special::AsText,
    };
    let mut file = File::open(path)?;
    let len = file.metadata()?.len();
    let header = Header::read(BufReader::new(&mut file), len)?;
    let tokenizer = Tokenizer::open(&header, &mut file)?;
    let mut input = BufReader::new(stdin().lock());
    let mut output = BufWriter::new(stdout().lock());
    let mut number = [0; 4];
    while input.read_exact(&mut number).is_ok() {
        let mut text = vec![0; u32::from_le_bytes(number) as usize];
        input.read_exact(&mut text)?;
        let ids = tokenizer.encode(&String::from_utf8(text)?, special);
        output.write_all(&(ids.len() as u32).to_le_bytes())?;
        for id in ids {
            output.write_all(&id.to_le_bytes())?;
        }
    }
    eprintln!(
        "{} bytes for {} tokens",
        tokenizer.memory_bytes(),
        tokenizer.len()
    );
    Ok(())
}
