//! Quotas as tables: who has what, how much one may run, and what one can get.

use muster_api::model::quantity::format_bytes;
use muster_api::model::quota::{Quota, WorkspaceQuota};
use muster_api::quota::{AvailableView, QuotaView, ResourceView};

use super::super::nodes::cpus;
use crate::table::{Cell, Table};
use crate::terminal::Colour;

/// What there is to show.
pub(crate) fn all(view: &QuotaView) -> Vec<Table> {
    let mut tables = Vec::new();
    if !view.workspaces.is_empty() {
        tables.push(workspaces(view));
    }
    if !view.users.is_empty() || view.max_running.is_some() {
        tables.push(users(view));
    }
    if !view.available.is_empty() {
        tables.push(available(&view.available));
    }
    tables
}

fn workspaces(view: &QuotaView) -> Table {
    let headings = ["WORKSPACE", "WEIGHT", "RESOURCE", "QUOTA", "IN USE", "BORROWED", "LENT", "LEFT"];
    let mut table = Table::new(&headings);
    for one in &view.workspaces {
        for it in &one.resources {
            let amount = |amount: u64| amount_of(&it.resource, amount);
            let bound = |bound: Option<u64>| bound.map_or_else(|| "-".into(), amount);
            let borrowed = Some(Colour::Yellow).filter(|_| it.borrowed > 0);
            table.row(vec![
                one.workspace.as_str().into(),
                one.weight.to_string().into(),
                resource(&it.resource).into(),
                own(it).into(),
                amount(it.used).into(),
                Cell::coloured(amount(it.borrowed), borrowed),
                amount(it.lent).into(),
                bound(it.left).into(),
            ]);
        }
    }
    table
}

fn users(view: &QuotaView) -> Table {
    let mut table = Table::new(&["USER", "WEIGHT", "RUNNING", "MAX RUNNING"]);
    let most = |most: Option<u32>| most.map_or_else(|| "-".to_owned(), |most| most.to_string());
    for one in &view.users {
        table.row(vec![
            one.user.as_str().into(),
            one.weight.to_string().into(),
            one.running.to_string().into(),
            most(one.max_running.or(view.max_running)).into(),
        ]);
    }
    if view.max_running.is_some() {
        table.row(vec!["(everybody)".into(), "1".into(), "-".into(), most(view.max_running).into()]);
    }
    table
}

/// What one can get now, by place and model.
pub(crate) fn available(all: &[AvailableView]) -> Table {
    let mut table = Table::new(&["ON", "MODEL", "ALL", "FREE", "QUOTA LEFT", "STARTS NOW"]);
    for one in all {
        let colour = if one.largest.is_some() { Colour::Green } else { Colour::Red };
        table.row(vec![
            one.on.as_str().into(),
            one.model.as_str().into(),
            one.all.to_string().into(),
            one.free.to_string().into(),
            one.quota_left.map_or_else(|| "-".into(), |left| left.to_string()).into(),
            Cell::coloured(starts_now(one), Some(colour)),
        ]);
    }
    table
}

/// The largest job that starts now, as one would ask for it.
pub(crate) fn starts_now(one: &AvailableView) -> String {
    match one.largest {
        None => "nothing".into(),
        Some(it) if it.nodes == 1 => format!("--gpus {}:{}", one.model, it.gpus),
        Some(it) => format!("--nodes {} --gpus {}:{}", it.nodes, one.model, it.gpus),
    }
}

/// `8, may borrow 4, lends none`.
fn own(it: &ResourceView) -> String {
    let Some(nominal) = it.nominal else { return "-".into() };
    quota_words(&it.resource, &Quota { nominal, borrow: it.borrow, lend: it.lend })
}

fn quota_words(name: &str, quota: &Quota) -> String {
    let part = |word: &str, amount: Option<u64>| match amount {
        None => String::new(),
        Some(0) => format!(", {word}s none"),
        Some(most) => format!(", {word}s {}", amount_of(name, most)),
    };
    let Quota { nominal, borrow, lend } = *quota;
    format!("{}{}{}", amount_of(name, nominal), part("borrow", borrow), part("lend", lend))
}

