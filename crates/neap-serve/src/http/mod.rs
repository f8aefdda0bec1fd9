//! The protocol over HTTP.
//!
//! | method and path | |
//! |---|---|
//! | `GET /v2` | name, version, extensions |
//! | `GET /v2/health/live`, `GET /v2/health/ready` | 200, or 503, with `{"live": …}`, `{"ready": …}` |
//! | `GET /v2/models/NAME[/versions/V]` | inputs and outputs |
//! | `GET /v2/models/NAME[/versions/V]/ready` | 200, or 503 |
//! | `GET /v2/models/NAME[/versions/V]/config`, `…/stats`, `GET /v2/models/stats` | as Triton tells them |
//! | `POST /v2/models/NAME[/versions/V]/infer` | tensors in, tensors out |
//! | `POST /v2/repository/index` | every model and its state |
//! | `POST /v2/repository/models/NAME/load`, `…/unload` | |
//! | `GET /memory` | not of the protocol: where the budget goes |
//! | `POST /memory` | the same: another budget, `{"budget_bytes": N}` |
//! | `GET /metrics` | the same: Prometheus' text |
//! | `/v1/…`, `GET /chat` | language models: [`crate::openai`] |
//! | `GET /`, `GET /favicon.ico` | the same: a page that shows all this in a browser |

pub mod answer;
pub mod body;
pub mod front;
mod infer;
pub mod listener;
mod places;
pub mod protocol;
pub mod tls;
mod visitors;
mod wire;

use crate::core::Core;
use crate::datatype;
use crate::openai;
use crate::refusal::{Refusal, Why};
use crate::triton;
use crate::v2::{LoadRequest, Object};
use answer::{json, refused, with_json};
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use front::{Front, Manner, front};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What [`json`] and others answer with where the request is at fault.
type Answered = Result<Response, Refusal>;

/// Whether the server lives is told to everybody; the page asks for the token itself.
static MANNER: Manner = Manner {
    refused,
    is_open: |path| {
        ["/", "/chat", "/favicon.ico"].contains(&path) || path.starts_with("/v2/health/")
    },
    is_grpc: false,
};

/// All pages.
pub fn router(core: Arc<Core>) -> Router {
    let mut router = Router::new()
        .route("/memory", get(memory).post(change_memory))
        .route("/metrics", get(metrics))
        .route("/favicon.ico", get(icon))
        .route("/", get(page));
    let pages: [(&str, MethodRouter<Arc<Core>>); 9] = [
        ("/v2", get(server)),
        ("/v2/health/live", get(live)),
        ("/v2/health/ready", get(ready)),
        ("/v2/models/stats", get(all_statistics)),
        ("/v2/repository/index", post(index)),
        ("/v2/repository/models/{name}/load", post(load)),
        ("/v2/repository/models/{name}/unload", post(unload)),
        ("/v2/systemsharedmemory/status", get(no_regions)),
        ("/v2/cudasharedmemory/status", get(no_regions)),
    ];
    for (path, page) in pages {
        router = both(router, path, page);
    }
    let of_models: [(&str, MethodRouter<Arc<Core>>); 5] = [
        ("", get(model)),
        ("/ready", get(model_ready)),
        ("/config", get(config)),
        ("/stats", get(statistics)),
        ("/infer", post(infer_at)),
    ];
    for (end, page) in of_models {
        let path = format!("/v2/models/{{name}}{end}");
        router = both(router, &path, page.clone());
        let path = format!("/v2/models/{{name}}/versions/{{version}}{end}");
        router = both(router, &path, page);
    }
    guarded(openai::routes(router), core).layer(from_fn(openai::shaped))
}

/// A page with and without a slash at the end.
fn both(router: Router<Arc<Core>>, path: &str, page: MethodRouter<Arc<Core>>) -> Router<Arc<Core>> {
    let router = router.route(path, page.clone());
    router.route(&format!("{path}/"), page)
}

/// The page of metrics alone.
pub fn metrics_router(core: Arc<Core>) -> Router {
    guarded(Router::new().route("/metrics", get(metrics)), core)
}

