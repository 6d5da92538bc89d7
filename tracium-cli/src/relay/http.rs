//! `/metrics`, `/livez` and `/readyz`.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tracium_relay::Metrics;

use crate::failure::{Failure, Outcome};

#[derive(Debug, Clone)]
struct Shared {
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

/// The HTTP server of a relay.
#[derive(Debug)]
pub(super) struct Server {
    task: JoinHandle<()>,
}

impl Server {
    /// Listens, before the relay takes its first lease: an address in use must stop the start, not be a log line.
    pub(super) async fn bind(address: SocketAddr, metrics: Arc<Metrics>, stop: CancellationToken) -> Outcome<Self> {
        let listener = tokio::net::TcpListener::bind(address).await.map_err(|error| {
            Failure::usage(anyhow!(error).context(format!("cannot listen on {address} (--http)"))).way_out("name a free address")
        })?;
        match listener.local_addr() {
            Ok(address) => info!(%address, "serving /metrics, /livez and /readyz"),
            Err(error) => warn!(%error, "no local address"),
        }
        let router = Router::new()
            .route("/metrics", get(serve_metrics))
            .route("/livez", get(|| async { "ok\n" }))
            .route("/readyz", get(serve_ready))
            .with_state(Shared { metrics, stop: stop.clone() });
        let task = tokio::spawn(async move {
            let serve = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
            if let Err(error) = serve.await {
                warn!(%error, "the HTTP server ended");
            }
        });
        Ok(Self { task })
    }

    /// Ends the server; a client that keeps its connection open does not hold up the stop.
    pub(super) async fn ended(mut self) {
        if tokio::time::timeout(std::time::Duration::from_secs(1), &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

async fn serve_metrics(State(shared): State<Shared>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], shared.metrics.to_prometheus())
}

/// Ready from the first lease look-up on (the server only runs then) until the stop.
async fn serve_ready(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.stop.is_cancelled() { (StatusCode::SERVICE_UNAVAILABLE, "stopping\n") } else { (StatusCode::OK, "ok\n") }
}
