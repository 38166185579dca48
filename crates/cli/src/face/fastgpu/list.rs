//! `fastgpu ls`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::{State, Timestamp};

use super::Generation;
use super::grid::{Column, Layout, draw};
use super::source;
use crate::error::Error;
use crate::machine::{self, Row};
use crate::session::Session;
use crate::terminal;

/// The heading of what runs is what scripts look for; the others appear when there is something to say.
const SECTIONS: [(&str, &[State]); 4] = [
    ("Running Instances:", &[State::Running]),
    ("Pending Instances:", &[State::Queued, State::Starting]),
    ("Stopped Instances:", &[State::Stopping, State::Suspended]),
    // Of a group of which others run.
    ("Failed Instances:", &[State::Failed, State::Succeeded]),
];

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// All machines of the account, with their owner and id
    #[arg(short, long)]
    all: bool,
    /// Stopped machines as well; they are always listed
    #[arg(long = "stop")]
    is_stop: bool,
}

pub(super) async fn run(generation: Generation, args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let groups = machine::all(&session, &[]).await?;
    let rows = machine::rows(&session, &groups).await?;
    let region = source::region(&session).await;
    let text = text(generation, &region, &rows, args.all, Timestamp::now());
    terminal::to_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn text(generation: Generation, region: &str, rows: &[Row], all: bool, now: Timestamp) -> String {
    let mut text = format!("{}\n", generation.region_line(region));
    for (heading, states) in SECTIONS {
        let shown: Vec<&Row> = rows.iter().filter(|row| states.contains(&row.state)).collect();
        if !shown.is_empty() || heading == SECTIONS[0].0 {
            text.push_str(&format!("{heading}\n{}", table(generation, &shown, all, now)));
        }
    }
    text
}

fn table(generation: Generation, rows: &[&Row], all: bool, now: Timestamp) -> String {
    let column = |heading, least| Column { heading, least, right: false };
    match generation {
        Generation::Fastgpu => {
            let mut columns = vec![
                column("Instance Name", 21),
                Column { heading: "Age(hr)", least: 7, right: true },
                column("Public IP", 14),
                column("Private IP", 14),
                column("GPU", 8),
                column("Instance Type  ", 23),
            ];
            if all {
                columns.extend([column("Key-Owner", 9), column("instance_id", 11)]);
            }
            let cells: Vec<Vec<String>> = rows.iter().map(|row| cells(row, all, now)).collect();
            draw(Layout::Bars, &columns, &cells)
        }
        Generation::Ecluster => {
            let columns = [
                column("name", 14),
                Column { heading: "hours_live", least: 10, right: true },
                column("instance_type", 18),
                column("public_ip", 14),
                column("key/owner", 13),
                column("private_ip", 13),
                column("instance_id", 11),
            ];
            let cells: Vec<Vec<String>> = rows.iter().map(|row| older_cells(row, now)).collect();
            draw(Layout::Gaps, &columns, &cells)
        }
    }
}

fn cells(row: &Row, all: bool, now: Timestamp) -> Vec<String> {
    let address = address(row);
    let mut cells =
        vec![row.name.clone(), age(row, now), address.clone(), address, row.gpus(), instance_type(row)];
    if all {
        cells.extend([row.owner.clone(), instance_id(row)]);
    }
    cells
}

fn older_cells(row: &Row, now: Timestamp) -> Vec<String> {
    let (address, owner) = (address(row), row.owner.clone());
    vec![
        row.name.clone(),
        age(row, now),
        instance_type(row),
        address.clone(),
        owner,
        address,
        instance_id(row),
    ]
}

/// In hours.
fn age(row: &Row, now: Timestamp) -> String {
    let hours = now.duration_since(row.submitted_at).as_secs_f64() / 3600.0;
    format!("{:.1}", hours.max(0.0))
}

fn address(row: &Row) -> String {
    row.address.clone().unwrap_or_else(|| "-".into())
}

fn instance_type(row: &Row) -> String {
    row.labels.get("instance_type").cloned().unwrap_or_else(|| "-".into())
}

fn instance_id(row: &Row) -> String {
    row.node.as_ref().map_or_else(|| "-".into(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use muster_api::model::JobId;

    use super::*;

    fn row(name: &str, state: State) -> Row {
        let runs = state == State::Running;
        Row {
            name: format!("task0.{name}"),
            group: name.into(),
            rank: 0,
            job: JobId::from_random(1),
            state,
            message: None,
            on: "ssh/gpu".into(),
            owner: "root".into(),
            node: runs.then(|| "node_gpu.h1".parse().unwrap()),
            address: runs.then(|| "192.168.50.75".into()),
            devices: runs.then(|| ("V100".to_owned(), 8)).into_iter().collect(),
            labels: BTreeMap::from([("instance_type".into(), "ecs.gn6v-c10g1.20xlarge".into())]),
            submitted_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn shown(generation: Generation, states: &[(&str, State)], all: bool) -> String {
        let rows: Vec<Row> = states.iter().map(|(name, state)| row(name, *state)).collect();
        let now = Timestamp::UNIX_EPOCH + Duration::from_secs(63_720);
        text(generation, "cn-beijing", &rows, all, now)
    }

    #[test]
    fn the_list_is_that_of_the_documentation() {
        insta::assert_snapshot!(shown(Generation::Fastgpu, &[("perseus-bert", State::Running)], false), @r"
        region=cn-beijing
        Running Instances:
        ------------------------------------------------------------------------------------------------------
        Instance Name         | Age(hr) | Public IP      | Private IP     | GPU      | Instance Type  
        ------------------------------------------------------------------------------------------------------
        task0.perseus-bert    |    17.7 | 192.168.50.75  | 192.168.50.75  | V100 x 8 | ecs.gn6v-c10g1.20xlarge
        ------------------------------------------------------------------------------------------------------
        ");
    }

    #[test]
    fn all_machines_have_owner_and_id_and_those_that_do_not_run_are_listed_below() {
        let states = [("a", State::Running), ("b", State::Suspended), ("c", State::Queued)];
        insta::assert_snapshot!(shown(Generation::Fastgpu, &states, true));
    }

    #[test]
    fn the_older_generation_has_the_columns_of_its_documentation() {
        let states = [("perseus-bert", State::Running), ("b", State::Suspended)];
        insta::assert_snapshot!(shown(Generation::Ecluster, &states, false), @r"
        In Region cn-beijing
        Running Instances:
        ------------------------------------------------------------------------------------------------------------------
        name                hours_live  instance_type            public_ip       key/owner      private_ip     instance_id
        ------------------------------------------------------------------------------------------------------------------
        task0.perseus-bert        17.7  ecs.gn6v-c10g1.20xlarge  192.168.50.75   root           192.168.50.75  node_gpu.h1
        Stopped Instances:
        --------------------------------------------------------------------------------------------------------------
        name            hours_live  instance_type            public_ip       key/owner      private_ip     instance_id
        --------------------------------------------------------------------------------------------------------------
        task0.b               17.7  ecs.gn6v-c10g1.20xlarge  -               root           -              -
        ");
    }

    #[test]
    fn without_machines_there_is_an_empty_table() {
        let text = shown(Generation::Ecluster, &[], false);
        assert!(text.starts_with("In Region cn-beijing\nRunning Instances:\n---"), "{text}");
        assert_eq!(text.lines().count(), 5);
    }
}
