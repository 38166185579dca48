//! What a job's tasks use, or have used.

use std::time::Duration;

use muster_api::model::metrics::{DeviceUsage, DeviceUse};
use muster_api::model::quantity::format_bytes;
use muster_api::view::{AttemptView, TaskView};

use crate::amount::{per_second, quotient, thousandths, with_unit};
use crate::duration;
use crate::table::{Cell, Table};

/// The tables about use, each with a line that says what it is about. None before anything was measured.
pub(super) fn tables(attempt: &AttemptView) -> Vec<(&'static str, Table)> {
    if attempt.tasks.iter().any(|task| task.now.is_some()) {
        let devices = devices_now(&attempt.tasks);
        return [("in use now", Some(now(&attempt.tasks))), ("devices now", devices)]
            .into_iter()
            .filter_map(some)
            .collect();
    }
    if attempt.tasks.iter().any(|task| task.usage.is_some()) {
        let devices = devices_used(&attempt.tasks);
        return [("used", Some(used(&attempt.tasks))), ("devices used", devices)]
            .into_iter()
            .filter_map(some)
            .collect();
    }
    Vec::new()
}

fn some<T>((title, table): (&'static str, Option<T>)) -> Option<(&'static str, T)> {
    table.map(|table| (title, table))
}

fn name(task: &TaskView) -> Cell {
    format!("task{}", task.rank).into()
}

fn cell(text: Option<String>) -> Cell {
    text.unwrap_or_else(|| "-".into()).into()
}

fn now(tasks: &[TaskView]) -> Table {
    let mut table = Table::new(&["TASK", "CPUS", "MEMORY", "PEAK", "PROCESSES", "READS", "WRITES"]);
    for task in tasks {
        let now = task.now.as_ref().map(|now| &now.task);
        table.row(vec![
            name(task),
            cell(now.map(|now| thousandths(now.cpu_millis))),
            cell(now.map(|now| format_bytes(now.memory_bytes))),
            cell(task.usage.as_ref().map(|usage| format_bytes(usage.peak_memory_bytes))),
            cell(now.map(|now| now.processes.to_string())),
            cell(now.and_then(|now| now.read_bytes_per_second).map(per_second)),
            cell(now.and_then(|now| now.written_bytes_per_second).map(per_second)),
        ]);
    }
    table
}

fn used(tasks: &[TaskView]) -> Table {
    let headings =
        ["TASK", "CPU TIME", "MEAN CPUS", "PEAK CPUS", "MEAN MEMORY", "PEAK MEMORY", "READ", "WRITTEN"];
    let mut table = Table::new(&headings);
    for task in tasks {
        let usage = task.usage.as_ref();
        let time = |milliseconds| duration::shown(Duration::from_millis(milliseconds));
        table.row(vec![
            name(task),
            cell(usage.map(|usage| time(usage.cpu_milliseconds))),
            cell(usage.map(|usage| thousandths(usage.mean_cpu_millis))),
            cell(usage.map(|usage| thousandths(usage.peak_cpu_millis))),
            cell(usage.and_then(|usage| usage.mean_memory_bytes).map(format_bytes)),
            cell(usage.map(|usage| format_bytes(usage.peak_memory_bytes))),
            cell(usage.and_then(|usage| usage.read_bytes).map(format_bytes)),
            cell(usage.and_then(|usage| usage.written_bytes).map(format_bytes)),
        ]);
    }
    table
}

fn devices_now(tasks: &[TaskView]) -> Option<Table> {
    let mut table =
        Table::new(&["TASK", "DEVICE", "UTILISATION", "MEMORY", "POWER", "TEMPERATURE", "ECC ERRORS"]);
    let of = |task: &TaskView| task.now.clone().map(|now| now.devices).unwrap_or_default();
    let all: Vec<(&TaskView, DeviceUse)> =
        tasks.iter().flat_map(|task| of(task).into_iter().map(move |device| (task, device))).collect();
    for (task, device) in &all {
        let mut row = vec![name(task)];
        row.extend(device_cells(device));
        table.row(row);
    }
    (!all.is_empty()).then_some(table)
}

/// A device as a row: its number, how it is used, and how it is.
pub(crate) fn device_cells(device: &DeviceUse) -> Vec<Cell> {
    let errors = device.ecc_corrected.zip(device.ecc_uncorrected);
    vec![
        device.index.to_string().into(),
        cell(device.utilisation_percent.map(|it| format!("{it}%"))),
        cell(device.memory_bytes.zip(device.memory_total_bytes).map(|(used, all)| quotient(used, all))),
        cell(device.power_watts.map(|it| with_unit(it, "W"))),
        cell(device.temperature_celsius.map(|it| with_unit(it, "°C"))),
        cell(errors.map(|(corrected, uncorrected)| format!("{corrected} corrected, {uncorrected} not"))),
    ]
}

fn devices_used(tasks: &[TaskView]) -> Option<Table> {
    let headings =
        ["TASK", "DEVICE", "MEAN UTILISATION", "PEAK", "PEAK MEMORY", "MEAN POWER", "PEAK TEMPERATURE"];
    let mut table = Table::new(&headings);
    let of = |task: &TaskView| task.usage.clone().map(|usage| usage.devices).unwrap_or_default();
    let all: Vec<(&TaskView, DeviceUsage)> =
        tasks.iter().flat_map(|task| of(task).into_iter().map(move |device| (task, device))).collect();
    for (task, device) in &all {
        table.row(vec![
            name(task),
            device.index.to_string().into(),
            cell(device.mean_utilisation_percent.map(|it| format!("{it}%"))),
            cell(device.peak_utilisation_percent.map(|it| format!("{it}%"))),
            cell(device.peak_memory_bytes.map(format_bytes)),
            cell(device.mean_power_watts.map(|it| with_unit(it, "W"))),
            cell(device.peak_temperature_celsius.map(|it| with_unit(it, "°C"))),
        ]);
    }
    (!all.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(tasks: serde_json::Value) -> String {
        let attempt = json!({"number": 1, "started_at": "1970-01-01T00:00:00Z", "ended_at": null,
            "reason": null, "tasks": tasks});
        let attempt = serde_json::from_value(attempt).unwrap();
        let tables = tables(&attempt);
        tables.iter().map(|(title, table)| format!("{title}:\n{}", table.render(None, false))).collect()
    }

    fn task(rank: u32, more: &serde_json::Value) -> serde_json::Value {
        let mut task = json!({"rank": rank, "node": "node_local", "devices": [], "phase": "running",
            "address": null, "failure": null, "message": null, "started_at": null, "ended_at": null});
        task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        task
    }

    #[test]
    fn what_runs_shows_what_it_uses_now() {
        let running = json!({
            "now": {"at": "1970-01-01T00:00:00Z", "cpu_millis": 983, "memory_bytes": 110100480, "processes": 2,
                "read_bytes_per_second": 0, "written_bytes_per_second": 2097152, "devices": [
                    {"index": 3, "utilisation_percent": 97, "memory_bytes": 64424509440_u64,
                     "memory_total_bytes": 85899345920_u64, "power_watts": 412, "temperature_celsius": 65,
                     "ecc_corrected": 0, "ecc_uncorrected": 1}, {"index": 4}]},
            "usage": {"samples": 1, "cpu_milliseconds": 1, "mean_cpu_millis": 1, "peak_cpu_millis": 1,
                "peak_memory_bytes": 220200960},
        });
        insta::assert_snapshot!(shown(json!([task(0, &running), task(1, &json!({}))])), @r"
        in use now:
        TASK    CPUS   MEMORY   PEAK     PROCESSES   READS   WRITES
        task0   0.98   105 MB   210 MB   2           0 B/s   2 MB/s
        task1   -      -        -        -           -       -
        devices now:
        TASK    DEVICE   UTILISATION   MEMORY        POWER   TEMPERATURE   ECC ERRORS
        task0   3        97%           60 GB/80 GB   412 W   65 °C         0 corrected, 1 not
        task0   4        -             -             -       -             -
        ");
    }

    #[test]
    fn what_is_over_shows_what_it_has_used() {
        let over = json!({"phase": "ended",
            "usage": {"samples": 9, "cpu_milliseconds": 65000, "mean_cpu_millis": 1500, "peak_cpu_millis": 2000,
                "mean_memory_bytes": 1048576, "peak_memory_bytes": 220200960, "peak_processes": 3,
                "read_bytes": 0, "written_bytes": 5000,
                "devices": [{"index": 0, "mean_utilisation_percent": 51, "peak_utilisation_percent": 100,
                    "peak_memory_bytes": 1073741824, "mean_power_watts": 300, "peak_temperature_celsius": 70}]},
        });
        let short = json!({"phase": "ended", "usage": {"samples": 0, "cpu_milliseconds": 3, "mean_cpu_millis": 300,
            "peak_cpu_millis": 300, "peak_memory_bytes": 3145728}});
        insta::assert_snapshot!(shown(json!([task(0, &over), task(1, &short)])), @r"
        used:
        TASK    CPU TIME   MEAN CPUS   PEAK CPUS   MEAN MEMORY   PEAK MEMORY   READ   WRITTEN
        task0   1m5s       1.5         2           1 MB          210 MB        0 B    4.9 KB
        task1   3ms        0.3         0.3         -             3 MB          -      -
        devices used:
        TASK    DEVICE   MEAN UTILISATION   PEAK   PEAK MEMORY   MEAN POWER   PEAK TEMPERATURE
        task0   0        51%                100%   1 GB          300 W        70 °C
        ");
        assert_eq!(shown(json!([task(0, &json!({}))])), "");
    }
}