fn guarded(router: Router<Arc<Core>>, core: Arc<Core>) -> Router {
    let state = Front {
        core: core.clone(),
        manner: &MANNER,
    };
    router
        .fallback(no_page)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(state, front))
        .with_state(core)
}

/// It loads nothing, and asks nobody but this server.
const PAGE: &str = include_str!("page.html");
pub const PAGE_MAY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
    img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_MAY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, PAGE).into_response()
}

async fn icon() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "image/svg+xml"),
        (header::CACHE_CONTROL, "max-age=86400"),
    ];
    (headers, include_str!("icon.svg")).into_response()
}

/// Prometheus' text, or that of OpenMetrics for those who ask for it.
async fn metrics(State(core): State<Arc<Core>>, headers: HeaderMap) -> Answered {
    let wanted = headers.get(header::ACCEPT).and_then(|a| a.to_str().ok());
    let is_open = wanted.is_some_and(|wanted| wanted.contains("application/openmetrics-text"));
    let text = core.metrics.text(&core, is_open);
    let text = text.map_err(|e| Refusal::new(Why::Internal, e.to_string()))?;
    let kind = match is_open {
        true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        false => "text/plain; version=0.0.4; charset=utf-8",
    };
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        refused(&self)
    }
}

/// The model that a path names.
#[derive(Deserialize)]
struct Named {
    name: String,
    version: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Named, Refusal> {
        let named = Path::<Named>::from_request_parts(parts, state).await;
        let named =
            named.map_err(|e| Refusal::malformed(format!("the path: {}", e.body_text())))?;
        Ok(named.0)
    }
}

async fn server() -> Response {
    json(&json!({
        "name": "neaptide",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": EXTENSIONS,
    }))
}

/// Beside the protocol itself.
pub const EXTENSIONS: [&str; 4] = [
    "binary_tensor_data",
    "model_repository",
    "model_configuration",
    "statistics",
];

async fn live() -> Response {
    json(&json!({ "live": true }))
}

async fn ready(State(core): State<Arc<Core>>) -> Response {
    told_ready(core.is_ready(), json!({ "ready": core.is_ready() }))
}

/// 200 or 503, with what is told.
fn told_ready(is_ready: bool, told: serde_json::Value) -> Response {
    let status = match is_ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    with_json(status, Body::from(told.to_string()))
}

/// There is no shared memory.
async fn no_regions() -> Response {
    json(&json!([]))
}

async fn model(State(core): State<Arc<Core>>, named: Named) -> Answered {
    let model = core
        .catalogue
        .ready(&named.name, named.version.as_deref())?;
    let tensor = |info: &neaptide::TensorInfo, shape: Vec<i64>| {
        json!({
            "name": info.name,
            "datatype": datatype::name(info.ty.dtype),
            "shape": shape,
        })
    };
    let inputs = model.inputs.iter();
    let inputs = inputs.map(|info| tensor(info, model.told_shape(info)));
    let outputs = model.outputs.iter().enumerate();
    let outputs = outputs.map(|(at, info)| tensor(info, model.told_output_shape(at)));
    let mut told = json!({
        "name": &*model.name,
        "versions": [model.version],
        "platform": "onnx_neaptide",
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
    });
    if !model.about.is_empty() {
        let about = model.about.iter();
        let about = about.map(|(key, value)| (key.clone(), json!(value)));
        told["parameters"] = about.collect::<serde_json::Map<_, _>>().into();
    }
    Ok(json(&told))
}

async fn model_ready(State(core): State<Arc<Core>>, named: Named) -> Answered {
    core.can_answer(&named.name, named.version.as_deref())?;
    let told = json!({ "name": named.name, "ready": true });
    Ok(told_ready(true, told))
}

async fn config(State(core): State<Arc<Core>>, named: Named) -> Answered {
    let model = core
        .catalogue
        .ready(&named.name, named.version.as_deref())?;
    Ok(json(&triton::config(&model)))
}

