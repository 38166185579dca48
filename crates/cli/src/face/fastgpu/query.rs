//! `fastgpu querygpu` and `queryimage`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use super::grid::{Column, Layout, draw};
use crate::error::Error;
use crate::session::Session;
use crate::terminal;

/// What machines may have, by node and model.
pub(super) async fn gpus() -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let nodes = session.call(async |client| client.nodes().await).await?.items;
    let mut rows = Vec::new();
    for node in &nodes {
        let mut models: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for view in &node.devices {
            let (all, free) = models.entry(&view.device.model).or_default();
            *all += 1;
            *free += usize::from(!view.is_in_use());
        }
        if models.is_empty() {
            models.insert("-", (0, 0));
        }
        for (model, (all, free)) in models {
            let state = if node.connected { "ready" } else { "away" };
            rows.push(vec![
                node.id.to_string(),
                format!("{model} x {all}"),
                free.to_string(),
                (node.cpu_millis / 1000).to_string(),
                state.to_owned(),
            ]);
        }
    }
    let column = |heading, least, right| Column { heading, least, right };
    let columns = [
        column("Zone / Host", 21, false),
        column("GPU", 8, false),
        column("Free", 4, true),
        column("CPUs", 4, true),
        column("State", 5, false),
    ];
    terminal::to_stdout(&draw(Layout::Bars, &columns, &rows))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn images() -> Result<ExitCode, Error> {
    terminal::say(
        "machines of a pool have the system that is installed on them; only a cloud has images to choose from",
    )?;
    terminal::say("image_name is kept with a machine, and compared when it is asked for again")?;
    Ok(ExitCode::SUCCESS)
}
