//! `Runner`: many answers at once from one model, pass by pass.

use crate::kept::Kept;
use crate::running::{MOST_CANDIDATES, Running};
use crate::saved::Content;
use crate::{Error, Event, Id, Prompt, Reason, Refused, Request, Result};
use neap_llm::{Engine, Ledger, Model, Sequence, Tokens};
use neap_runtime::CancelToken;
use neap_store::BlockReader;
use neap_tokenizer::chat::{ChatError, ChatTemplate, Json};
use neap_tokenizer::{Special, Tokenizer};
use serde_json::Value;
use std::path::Path;

/// How a model is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Budget, context, threads; what the runner itself takes is added to what is reserved.
    pub engine: neap_llm::Options,
    /// Answers at once.
    pub most_requests: usize,
    /// Finished texts that are kept as beginnings of later ones, until their memory is needed.
    pub most_kept: usize,
    /// Tokens of a draft; 0 drafts nothing.
    pub most_draft: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            engine: neap_llm::Options::default(),
            most_requests: 16,
            most_kept: 8,
            most_draft: 8,
        }
    }
}

/// Figures since a model was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    pub engine: neap_llm::Stats,
    /// Tokens that were chosen.
    pub tokens: u64,
    /// Tokens that were drafted, and those that were right.
    pub drafted: u64,
    pub right: u64,
}

/// A model that answers.
pub struct Runner {
    pub(crate) engine: Engine,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// In the order in which they came.
    pub(crate) running: Vec<Running>,
    pub(crate) kept: Kept,
    most_requests: usize,
    pub(crate) most_kept: usize,
    most_draft: usize,
    next: u64,
    figures: Figures,
    pub(crate) content: Content,
}

/// A chat as the model's template writes it, up to where the answer begins.
fn written(
    template: &ChatTemplate,
    messages: &[Value],
    tools: &[Value],
    thinking: Option<bool>,
) -> std::result::Result<String, ChatError> {
    let json = |values: &[Value]| Json::parse(&Value::from(values).to_string());
    let tools = (!tools.is_empty()).then(|| json(tools)).transpose()?;
    template.render(&json(messages)?, tools.as_ref(), true, thinking, &[])
}

/// Positions of a block: what memory is counted in.
pub(crate) const BLOCK: usize = neap_llm::BLOCK_POSITIONS;

/// Tokens that an answer has room for at least where nothing says how many.
const LEAST_ROOM: usize = 256;

/// What a template takes while it writes out a chat, and texts of tokens.
const TEMPLATE_BYTES: u64 = 1 << 20;

/// Of one request: candidates, which are sorted at twice their number, and text.
const REQUEST_BYTES: u64 = MOST_CANDIDATES as u64 * 2 * 12 + (64 << 10);

impl Runner {
    /// # Errors
    /// [`Error`] where the file is no model that runs, or the budget is too small: [`Error::smallest_budget_bytes`] says what is enough.
    pub fn open(path: &Path, options: &Options) -> Result<Runner> {
        let model = Model::open(path)?;
        let content = Content::of(&model.files).map_err(|source| neap_llm::Error::File {
            path: path.to_owned(),
            source,
        })?;
        let of_file = |source| Error::Tokenizer {
            path: path.to_owned(),
            source,
        };
        let source = BlockReader::open(model.path()).map_err(neap_llm::Error::from)?;
        let tokenizer = Tokenizer::open(&model.header, source).map_err(of_file)?;
        let template = ChatTemplate::of(&model.header, &tokenizer);
        let mut engine = options.engine.clone();
        engine.reserved_bytes += TEMPLATE_BYTES + options.most_requests as u64 * REQUEST_BYTES;
        engine.sequences = options.most_requests.max(1) + options.most_kept;
        Ok(Runner {
            engine: Engine::of(model, &engine)?,
            tokenizer,
            template,
            running: Vec::new(),
            kept: Kept::default(),
            most_requests: options.most_requests.max(1),
            most_kept: options.most_kept,
            most_draft: options.most_draft,
            next: 0,
            figures: Figures::default(),
            content,
        })
    }

    #[must_use]
    pub fn model(&self) -> &Model {
        self.engine.model()
    }

    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Whether the model has a template for chats.
    #[must_use]
    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Positions that all texts have together.
    #[must_use]
    pub fn context(&self) -> usize {
        self.engine.context()
    }

