//! Calls of tools in an answer, as models of the Hermes and Qwen families write them:
//! `<tool_call>{"name": "…", "arguments": {…}}</tool_call>`.

use serde::Deserialize;
use serde_json::value::RawValue;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Call(Call),
}

/// A tool that the model wants called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// As JSON.
    pub arguments: String,
}

/// Finds calls in a text that comes in pieces. What may be the beginning of one is held back.
#[derive(Debug, Clone)]
pub struct Calls {
    /// Without tools all is text.
    looks: bool,
    held: String,
    /// So much of what is held has no end of a call.
    searched: usize,
    is_within: bool,
    /// At the beginning, and after a call: white space there is no text.
    is_fresh: bool,
    has_called: bool,
}

impl Calls {
    pub fn new(looks: bool) -> Calls {
        Calls {
            looks,
            held: String::new(),
            searched: 0,
            is_within: false,
            is_fresh: true,
            has_called: false,
        }
    }

    pub fn push(&mut self, text: &str) -> Vec<Part> {
        if !self.looks {
            return vec![Part::Text(text.into())];
        }
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// What is left when no more text comes.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        let rest = std::mem::take(&mut self.held);
        match self.is_within {
            true => parts.push(self.call_or_text(&rest, "")),
            false if self.has_called && self.is_fresh && rest.trim().is_empty() => {}
            false if rest.is_empty() => {}
            false => parts.push(Part::Text(rest)),
        }
        self.is_within = false;
        parts
    }

    pub fn has_called(&self) -> bool {
        self.has_called
    }

    /// Whether there may be more to find in what is held.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        let mark = if self.is_within { CLOSE } else { OPEN };
        let Some(found) = self.held[self.searched..].find(mark) else {
            self.searched = self.held.len() - beginning(&self.held, mark);
            if !self.is_within {
                let kept = self.held.split_off(self.searched);
                let text = std::mem::replace(&mut self.held, kept);
                self.searched = 0;
                self.tell(text, parts);
            }
            return false;
        };
        let at = self.searched + found;
        let rest = self.held.split_off(at + mark.len());
        let mut before = std::mem::replace(&mut self.held, rest);
        before.truncate(at);
        self.searched = 0;
        if self.is_within {
            let part = self.call_or_text(&before, CLOSE);
            parts.push(part);
        } else if !(self.is_fresh && before.trim().is_empty()) {
            parts.push(Part::Text(before));
        }
        self.is_within = !self.is_within;
        self.is_fresh = !self.is_within;
        true
    }

    /// White space is held until it is known what follows.
    fn tell(&mut self, text: String, parts: &mut Vec<Part>) {
        if self.is_fresh && text.trim().is_empty() {
            self.held.insert_str(0, &text);
        } else if !text.is_empty() {
            self.is_fresh = false;
            parts.push(Part::Text(text));
        }
    }

    fn call_or_text(&mut self, body: &str, close: &str) -> Part {
        match call(body) {
            Some(call) => {
                self.has_called = true;
                Part::Call(call)
            }
            None => Part::Text(format!("{OPEN}{body}{close}")),
        }
    }
}

/// Bytes at the end of a text that a mark begins with, if it is not all of it.
fn beginning(text: &str, mark: &str) -> usize {
    let mut lens = (1..mark.len()).rev();
    lens.find(|&len| text.ends_with(&mark[..len])).unwrap_or(0)
}

fn call(body: &str) -> Option<Call> {
    #[derive(Deserialize)]
    struct Written<'a> {
        name: String,
        #[serde(borrow, alias = "parameters")]
        arguments: Option<&'a RawValue>,
    }
    let written: Written<'_> = serde_json::from_str(body.trim()).ok()?;
    let arguments = written.arguments.map_or("{}", RawValue::get);
    // Some write the object as a text.
    let text = serde_json::from_str::<String>(arguments);
    Some(Call {
        name: written.name,
        arguments: text.unwrap_or_else(|_| arguments.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found when the text comes in pieces of so many characters: neighbouring texts as one.
    fn found(text: &str, chars: usize) -> Vec<Part> {
        let mut calls = Calls::new(true);
        let all: Vec<char> = text.chars().collect();
        let pieces = all.chunks(chars).map(String::from_iter);
        let mut parts: Vec<Part> = pieces.flat_map(|piece| calls.push(&piece)).collect();
        parts.extend(calls.finish());
        let mut joined: Vec<Part> = Vec::new();
        for part in parts {
            match (joined.last_mut(), part) {
                (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    fn call(name: &str, arguments: &str) -> Part {
        Part::Call(Call {
            name: name.into(),
            arguments: arguments.into(),
        })
    }

    fn text(text: &str) -> Part {
        Part::Text(text.into())
    }

    #[test]
    fn calls_are_found_wherever_the_text_is_cut() {
        let one = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\"}}";
        let two = "{\"name\": \"now\"}";
        let its = call("weather", "{\"city\": \"Zürich\"}");
        let cases = [
            (
                format!("\n<tool_call>\n{one}\n</tool_call>\n<tool_call>{two}</tool_call>\n"),
                vec![its.clone(), call("now", "{}")],
            ),
            (
                format!("I look. <tool_call>{one}</tool_call>"),
                vec![text("I look. "), its.clone()],
            ),
            (format!("<tool_call>{one}"), vec![its]),
            ("a < b <tool".into(), vec![text("a < b <tool")]),
            (
                "<tool_call>no JSON</tool_call> so".into(),
                vec![text("<tool_call>no JSON</tool_call> so")],
            ),
            (
                "<tool_call>{\"name\": 1}</tool_call>".into(),
                vec![text("<tool_call>{\"name\": 1}</tool_call>")],
            ),
            (" \n ".into(), vec![text(" \n ")]),
            (String::new(), vec![]),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>"
                    .into(),
                vec![call("f", "{\"a\": 1}")],
            ),
        ];
        for (given, expected) in cases {
            for chars in [1, 2, 3, 7, 1000] {
                assert_eq!(found(&given, chars), expected, "{given} by {chars}");
            }
        }
    }

    #[test]
    fn without_tools_all_is_text_at_once() {
        let mut calls = Calls::new(false);
        assert_eq!(calls.push("<tool"), [text("<tool")]);
        assert_eq!(calls.finish(), []);
        assert!(!calls.has_called());
    }
}
