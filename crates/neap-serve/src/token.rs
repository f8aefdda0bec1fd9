//! Who may ask: whoever knows the token.
//!
//! ```text
//!   Authorization: Bearer TOKEN
//! ```
//! Source: RFC 6750, section 2.1.

use crate::refusal::{Refusal, Why};
use axum::http::{HeaderMap, header};
use std::fmt;
use std::path::Path;

/// A shorter one could be guessed.
const LEAST_BYTES: usize = 16;

/// A longer one does not fit into a request's head.
const MOST_BYTES: usize = 4096;

/// A secret that clients show.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// The first line of a file.
    ///
    /// # Errors
    /// One line, which does not tell the token.
    pub fn read(path: &Path) -> Result<Token, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("cannot read the token in {}: {e}", path.display()))?;
        let token = text.lines().next().unwrap_or("").trim();
        Token::of(token).map_err(|reason| format!("the token in {} {reason}", path.display()))
    }

    fn of(token: &str) -> Result<Token, String> {
        if !(LEAST_BYTES..=MOST_BYTES).contains(&token.len()) {
            return Err(format!("has not {LEAST_BYTES} to {MOST_BYTES} characters"));
        }
        match token.bytes().all(|b| b.is_ascii_graphic()) {
            true => Ok(Token(token.into())),
            false => Err("has characters that no header may have".into()),
        }
    }

    /// # Errors
    /// [`Why::Unknown`] for a request that does not show it.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let shown = headers.get(header::AUTHORIZATION).map(|v| v.as_bytes());
        let shown = shown.and_then(|bytes| {
            let (scheme, rest) = bytes.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
        });
        match shown.is_some_and(|shown| self.is(shown)) {
            true => Ok(()),
            false => Err(Refusal::new(
                Why::Unknown,
                "show the token: Authorization: Bearer TOKEN",
            )),
        }
    }

    /// Takes as long for every token of this length, so that it cannot be guessed piece by piece.
    fn is(&self, shown: &[u8]) -> bool {
        let pairs = self.0.iter().zip(shown);
        let differing = pairs.fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
        differing == 0 && self.0.len() == shown.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_and_no_other() {
        let token = Token::of("0123456789abcdef").unwrap();
        let check = |value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            }
            token.check(&headers).is_ok()
        };
        assert!(check(Some("Bearer 0123456789abcdef")));
        assert!(check(Some("bearer 0123456789abcdef")));
        for other in [
            "Bearer 0123456789abcdeF",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer  0123456789abcdef",
            "Basic 0123456789abcdef",
            "Bearer ",
            "Bear",
            "",
        ] {
            assert!(!check(Some(other)), "{other}");
        }
        assert!(!check(None));
        assert!(!format!("{token:?}").contains('0'));
    }

    #[test]
    fn what_is_no_token_is_told_without_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for bad in [
            "",
            "short",
            "two words and more of them",
            "a\u{7f}aaaaaaaaaaaaaaaaaa",
        ] {
            std::fs::write(&path, bad).unwrap();
            let error = Token::read(&path).unwrap_err();
            assert!(bad.is_empty() || !error.contains(bad), "{error}");
        }
        std::fs::write(&path, "0123456789abcdef\nsecond line\n").unwrap();
        assert_eq!(Token::read(&path), Token::of("0123456789abcdef"));
        assert!(Token::read(&folder.path().join("none")).is_err());
    }
}
