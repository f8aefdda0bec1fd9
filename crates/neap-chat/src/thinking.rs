//! Tells what a model thinks from what it answers.

const BEGIN: &str = "<think>";
const END: &str = "</think>";

/// A piece of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Reasoning,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing but space came yet.
    Begin,
    Inside,
    /// The thought is over, and only space came since.
    After,
    Text,
}

/// Splits a text that comes in pieces. What may be the beginning of a mark is held back.
#[derive(Debug)]
pub(crate) struct Thinking {
    place: Place,
    held: String,
}

impl Thinking {
    /// Of an answer to this prompt, as the model reads it; `None`: one without marks.
    pub fn after(prompt: Option<&str>) -> Thinking {
        let place = match prompt {
            None => Place::Text,
            Some(prompt) if prompt.trim_end().ends_with(BEGIN) => Place::Inside,
            Some(_) => Place::Begin,
        };
        Thinking {
            place,
            held: String::new(),
        }
    }

    pub fn push(&mut self, text: &str, emit: &mut dyn FnMut(Kind, &str)) {
        self.held.push_str(text);
        loop {
            match self.place {
                Place::Begin => {
                    let rest = self.held.trim_start();
                    if let Some(thought) = rest.strip_prefix(BEGIN) {
                        self.held = thought.to_owned();
                        self.place = Place::Inside;
                    } else if BEGIN.starts_with(rest) {
                        return;
                    } else {
                        self.place = Place::Text;
                    }
                }
                Place::Inside => match self.held.find(END) {
                    Some(at) => {
                        give(Kind::Reasoning, &self.held[..at], emit);
                        self.held.drain(..at + END.len());
                        self.place = Place::After;
                    }
                    None => {
                        let kept = self.held.len() - beginning_of(END, &self.held);
                        give(Kind::Reasoning, &self.held[..kept], emit);
                        self.held.drain(..kept);
                        return;
                    }
                },
                Place::After => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        return;
                    }
                    self.place = Place::Text;
                }
                Place::Text => {
                    give(Kind::Text, &self.held, emit);
                    self.held.clear();
                    return;
                }
            }
        }
    }

    /// What was held back.
    pub fn finish(&mut self, emit: &mut dyn FnMut(Kind, &str)) {
        match self.place {
            Place::Inside => give(Kind::Reasoning, &self.held, emit),
            Place::Begin | Place::Text => give(Kind::Text, &self.held, emit),
            Place::After => {}
        }
        self.held.clear();
    }
}

fn give(kind: Kind, text: &str, emit: &mut dyn FnMut(Kind, &str)) {
    if !text.is_empty() {
        emit(kind, text);
    }
}

/// Bytes at the end of a text that a mark begins with.
fn beginning_of(mark: &str, text: &str) -> usize {
    let mut lengths = (1..mark.len()).rev();
    lengths
        .find(|&length| text.ends_with(&mark[..length]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thought and answer, whichever way the text is cut.
    fn split(prompt: Option<&str>, text: &str) -> (String, String) {
        let mut all: Option<(String, String)> = None;
        for size in 1..=text.len().max(1) {
            let mut thinking = Thinking::after(prompt);
            let mut parts = (String::new(), String::new());
            let mut emit = |kind, text: &str| match kind {
                Kind::Reasoning => parts.0.push_str(text),
                Kind::Text => parts.1.push_str(text),
            };
            for piece in text.as_bytes().chunks(size) {
                thinking.push(std::str::from_utf8(piece).unwrap(), &mut emit);
            }
            thinking.finish(&mut emit);
            assert!(all.as_ref().is_none_or(|before| *before == parts), "{size}");
            all = Some(parts);
        }
        all.unwrap()
    }

    #[test]
    fn thoughts_are_apart() {
        let of = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            split(Some("x"), "\n<think>a</b></think>\n\nyes"),
            of("a</b>", "yes")
        );
        assert_eq!(split(Some("x<think>\n"), "a</think>yes"), of("a", "yes"));
        assert_eq!(split(Some("x"), "no <think>"), of("", "no <think>"));
        assert_eq!(split(Some("x"), "<thin"), of("", "<thin"));
        assert_eq!(split(Some("x"), "<think>open</th"), of("open</th", ""));
        assert_eq!(
            split(None, "<think>a</think>b"),
            of("", "<think>a</think>b")
        );
    }
}
