//! Answers that follow a JSON schema, a grammar in Lark's notation or a regular expression, by `llguidance`.
//!
//! A mask says which tokens may come next; where only one text can follow, its tokens are told, and a model checks them all at once as
//! drafts. The tree of all tokens' bytes that this needs takes more memory than the tokenizer itself: [`Grammars::memory_bytes`].

use crate::{Special, Tokenizer};
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{
    InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory};
use std::sync::Arc;

/// Why there is no such answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    #[error("the model has no token that ends an answer")]
    NoEnd,
    #[error("the grammar cannot be used: {0}")]
    Grammar(String),
    #[error("a token that the grammar does not allow, or a grammar that is too large: {0}")]
    Token(String),
}

/// What a text has to follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule<'a> {
    /// JSON that a schema allows. The schema is JSON itself.
    JsonSchema(&'a str),
    /// Any JSON object.
    JsonObject,
    /// A grammar in the notation of the Python package Lark, as `llguidance` has it.
    Lark(&'a str),
    Regex(&'a str),
}

/// Makes constraints for the answers of one model.
pub struct Grammars {
    factory: ParserFactory,
    bytes: usize,
}

/// One answer, as far as it is written.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
}

/// Which tokens may come next.
#[derive(Debug, Clone)]
pub struct Allowed(SimpleVob);

struct Tokens {
    tokenizer: Arc<Tokenizer>,
    tree: TokTrie,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.tree
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.tree.tokenize_with_greedy_fallback(bytes, |text| {
            self.tokenizer.encode(text, Special::AsText)
        })
    }
}

impl Grammars {
    /// Takes a few times [`Grammars::memory_bytes`] for a moment.
    ///
    /// # Errors
    /// The model has no token that ends an answer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Result<Self, GrammarError> {
        let ids = 0..tokenizer.len() as u32;
        let mut ends = ids.clone().filter(|id| tokenizer.is_end(*id));
        let end = tokenizer.eos().or_else(|| ends.next());
        let info = TokRxInfo {
            tok_bos: tokenizer.bos(),
            ..TokRxInfo::new(ids.end, end.ok_or(GrammarError::NoEnd)?)
        };
        let texts: Vec<Vec<u8>> = ids
            .map(
                |id| match tokenizer.is_control(id) || tokenizer.is_end(id) {
                    true => [&[TokTrie::SPECIAL_TOKEN_MARKER], &*tokenizer.piece(id)].concat(),
                    false => tokenizer.piece(id).into_owned(),
                },
            )
            .collect();
        let tree = TokTrie::from(&info, &texts);
        let text_bytes: usize = texts.iter().map(Vec::len).sum();
        // A node of the tree; where a token's bytes lie; the order of tokens.
        let bytes = 8 * tree.root().subtree_size() + (8 + 4) * texts.len() + text_bytes;
        drop(texts);
        let tokens: TokEnv = Arc::new(Tokens { tokenizer, tree });
        let mut factory = ParserFactory::new(&tokens, InferenceCapabilities::default(), &[])
            .map_err(|error| GrammarError::Grammar(one_line(&error)))?;
        factory.quiet();
        Ok(Grammars { factory, bytes })
    }

    /// Bytes of the heap for the tree of tokens. An answer's own are not counted: they depend on its grammar.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// # Errors
    /// The rule is not one, or asks for something that is not supported.
    pub fn constraint(&self, rule: Rule<'_>) -> Result<Constraint, GrammarError> {
        let wrong = |error: &dyn std::fmt::Display| GrammarError::Grammar(one_line(error));
        let grammar = match rule {
            Rule::JsonSchema(schema) => TopLevelGrammar::from_tagged_str("json_schema", schema),
            Rule::JsonObject => TopLevelGrammar::from_tagged_str("json_object", ""),
            Rule::Lark(grammar) => TopLevelGrammar::from_tagged_str("lark", grammar),
            Rule::Regex(expression) => TopLevelGrammar::from_tagged_str("regex", expression),
        };
        let grammar = grammar.map_err(|error| wrong(&error))?;
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            None => Ok(Constraint { matcher }),
            Some(error) => Err(wrong(&error)),
        }
    }
}

impl Constraint {
    /// Which tokens may come next: the end of the answer where it may be over.
    ///
    /// # Errors
    /// The grammar takes too much work.
    pub fn allowed(&mut self) -> Result<Allowed, GrammarError> {
        let mask = self.matcher.compute_mask_or_eos();
        mask.map(Allowed)
            .map_err(|error| GrammarError::Token(one_line(&error)))
    }

    /// Tokens that must come next, whatever the model says. They are not taken yet.
    pub fn forced(&mut self) -> Vec<u32> {
        self.matcher.compute_ff_tokens()
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// The token is not allowed.
    pub fn accept(&mut self, id: u32) -> Result<(), GrammarError> {
        let taken = self.matcher.consume_token(id);
        taken.map_err(|error| GrammarError::Token(one_line(&error)))
    }

    /// Takes back the last tokens.
    ///
    /// # Errors
    /// There were fewer.
    pub fn take_back(&mut self, tokens: usize) -> Result<(), GrammarError> {
        let back = self.matcher.rollback(tokens);
        back.map_err(|error| GrammarError::Token(one_line(&error)))
    }

    /// Nothing may follow.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.matcher.is_stopped()
    }
}

impl Allowed {
    #[must_use]
    pub fn has(&self, id: u32) -> bool {
        (id as usize) < self.0.len() && self.0.is_allowed(id)
    }
}

fn one_line(error: &dyn std::fmt::Display) -> String {
    let text = error.to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