async fn statistics(State(core): State<Arc<Core>>, named: Named) -> Answered {
    let version = named.version.as_deref();
    Ok(json(&core.statistics(Some(&named.name), version)?))
}

async fn all_statistics(State(core): State<Arc<Core>>) -> Answered {
    Ok(json(&core.statistics(None, None)?))
}

async fn infer_at(State(core): State<Arc<Core>>, named: Named, request: Request) -> Response {
    infer::answer(&core, &named.name, named.version.as_deref(), request).await
}

async fn index(State(core): State<Arc<Core>>, request: Request) -> Answered {
    #[derive(Deserialize, Default)]
    struct Asked {
        #[serde(default)]
        ready: bool,
    }
    let asked: Asked = asked(&core, request).await?;
    let listed = core.index().await?;
    let listed = listed
        .into_iter()
        .filter(|m| !asked.ready || m.state == "READY");
    let told = listed.map(|m| {
        let mut told = json!({ "name": m.name, "version": m.version });
        if !m.state.is_empty() {
            told["state"] = m.state.into();
            told["reason"] = m.reason.into();
        }
        told
    });
    Ok(json(&told.collect::<Vec<_>>()))
}

/// A small body of JSON, an object; what it is by default where there is none.
async fn asked<T: DeserializeOwned + Default>(core: &Core, request: Request) -> Result<T, Refusal> {
    let body = body::read_small(core, request).await?;
    if body.is_empty() {
        return Ok(T::default());
    }
    let asked = serde_json::from_slice::<Object<T>>(&body);
    asked
        .map(|Object(asked)| asked)
        .map_err(|e| Refusal::malformed(format!("the body is not the JSON that is expected: {e}")))
}

async fn load(State(core): State<Arc<Core>>, named: Named, request: Request) -> Answered {
    let wanted: LoadRequest = asked(&core, request).await?;
    wanted.check()?;
    core.load(&named.name).await?;
    Ok(json(&json!({})))
}

async fn unload(State(core): State<Arc<Core>>, named: Named, request: Request) -> Answered {
    let wanted: LoadRequest = asked(&core, request).await?;
    wanted.check()?;
    core.unload(&named.name).await?;
    Ok(json(&json!({})))
}

async fn memory(State(core): State<Arc<Core>>) -> Response {
    let pool = &core.pool;
    let promises: BTreeMap<String, serde_json::Value> = (core.executor.told_promises().into_iter())
        .map(|(name, told)| {
            let told = json!({
                "period_ms": told.promise.period.as_secs_f64() * 1e3,
                "deadline_ms": told.promise.deadline.as_secs_f64() * 1e3,
                "longest_run_ms": told.work_ns.div_ceil(1000) as f64 / 1e3,
            });
            (name, told)
        })
        .collect();
    json(&json!({
        "budget_bytes": core.budget_bytes(),
        "process_bytes": core.process_bytes(),
        "process_most_bytes": core.process_most_bytes(),
        "requests": {
            "used_bytes": pool.used_bytes(),
            "most_bytes": pool.most_bytes(),
            "limit_bytes": pool.limit_bytes(),
            "promised_bytes": pool.promised_bytes(),
        },
        "models": core.executor.ledger(),
        "language": core.language.told(),
        "promises": promises,
    }))
}

async fn change_memory(State(core): State<Arc<Core>>, request: Request) -> Answered {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Asked {
        budget_bytes: u64,
    }
    let body = body::read_small(&core, request).await?;
    let Object(asked): Object<Asked> = serde_json::from_slice(&body)
        .map_err(|e| Refusal::malformed(format!("the body is not {{\"budget_bytes\": N}}: {e}")))?;
    core.set_budget(asked.budget_bytes).await?;
    Ok(memory(State(core)).await)
}

async fn no_page(request: Request) -> Refusal {
    let path = crate::catalogue::shown(request.uri().path());
    Refusal::new(Why::NotFound, format!("there is nothing at {path}"))
}

async fn no_method(request: Request) -> Refusal {
    let message = format!("{} is not for this path", request.method());
    Refusal::new(Why::NoMethod, message)
}
