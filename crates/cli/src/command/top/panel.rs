//! The parts of the screen as lines and columns, before anybody draws them.

use muster_api::model::printable;
use muster_api::model::quantity::format_bytes;
use muster_api::view::NodeView;

use super::picture::Picture;
use crate::command::quota::tables::{amount_of, resource, starts_now};
use crate::command::{nodes, queue, state};
use crate::table::{Cell, Table};
use crate::terminal::Colour;
use crate::{duration, moment};

/// Where the parts are, in the order of Tab.
pub(super) const NODES: usize = 0;
pub(super) const QUEUE: usize = 1;
pub(super) const JOBS: usize = 2;
pub(super) const QUOTA: usize = 3;
pub(super) const ALL: usize = 4;

/// One part.
pub(super) struct Panel {
    pub title: String,
    pub headings: &'static [&'static str],
    pub rows: Vec<Row>,
}

pub(super) struct Row {
    pub cells: Vec<String>,
    pub colour: Option<Colour>,
}

impl Row {
    fn plain(cells: Vec<String>) -> Self {
        Self { cells, colour: None }
    }
}

impl Panel {
    /// Every cell on one line, and nothing in it that a terminal would execute.
    fn escaped(mut self) -> Self {
        for cell in self.rows.iter_mut().flat_map(|row| &mut row.cells) {
            *cell = printable::one_line(cell);
        }
        self
    }

    /// Only what has a text in it, in whatever case.
    pub fn filter(&mut self, text: &str) {
        let text = text.to_lowercase();
        self.rows.retain(|row| row.cells.iter().any(|cell| cell.to_lowercase().contains(&text)));
    }

    /// By a column, numbers as numbers.
    pub fn sort(&mut self, column: usize, is_reversed: bool) {
        let key = |row: &Row| {
            let cell = row.cells.get(column).cloned().unwrap_or_default();
            let number = cell.split(['/', ' ']).next().and_then(|first| first.parse::<f64>().ok());
            (number.is_none(), number.unwrap_or(0.0), cell)
        };
        self.rows.sort_by(|a, b| {
            let (a, b) = (key(a), key(b));
            a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then_with(|| a.2.cmp(&b.2))
        });
        if is_reversed {
            self.rows.reverse();
        }
    }
}

/// All of them.
pub(super) fn of(picture: &Picture) -> [Panel; ALL] {
    [of_nodes(picture), of_queue(picture), of_jobs(picture), of_quota(picture)].map(Panel::escaped)
}

/// The same as text.
pub(super) fn text(picture: &Picture, width: Option<usize>, colours: bool) -> String {
    let render = |panel: Panel| {
        let mut table = Table::new(panel.headings);
        for row in panel.rows {
            let cells = row.cells.into_iter();
            table.row(cells.map(|cell| Cell::coloured(cell, row.colour)).collect());
        }
        format!("{}\n{}", panel.title, table.render(width, colours))
    };
    of(picture).map(render).join("\n")
}

fn of_nodes(picture: &Picture) -> Panel {
    let row = |node: &NodeView| {
        let used = node.devices.iter().filter(|device| device.is_in_use()).count();
        let colour = match (node.connected, node.drained) {
            (false, _) => Some(Colour::Red),
            (true, true) => Some(Colour::Yellow),
            (true, false) => None,
        };
        let state = match (node.connected, node.drained) {
            (true, false) => "ready",
            (true, true) => "drained",
            (false, _) => "away",
        };
        let cells = vec![
            node.id.to_string(),
            nodes::place(node),
            state.into(),
            format!("{used}/{} {}", node.devices.len(), bar(used, node.devices.len())),
            busy(node),
            format!("{}/{}", nodes::cpus(node.cpu_millis_used), nodes::cpus(node.cpu_millis)),
            format!("{}/{}", format_bytes(node.memory_bytes_used), format_bytes(node.memory_bytes)),
        ];
        Row { cells, colour }
    };
    let devices = || picture.nodes.iter().flat_map(|node| &node.devices);
    let used = devices().filter(|device| device.is_in_use()).count();
    Panel {
        title: format!("Nodes {}, devices {used}/{} in use", picture.nodes.len(), devices().count()),
        headings: &["NODE", "ON", "STATE", "DEVICES", "BUSY", "CPUS", "MEMORY"],
        rows: picture.nodes.iter().map(row).collect(),
    }
}

