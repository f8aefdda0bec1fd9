//! The text side of language models in GGUF files: tokens from text and text from tokens.
//!
//! ```text
//!   text ─► special tokens found ─► words (split) ─► merging by ranks (BPE) or scores (SentencePiece) ─► ids
//!                                                    best sum of scores (unigram), longest pieces (WordPiece)
//!   logits ─► ids (sample) ─► bytes (Tokenizer::piece) ─► whole characters (Decoder) ─► an end (StopStrings)
//! ```
//! A vocabulary of 152,000 tokens takes less than 4 MiB, while it is read as well: texts lie in one block, ids and offsets take three
//! bytes, and pairs that are merged are found by ids, not by texts.
//!
//! Sources: the published `tokenizer.json` of the models, and llama.cpp for what keys of GGUF files mean.
#![forbid(unsafe_code)]

mod bpe;
mod byte_alphabet;
pub mod chat;
mod classes;
mod decoder;
mod ends;
mod error;
#[cfg(feature = "grammar")]
pub mod grammar;
mod index;
mod merges;
mod merging;
mod open;
mod packed;
mod pre;
pub mod sample;
mod special;
mod split;
mod spm;
mod stop;
mod tokenizer;
mod unigram;
mod vocabulary;
mod wordpiece;

pub use decoder::Decoder;
pub use error::Error;
pub use special::Special;
pub use stop::StopStrings;
pub use tokenizer::Tokenizer;

/// What reading a tokenizer gives.
pub type Result<T> = std::result::Result<T, Error>;
