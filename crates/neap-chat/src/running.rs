//! One answer as it grows: tokens that were chosen become text, thoughts, and an end.

use crate::draft::Gate;
use crate::thinking::{Kind, Thinking};
use crate::{Event, Id, Reason, Request, TokenLogprobs, Usage};
use neap_llm::Sequence;
use neap_tokenizer::sample::{Choice, Row, Sampler};
use neap_tokenizer::{Decoder, StopStrings, Tokenizer};

/// A request that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub id: Id,
    pub sequence: Sequence,
    /// The prompt and the answer so far. The last token of it was not computed yet.
    pub text: Vec<u32>,
    /// Tokens after the text that may be right.
    pub draft: Vec<u32>,
    /// Logits of the places whose next tokens are wanted in this pass.
    pub rows: Vec<Row>,
    pub usage: Usage,
    pub most_tokens: usize,
    /// Set when the answer is over; the event is sent then.
    pub over: Option<Reason>,
    gate: Gate,
    most_draft: usize,
    sampler: Sampler,
    ignore_end: bool,
    output: Output,
}

/// From tokens to text.
#[derive(Debug)]
struct Output {
    decoder: Decoder,
    stop: StopStrings,
    thinking: Thinking,
}

/// Of so many candidates the rows of drafts are too large.
const MOST_CANDIDATES_OF_DRAFTS: usize = 128;

/// Candidates of a request that allows all: their memory is set aside.
pub(crate) const MOST_CANDIDATES: usize = 4096;

impl Running {
    /// `rendered` is a chat as its template wrote it.
    pub fn new(
        id: Id,
        sequence: Sequence,
        text: Vec<u32>,
        most_tokens: usize,
        most_draft: usize,
        request: Request,
        rendered: Option<&str>,
    ) -> Running {
        let mut sampling = request.sampling;
        sampling.top_k = match sampling.top_k {
            0 => MOST_CANDIDATES,
            k => k.min(MOST_CANDIDATES),
        };
        let is_small = sampling.temperature <= 0.0 || sampling.top_k <= MOST_CANDIDATES_OF_DRAFTS;
        let mut sampler = Sampler::new(sampling);
        text.iter().for_each(|&token| sampler.accept(token));
        Running {
            id,
            usage: Usage {
                prompt_tokens: text.len(),
                cached_tokens: sequence.len(),
                completion_tokens: 0,
            },
            sequence,
            text,
            draft: Vec::new(),
            rows: Vec::new(),
            most_tokens,
            over: None,
            gate: Gate::default(),
            most_draft: if is_small { most_draft } else { 0 },
            sampler,
            ignore_end: request.ignore_end,
            output: Output {
                decoder: Decoder::new(),
                stop: StopStrings::new(request.stop),
                thinking: Thinking::after(rendered),
            },
        }
    }

    pub fn prompt(&self) -> &[u32] {
        &self.text[..self.usage.prompt_tokens]
    }

    /// What it may have in common with others: nothing once it answers. The prompt's last token is left, as its logits are wanted.
    pub fn to_share(&self) -> &[u32] {
        match self.usage.completion_tokens {
            0 => &self.text[..self.usage.prompt_tokens - 1],
            _ => &[],
        }
    }

    /// Tokens that must be computed before the next one is known.
    pub fn pending(&self) -> usize {
        self.text.len() - self.sequence.len()
    }

    /// Positions that the whole text may come to take.
    pub fn most_positions(&self) -> usize {
        self.usage.prompt_tokens + self.most_tokens
    }

    /// Drafts what may follow, and begins the rows of all places whose next token is wanted.
    pub fn begin_rows(&mut self) {
        let left = self.most_tokens - self.usage.completion_tokens;
        let most = self.most_draft.min(left.saturating_sub(1));
        self.draft.clear();
        // A prompt's last token is no place to guess from.
        if self.usage.completion_tokens > 0 {
            self.draft
                .extend_from_slice(self.gate.draft(&self.text, most));
        }
        let places = self.draft.len() + 1;
        if self.rows.len() < places {
            self.rows.resize_with(places, Row::default);
        }
        for (place, row) in self.rows[..places].iter_mut().enumerate() {
            self.sampler.begin(row, &self.draft[..place]);
        }
    }

    /// Chooses tokens from the rows as far as drafts were right.
    pub fn choose(&mut self, tokenizer: &Tokenizer, events: &mut dyn FnMut(Id, Event)) {
        let mut right = 0;
        for place in 0..=self.draft.len() {
            let Some(choice) = self.sampler.choose(&mut self.rows[place]) else {
                self.over = Some(Reason::Error("no logit is a number".into()));
                break;
            };
            let token = choice.id;
            self.sampler.accept(token);
            self.text.push(token);
            self.usage.completion_tokens += 1;
            self.tell(tokenizer, choice, events);
            if self.over.is_none() && self.usage.completion_tokens >= self.most_tokens {
                self.over = Some(Reason::Length);
            }
            if self.over.is_some() || self.draft.get(place) != Some(&token) {
                break;
            }
            right += 1;
        }
        self.gate.learn(self.draft.len(), right);
        self.draft.clear();
    }

    fn tell(&mut self, tokenizer: &Tokenizer, choice: Choice, events: &mut dyn FnMut(Id, Event)) {
        let id = self.id;
        let token = choice.id;
        let bytes = |token| tokenizer.piece(token).into_owned();
        if let Some(logprobs) = choice.logprobs {
            let likely = logprobs.likely.into_iter().map(|(t, p)| (bytes(t), p));
            let told = TokenLogprobs {
                bytes: bytes(token),
                logprob: logprobs.chosen,
                likely: likely.collect(),
            };
            events(id, Event::Logprobs(told));
        }
        if tokenizer.is_end(token) {
            if !self.ignore_end {
                self.over = Some(Reason::Stop);
            }
            return;
        }
        let piece = tokenizer.piece(token);
        // Names of control tokens are no text, but for the marks of thoughts.
        if tokenizer.is_control(token) && !matches!(&*piece, b"<think>" | b"</think>") {
            return;
        }
        let output = &mut self.output;
        let (text, stopped) = output.stop.push(output.decoder.push(&piece));
        let mut emit = |kind, text: &str| events(id, event(kind, text));
        output.thinking.push(text, &mut emit);
        if stopped {
            self.over = Some(Reason::Stop);
        }
    }

    /// The last events of an answer that is over.
    pub fn finish(&mut self, reason: Reason, events: &mut dyn FnMut(Id, Event)) {
        let id = self.id;
        let output = &mut self.output;
        let mut emit = |kind, text: &str| events(id, event(kind, text));
        let (text, stopped) = output.stop.push(output.decoder.finish());
        output.thinking.push(text, &mut emit);
        if !stopped {
            output.thinking.push(output.stop.finish(), &mut emit);
        }
        output.thinking.finish(&mut emit);
        let usage = self.usage;
        events(id, Event::Finished { reason, usage });
    }
}

fn event(kind: Kind, text: &str) -> Event {
    match kind {
        Kind::Text => Event::Text(text.to_owned()),
        Kind::Reasoning => Event::Reasoning(text.to_owned()),
    }
}
