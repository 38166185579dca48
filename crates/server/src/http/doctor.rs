//! How the server is.

use std::path::Path;
use std::sync::Arc;

use axum::extract::State;
use muster_api::doctor::Doctor;
use rustix::process::{Resource, getrlimit};

use super::describe::Always;
use super::failure::{Failure, Json};
use super::job::read;
use crate::core::Input;
use crate::doctor::{Facts, checks, look_at_space, try_write};
use crate::state::Shared;

/// Check the server, its engines and its nodes. Whatever is wrong comes with its remedy.
#[utoipa::path(get, path = "/api/v1/doctor", tag = "server", operation_id = "check_server",
    responses((status = 200, body = Doctor), Always))]
pub(super) async fn show(State(shared): State<Arc<Shared>>) -> Result<Json<Doctor>, Failure> {
    shared.core.ask(Input::Settled).await?;
    let nodes = shared.core.ask(Input::Nodes).await?;
    let clusters = super::cluster::all(&shared).await;
    let home = shared.home.clone();
    // On a thread that may wait for the disk.
    let vault = shared.vault.clone();
    let (write, space, owed_removals, secrets) = read(&shared, move |readers| {
        let home = Path::new(&home);
        let owed = readers.largest_event_seq().and_then(|_| readers.owed_removals());
        Ok((try_write(home), look_at_space(home), owed, vault.check(readers)))
    })
    .await?;
    let (database, owed_removals) = match owed_removals {
        Ok(owed) => (Ok(()), owed),
        Err(error) => (Err(error.to_string()), Vec::new()),
    };
    let facts = Facts {
        home: &shared.home,
        version: &shared.version,
        // Nodes of the others come with their jobs.
        engines: shared.engines.fleets(),
        nodes,
        clusters,
        write,
        read: database,
        space,
        reserve: shared.reserve.left(),
        secrets,
        open_files: getrlimit(Resource::Nofile).current,
        owed_removals,
        now: crate::core::now(),
    };
    Ok(Json(Doctor { at: facts.now, checks: checks(&facts) }))
}
