//! `grpc.health.v1.Health`: what Kubernetes and clients that choose among servers ask.
//!
//! Of the server or of a model, whether it is ready; of `live`, whether the server lives. Who watches is told now, and again
//! whenever that is another. Source: "gRPC Health Checking Protocol".

use super::frame::{answer, framed, read};
use super::messages::{Health, HealthAsked};
use super::stream::{self, Sender};
use crate::core::Core;
use crate::refusal::{Refusal, Why};
use axum::extract::Request;
use axum::response::Response;
use std::sync::Arc;
use std::time::Duration;

pub const CHECK: &str = "/grpc.health.v1.Health/Check";

/// It keeps a connection's place, so it asks for the token where there is one.
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

/// How often is looked for those who watch.
const LOOK: Duration = Duration::from_millis(500);

pub async fn checked(core: &Core, request: Request) -> Result<Response, Refusal> {
    let is_known = core.check_token(request.headers()).is_ok();
    let service = read::<HealthAsked>(core, request).await?.service;
    // Others hear nothing about models, as over HTTP.
    if !is_known && !is_of_server(&service) {
        return Err(Refusal::new(Why::Unknown, "show the token"));
    }
    let status = status(core, &service)?;
    Ok(answer(&Health { status }, None))
}

pub fn watched(core: Arc<Core>, request: Request) -> Response {
    stream::streamed(core, async move |core, sender| {
        let service = read::<HealthAsked>(&core, request).await?.service;
        follow(&core, &service, &sender).await
    })
}

/// Tells of each change until the server ends, or the client does.
async fn follow(core: &Core, service: &str, sender: &Sender) -> Result<(), Refusal> {
    let mut told = None;
    loop {
        // A model may come yet.
        let status = status(core, service).unwrap_or(SERVICE_UNKNOWN);
        if told.replace(status) != Some(status)
            && !stream::send(sender, framed(&Health { status }, None)?).await
        {
            return Ok(());
        }
        if core.is_ending() {
            return Err(Refusal::new(Why::NotReady, "the server ends"));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn is_of_server(service: &str) -> bool {
    ["", "inference.GRPCInferenceService", "live"].contains(&service)
}

/// # Errors
/// [`Why::NotFound`] for what is neither the server nor a model.
fn status(core: &Core, service: &str) -> Result<i32, Refusal> {
    let is_serving = match service {
        "live" => true,
        _ if is_of_server(service) => core.is_ready(),
        model => match core.can_answer(model, None) {
            Err(refusal) if refusal.why == Why::NotFound => return Err(refusal),
            answered => answered.is_ok(),
        },
    };
    Ok(if is_serving { SERVING } else { NOT_SERVING })
}
