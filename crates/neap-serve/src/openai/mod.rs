//! Language models as clients of OpenAI ask them.
//!
//! | method and path | |
//! |---|---|
//! | `GET /v1/models`, `GET /v1/models/NAME` | the language models |
//! | `POST /v1/chat/completions`, `POST /v1/completions` | answers, whole or as server-sent events |
//! | `POST /v1/embeddings` | refused: no model here makes any |
//! | `GET /chat` | not of the protocol: a page to chat on |
//!
//! ```text
//!   request ─► asked, turns ─► worker ─► answering ─► JSON, or a stream of it
//!                              one thread for each model; a request begins when blocks of its cache are free
//! ```
//! Source: OpenAI's API reference.

mod answering;
mod asked;
mod calls;
mod fault;
mod likely;
pub mod metrics;
mod models;
mod stream;
mod turns;
mod worker;

pub use fault::shaped;
pub use models::{Language, LanguageModel, Models};

use crate::core::Core;
use crate::http::answer::json;
use crate::http::{PAGE_MAY, body};
use crate::pool::Held;
use crate::refusal::{OfModel, Refusal, Why};
use answering::{Answering, Form, Head, Kind};
use asked::{Asked, Prompts};
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fault::{Answered, Fault};
use neap_chat::{PenaltyOptions, Prompt, Sampling};
use serde_json::json;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Instant;
use stream::{Timing, Waited};
use worker::Worker;

/// Bytes of memory for each of a body: the shortest values of JSON take the most.
const PARSED: u64 = 32;

/// A body of more JSON than this is read beside the thread that serves all clients.
const MUCH_JSON: usize = 64 << 10;

/// What an answer keeps for each of its tokens until it is taken, and for each token whose log-probability is told: as JSON it
/// is a map.
const TOKEN_BYTES: u64 = 160;
const LIKELY_BYTES: u64 = 1024;

/// Tokens of a completion where nothing says how many, as OpenAI has it.
const COMPLETION_TOKENS: usize = 16;

/// All pages.
pub fn routes(router: Router<Arc<Core>>) -> Router<Arc<Core>> {
    router
        .route("/chat", get(page))
        .route("/v1/models", get(list))
        .route("/v1/models/{name}", get(one))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/completions", post(complete))
        .route("/v1/embeddings", post(embed))
}

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_MAY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, include_str!("page.html")).into_response()
}

fn told_model(name: &str, worker: &Worker) -> serde_json::Value {
    json!({
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "neaptide",
        "context_length": worker.context.min(worker.trained_context),
        "chats": worker.has_template,
    })
}

async fn list(State(core): State<Arc<Core>>) -> Response {
    let ready = core.language.ready();
    let all: Vec<_> = ready
        .map(|(name, worker)| told_model(name, &worker))
        .collect();
    json(&json!({"object": "list", "data": all}))
}

async fn one(State(core): State<Arc<Core>>, Path(name): Path<String>) -> Answered<Response> {
    let worker = core.language.find(&name)?;
    Ok(json(&told_model(&name, &worker)))
}

async fn embed(State(core): State<Arc<Core>>, request: Request) -> Fault {
    body::discard(&core, request).await;
    let message = "no model here makes embeddings: language models answer with text";
    Fault::from(Refusal::malformed(message)).coded("unsupported")
}

async fn chat(State(core): State<Arc<Core>>, request: Request) -> Response {
    answer(&core, Kind::Chat, request).await
}

async fn complete(State(core): State<Arc<Core>>, request: Request) -> Response {
    answer(&core, Kind::Completion, request).await
}

/// Answers a request, and counts it where it is refused.
async fn answer(core: &Arc<Core>, kind: Kind, request: Request) -> Response {
    let mut model = None;
    match answered(core, kind, request, &mut model).await {
        Ok(response) => response,
        Err(fault) => {
            let why = fault.refusal.why;
            let mut response = fault.into_response();
            if let Some(model) = model {
                core.metrics.refused(&model, why);
                response.extensions_mut().insert(OfModel(model));
            }
            response
        }
    }
}

async fn answered(
    core: &Arc<Core>,
    kind: Kind,
    request: Request,
    model: &mut Option<String>,
) -> Answered<Response> {
    let arrived = Instant::now();
    if let Err(refusal) = core.check_ready() {
        body::discard(core, request).await;
        return Err(refusal.into());
    }
    let (asked, body_bytes, mut held) = read(core, request).await?;
    let worker = core.language.find(&asked.model)?;
    let name = asked.model.clone();
    *model = Some(name.clone());
    asked.check()?;
    let parsed_bytes = body_bytes * PARSED;
    let mut hold = |bytes| core.hold_more(&mut held, bytes);
    let talk = Talk::new(kind, asked, &worker, parsed_bytes, &mut hold)?;
    let events = worker.begin(talk.requests).await?;
    let timing = Timing::new(core, &name, arrived);
    let waited = Waited::new(core, events, timing, held);
    let answering = Answering::new(Head::new(kind, &name), talk.form);
    match talk.form.streams {
        true => Ok(stream::pieces(answering, waited)),
        false => Ok(json(&stream::whole(answering, waited).await?)),
    }
}

