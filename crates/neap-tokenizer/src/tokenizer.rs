//! Text to tokens, and back.

use crate::bpe::Bpe;
use crate::special::{Special, Specials};
use crate::spm::Spm;
use crate::unigram::Unigram;
use crate::vocabulary::Vocabulary;
use crate::wordpiece::WordPiece;
use crate::{Result, open};
use neap_gguf::Header;
use std::borrow::Cow;
use std::io::{Read, Seek};

/// A model's tokenizer. Tokens are numbers below [`Tokenizer::len`].
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) specials: Specials,
    pub(crate) model: Model,
    /// Sorted.
    pub(crate) ends: Box<[u32]>,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    /// What prompts begin and end with.
    pub(crate) before: Option<u32>,
    pub(crate) after: Option<u32>,
}

#[derive(Debug)]
pub(crate) enum Model {
    Bpe(Bpe),
    /// And whether a space is put before a text.
    Spm(Spm, bool),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

impl Tokenizer {
    /// Reads the tokenizer of a file with this header; of a split model, of its first part.
    ///
    /// # Errors
    /// The file has no tokenizer, one that is not supported, or one that contradicts itself.
    pub fn open<R: Read + Seek>(header: &Header, source: R) -> Result<Self> {
        open::open(header, source)
    }

    /// The tokens of a text of less than 4 GiB, without those that prompts begin and end with.
    #[must_use]
    pub fn encode(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = Vec::new();
        // SentencePiece's sign for a space is one.
        let spaced = (self.has_space_sign() && text.contains('▁')).then(|| text.replace('▁', " "));
        let mut rest = spaced.as_deref().unwrap_or(text);
        while let Some((at, id)) = self.specials.find(&self.vocabulary, rest, special) {
            self.encode_text(&rest[..at], &mut ids);
            ids.push(id);
            rest = &rest[at + self.vocabulary.text(id).len()..];
        }
        self.encode_text(rest, &mut ids);
        ids
    }

    /// As [`Tokenizer::encode`], with the tokens that the model expects before and after a prompt. A text that names them itself, as
    /// templates of chats do, does not get them twice.
    #[must_use]
    pub fn encode_prompt(&self, text: &str, special: Special) -> Vec<u32> {
        let mut ids = self.encode(text, special);
        if let Some(before) = self.before.filter(|id| ids.first() != Some(id)) {
            ids.insert(0, before);
        }
        ids.extend(self.after.filter(|id| ids.last() != Some(id)));
        ids
    }

    fn encode_text(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let vocabulary = &self.vocabulary;
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(vocabulary, text, ids),
            Model::Spm(spm, true) => spm.encode(vocabulary, &format!(" {text}"), ids),
            Model::Spm(spm, false) => spm.encode(vocabulary, text, ids),
            Model::Unigram(unigram) => unigram.encode(vocabulary, text, ids),
            Model::WordPiece(pieces) => pieces.encode(vocabulary, text, ids),
        }
    }

    fn has_space_sign(&self) -> bool {
        match &self.model {
            Model::Bpe(bpe) => bpe.of_characters,
            Model::Spm(..) | Model::Unigram(_) => true,
            Model::WordPiece(_) => false,
        }
    }

    /// The bytes of a token; of a control token its name. They need not be whole characters. Ids that are no tokens have none.
    #[must_use]
    pub fn piece(&self, id: u32) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.vocabulary.text(id))
    }

    /// What prompts begin with, where the model has such a token.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// What texts end with, where the model has such a token.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// An answer is over after this token: the end of the text, of a turn or of a message.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// A token that is no text, but tells the model something.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.specials.is_control(id)
    }

    /// How many tokens there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vocabulary.len()
    }

    /// Whether the file has no token at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the heap that the tokenizer holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let model = match &self.model {
            Model::Bpe(bpe) => bpe.memory_bytes(),
            Model::Spm(spm, _) => spm.memory_bytes(),
            Model::Unigram(unigram) => unigram.memory_bytes(),
            Model::WordPiece(pieces) => pieces.memory_bytes(),
        };
        let ends = size_of_val(&*self.ends);
        self.vocabulary.memory_bytes() + self.specials.memory_bytes() + model + ends
    }
}
