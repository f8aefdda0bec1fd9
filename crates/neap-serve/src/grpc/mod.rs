//! The protocol over gRPC.
//!
//! | method | as over HTTP |
//! |---|---|
//! | `ServerLive`, `ServerReady`, `ServerMetadata` | `/v2/health/live`, `/v2/health/ready`, `/v2` |
//! | `ModelReady`, `ModelMetadata`, `ModelInfer` | `/v2/models/NAME/ready`, `/v2/models/NAME`, `…/infer` |
//! | `ModelStreamInfer` | requests one after the other |
//! | `ModelConfig`, `ModelStatistics` | `…/config`, `…/stats` |
//! | `grpc.health.v1.Health`: `Check`, `Watch` | of the service `live`: whether the server lives; of none: whether it is ready; of a model |
//! | `RepositoryIndex`, `RepositoryModelLoad`, `RepositoryModelUnload` | `/v2/repository/…` |

mod frame;
mod health;
mod infer;
mod messages;
mod scan;
mod stream;

use crate::core::Core;
use crate::datatype;
use crate::http::EXTENSIONS;
use crate::http::front::{Front, Manner, front};
use crate::refusal::Refusal;
use crate::triton;
use crate::v2::check_load_parameters;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::post;
use frame::{answer, read, refused};
use messages::{
    Change, Index, IndexRequest, Indexed, IsReady, Live, ModelConfigResponse, ModelMetadata,
    NamedModel, Nothing, ServerMetadata, TensorMetadata,
};
use std::sync::Arc;

type Answered = Result<Response, Refusal>;

/// All methods.
pub fn router(core: Arc<Core>) -> Router {
    let at = |method: &str| format!("/inference.GRPCInferenceService/{method}");
    let state = Front {
        core: core.clone(),
        manner: &MANNER,
    };
    Router::new()
        .route(health::CHECK, post(check))
        .route(health::WATCH, post(watch))
        .route(&at("ServerLive"), post(live))
        .route(&at("ServerReady"), post(ready))
        .route(&at("ServerMetadata"), post(server))
        .route(&at("ModelReady"), post(model_ready))
        .route(&at("ModelMetadata"), post(model))
        .route(&at("ModelInfer"), post(infer_at))
        .route(&at("ModelStreamInfer"), post(stream))
        .route(&at("ModelConfig"), post(config))
        .route(&at("ModelStatistics"), post(statistics))
        .route(&at("SystemSharedMemoryStatus"), post(no_regions))
        .route(&at("CudaSharedMemoryStatus"), post(no_regions))
        .route(&at("RepositoryIndex"), post(index))
        .route(&at("RepositoryModelLoad"), post(load))
        .route(&at("RepositoryModelUnload"), post(unload))
        .fallback(async |request: Request| frame::no_method(request.uri().path()))
        .layer(from_fn_with_state(state, front))
        .with_state(core)
}

/// Health is told to everybody, as over HTTP.
static MANNER: Manner = Manner {
    refused,
    is_open: |path| {
        let method = path.rsplit('/').next().unwrap_or("");
        path == health::CHECK || ["ServerLive", "ServerReady"].contains(&method)
    },
    is_grpc: true,
};

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
        extensions: EXTENSIONS.map(String::from).to_vec(),
    };
    answer(&metadata, None)
}

fn version(text: &str) -> Option<&str> {
    Some(text).filter(|version| !version.is_empty())
}

async fn model_ready(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<NamedModel>(&core, request).await?;
        let ready = core.can_answer(&asked.name, version(&asked.version));
        let ready = ready.is_ok();
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
    infer::answered(&core, request).await
}

async fn stream(State(core): State<Arc<Core>>, request: Request) -> Response {
    stream::answered(core, request)
}

async fn config(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<NamedModel>(&core, request).await?;
        let model = core.catalogue.ready(&asked.name, version(&asked.version))?;
        let config = Some(triton::config(&model));
        Ok(answer(&ModelConfigResponse { config }, None))
    };
    told(asked.await)
}

async fn statistics(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<NamedModel>(&core, request).await?;
        let name = Some(asked.name.as_str()).filter(|name| !name.is_empty());
        let all = core.statistics(name, version(&asked.version))?;
        Ok(answer(&all, None))
    };
    told(asked.await)
}

/// There is no shared memory.
async fn no_regions() -> Response {
    answer(&Nothing {}, None)
}

async fn check(State(core): State<Arc<Core>>, request: Request) -> Response {
    told(health::checked(&core, request).await)
}

async fn watch(State(core): State<Arc<Core>>, request: Request) -> Response {
    health::watched(core, request)
}

async fn index(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<IndexRequest>(&core, request).await?;
        let listed = core.index().await?;
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
        check_load_parameters(asked.parameters.keys().map(String::as_str))?;
        core.load(&asked.model_name).await?;
        Ok(answer(&Nothing {}, None))
    };
    told(asked.await)
}

async fn unload(State(core): State<Arc<Core>>, request: Request) -> Response {
    let asked = async {
        let asked = read::<Change>(&core, request).await?;
        check_load_parameters(asked.parameters.keys().map(String::as_str))?;
        core.unload(&asked.model_name).await?;
        Ok(answer(&Nothing {}, None))
    };
    told(asked.await)
}
