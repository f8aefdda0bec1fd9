//! Whole characters from the bytes of tokens as they come.

/// Holds back bytes until they are whole characters. What can never become one is shown as U+FFFD.
#[derive(Debug, Default, Clone)]
pub struct Decoder {
    text: String,
    /// The beginning of a character: three bytes at most.
    held: Vec<u8>,
}

impl Decoder {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the bytes of the next token, and gives the characters that are whole now.
    pub fn push(&mut self, piece: &[u8]) -> &str {
        self.text.clear();
        self.held.extend_from_slice(piece);
        let mut kept = 0;
        for chunk in self.held.utf8_chunks() {
            self.text.push_str(chunk.valid());
            kept = chunk.invalid().len();
            if kept > 0 {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        let whole = self.held.len() - kept;
        if kept > 0 && may_continue(&self.held[whole..]) {
            self.text.pop();
            self.held.drain(..whole);
        } else {
            self.held.clear();
        }
        &self.text
    }

    /// What is left when no more tokens come.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.held.is_empty() {
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.held.clear();
        }
        &self.text
    }
}

/// Bytes at the end of a text that are wrong only for want of more.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}
