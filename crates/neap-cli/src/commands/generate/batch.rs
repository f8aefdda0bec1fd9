//! `--jsonl`: many texts, as many at once as the cache has room for.

use crate::failure::{Outcome, bad};
use crate::language::answer::{Speed, refused};
use crate::language::args::SamplingArgs;
use crate::language::failure;
use crate::{interrupt, stdout};
use neap_chat::{Event, Id, Prompt, Reason, Refused, Request, Runner};
use neaptide::CancelToken;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Instant;

/// One line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    max_tokens: Option<usize>,
    seed: Option<u64>,
}

/// One line that comes out.
#[derive(Default, Serialize)]
struct Told {
    text: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning: String,
    finish_reason: &'static str,
    prompt_tokens: usize,
    completion_tokens: usize,
    #[serde(skip)]
    is_over: bool,
}

/// Answers all lines of a file.
pub fn all(runner: &mut Runner, path: &Path, sampling: &SamplingArgs) -> Outcome<Speed> {
    let unreadable = |e: std::io::Error| bad(format!("cannot read {}: {e}", path.display()));
    let lines = BufReader::new(File::open(path).map_err(unreadable)?).lines();
    let lines = (1..)
        .zip(lines)
        .filter(|(_, line)| !matches!(line, Ok(line) if line.trim().is_empty()));
    let mut requests = lines.map(|(number, line)| {
        let line = line.map_err(unreadable)?;
        request(&line, sampling).map_err(|text| bad(format!("{}:{number}: {text}", path.display())))
    });
    let token = CancelToken::new().or_when(|| interrupt::noted().is_some());
    let (begin, mut speed) = (Instant::now(), Speed::default());
    let mut open: BTreeMap<Id, Told> = BTreeMap::new();
    let mut waiting = requests.next().transpose()?;
    loop {
        while let Some(request) = waiting.take() {
            match runner.submit(request.clone()) {
                Ok(id) => {
                    open.insert(id, Told::default());
                    waiting = requests.next().transpose()?;
                }
                Err(Refused::Full { .. } | Refused::Busy(_)) if !runner.is_idle() => {
                    waiting = Some(request);
                    break;
                }
                Err(other) => return Err(refused(other)),
            }
        }
        if runner.is_idle() {
            speed.took(begin.elapsed(), runner.figures().engine.loaded_bytes);
            return Ok(speed);
        }
        let stepped = runner.step(&token, &mut |id, event| {
            if let Some(told) = open.get_mut(&id) {
                told.take(event, &mut speed);
            }
        });
        interrupt::check()?;
        stepped.map_err(failure)?;
        // In the order of the file.
        while let Some(first) = open.first_entry().filter(|first| first.get().is_over) {
            let told = first.remove();
            let text = serde_json::to_string(&told).map_err(bad)?;
            stdout::print(&(text + "\n"))?;
        }
    }
}

fn request(line: &str, sampling: &SamplingArgs) -> Result<Request, String> {
    let line: Line = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let prompt = match (line.prompt, line.messages) {
        (Some(text), None) => Prompt::Text(text),
        (None, Some(messages)) => Prompt::Chat {
            messages,
            tools: Vec::new(),
            thinking: None,
        },
        _ => return Err("write either \"prompt\" or \"messages\"".into()),
    };
    let mut request = sampling.request(prompt);
    request.max_tokens = line.max_tokens.or(request.max_tokens);
    request.sampling.seed = line.seed.unwrap_or(request.sampling.seed);
    Ok(request)
}

impl Told {
    fn take(&mut self, event: Event, speed: &mut Speed) {
        match event {
            Event::Text(text) => self.text += &text,
            Event::Reasoning(text) => self.reasoning += &text,
            Event::Logprobs(_) => {}
            Event::Finished { reason, usage } => {
                self.is_over = true;
                self.finish_reason = match reason {
                    Reason::Stop => "stop",
                    Reason::Length => "length",
                    Reason::Cancelled => "cancelled",
                    Reason::Error(_) => "error",
                };
                self.prompt_tokens = usage.prompt_tokens;
                self.completion_tokens = usage.completion_tokens;
                speed.count(usage);
            }
        }
    }
}