/// What a workspace may have, in a line.
pub(crate) fn words(quota: &WorkspaceQuota) -> String {
    let WorkspaceQuota { weight, cpu_millis, memory_bytes, gpus, models } = quota;
    let plain = [("gpus", gpus), ("cpu_millis", cpu_millis), ("memory_bytes", memory_bytes)];
    let plain = plain.into_iter().filter_map(|(name, quota)| Some((name, quota.as_ref()?)));
    let all = plain.chain(models.iter().map(|(model, quota)| (model.as_str(), quota)));
    let mut texts: Vec<String> =
        all.map(|(name, quota)| format!("{} {}", resource(name), quota_words(name, quota))).collect();
    if texts.is_empty() {
        texts.push("no quota".into());
    }
    texts.push(format!("weight {weight}"));
    texts.join("; ")
}

/// A resource as the flags call it.
pub(crate) fn resource(name: &str) -> &str {
    match name {
        "cpu_millis" => "cpus",
        "memory_bytes" => "memory",
        other => other,
    }
}

pub(crate) fn amount_of(name: &str, amount: u64) -> String {
    match name {
        "cpu_millis" => cpus(amount),
        "memory_bytes" => format_bytes(amount),
        _ => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use muster_api::quota::{LargestView, UserQuotaView, WorkspaceQuotaView};

    use super::*;

    fn view() -> QuotaView {
        let gpus = ResourceView {
            resource: "H100".into(),
            nominal: Some(8),
            borrow: Some(4),
            lend: Some(0),
            used: 10,
            borrowed: 2,
            lent: 0,
            left: Some(2),
        };
        let memory = ResourceView {
            resource: "memory_bytes".into(),
            nominal: None,
            borrow: None,
            lend: None,
            used: 1 << 40,
            borrowed: 0,
            lent: 0,
            left: None,
        };
        let largest = Some(LargestView { nodes: 2, gpus: 4 });
        let user = UserQuotaView { user: "ada".into(), weight: 2.0, max_running: None, running: 3 };
        QuotaView {
            workspaces: vec![WorkspaceQuotaView {
                workspace: "vision".into(),
                weight: 2.0,
                resources: vec![gpus, memory],
            }],
            users: vec![user],
            max_running: Some(16),
            workspace: Some("vision".into()),
            available: vec![AvailableView {
                on: "ssh/gpu".into(),
                model: "H100".into(),
                all: 16,
                free: 8,
                quota_left: Some(2),
                largest,
            }],
        }
    }

    #[test]
    fn a_resource_is_a_line_and_what_one_can_get_is_written_as_one_would_ask_for_it() {
        let text: Vec<String> = all(&view()).iter().map(|table| table.render(None, false)).collect();
        insta::assert_snapshot!(text.join("\n"), @r"
        WORKSPACE   WEIGHT   RESOURCE   QUOTA                      IN USE   BORROWED   LENT   LEFT
        vision      2        H100       8, borrows 4, lends none   10       2          0      2
        vision      2        memory     -                          1 TB     0 B        0 B    -

        USER          WEIGHT   RUNNING   MAX RUNNING
        ada           2        3         16
        (everybody)   1        -         16

        ON        MODEL   ALL   FREE   QUOTA LEFT   STARTS NOW
        ssh/gpu   H100    16    8      2            --nodes 2 --gpus H100:4
        ");
    }

    #[test]
    fn a_quota_is_said_in_a_line() {
        let mut quota = WorkspaceQuota { cpu_millis: Some(Quota::fixed(500)), ..WorkspaceQuota::default() };
        assert_eq!(words(&WorkspaceQuota::default()), "no quota; weight 1");
        quota.set_model("H100".into(), Quota::shared(8));
        assert_eq!(words(&quota), "cpus 0.5, borrows none, lends none; H100 8; weight 1");
    }
}
