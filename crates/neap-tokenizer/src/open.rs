//! Reads a tokenizer from a file. Arrays pass through once or twice, text by text, and are never in memory as such.

use crate::bpe::Bpe;
use crate::byte_alphabet::byte_of;
use crate::ends::Ends;
use crate::index::Index;
use crate::merges::Merges;
use crate::packed::U24;
use crate::pre::{self, Pre};
use crate::special::Specials;
use crate::spm::Spm;
use crate::tokenizer::{Model, Tokenizer};
use crate::unigram::{Normalizer, Unigram};
use crate::vocabulary::{Kind, Vocabulary};
use crate::wordpiece::WordPiece;
use crate::{Error, Result};
use neap_gguf::{Array, Header, Value};
use std::io::{BufReader, Read, Seek};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const KINDS: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// The space of SentencePiece's vocabularies, in UTF-8.
const SPACE: &[u8] = "▁".as_bytes();

/// What is merged or matched, by what a file calls it.
enum Family {
    ByteLevel(&'static Pre),
    Characters,
    Spm,
    Unigram,
    WordPiece,
}

impl Family {
    fn of(file: &File<impl Read + Seek>) -> Result<Self> {
        let model = file.text(MODEL).ok_or(Error::Missing(MODEL))?;
        match model {
            "gpt2" => {
                let name = file.text(PRE).ok_or(Error::Missing(PRE))?;
                let pre = Pre::named(name);
                let pre = pre.ok_or_else(|| Error::UnknownPreTokenizer(name.to_owned()))?;
                Ok(Family::ByteLevel(pre))
            }
            "gemma4" => Ok(Family::Characters),
            "llama" => Ok(Family::Spm),
            "t5" => Ok(Family::Unigram),
            "bert" => Ok(Family::WordPiece),
            other => Err(Error::UnknownModel(other.to_owned())),
        }
    }

    /// The bytes that a token stands for, from how the file writes it.
    fn spell(&self, kind: Kind, written: &[u8], bytes: &mut Vec<u8>) {
        bytes.clear();
        let is_name = matches!(kind, Kind::Control | Kind::Unknown);
        match self {
            Family::ByteLevel(_) | Family::WordPiece if is_name => {
                bytes.extend_from_slice(written);
            }
            Family::ByteLevel(_) => {
                let letters = std::str::from_utf8(written).unwrap_or_default();
                bytes.extend(letters.chars().map_while(byte_of));
                let is_letters = bytes.len() == letters.chars().count() && !letters.is_empty();
                if kind == Kind::UserDefined || !is_letters {
                    bytes.clear();
                    bytes.extend_from_slice(written);
                }
            }
            _ if kind == Kind::Byte => match byte_named(written) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(written),
            },
            _ => {
                let mut rest = written;
                while let Some((first, after)) = rest.split_first() {
                    let space = rest.strip_prefix(SPACE);
                    bytes.push(if space.is_some() { b' ' } else { *first });
                    rest = space.unwrap_or(after);
                }
            }
        }
    }
}

/// `<0x0A>`
fn byte_named(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

pub(crate) fn open<R: Read + Seek>(header: &Header, source: R) -> Result<Tokenizer> {
    let mut file = File {
        header,
        source: BufReader::new(source),
    };
    let family = Family::of(&file)?;
    let mut ends = Ends::default();
    let mut kinds = file.kinds()?;
    let vocabulary = file.vocabulary(&family, &mut kinds, &mut ends)?;
    let ids = Named::read(&file, &family, vocabulary.len());
    let model = file.model(family, &vocabulary, &kinds, &ids)?;
    Ok(Tokenizer {
        specials: Specials::new(&vocabulary, &kinds),
        ends: ends.finish(ids.ends.into_iter().flatten()),
        bos: ids.bos,
        eos: ids.eos,
        before: ids.before,
        after: ids.after,
        vocabulary,
        model,
    })
}

/// Tokens that the file names by id.
struct Named {
    bos: Option<u32>,
    eos: Option<u32>,
    unknown: Option<u32>,
    /// Ends of answers.
    ends: [Option<u32>; 3],
    /// What prompts begin and end with.
    before: Option<u32>,
    after: Option<u32>,
}

impl Named {
    fn read(file: &File<impl Read + Seek>, family: &Family, tokens: usize) -> Self {
        let id = |key: &str| {
            let id = file.header.get(&format!("tokenizer.ggml.{key}_token_id"));
            let id = id.and_then(Value::as_u64)?;
            (id < tokens as u64).then_some(id as u32)
        };
        // What a file of this family means if it says nothing: first token, end, unknown.
        let (bos, eos, unknown) = match family {
            Family::Spm => (Some(1), Some(2), Some(0)),
            Family::Unigram => (None, Some(1), Some(2)),
            Family::WordPiece => (Some(101), Some(102), Some(100)),
            Family::ByteLevel(_) | Family::Characters => (None, None, None),
        };
        let (adds_bos, adds_eos) = match family {
            Family::ByteLevel(pre) => (pre.adds_bos, false),
            Family::Characters | Family::Spm => (true, false),
            Family::Unigram => (false, true),
            Family::WordPiece => (true, true),
        };
        let usual = |id: Option<u32>| id.filter(|id| (*id as usize) < tokens);
        let is_embedder = matches!(family, Family::WordPiece);
        let cls = id("cls").filter(|_| is_embedder);
        let separator = id("seperator").filter(|_| is_embedder);
        let bos = id("bos").or(cls).or(usual(bos));
        let eos = id("eos").or(separator).or(usual(eos));
        let adds = |key: &str, usual| file.flag(key).unwrap_or(usual);
        // Files of Gemma 4 were made that say no and mean yes.
        let adds_bos = matches!(family, Family::Characters) || adds("add_bos_token", adds_bos);
        let last = if is_embedder { separator.or(eos) } else { eos };
        Named {
            bos,
            eos,
            unknown: id("unknown").or(usual(unknown)),
            ends: [eos.filter(|_| !is_embedder), id("eot"), id("eom")],
            before: bos.filter(|_| adds_bos),
            after: last.filter(|_| {
                adds("add_eos_token", adds_eos) || is_embedder && adds("add_sep_token", true)
            }),
        }
    }
}

struct File<'a, R> {
    header: &'a Header,
    source: BufReader<R>,
}