/// How busy the devices of a node are in the mean.
fn busy(node: &NodeView) -> String {
    let all: Vec<f64> = node
        .devices
        .iter()
        .filter_map(|device| Some(f64::from(device.now.as_ref()?.utilisation_percent?)))
        .collect();
    if all.is_empty() { "-".into() } else { format!("{:.0}%", all.iter().sum::<f64>() / all.len() as f64) }
}

/// One sign for each device; for each part of them, where they are many.
fn bar(used: usize, all: usize) -> String {
    const WIDTH: usize = 16;
    let width = all.min(WIDTH);
    let full = if all == 0 { 0 } else { (used * width).div_ceil(all) };
    format!("{}{}", "#".repeat(full), ".".repeat(width - full))
}

/// `train (训练任务)`: the name that can be typed, and what people call it.
fn named(name: &str, display_name: Option<&str>) -> String {
    display_name.map_or_else(|| name.to_owned(), |shown| format!("{name} ({shown})"))
}

fn of_queue(picture: &Picture) -> Panel {
    let row = |one: &muster_api::quota::QueuedView| Row {
        cells: vec![
            queue::position(one),
            named(&one.name, one.display_name.as_deref()),
            one.user.clone(),
            one.workspace.clone(),
            one.priority.to_string(),
            queue::asks(one),
            duration::age(one.waiting_since, picture.at),
            one.starts_at.map_or_else(|| "-".into(), moment::expected),
            one.summary.clone(),
        ],
        colour: queue::colour(&one.code),
    };
    Panel {
        title: format!("Queue {}", picture.queue.waiting),
        headings: &[
            "POSITION",
            "NAME",
            "USER",
            "WORKSPACE",
            "PRIORITY",
            "ASKS FOR",
            "WAITS",
            "STARTS",
            "WHY",
        ],
        rows: picture.queue.items.iter().map(row).collect(),
    }
}

fn of_jobs(picture: &Picture) -> Panel {
    let row = |job: &muster_api::view::JobSummary| Row {
        cells: vec![
            job.id.to_string(),
            named(&job.name, job.display_name.as_deref()),
            job.state.to_string(),
            job.nodes.to_string(),
            job.gpus.clone().unwrap_or_else(|| "-".into()),
            duration::age(job.submitted_at, picture.at),
            state::run_time(job, picture.at),
            job.command.clone(),
        ],
        colour: state::colour(job.state),
    };
    Panel {
        title: format!("My jobs {}", picture.jobs.len()),
        headings: &["JOB", "NAME", "STATE", "NODES", "GPUS", "AGE", "RUNS", "COMMAND"],
        rows: picture.jobs.iter().map(row).collect(),
    }
}

fn of_quota(picture: &Picture) -> Panel {
    let mut rows = Vec::new();
    for one in &picture.quota.workspaces {
        for it in &one.resources {
            let amount = |amount: u64| amount_of(&it.resource, amount);
            let nominal = it.nominal.map_or_else(|| "-".into(), amount);
            let left = it.left.map_or_else(|| "-".into(), amount);
            let cells = vec![
                one.workspace.clone(),
                resource(&it.resource).into(),
                format!("{}/{nominal}", amount(it.used)),
                amount(it.borrowed),
                amount(it.lent),
                left,
            ];
            rows.push(Row { cells, colour: Some(Colour::Yellow).filter(|_| it.borrowed > 0) });
        }
    }
    for one in &picture.quota.available {
        let left = one.quota_left.map_or_else(|| "-".into(), |left| left.to_string());
        let free = format!("{}/{} free", one.free, one.all);
        let (on, now) = (format!("on {}", one.on), format!("{left}; now {}", starts_now(one)));
        rows.push(Row::plain(vec![on, one.model.clone(), free, "-".into(), "-".into(), now]));
    }
    Panel {
        title: "Quota".into(),
        headings: &["WORKSPACE", "RESOURCE", "IN USE", "BORROWED", "LENT", "LEFT"],
        rows,
    }
}
