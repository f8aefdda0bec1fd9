//! Tokenizers that are read from files, against slow ones that follow the definition, and fixed tables.

mod bpe;
mod broken;
mod chat;
mod decoder;
mod file;
mod pieces;
mod sample;
mod special;
mod stop;
