//! Turns a conversation into a prompt by the template that a file brings.
//!
//! Templates are programs in Jinja, written for Python's `jinja2` as Hugging Face's `transformers` sets it up; what they expect there is
//! here, too. The interpreter exists only while a prompt is made.

mod json;
mod time;

pub use json::Json;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind};
use minijinja_contrib::pycompat;
use neap_gguf::Header;
use std::borrow::Cow;
use std::time::SystemTime;

use crate::Tokenizer;

/// A template does not end: it takes more steps than any has a use for.
const MOST_STEPS: u64 = 4_000_000;

/// What a template says when it refuses a conversation. No template of its own says this.
const REFUSED: &str = "\u{1}";

/// A model's chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    now: Option<SystemTime>,
}

/// Why there is no prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// In the template's own words.
    #[error("the chat template refuses this conversation: {0}")]
    Refused(String),
    #[error("the chat template cannot be used: {what}{}", .line.map(|line| format!(" (line {line})")).unwrap_or_default())]
    Template { line: Option<usize>, what: String },
    #[error("not JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl ChatTemplate {
    /// A template that is told of no token that begins or ends texts.
    #[must_use]
    pub fn new(source: impl Into<String>) -> Self {
        ChatTemplate {
            source: source.into(),
            bos: String::new(),
            eos: String::new(),
            now: None,
        }
    }

    /// The template of a file; `None` where it has none.
    #[must_use]
    pub fn of(header: &Header, tokenizer: &Tokenizer) -> Option<Self> {
        let source = header.get("tokenizer.chat_template")?.as_text()?;
        let name = |id: Option<u32>| {
            let piece = id.map(|id| tokenizer.piece(id)).unwrap_or_default();
            String::from_utf8_lossy(&piece).into_owned()
        };
        Some(Self::new(source).with_tokens(name(tokenizer.bos()), name(tokenizer.eos())))
    }

    /// Names of the tokens that begin and end texts.
    #[must_use]
    pub fn with_tokens(mut self, bos: impl Into<String>, eos: impl Into<String>) -> Self {
        (self.bos, self.eos) = (bos.into(), eos.into());
        self
    }

    /// What the template may ask for as today: UTC. Otherwise it is asked of the clock.
    #[must_use]
    pub fn at(mut self, now: SystemTime) -> Self {
        self.now = Some(now);
        self
    }

    /// The prompt of a conversation.
    ///
    /// `messages` is a list of objects with `role` and `content`; `tools` a list of descriptions as OpenAI has them; `extra` what else the
    /// template knows. With `add_generation_prompt` the prompt ends where the model's answer begins. `enable_thinking` is left to the
    /// template if it is `None`.
    ///
    /// # Errors
    /// The template refuses the conversation, or is not one that can be run.
    pub fn render(
        &self,
        messages: &Json,
        tools: Option<&Json>,
        add_generation_prompt: bool,
        enable_thinking: Option<bool>,
        extra: &[(String, Json)],
    ) -> Result<String, ChatError> {
        let source = without_marks(&self.source);
        let mut environment = Environment::new();
        environment.set_fuel(Some(MOST_STEPS));
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|error| wrong(&error))?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| {
            let error =
                minijinja::Error::new(ErrorKind::InvalidOperation, format!("{REFUSED}{message}"));
            Err::<Value, _>(error)
        });
        let now = self.now;
        environment.add_function("strftime_now", move |format: String| {
            time::strftime(&format, now.unwrap_or_else(SystemTime::now))
        });
        environment.add_filter("tojson", |value: Value, options: Kwargs| {
            json::dumps(&value, &options)
        });
        environment
            .add_template("chat", &source)
            .map_err(|error| wrong(&error))?;
        let mut names: Vec<(String, Value)> = vec![
            ("messages".into(), messages.0.clone()),
            (
                "tools".into(),
                tools.map_or(Value::from(()), |tools| tools.0.clone()),
            ),
            ("documents".into(), Value::from(())),
            ("add_generation_prompt".into(), add_generation_prompt.into()),
            ("bos_token".into(), self.bos.as_str().into()),
            ("eos_token".into(), self.eos.as_str().into()),
        ];
        names.extend(enable_thinking.map(|is| ("enable_thinking".into(), is.into())));
        names.extend(
            extra
                .iter()
                .map(|(name, value)| (name.clone(), value.0.clone())),
        );
        let template = environment
            .get_template("chat")
            .map_err(|error| wrong(&error))?;
        template
            .render(Value::from_pairs(names))
            .map_err(|error| wrong(&error))
    }
}

/// Some templates mark what the model said, for training. This means nothing here.
fn without_marks(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut plain = source.to_owned();
    for (mark, block) in [("generation", "if true"), ("endgeneration", "endif")] {
        for (begin, end) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
            plain = plain.replace(
                &format!("{begin} {mark} {end}"),
                &format!("{begin} {block} {end}"),
            );
        }
    }
    Cow::Owned(plain)
}

/// One line, with the innermost cause.
fn wrong(error: &minijinja::Error) -> ChatError {
    let mut cause: &dyn std::error::Error = error;
    let mut refused = None;
    loop {
        let inner = cause.downcast_ref::<minijinja::Error>();
        refused = inner
            .and_then(|inner| inner.detail()?.strip_prefix(REFUSED))
            .map(str::to_owned)
            .or(refused);
        match cause.source() {
            Some(source) => cause = source,
            None => break,
        }
    }
    match refused {
        Some(message) => ChatError::Refused(message),
        None => {
            let kind = error.kind().to_string();
            let what = match error.detail() {
                Some(detail) => format!("{kind}: {detail}"),
                None => kind,
            };
            ChatError::Template {
                line: error.line(),
                what: what.replace(['\n', '\r'], " "),
            }
        }
    }
}
