//! Events of a model as the answers that clients of OpenAI read: whole, or piece by piece.

use super::calls::{Call, Calls, Part};
use super::likely::Likely;
use neap_chat::{Event, Reason, Usage};
use serde_json::{Map, Value, json};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

/// Which of the two kinds of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Chat,
    Completion,
}

/// What all parts of an answer say.
#[derive(Debug, Clone)]
pub struct Head {
    pub kind: Kind,
    pub model: String,
    id: String,
    created: u64,
}

impl Head {
    pub fn new(kind: Kind, model: &str) -> Head {
        let name = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let created = now.map_or(0, |now| now.as_secs());
        Head {
            kind,
            model: model.into(),
            id: format!("{name}-{}", unique(created)),
            created,
        }
    }

    fn told(&self, object: &str, choices: Vec<Value>) -> Map<String, Value> {
        let told = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        match told {
            Value::Object(told) => told,
            _ => Map::new(),
        }
    }
}

/// No other has it.
fn unique(seconds: u64) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    format!("{seconds:x}{:x}x{number:x}", std::process::id())
}

/// One of the answers as it grows.
struct Choice {
    calls: Calls,
    called: usize,
    content: String,
    reasoning: String,
    told_calls: Vec<Value>,
    likely: Likely,
    over: Option<(Reason, Usage)>,
}

/// All answers of a request.
pub struct Answering {
    head: Head,
    choices: Vec<Choice>,
    /// Answers to each prompt: what the prompt took counts once.
    of_prompt: usize,
    /// Pieces are told as they come, and not kept.
    streams: bool,
    tells_usage: bool,
}

/// What is asked for beside the texts.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    pub answers: usize,
    pub of_prompt: usize,
    pub has_tools: bool,
    pub has_likely: bool,
    pub streams: bool,
    pub tells_usage: bool,
}

impl Answering {
    pub fn new(head: Head, form: Form) -> Answering {
        let choice = || Choice {
            calls: Calls::new(form.has_tools),
            called: 0,
            content: String::new(),
            reasoning: String::new(),
            told_calls: Vec::new(),
            likely: Likely::new(head.kind, form.has_likely),
            over: None,
        };
        Answering {
            choices: (0..form.answers).map(|_| choice()).collect(),
            head,
            of_prompt: form.of_prompt,
            streams: form.streams,
            tells_usage: form.tells_usage,
        }
    }

    /// Whether all answers are over.
    pub fn is_over(&self) -> bool {
        self.choices.iter().all(|choice| choice.over.is_some())
    }

    /// Why an answer is none, where the model failed.
    pub fn failed(&self) -> Option<&Reason> {
        let mut over = self.choices.iter().filter_map(|c| c.over.as_ref());
        let is_failed = |reason: &Reason| !matches!(reason, Reason::Stop | Reason::Length);
        over.find(|(reason, _)| is_failed(reason)).map(|(r, _)| r)
    }

    /// The first pieces of a stream.
    pub fn begin(&self) -> Vec<Value> {
        match self.head.kind {
            Kind::Chat => {
                let delta = json!({"role": "assistant", "content": ""});
                let all = 0..self.choices.len();
                let choice = |at| chunk_choice(at, delta.clone(), Value::Null, Value::Null);
                all.map(|at| self.chunk(vec![choice(at)])).collect()
            }
            Kind::Completion => Vec::new(),
        }
    }

    /// Takes what happened; the pieces of a stream that tell it.
    pub fn take(&mut self, at: usize, event: Event) -> Vec<Value> {
        let choice = &mut self.choices[at];
        let parts = match event {
            Event::Logprobs(told) => {
                choice.likely.take(told);
                return Vec::new();
            }
            Event::Reasoning(text) => {
                let delta = json!({"reasoning_content": text});
                choice
                    .reasoning
                    .push_str(if self.streams { "" } else { &text });
                return self.piece(at, delta);
            }
            Event::Text(text) => choice.calls.push(&text),
            Event::Finished { reason, usage } => {
                let rest = choice.calls.finish();
                choice.over = Some((reason, usage));
                rest
            }
        };
        let mut told: Vec<Value> = Vec::new();
        for part in parts {
            told.extend(self.tell(at, part));
        }
        if self.choices[at].over.is_some() {
            told.extend(self.end(at));
        }
        told
    }