    /// How the budget is divided.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.engine.ledger()
    }

    /// What a token is predicted to take, attention left out.
    #[must_use]
    pub fn predicted_ns(&self) -> u64 {
        self.engine.predicted_ns()
    }

    #[must_use]
    pub fn figures(&self) -> Figures {
        Figures {
            engine: self.engine.stats(),
            ..self.figures
        }
    }

    /// Whether no request runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// The tokens of a prompt, and of a chat what its template made of it.
    ///
    /// # Errors
    /// [`Refused::Invalid`] where the model has no template, or it refuses the chat; where a token is none of the vocabulary.
    pub fn tokens(
        &self,
        prompt: &Prompt,
    ) -> std::result::Result<(Vec<u32>, Option<String>), Refused> {
        let invalid = |text: String| Refused::Invalid(text);
        let (tokens, rendered) = match prompt {
            Prompt::Tokens(tokens) => (tokens.clone(), None),
            Prompt::Text(text) => (self.tokenizer.encode_prompt(text, Special::Parse), None),
            Prompt::Chat {
                messages,
                tools,
                thinking,
            } => {
                let template = self.template.as_ref();
                let template = template
                    .ok_or_else(|| invalid("the model has no template for chats".into()))?;
                let rendered = written(template, messages, tools, *thinking);
                let rendered = rendered.map_err(|e| invalid(e.to_string()))?;
                let tokens = self.tokenizer.encode_prompt(&rendered, Special::Parse);
                (tokens, Some(rendered))
            }
        };
        let vocabulary = self.model().config.vocabulary;
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            _ if tokens.is_empty() => Err(invalid("the prompt is empty".into())),
            Some(token) => Err(invalid(format!(
                "token {token} is outside of the vocabulary of {vocabulary}"
            ))),
            None => Ok((tokens, rendered)),
        }
    }

    /// Takes a request, and sets memory aside for all that it may come to need.
    ///
    /// # Errors
    /// [`Refused`]: nothing changed then, but finished texts may be kept no longer.
    pub fn submit(&mut self, request: Request) -> std::result::Result<Id, Refused> {
        if request.max_tokens == Some(0) {
            return Err(Refused::Invalid("an answer has at least one token".into()));
        }
        if self.running.len() >= self.most_requests {
            return Err(Refused::Busy(self.running.len()));
        }
        let (tokens, rendered) = self.tokens(&request.prompt)?;
        let context = self.context();
        let least = request.max_tokens.unwrap_or(1);
        if tokens.len().saturating_add(least) > context {
            return Err(Refused::TooLong {
                needed_positions: tokens.len().saturating_add(least),
                context,
            });
        }
        // The last token is left: its logits are wanted.
        let sequence = self.forked(&tokens[..tokens.len() - 1])?;
        let most_tokens = match self.room(&sequence, &tokens, request.max_tokens) {
            Ok(most) => most,
            Err(refused) => {
                self.engine.end(sequence);
                return Err(refused);
            }
        };
        let id = Id(self.next);
        self.next += 1;
        let draft = self.most_draft;
        let running = Running::new(
            id,
            sequence,
            tokens,
            most_tokens,
            draft,
            request,
            rendered.as_deref(),
        );
        self.running.push(running);
        Ok(id)
    }

    /// How many tokens the answer may have. Finished texts are given up for it.
    fn room(
        &mut self,
        sequence: &Sequence,
        tokens: &[u32],
        max_tokens: Option<usize>,
    ) -> std::result::Result<usize, Refused> {
        let (context, prompt) = (self.context(), tokens.len());
        let wanted = max_tokens.unwrap_or_else(|| (context - prompt).min(LEAST_ROOM));
        let has = Runner::blocks_of(&self.running, &tokens[..prompt - 1], sequence.len());
        let needed = (prompt + wanted).div_ceil(BLOCK) - has;
        loop {
            let free = self.free_blocks();
            if free >= needed {
                let most = (free + has) * BLOCK - prompt;
                return Ok(max_tokens.unwrap_or(most.min(context - prompt)));
            }
            if !self.kept.drop_oldest(&mut self.engine) {
                return Err(Refused::Full {
                    needed_positions: needed * BLOCK,
                    free_positions: free * BLOCK,
                });
            }
        }
    }

    /// Blocks that no sequence has, and that none of those that run may come to need.
    fn free_blocks(&self) -> usize {
        (self.engine.free_positions() / BLOCK).saturating_sub(self.owed_blocks())
    }

    /// Ends a request at the next step, which tells so, as [`Runner::settle`] does.
    pub fn cancel(&mut self, id: Id) {
        let found = self.running.iter_mut().find(|one| one.id == id);
        if let Some(one) = found {
            one.over = Some(Reason::Cancelled);
        }
    }

    /// One pass over the weights: the next tokens of all answers, drafts, and prompts as far as a chunk goes.
    ///
    /// # Errors
    /// [`Error`]: one that is cancelled leaves all as it was; after others no request runs any more, as their last events say.
    pub fn step(&mut self, cancel: &CancelToken, events: &mut dyn FnMut(Id, Event)) -> Result<()> {
        self.settle(events);
        let scheduled = self.share().map(|waits| self.schedule(&waits));
        let computed = scheduled.and_then(|taken| self.pass(&taken, cancel).map(|()| taken));
        let taken = match computed {
            Ok(taken) => taken,
            Err(error) => {
                self.running.iter_mut().for_each(|one| one.draft.clear());
                if !error.is_cancelled() {
                    for one in &mut self.running {
                        one.over = Some(Reason::Error(error.to_string()));
                    }
                    self.settle(events);
                }
                return Err(error);
            }
        };
        for (one, taken) in self.running.iter_mut().zip(taken) {
            if taken == 0 || one.sequence.len() < one.text.len() {
                continue;
            }
            let (before, drafted) = (one.text.len(), one.draft.len());
            one.choose(&self.tokenizer, events);
            let chosen = one.text.len() - before;
            // All but the last one chosen were computed.
            self.engine.truncate(&mut one.sequence, one.text.len() - 1);
            self.figures.tokens += chosen as u64;
            self.figures.drafted += drafted as u64;
            self.figures.right += (chosen.saturating_sub(1)) as u64;
        }
        self.settle(events);
        Ok(())
    }

    /// How many tokens of each text, drafts not counted, this pass computes; none of those that wait.
    fn schedule(&mut self, waits: &[bool]) -> Vec<usize> {
        let chunk = self.engine.chunk();
        let mut rows = 0;
        for one in self.running.iter_mut().filter(|one| one.pending() == 1) {
            one.begin_rows();
            rows += 1 + one.draft.len();
        }
        // Prompts fill the last chunk up, or have one of their own.
        let mut left = chunk - rows % chunk;
        let take = |(one, waits): (&mut Running, &bool)| match one.pending() {
            _ if *waits => 0,
            1 => 1,
            pending => {
                let taken = pending.min(left);
                left -= taken;
                if taken == pending {
                    one.begin_rows();
                }
                taken
            }
        };
        self.running.iter_mut().zip(waits).map(take).collect()
    }

    fn pass(&mut self, taken: &[usize], cancel: &CancelToken) -> Result<()> {
        // Drafts follow the text while they are computed.
        for one in &mut self.running {
            one.text.extend_from_slice(&one.draft);
        }
        let mut batch = Vec::with_capacity(taken.len());
        let mut rows = Vec::with_capacity(taken.len());
        for (one, &taken) in self.running.iter_mut().zip(taken).filter(|(_, t)| **t > 0) {
            let begin = one.sequence.len();
            let is_whole = begin + taken + one.draft.len() == one.text.len();
            let drafted = if is_whole { one.draft.len() } else { 0 };
            let wanted = if is_whole { 1 + drafted } else { 0 };
            batch.push(Tokens {
                sequence: &mut one.sequence,
                tokens: &one.text[begin..][..taken + drafted],
                wanted,
            });
            // The first token whose logits are wanted.
            rows.push((taken + drafted - wanted, &mut one.rows));
        }
        let result = match batch.is_empty() {
            true => Ok(()),
            false => self
                .engine
                .forward(&mut batch, cancel, &mut |entry, token, first, logits| {
                    let (begin, rows) = &mut rows[entry];
                    rows[token - *begin].offer(first as u32, logits);
                }),
        };
        for one in &mut self.running {
            one.text.truncate(one.text.len() - one.draft.len());
        }
        Ok(result?)
    }

    /// Tells of answers that are over without a pass, as after [`Runner::cancel`], and keeps their texts.
    pub fn settle(&mut self, events: &mut dyn FnMut(Id, Event)) {
        let mut index = 0;
        while index < self.running.len() {
            let Some(reason) = self.running[index].over.take() else {
                index += 1;
                continue;
            };
            let mut one = self.running.remove(index);
            one.finish(reason, events);
            one.text.truncate(one.sequence.len());
            self.kept
                .put(&mut self.engine, one.sequence, one.text, self.most_kept);
        }
    }
}
