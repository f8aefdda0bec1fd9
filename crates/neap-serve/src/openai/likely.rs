//! Log-probabilities of tokens, as chats and completions tell them.

use super::answering::Kind;
use neap_chat::TokenLogprobs;
use serde_json::{Map, Value, json};

/// Those of one answer that were not told yet.
pub struct Likely {
    kind: Kind,
    is_wanted: bool,
    tokens: Vec<TokenLogprobs>,
    /// Where the next token begins in the text, in characters.
    offset: usize,
}

impl Likely {
    pub fn new(kind: Kind, is_wanted: bool) -> Likely {
        Likely {
            kind,
            is_wanted,
            tokens: Vec::new(),
            offset: 0,
        }
    }

    pub fn take(&mut self, told: TokenLogprobs) {
        if self.is_wanted {
            self.tokens.push(told);
        }
    }

    /// All that were not told; null where none are wanted.
    pub fn told(&mut self) -> Value {
        let tokens = std::mem::take(&mut self.tokens);
        match self.kind {
            _ if !self.is_wanted => Value::Null,
            Kind::Chat => of_chat(&tokens),
            Kind::Completion => self.of_completion(&tokens),
        }
    }

    fn of_completion(&mut self, tokens: &[TokenLogprobs]) -> Value {
        let offsets = tokens.iter().map(|token| {
            let at = self.offset;
            self.offset += text(&token.bytes).chars().count();
            at
        });
        let offsets: Vec<usize> = offsets.collect();
        let texts = tokens.iter().map(|token| text(&token.bytes));
        let logprobs = tokens.iter().map(|token| finite(token.logprob));
        let likely = tokens.iter().map(|token| {
            let own = (text(&token.bytes), finite(token.logprob).into());
            let others = token.likely.iter();
            let others = others.map(|(bytes, logprob)| (text(bytes), finite(*logprob).into()));
            others.chain([own]).collect::<Map<String, Value>>()
        });
        json!({
            "tokens": texts.collect::<Vec<_>>(),
            "token_logprobs": logprobs.collect::<Vec<_>>(),
            "top_logprobs": likely.collect::<Vec<_>>(),
            "text_offset": offsets,
        })
    }
}

fn of_chat(tokens: &[TokenLogprobs]) -> Value {
    let one = |bytes: &[u8], logprob: f64| json!({"token": text(bytes), "logprob": finite(logprob), "bytes": bytes});
    let content = tokens.iter().map(|token| {
        let likely = token.likely.iter();
        let likely = likely.map(|(bytes, logprob)| one(bytes, *logprob));
        let mut told = one(&token.bytes, token.logprob);
        told["top_logprobs"] = likely.collect();
        told
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// JSON has no infinities: what can never come is told as OpenAI does.
fn finite(logprob: f64) -> f64 {
    logprob.max(-9999.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: &[u8]) -> TokenLogprobs {
        TokenLogprobs {
            bytes: bytes.into(),
            logprob: -0.5,
            likely: vec![(b"x".into(), -0.25), (b"y".into(), f64::NEG_INFINITY)],
        }
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let mut likely = Likely::new(Kind::Completion, true);
        likely.take(token("é".as_bytes()));
        likely.take(token(b"ab"));
        let told = likely.told();
        assert_eq!(told["tokens"], json!(["é", "ab"]));
        assert_eq!(told["text_offset"], json!([0, 1]));
        assert_eq!(
            told["top_logprobs"][0],
            json!({"x": -0.25, "y": -9999.0, "é": -0.5})
        );
        likely.take(token(b"c"));
        assert_eq!(likely.told()["text_offset"], json!([3]));
        assert_eq!(likely.told()["tokens"], json!([]));
    }

    #[test]
    fn bytes_that_are_no_text_are_told_as_bytes() {
        let mut likely = Likely::new(Kind::Chat, true);
        likely.take(token(&[0xe2, 0x82]));
        let told = likely.told();
        assert_eq!(told["content"][0]["bytes"], json!([0xe2, 0x82]));
        assert_eq!(told["content"][0]["top_logprobs"][1]["logprob"], -9999.0);
        assert_eq!(Likely::new(Kind::Chat, false).told(), Value::Null);
    }
}
