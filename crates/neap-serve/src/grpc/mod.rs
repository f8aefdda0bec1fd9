//! The protocol over gRPC.
//!
//! | method | as over HTTP |
//! |---|---|
//! | `ServerLive`, `ServerReady`, `ServerMetadata` | `/v2/health/live`, `/v2/health/ready`, `/v2` |
//! | `ModelReady`, `ModelMetadata`, `ModelInfer` | `/v2/models/NAME/ready`, `/v2/models/NAME`, `…/infer` |
//! | `RepositoryIndex`, `RepositoryModelLoad`, `RepositoryModelUnload` | `/v2/repository/…` |

mod frame;
mod infer;
mod messages;
mod scan;

use crate::core::Core;
use crate::datatype;
use crate::refusal::Refusal;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::post;
use frame::{answer, read, refused};
use messages::{
    Change, Index, IndexRequest, Indexed, IsReady, Live, ModelMetadata, NamedModel, Nothing,
    ServerMetadata, TensorMetadata,
};
use std::sync::Arc;

type Answered = Result<Response, Refusal>;

/// All methods.
pub fn router(core: Arc<Core>) -> Router {
    let at = |method: &str| format!("/inference.GRPCInferenceService/{method}");
    Router::new()
        .route(&at("ServerLive"), post(live))
        .route(&at("ServerReady"), post(ready))
        .route(&at("ServerMetadata"), post(server))
        .route(&at("ModelReady"), post(model_ready))
        .route(&at("ModelMetadata"), post(model))
        .route(&at("ModelInfer"), post(infer_at))
        .route(&at("RepositoryIndex"), post(index))
        .route(&at("RepositoryModelLoad"), post(load))
        .route(&at("RepositoryModelUnload"), post(unload))
        .fallback(async |request: Request| frame::no_method(request.uri().path()))
        .layer(from_fn_with_state(core.clone(), only_known))
        .with_state(core)
}

/// Lets those through who show the token, where there is one.
async fn only_known(State(core): State<Arc<Core>>, request: Request, next: Next) -> Response {
    match core.check_token(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refused(&refusal),
    }
}

fn told(answered: Answered) -> Response {
    answered.unwrap_or_else(|refusal| refused(&refusal))
}

async fn live(State(_): State<Arc<Core>>) -> Response {
    answer(&Live { live: true }, None)
}

async fn ready(State(core): State<Arc<Core>>) -> Response {
    let ready = core.is_ready();
    answer(&IsReady { ready }, None)
}

async fn server(State(_): State<Arc<Core>>) -> Response {
    let metadata = ServerMetadata {
        name: "neaptide".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        extensions: vec!["binary_tensor_data".into(), "model_repository".into()],
    };
    answer(&metadata, None)
}

fn version(text: &str) -> Option<&str> {
    Some(text).filter(|version| !version.is_empty())
}

async fn model_ready(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<NamedModel>(&core, request).await?;
        let model = core.catalogue.ready(&asked.name, version(&asked.version));
        let ready = model.is_ok();
        Ok(answer(&IsReady { ready }, None))
    };
    told(asked.await)
}

async fn model(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<NamedModel>(&core, request).await?;
        let model = core.catalogue.ready(&asked.name, version(&asked.version))?;
        let tensor = |info: &neaptide::TensorInfo, shape: Vec<i64>| TensorMetadata {
            name: info.name.clone(),
            datatype: datatype::name(info.ty.dtype).into(),
            shape,
        };
        let inputs = model.inputs.iter();
        let inputs = inputs.map(|info| tensor(info, model.told_shape(info)));
        let outputs = model.outputs.iter().enumerate();
        let outputs = outputs.map(|(at, info)| tensor(info, model.told_output_shape(at)));
        let metadata = ModelMetadata {
            name: model.name.to_string(),
            versions: vec![model.version.clone()],
            platform: "onnx_neaptide".into(),
            inputs: inputs.collect(),
            outputs: outputs.collect(),
        };
        Ok(answer(&metadata, None))
    };
    told(asked.await)
}

async fn infer_at(State(core): State<Arc<Core>>, request: Request) -> Response {
    told(infer::answered(&core, request).await)
}

async fn index(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<IndexRequest>(&core, request).await?;
        let listed = core.index()?;
        let listed = listed.into_iter();
        let models = listed
            .filter(|m| !asked.ready || m.state == "READY")
            .map(|m| Indexed {
                name: m.name,
                version: m.version,
                state: m.state.into(),
                reason: m.reason,
            })
            .collect();
        Ok(answer(&Index { models }, None))
    };
    told(asked.await)
}

async fn load(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<Change>(&core, request).await?;
        core.load(&asked.model_name).await?;
        Ok(answer(&Nothing {}, None))
    };
    told(asked.await)
}

async fn unload(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<Change>(&core, request).await?;
        core.unload(&asked.model_name).await?;
        Ok(answer(&Nothing {}, None))
    };
    told(asked.await)
}