    fn tell(&mut self, at: usize, part: Part) -> Vec<Value> {
        let choice = &mut self.choices[at];
        match part {
            Part::Text(text) if self.streams => match self.head.kind {
                Kind::Chat => self.piece(at, json!({"content": text})),
                Kind::Completion => self.piece(at, text.into()),
            },
            Part::Text(text) => {
                choice.content.push_str(&text);
                Vec::new()
            }
            Part::Call(call) => {
                let mut told = told_call(&call, choice.called);
                choice.called += 1;
                if self.streams {
                    return self.piece(at, json!({"tool_calls": [told]}));
                }
                if let Some(told) = told.as_object_mut() {
                    told.remove("index");
                }
                choice.told_calls.push(told);
                Vec::new()
            }
        }
    }

    /// A piece of a stream, with the log-probabilities of the tokens in it.
    fn piece(&mut self, at: usize, delta: Value) -> Vec<Value> {
        if !self.streams {
            return Vec::new();
        }
        let logprobs = self.choices[at].likely.told();
        let choice = match self.head.kind {
            Kind::Chat => chunk_choice(at, delta, logprobs, Value::Null),
            Kind::Completion => text_choice(at, delta, logprobs, Value::Null),
        };
        vec![self.chunk(vec![choice])]
    }

    /// The last piece of one answer, and what all took with the last one.
    fn end(&mut self, at: usize) -> Vec<Value> {
        if !self.streams || self.failed().is_some() {
            return Vec::new();
        }
        let reason = self.choices[at].reason();
        // Tokens without a text of their own, such as the one that ends it.
        let logprobs = self.choices[at].likely.told();
        let choice = match self.head.kind {
            Kind::Chat => chunk_choice(at, json!({}), logprobs, reason),
            Kind::Completion => text_choice(at, "".into(), logprobs, reason),
        };
        let mut told = vec![self.chunk(vec![choice])];
        if self.is_over() && self.tells_usage {
            let mut last = self.chunk(Vec::new());
            last["usage"] = self.usage();
            told.push(last);
        }
        told
    }

    fn chunk(&self, choices: Vec<Value>) -> Value {
        let object = match self.head.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        };
        let mut told = self.head.told(object, choices);
        if self.tells_usage {
            told.insert("usage".into(), Value::Null);
        }
        told.into()
    }

    /// The whole answer.
    pub fn whole(mut self) -> Value {
        let kind = self.head.kind;
        let usage = self.usage();
        let choices = self.choices.iter_mut().enumerate();
        let told = choices.map(|(at, choice)| {
            let (reason, logprobs) = (choice.reason(), choice.likely.told());
            match kind {
                Kind::Chat => json!({
                    "index": at,
                    "message": choice.message(),
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
                Kind::Completion => {
                    let text = std::mem::take(&mut choice.content);
                    text_choice(at, text.into(), logprobs, reason)
                }
            }
        });
        let object = match kind {
            Kind::Chat => "chat.completion",
            Kind::Completion => "text_completion",
        };
        let mut told = self.head.told(object, told.collect());
        told.insert("usage".into(), usage);
        told.into()
    }

    fn usage(&self) -> Value {
        let over = self.choices.iter().map(|choice| match &choice.over {
            Some((_, usage)) => *usage,
            None => Usage::default(),
        });
        let firsts = over.clone().step_by(self.of_prompt.max(1));
        let prompt: usize = firsts.clone().map(|usage| usage.prompt_tokens).sum();
        let cached: usize = firsts.map(|usage| usage.cached_tokens).sum();
        let answer: usize = over.map(|usage| usage.completion_tokens).sum();
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": cached},
        })
    }
}

impl Choice {
    fn reason(&self) -> Value {
        match &self.over {
            Some((Reason::Length, _)) => "length".into(),
            Some(_) if self.calls.has_called() => "tool_calls".into(),
            Some(_) => "stop".into(),
            None => Value::Null,
        }
    }

    fn message(&mut self) -> Value {
        let content = std::mem::take(&mut self.content);
        let has_called = !self.told_calls.is_empty();
        let mut message = json!({
            "role": "assistant",
            "content": content,
            "refusal": null,
        });
        if has_called {
            message["tool_calls"] = std::mem::take(&mut self.told_calls).into();
            if message["content"] == "" {
                message["content"] = Value::Null;
            }
        }
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = std::mem::take(&mut self.reasoning).into();
        }
        message
    }
}