impl<R: Read + Seek> File<'_, R> {
    fn text(&self, key: &str) -> Option<&str> {
        self.header.get(key).and_then(Value::as_text)
    }

    /// A yes or no of the tokenizer.
    fn flag(&self, key: &str) -> Option<bool> {
        match self.header.get(&format!("tokenizer.ggml.{key}")) {
            Some(Value::Bool(flag)) => Some(*flag),
            _ => None,
        }
    }

    fn array(&self, key: &'static str) -> Result<Array> {
        let array = self.header.get(key).and_then(Value::as_array);
        let array = array.ok_or(Error::Missing(key))?;
        match array.len < U24::LIMIT {
            true => Ok(array.clone()),
            false => Err(Error::damaged(format!(
                "'{key}' has {} elements",
                array.len
            ))),
        }
    }

    /// An array with an element for each token.
    fn array_of_tokens(&self, key: &'static str) -> Result<Array> {
        let (array, tokens) = (self.array(key)?, self.array(TOKENS)?.len);
        match array.len == tokens {
            true => Ok(array),
            false => Err(Error::damaged(format!(
                "{tokens} tokens, but '{key}' has {} elements",
                array.len
            ))),
        }
    }

    fn kinds(&mut self) -> Result<Vec<Kind>> {
        let tokens = self.array(TOKENS)?.len as usize;
        if self.header.get(KINDS).is_none() {
            return Ok(vec![Kind::Normal; tokens]);
        }
        let mut kinds = Vec::with_capacity(tokens);
        let array = self.array_of_tokens(KINDS)?;
        array.numbers(&mut self.source, |number| {
            kinds.push(Kind::of_number(number))
        })?;
        Ok(kinds)
    }

    /// Read twice: how many bytes there are must be known before they are taken.
    fn vocabulary(
        &mut self,
        family: &Family,
        kinds: &mut [Kind],
        ends: &mut Ends,
    ) -> Result<Vocabulary> {
        let array = self.array(TOKENS)?;
        let mut spelt = Vec::new();
        let (mut id, mut bytes) = (0, 0);
        array.texts(&mut self.source, |written| {
            kinds[id] = ends.notice(id as u32, kinds[id], written);
            family.spell(kinds[id], written, &mut spelt);
            bytes += spelt.len();
            id += 1;
        })?;
        let mut texts = Vocabulary::builder(kinds.len(), bytes)?;
        let mut id = 0;
        array.texts(&mut self.source, |written| {
            family.spell(kinds[id], written, &mut spelt);
            texts.push(&spelt);
            id += 1;
        })?;
        Ok(texts.finish())
    }

    fn model(
        &mut self,
        family: Family,
        vocabulary: &Vocabulary,
        kinds: &[Kind],
        ids: &Named,
    ) -> Result<Model> {
        let is_of_text = |id: u32| kinds[id as usize].is_of_text();
        let index = Index::new(vocabulary, is_of_text);
        let spaces_first = self.flag("add_space_prefix");
        Ok(match family {
            Family::ByteLevel(pre) => {
                let merges = self.merges(&family, vocabulary, &index)?;
                let bytes = table(|byte| index.find(vocabulary, &[byte]));
                let index = pre.whole_words.then_some(index);
                Model::Bpe(Bpe {
                    pre,
                    merges,
                    bytes,
                    index,
                    of_characters: false,
                })
            }
            Family::Characters => {
                let merges = self.merges(&family, vocabulary, &index)?;
                let bytes = byte_tokens(vocabulary, kinds);
                Model::Bpe(Bpe {
                    pre: &pre::LINES,
                    merges,
                    bytes,
                    index: Some(index),
                    of_characters: true,
                })
            }
            Family::Spm => {
                let bytes = byte_tokens(vocabulary, kinds);
                let spm = Spm::new(
                    vocabulary,
                    index,
                    self.scores()?,
                    bytes,
                    ids.unknown,
                    is_of_text,
                );
                Model::Spm(spm, spaces_first.unwrap_or(true))
            }
            Family::Unigram => {
                let normalizer = self.normalizer(spaces_first.unwrap_or(true))?;
                let mut scores = self.scores()?;
                for (score, kind) in scores.iter_mut().zip(kinds) {
                    // They are taken wherever they can be.
                    if *kind == Kind::UserDefined {
                        *score = 0.0;
                    }
                }
                Model::Unigram(Unigram::new(
                    vocabulary,
                    index,
                    scores,
                    kinds,
                    ids.unknown,
                    normalizer,
                ))
            }
            Family::WordPiece => {
                let cased = match self.flag("normalizer.lowercase") {
                    Some(lowers) => !lowers,
                    None => vocabulary.ids().any(|id| {
                        kinds[id as usize] == Kind::Normal && has_capitals(vocabulary.text(id))
                    }),
                };
                let keeps_accents = self
                    .flag("normalizer.strip_accents")
                    .map_or(cased, |strips| !strips);
                Model::WordPiece(WordPiece {
                    index,
                    unknown: ids.unknown,
                    cased,
                    keeps_accents,
                })
            }
        })
    }

    fn scores(&mut self) -> Result<Box<[f32]>> {
        let array = self.array_of_tokens(SCORES)?;
        let mut scores = Vec::with_capacity(array.len as usize);
        array.numbers(&mut self.source, |score| scores.push(score as f32))?;
        Ok(scores.into_boxed_slice())
    }

    fn merges(
        &mut self,
        family: &Family,
        vocabulary: &Vocabulary,
        index: &Index,
    ) -> Result<Merges> {
        let array = self.array(MERGES)?;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        Merges::new(vocabulary.len(), array.len as usize, |take| {
            let mut wrong = None;
            array.texts(&mut self.source, |merge| {
                // The first letter may be a space itself.
                let space = merge.iter().skip(1).position(|byte| *byte == b' ');
                let parts = space.map(|space| (&merge[..space + 1], &merge[space + 2..]));
                let ids = parts.and_then(|(first, second)| {
                    family.spell(Kind::Normal, first, &mut left);
                    family.spell(Kind::Normal, second, &mut right);
                    let of = |text: &[u8]| index.find(vocabulary, text);
                    let (first, second) = (of(&left)?, of(&right)?);
                    left.extend_from_slice(&right);
                    Some((first, second, of(&left)?))
                });
                match ids {
                    Some((left, right, merged)) => take(left, right, merged),
                    None => wrong = Some(String::from_utf8_lossy(merge).into_owned()),
                }
            })?;
            match wrong {
                None => Ok(()),
                Some(merge) => Err(Error::damaged(format!(
                    "the merge '{merge}' is not of tokens"
                ))),
            }
        })
    }

    fn normalizer(&mut self, adds_space: bool) -> Result<Normalizer> {
        const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
        let mut map = Vec::new();
        if self.header.get(CHARSMAP).is_some() {
            let array = self.array(CHARSMAP)?;
            map.reserve_exact(array.len as usize);
            // Signed or unsigned bytes.
            array.numbers(&mut self.source, |byte| map.push(byte as i64 as u8))?;
        }
        let merges_spaces = self.flag("remove_extra_whitespaces").unwrap_or(false);
        Normalizer::new(&map, adds_space, merges_spaces)
    }
}

fn table(id: impl Fn(u8) -> Option<u32>) -> Box<[U24; 256]> {
    Box::new(std::array::from_fn(|byte| {
        id(byte as u8).map_or(U24::NONE, U24::new)
    }))
}

/// The tokens that stand for single bytes where text has no other token.
fn byte_tokens(vocabulary: &Vocabulary, kinds: &[Kind]) -> Box<[U24; 256]> {
    let mut tokens = [None; 256];
    for id in vocabulary
        .ids()
        .filter(|id| kinds[*id as usize] == Kind::Byte)
    {
        if let [byte] = vocabulary.text(id) {
            tokens[usize::from(*byte)] = Some(id);
        }
    }
    table(|byte| tokens[usize::from(byte)])
}

fn has_capitals(text: &[u8]) -> bool {
    String::from_utf8_lossy(text)
        .chars()
        .any(char::is_uppercase)
}
