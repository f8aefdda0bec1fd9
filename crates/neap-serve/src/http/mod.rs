//! The protocol over HTTP.
//!
//! | method and path | |
//! |---|---|
//! | `GET /v2` | name, version, extensions |
//! | `GET /v2/health/live`, `GET /v2/health/ready` | 200, or 503 |
//! | `GET /v2/models/NAME[/versions/V]` | inputs and outputs |
//! | `GET /v2/models/NAME[/versions/V]/ready` | 200, or 503 |
//! | `POST /v2/models/NAME[/versions/V]/infer` | tensors in, tensors out |
//! | `POST /v2/repository/index` | every model and its state |
//! | `POST /v2/repository/models/NAME/load`, `…/unload` | |
//! | `GET /memory` | not of the protocol: where the budget goes |
//! | `POST /memory` | the same: another budget, `{"budget_bytes": N}` |
//! | `GET /metrics` | the same: Prometheus' text |
//! | `GET /` | the same: a page that shows all this in a browser |

mod answer;
mod body;
mod infer;
pub mod listener;
pub mod tls;

use crate::core::Core;
use crate::datatype;
use crate::refusal::{Refusal, Why};
use answer::{json, refused};
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What [`json`] and others answer with where the request is at fault.
type Answered = Result<Response, Refusal>;

/// All pages.
pub fn router(core: Arc<Core>) -> Router {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/", get(server))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/{name}", get(model))
        .route("/v2/models/{name}/versions/{version}", get(model))
        .route("/v2/models/{name}/ready", get(model_ready))
        .route(
            "/v2/models/{name}/versions/{version}/ready",
            get(model_ready),
        )
        .route("/v2/models/{name}/infer", post(infer_at))
        .route("/v2/models/{name}/versions/{version}/infer", post(infer_at))
        .route("/v2/repository/index", post(index))
        .route("/v2/repository/models/{name}/load", post(load))
        .route("/v2/repository/models/{name}/unload", post(unload))
        .route("/memory", get(memory).post(change_memory))
        .route("/metrics", get(metrics))
        .route("/", get(page))
        .fallback(no_page)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(core.clone(), only_known))
        .with_state(core)
}

/// The page of metrics alone.
pub fn metrics_router(core: Arc<Core>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .fallback(no_page)
        .layer(from_fn_with_state(core.clone(), only_known))
        .with_state(core)
}

/// Lets those through who show the token, where there is one, and those who only ask whether the server lives, or for the
/// page, which asks for the token itself.
async fn only_known(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_open = path == "/" || path.starts_with("/v2/health/");
    match core.check_token(request.headers()) {
        Err(refusal) if !is_open => {
            body::discard(&core, request).await;
            refused(&refusal)
        }
        _ => next.run(request).await,
    }
}

/// It loads nothing, and asks nobody but this server.
const PAGE: &str = include_str!("page.html");
const PAGE_MAY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
    img-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

async fn page() -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_MAY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, PAGE).into_response()
}

async fn metrics(State(core): State<Arc<Core>>) -> Answered {
    let text = core.metrics.text(&core);
    let text = text.map_err(|e| Refusal::new(Why::Internal, e.to_string()))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        refused(&self)
    }
}

#[derive(Deserialize)]
struct Named {
    name: String,
    version: Option<String>,
}

async fn server() -> Response {
    json(&json!({
        "name": "neaptide",
        "version": env!("CARGO_PKG_VERSION"),
        "extensions": ["binary_tensor_data", "model_repository"],
    }))
}

async fn live() -> StatusCode {
    StatusCode::OK
}

async fn ready(State(core): State<Arc<Core>>) -> StatusCode {
    match core.is_ready() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn model(State(core): State<Arc<Core>>, Path(named): Path<Named>) -> Answered {
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
    Ok(json(&json!({
        "name": &*model.name,
        "versions": [model.version],
        "platform": "onnx_neaptide",
        "inputs": inputs.collect::<Vec<_>>(),
        "outputs": outputs.collect::<Vec<_>>(),
    })))
}

async fn model_ready(State(core): State<Arc<Core>>, Path(named): Path<Named>) -> Answered {
    core.catalogue
        .ready(&named.name, named.version.as_deref())?;
    Ok(StatusCode::OK.into_response())
}

async fn infer_at(
    State(core): State<Arc<Core>>,
    Path(named): Path<Named>,
    request: Request,
) -> Response {
    infer::answer(&core, &named.name, named.version.as_deref(), request).await
}

async fn index(State(core): State<Arc<Core>>, request: Request) -> Answered {
    #[derive(Deserialize, Default)]
    struct Asked {
        #[serde(default)]
        ready: bool,
    }
    let body = body::read_small(&core, request).await?;
    let asked: Asked = match body.is_empty() {
        true => Asked::default(),
        false => serde_json::from_slice(&body).map_err(|e| {
            Refusal::malformed(format!("the body is not the JSON that is expected: {e}"))
        })?,
    };
    let listed = core.index()?;
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

async fn load(
    State(core): State<Arc<Core>>,
    Path(named): Path<Named>,
    request: Request,
) -> Answered {
    body::read_small(&core, request).await?;
    core.load(&named.name).await?;
    Ok(json(&json!({})))
}

async fn unload(
    State(core): State<Arc<Core>>,
    Path(named): Path<Named>,
    request: Request,
) -> Answered {
    body::read_small(&core, request).await?;
    core.unload(&named.name).await?;
    Ok(json(&json!({})))
}

async fn memory(State(core): State<Arc<Core>>) -> Response {
    let pool = &core.pool;
    let promises: BTreeMap<String, serde_json::Value> = (core.executor.promises().into_iter())
        .map(|(name, told)| {
            let told = json!({
                "period_ms": told.promise.period.as_secs_f64() * 1e3,
                "deadline_ms": told.promise.deadline.as_secs_f64() * 1e3,
                "longest_run_ms": told.work_ns as f64 / 1e6,
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
    let asked: Asked = serde_json::from_slice(&body)
        .map_err(|e| Refusal::malformed(format!("the body is not {{\"budget_bytes\": N}}: {e}")))?;
    core.set_budget(asked.budget_bytes).await?;
    Ok(memory(State(core)).await)
}

async fn no_page(request: Request) -> Refusal {
    let path = crate::catalogue::shown(request.uri().path());
    Refusal::new(Why::NotFound, format!("there is nothing at {path}"))
}

async fn no_method(request: Request) -> Response {
    let message = format!("{} is not for this path", request.method());
    let mut response = refused(&Refusal::malformed(message));
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}
