//! One answer, shown as it comes, and its speed.

use super::failure;
use crate::failure::{Failure, Outcome, bad};
use crate::meter::processor_ns;
use crate::{interrupt, stdout};
use neap_chat::{Event, Ledger, Reason, Refused, Request, Runner, Usage};
use neaptide::{Bytes, CancelToken};
use serde::Serialize;
use std::time::{Duration, Instant};

/// An answer that is over.
pub struct Answer {
    pub text: String,
    pub reason: Reason,
    pub speed: Speed,
}

/// What answers took, added up.
#[derive(Clone, Copy, Default)]
pub struct Speed {
    usage: Usage,
    prompt: Duration,
    answer: Duration,
    /// Read after the first token.
    read_bytes: u64,
    /// Tokens after the first.
    later_tokens: usize,
}

impl Speed {
    pub fn add(&mut self, other: Speed) {
        self.usage.prompt_tokens += other.usage.prompt_tokens;
        self.usage.cached_tokens += other.usage.cached_tokens;
        self.usage.completion_tokens += other.usage.completion_tokens;
        self.prompt += other.prompt;
        self.answer += other.answer;
        self.read_bytes += other.read_bytes;
        self.later_tokens += other.later_tokens;
    }

    /// One of several answers at once is over.
    pub fn count(&mut self, usage: Usage) {
        self.add(Speed {
            usage,
            later_tokens: usage.completion_tokens,
            ..Speed::default()
        });
    }

    /// What several answers at once took, their prompts in between.
    pub fn took(&mut self, time: Duration, read_bytes: u64) {
        (self.prompt, self.answer) = (time, time);
        self.read_bytes = read_bytes;
    }

    /// What `--json` writes.
    pub fn report(&self, peak_bytes: u64, ledger: Ledger, predicted_ns: u64) -> Report {
        Report {
            prompt_tokens: self.usage.prompt_tokens,
            cached_tokens: self.usage.cached_tokens,
            completion_tokens: self.usage.completion_tokens,
            prompt_seconds: self.prompt.as_secs_f64(),
            later_tokens: self.later_tokens,
            later_seconds: self.answer.as_secs_f64(),
            later_read_bytes: self.read_bytes,
            predicted_ms_per_token: predicted_ns as f64 / 1e6,
            processor_seconds: processor_ns() as f64 / 1e9,
            peak_memory_bytes: peak_bytes,
            ledger,
        }
    }

    /// One line.
    pub fn text(&self, peak_bytes: u64) -> String {
        let rate = |tokens: usize, time: Duration| tokens as f64 / time.as_secs_f64().max(1e-9);
        let usage = self.usage;
        let computed = usage.prompt_tokens - usage.cached_tokens;
        let known = match usage.cached_tokens {
            0 => String::new(),
            cached => format!(" and {cached} known"),
        };
        let read = self.read_bytes / self.later_tokens.max(1) as u64;
        format!(
            "prompt: {computed} tokens{known}, {:.1} tokens/s; answer: {} tokens, {:.1} tokens/s, {} read for each; peak {}",
            rate(computed, self.prompt),
            usage.completion_tokens,
            rate(self.later_tokens, self.answer),
            Bytes(read),
            Bytes(peak_bytes),
        )
    }
}

/// What answers took.
#[derive(Serialize)]
pub struct Report {
    prompt_tokens: usize,
    /// Those of the prompt that were known from an earlier one.
    cached_tokens: usize,
    completion_tokens: usize,
    /// To the first token of the answer.
    prompt_seconds: f64,
    /// Tokens after the first, and what they took.
    later_tokens: usize,
    later_seconds: f64,
    later_read_bytes: u64,
    /// Before anything ran, attention left out.
    predicted_ms_per_token: f64,
    /// Of all processors together, for the whole process up to here.
    processor_seconds: f64,
    peak_memory_bytes: u64,
    ledger: Ledger,
}

pub fn refused(refused: Refused) -> Failure {
    match refused {
        Refused::Failed(error) => failure(error),
        other => bad(other),
    }
}

/// Answers one request, and shows it on standard output as it comes; `show` says how thoughts look.
pub fn answer(runner: &mut Runner, request: Request, show: &mut Show) -> Outcome<Answer> {
    let id = runner.submit(request).map_err(refused)?;
    let token = CancelToken::new().or_when(|| interrupt::noted().is_some());
    let begin = Instant::now();
    let mut first: Option<(Instant, u64)> = None;
    let mut over = None;
    let mut failed = None;
    let mut text = String::new();
    while !runner.is_idle() {
        let stepped = runner.step(&token, &mut |_, event| {
            let shown = match event {
                Event::Text(piece) => {
                    text.push_str(&piece);
                    show.text(&piece)
                }
                Event::Reasoning(piece) => show.reasoning(&piece),
                Event::Logprobs(_) => Ok(()),
                Event::Finished { reason, usage } => {
                    over = Some((reason, usage));
                    Ok(())
                }
            };
            if let Err(failure) = shown {
                failed.get_or_insert(failure);
            }
        });
        match stepped {
            Err(error) if error.is_cancelled() => {
                runner.cancel(id);
                // The last events need no pass.
                runner
                    .step(&CancelToken::new(), &mut |_, event| {
                        if let Event::Finished { reason, usage } = event {
                            over = Some((reason, usage));
                        }
                    })
                    .map_err(failure)?;
            }
            stepped => stepped.map_err(failure)?,
        }
        if let Some(failure) = failed.take() {
            runner.cancel(id);
            runner
                .step(&CancelToken::new(), &mut |_, _| {})
                .map_err(super::failure)?;
            return Err(failure);
        }
        let figures = runner.figures();
        if first.is_none() && figures.tokens > 0 {
            first = Some((Instant::now(), figures.engine.loaded_bytes));
        }
    }
    let (reason, usage) = over.ok_or_else(|| Failure::Internal("an answer has no end".into()))?;
    if let Reason::Error(text) = &reason {
        return Err(Failure::Internal(text.clone()));
    }
    let end = Instant::now();
    let loaded = runner.figures().engine.loaded_bytes;
    let (at, before) = first.unwrap_or((end, loaded));
    Ok(Answer {
        text,
        reason,
        speed: Speed {
            usage,
            prompt: at - begin,
            answer: end - at,
            read_bytes: loaded - before,
            later_tokens: usage.completion_tokens.saturating_sub(1),
        },
    })
}

/// Shows an answer, and thoughts apart from it.
pub struct Show {
    /// Marks around thoughts: what a terminal shows faintly, or words.
    marks: (&'static str, &'static str),
    in_thought: bool,
}

impl Show {
    pub fn new(on_terminal: bool) -> Show {
        Show {
            marks: if on_terminal {
                ("\x1b[2m", "\x1b[0m\n")
            } else {
                ("[thinks] ", "\n[answers] ")
            },
            in_thought: false,
        }
    }

    fn text(&mut self, piece: &str) -> Outcome {
        self.end_thought()?;
        stdout::print(piece)
    }

    fn reasoning(&mut self, piece: &str) -> Outcome {
        if !std::mem::replace(&mut self.in_thought, true) {
            stdout::print_raw(self.marks.0)?;
        }
        stdout::print(piece)
    }

    /// Before what is no thought.
    pub fn end_thought(&mut self) -> Outcome {
        match std::mem::take(&mut self.in_thought) {
            true => stdout::print_raw(self.marks.1),
            false => Ok(()),
        }
    }
}