fn chunk_choice(at: usize, delta: Value, logprobs: Value, reason: Value) -> Value {
    json!({"index": at, "delta": delta, "logprobs": logprobs, "finish_reason": reason})
}

fn text_choice(at: usize, text: Value, logprobs: Value, reason: Value) -> Value {
    json!({"index": at, "text": text, "logprobs": logprobs, "finish_reason": reason})
}

fn told_call(call: &Call, at: usize) -> Value {
    json!({
        "index": at,
        "id": format!("call_{}", unique(0)),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished(reason: Reason, prompt: usize, answer: usize) -> Event {
        let usage = Usage {
            prompt_tokens: prompt,
            cached_tokens: 1,
            completion_tokens: answer,
        };
        Event::Finished { reason, usage }
    }

    fn form(answers: usize, streams: bool) -> Form {
        Form {
            answers,
            of_prompt: answers,
            has_tools: true,
            has_likely: false,
            streams,
            tells_usage: streams,
        }
    }

    fn events() -> Vec<(usize, Event)> {
        let text = |text: &str| Event::Text(text.into());
        vec![
            (0, Event::Reasoning("hm".into())),
            (1, text("so")),
            (0, text("<tool_call>{\"name\": \"f\", \"argu")),
            (0, text("ments\": {}}</tool_call>")),
            (1, finished(Reason::Length, 5, 1)),
            (0, finished(Reason::Stop, 5, 9)),
        ]
    }

    #[test]
    fn a_whole_answer_has_all_choices_and_what_they_took() {
        let mut answering = Answering::new(Head::new(Kind::Chat, "m"), form(2, false));
        for (at, event) in events() {
            assert!(!answering.is_over());
            assert!(answering.take(at, event).is_empty());
        }
        assert!(answering.is_over() && answering.failed().is_none());
        let told = answering.whole();
        let [first, second] = &told["choices"].as_array().unwrap()[..] else {
            panic!("{told}");
        };
        assert_eq!(first["finish_reason"], "tool_calls");
        assert_eq!(first["message"]["content"], Value::Null);
        assert_eq!(first["message"]["reasoning_content"], "hm");
        let call = &first["message"]["tool_calls"][0];
        assert_eq!(call["function"], json!({"name": "f", "arguments": "{}"}));
        assert!(call.get("index").is_none());
        assert_eq!(second["finish_reason"], "length");
        assert_eq!(second["message"]["content"], "so");
        assert_eq!(told["usage"]["prompt_tokens"], 5, "the prompt counts once");
        assert_eq!(told["usage"]["total_tokens"], 15);
    }

    #[test]
    fn a_stream_tells_the_same_piece_by_piece() {
        let mut answering = Answering::new(Head::new(Kind::Chat, "m"), form(2, true));
        let mut told = answering.begin();
        assert_eq!(told.len(), 2);
        for (at, event) in events() {
            told.extend(answering.take(at, event));
        }
        let usage = told.pop().unwrap();
        assert_eq!(usage["usage"]["completion_tokens"], 10);
        assert_eq!(usage["choices"], json!([]));
        let deltas: Vec<&Value> = told.iter().map(|chunk| &chunk["choices"][0]).collect();
        assert_eq!(deltas[2]["delta"], json!({"reasoning_content": "hm"}));
        assert_eq!(deltas[3]["delta"], json!({"content": "so"}));
        assert_eq!(deltas[4]["delta"]["tool_calls"][0]["index"], 0);
        assert_eq!(deltas[5]["finish_reason"], "length");
        assert_eq!(deltas[6]["finish_reason"], "tool_calls");
        assert!(
            told.iter()
                .all(|chunk| chunk["object"] == "chat.completion.chunk")
        );
    }

    #[test]
    fn a_model_that_fails_gives_no_answer() {
        let mut answering = Answering::new(Head::new(Kind::Completion, "m"), form(1, true));
        assert!(answering.begin().is_empty());
        let broken = Reason::Error("the drive does not read".into());
        assert!(answering.take(0, finished(broken.clone(), 1, 1)).is_empty());
        assert_eq!(answering.failed(), Some(&broken));
    }
}
