//! Clusters: what other people's schedulers have.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use futures::future::join_all;
use muster_api::cluster::{ClusterList, ClusterNode, ClusterView, DeviceCount, HiddenPlace, PlaceLimitsView};
use muster_engine::{Engine, Error, Family, Offer, PlaceLimits};
use tokio::time::timeout;

use super::describe::Always;
use super::failure::{Failure, Json};
use crate::keeper::{silent, words};
use crate::state::Shared;

/// How long a scheduler may take to say what it has; people wait for it.
const ANSWER: Duration = Duration::from_secs(10);

/// List the machines of other schedulers, with what is free on each.
#[utoipa::path(get, path = "/api/v1/clusters", tag = "nodes", operation_id = "list_clusters",
    responses((status = 200, body = ClusterList), Always))]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<ClusterList>, Failure> {
    Ok(Json(ClusterList { items: all(&shared).await }))
}

/// What every other scheduler has, or why it does not say so.
pub(super) async fn all(shared: &Shared) -> Vec<ClusterView> {
    let delegating = shared.engines.iter().filter(|one| one.capabilities().family == Family::Delegating);
    join_all(delegating.map(view)).await
}

async fn view(engine: &Arc<dyn Engine>) -> ClusterView {
    let late = |_| Err(Error::retryable("it does not answer", silent()));
    let asked = async { Ok((engine.nodes().await?, engine.limits().await?)) };
    let answer = timeout(ANSWER, asked).await.unwrap_or_else(late);
    let name = engine.capabilities().name;
    let mut cluster = ClusterView {
        engine: name.into(),
        nodes: Vec::new(),
        limits: Vec::new(),
        hidden: Vec::new(),
        error: None,
    };
    match answer {
        Ok((offers, limits)) => {
            cluster.limits = limits.into_iter().map(|limits| limits_view(name, limits)).collect();
            for Offer { places, hidden, .. } in offers.iter().filter(|offer| offer.hidden.is_some()) {
                let hide =
                    |place| HiddenPlace { on: on(name, place), why: hidden.clone().unwrap_or_default() };
                cluster.hidden.extend(places.iter().map(hide));
            }
            let shown = offers.into_iter().filter(|offer| offer.hidden.is_none());
            cluster.nodes = shown.map(|offer| node(name, offer)).collect();
        }
        Err(error) => cluster.error = Some(words(&error)),
    }
    cluster
}

/// What a job says to run there.
fn on(engine: &str, place: &String) -> String {
    if place.is_empty() { engine.to_owned() } else { format!("{engine}/{place}") }
}

fn limits_view(engine: &str, limits: PlaceLimits) -> PlaceLimitsView {
    let PlaceLimits { place, is_default, max_time, default_time, max_nodes } = limits;
    let milliseconds = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    PlaceLimitsView {
        on: on(engine, &place),
        is_default,
        max_time_ms: max_time.map(milliseconds),
        default_time_ms: default_time.map(milliseconds),
        max_nodes,
    }
}

fn node(engine: &str, offer: Offer) -> ClusterNode {
    let Offer { name, node: _, places, state, total, free, note, hidden: _ } = offer;
    let free_of = |kind: &String| free.devices.get(kind).copied().unwrap_or(0);
    let devices: BTreeMap<String, DeviceCount> = total
        .devices
        .into_iter()
        .map(|(kind, total)| {
            let free = free_of(&kind);
            (kind, DeviceCount { total, free })
        })
        .collect();
    ClusterNode {
        name,
        on: places.iter().map(|place| on(engine, place)).collect(),
        state,
        cpu_millis: total.cpu_millis,
        cpu_millis_free: free.cpu_millis,
        memory_bytes: total.memory_bytes,
        memory_bytes_free: free.memory_bytes,
        devices,
        note,
    }
}
