//! Clusters: what other people's schedulers have.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use futures::future::{join, join_all};
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

/// The machines are shown also where the limits of its places cannot be had.
async fn view(engine: &Arc<dyn Engine>) -> ClusterView {
    let (offers, limits) = join(in_time(engine.nodes()), in_time(engine.limits())).await;
    let name = engine.capabilities().name;
    let mut cluster = ClusterView {
        engine: name.into(),
        nodes: Vec::new(),
        limits: Vec::new(),
        limits_error: None,
        hidden: Vec::new(),
        error: None,
    };
    match offers {
        Ok(offers) => {
            for Offer { places, hidden, .. } in offers.iter().filter(|offer| offer.hidden.is_some()) {
                let hide =
                    |place| HiddenPlace { on: on(name, place), why: hidden.clone().unwrap_or_default() };
                cluster.hidden.extend(places.iter().map(hide));
            }
            let shown = offers.into_iter().filter(|offer| offer.hidden.is_none());
            cluster.nodes = shown.map(|offer| node(name, offer)).collect();
        }
        Err(error) => {
            cluster.error = Some(words(&error));
            return cluster;
        }
    }
    match limits {
        Ok(limits) => cluster.limits = limits.into_iter().map(|limits| limits_view(name, limits)).collect(),
        Err(error) => cluster.limits_error = Some(words(&error)),
    }
    cluster
}

async fn in_time<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = |_| Err(Error::retryable("it does not answer", silent()));
    timeout(ANSWER, asked).await.unwrap_or_else(late)
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

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use muster_engine::{Accounts, AgentBinary, Amounts, Capabilities, Class, Key, Observed, StartRequest};

    use super::*;

    /// A cluster that says some things, and others not.
    struct Half {
        capabilities: Capabilities,
        nodes: Result<(), &'static str>,
        limits: Result<(), &'static str>,
    }

    fn failed(what: &str) -> Error {
        Error { what: what.into(), class: Class::Retryable, source: None }
    }

    #[async_trait]
    impl Engine for Half {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        fn agent(&self) -> Option<AgentBinary> {
            None
        }

        async fn nodes(&self) -> Result<Vec<Offer>, Error> {
            let machine = Offer {
                name: "n1".into(),
                node: None,
                places: vec!["gpu".into()],
                state: "idle".into(),
                total: Amounts::default(),
                free: Amounts::default(),
                note: None,
                hidden: None,
            };
            self.nodes.map(|()| vec![machine]).map_err(failed)
        }

        async fn limits(&self) -> Result<Vec<PlaceLimits>, Error> {
            let place = PlaceLimits { place: "gpu".into(), ..PlaceLimits::default() };
            self.limits.map(|()| vec![place]).map_err(failed)
        }

        async fn start(&self, _: &StartRequest) -> Result<Option<String>, Error> {
            Ok(None)
        }

        async fn status(&self, _: &[Key]) -> Result<Vec<Observed>, Error> {
            Ok(Vec::new())
        }

        async fn stop(&self, _: &Key) -> Result<(), Error> {
            Ok(())
        }
    }

    async fn seen(nodes: Result<(), &'static str>, limits: Result<(), &'static str>) -> ClusterView {
        let capabilities = Capabilities {
            name: "slurm",
            family: Family::Delegating,
            submitter_environment: false,
            in_place: false,
            images: false,
            volumes: false,
            accounts: Accounts::Machines,
            keeps_files: true,
            lost_after: Duration::from_secs(10),
        };
        let engine: Arc<dyn Engine> = Arc::new(Half { capabilities, nodes, limits });
        view(&engine).await
    }

    #[tokio::test]
    async fn machines_are_shown_where_the_limits_of_partitions_cannot_be_had() {
        let whole = seen(Ok(()), Ok(())).await;
        assert_eq!((whole.nodes.len(), whole.limits.len(), whole.limits_error), (1, 1, None));
        let half = seen(Ok(()), Err("scontrol: access denied")).await;
        assert_eq!((half.nodes.len(), half.error), (1, None));
        assert_eq!(half.limits_error.as_deref(), Some("scontrol: access denied"));
        let away = seen(Err("no route"), Err("no route")).await;
        assert_eq!((away.error.as_deref(), away.limits_error), (Some("no route"), None), "said once");
    }
}