/// The body, and the memory that it and what is made of it take.
async fn read(core: &Arc<Core>, request: Request) -> Answered<(Asked, u64, Held)> {
    let (buffer, mut held) = body::read(core, "", request, 0, 0).await?;
    let bytes = buffer.bytes().len();
    let body_bytes = bytes as u64;
    core.hold_more(&mut held, body_bytes * PARSED)?;
    let asked = match bytes > MUCH_JSON {
        false => Asked::read(buffer.bytes())?,
        true => {
            let read = tokio::task::spawn_blocking(move || Asked::read(buffer.bytes())).await;
            read.map_err(|_| Refusal::new(Why::Internal, "reading it panicked"))??
        }
    };
    Ok((asked, body_bytes, held))
}

/// What is asked of a model.
struct Talk {
    requests: Vec<neap_chat::Request>,
    form: Form,
}

impl Talk {
    /// `hold` takes memory for as many prompts as there are answers, and for answers until they are taken.
    fn new(
        kind: Kind,
        mut asked: Asked,
        worker: &Worker,
        parsed_bytes: u64,
        hold: &mut dyn FnMut(u64) -> Result<(), Refusal>,
    ) -> Answered<Talk> {
        let likely = asked.likely()?;
        let tools = asked.take_tools();
        let has_tools = !tools.is_empty();
        let prompts = match kind {
            Kind::Chat => vec![chat_prompt(&mut asked, tools)?],
            Kind::Completion => text_prompts(&mut asked)?,
        };
        let of_prompt = asked.answers(prompts.len())?;
        let max_tokens = match kind {
            Kind::Chat => asked.most_tokens()?,
            Kind::Completion => Some(asked.most_tokens()?.unwrap_or(COMPLETION_TOKENS)),
        };
        let most_tokens = max_tokens.unwrap_or_else(|| worker::part_of(worker.context));
        let of_token = TOKEN_BYTES + likely.map_or(0, |few| (few as u64 + 1) * LIKELY_BYTES);
        let answer_bytes = most_tokens.min(worker.context) as u64 * of_token;
        let answers = (prompts.len() * of_prompt) as u64;
        hold(answers * answer_bytes + (of_prompt as u64 - 1) * parsed_bytes)?;
        let seed = asked.seed.map_or_else(random, |seed| seed as u64);
        let request = |prompt: &Prompt, answer: usize| neap_chat::Request {
            sampling: sampling(&asked, seed.wrapping_add(answer as u64), likely),
            max_tokens,
            stop: asked.stops().to_vec(),
            ..neap_chat::Request::new(prompt.clone())
        };
        let of_each = prompts
            .iter()
            .flat_map(|prompt| (0..of_prompt).map(move |answer| (prompt, answer)));
        let requests: Vec<_> = of_each
            .map(|(prompt, answer)| request(prompt, answer))
            .collect();
        let form = Form {
            answers: requests.len(),
            of_prompt,
            has_tools,
            has_likely: likely.is_some(),
            streams: asked.streams(),
            tells_usage: asked.tells_usage(),
        };
        Ok(Talk { requests, form })
    }
}

fn chat_prompt(asked: &mut Asked, tools: Vec<serde_json::Value>) -> Answered<Prompt> {
    let messages = asked.messages.take();
    let messages = messages.ok_or_else(|| Fault::of_param("messages", "messages are missing"))?;
    Ok(Prompt::Chat {
        messages: turns::turns(messages)?,
        tools,
        thinking: asked.thinks(),
    })
}

fn text_prompts(asked: &mut Asked) -> Answered<Vec<Prompt>> {
    let prompt = asked.prompt.take();
    let prompt = prompt.ok_or_else(|| Fault::of_param("prompt", "the prompt is missing"))?;
    Ok(match prompt {
        Prompts::Text(text) => vec![Prompt::Text(text)],
        Prompts::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
        Prompts::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
        Prompts::ManyTokens(many) => many.into_iter().map(Prompt::Tokens).collect(),
    })
}

/// As OpenAI has it where nothing is said: drawn as the model says.
fn sampling(asked: &Asked, seed: u64, likely: Option<usize>) -> Sampling {
    let or = Sampling::default();
    Sampling {
        temperature: asked.temperature.unwrap_or(1.0),
        top_k: asked.top_k.map_or(or.top_k, |k| k as usize),
        top_p: asked.top_p.unwrap_or(1.0),
        min_p: asked.min_p.unwrap_or(0.0),
        penalties: PenaltyOptions {
            repeat: asked.repetition_penalty.unwrap_or(1.0),
            frequency: asked.frequency_penalty.unwrap_or(0.0),
            presence: asked.presence_penalty.unwrap_or(0.0),
            ..or.penalties
        },
        seed,
        logprobs: likely,
    }
}

/// A seed that nobody knows.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
