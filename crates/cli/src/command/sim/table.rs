//! Traces as tables: CSV files with a row for each job or for nodes of one make, as published data sets have them.
//!
//! Which column says what is a mapping, such as `gpus=gpu_num/node_num`. Those of known data sets are here, and files of them
//! are recognised by their columns.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use csv::{Reader, ReaderBuilder, StringRecord, Trim};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use muster_api::model::Timestamp;
use muster_scheduler::simulate::{JobLine, Line, NodeLine};

use super::formula::Formula;

/// What the columns of a table say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RowKind {
    Job,
    Nodes,
}

/// A known data set's table.
struct Layout {
    kind: RowKind,
    /// By these columns it is recognised.
    recognised_by: &'static [&'static str],
    /// Of files whose first line is data: how their names begin, and what their columns are.
    without_names: Option<(&'static str, &'static [&'static str])>,
    columns: &'static [(&'static str, &'static str)],
}

const LAYOUTS: &[Layout] = &[
    // Alibaba's PAI in 2020; CPUs and devices are in hundredths.
    Layout {
        kind: RowKind::Job,
        recognised_by: &["inst_num", "plan_cpu", "plan_gpu"],
        without_names: Some((
            "pai_task_table",
            &[
                "job_name",
                "task_name",
                "inst_num",
                "status",
                "start_time",
                "end_time",
                "plan_cpu",
                "plan_mem",
                "plan_gpu",
                "gpu_type",
            ],
        )),
        columns: &[
            ("at", "start_time"),
            ("runs", "end_time-start_time"),
            ("nodes", "inst_num"),
            ("gpus", "plan_gpu/100"),
            ("model", "gpu_type"),
            ("cpus", "plan_cpu/100"),
            ("memory_gib", "plan_mem"),
        ],
    },
    Layout {
        kind: RowKind::Nodes,
        recognised_by: &["cap_cpu", "cap_mem", "cap_gpu"],
        without_names: Some(("pai_machine_spec", &["machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu"])),
        columns: &[
            ("devices", "cap_gpu"),
            ("model", "gpu_type"),
            ("cpus", "cap_cpu"),
            ("memory_gib", "cap_mem"),
        ],
    },
    // Alibaba's Kubernetes in 2023.
    Layout {
        kind: RowKind::Job,
        recognised_by: &["cpu_milli", "num_gpu", "creation_time", "deletion_time"],
        without_names: None,
        columns: &[
            ("at", "creation_time"),
            ("runs", "deletion_time-scheduled_time"),
            ("gpus", "num_gpu"),
            ("model", "gpu_spec"),
            ("cpus", "cpu_milli/1000"),
            ("memory_gib", "memory_mib/1024"),
        ],
    },
    Layout {
        kind: RowKind::Nodes,
        recognised_by: &["sn", "cpu_milli", "memory_mib", "gpu"],
        without_names: None,
        columns: &[
            ("devices", "gpu"),
            ("model", "model"),
            ("cpus", "cpu_milli/1000"),
            ("memory_gib", "memory_mib/1024"),
        ],
    },
    // Microsoft's Philly as a table, and SenseTime's Helios.
    Layout {
        kind: RowKind::Job,
        recognised_by: &["vc", "gpu_num", "node_num", "submit_time", "duration"],
        without_names: None,
        columns: &[
            ("at", "submit_time"),
            ("runs", "duration"),
            ("workspace", "vc"),
            ("user", "user"),
            ("nodes", "node_num"),
            ("gpus", "gpu_num/node_num"),
            ("cpus", "cpu_num/node_num"),
        ],
    },
    Layout {
        kind: RowKind::Nodes,
        recognised_by: &["machineId", "number of GPUs"],
        without_names: None,
        columns: &[("devices", "number of GPUs")],
    },
];

/// The fields of a job that a mapping may fill.
const JOB_FIELDS: &[&str] =
    &["at", "runs", "says", "workspace", "user", "nodes", "gpus", "model", "cpus", "memory_gib", "priority"];
/// Without these a row is no job.
const NEEDED: [&str; 2] = ["at", "runs"];

/// A field of a job and the columns that say it, as people write it.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    field: String,
    formula: String,
}

impl std::str::FromStr for Mapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (field, formula) = text
            .split_once('=')
            .ok_or("it is FIELD=COLUMN, such as `runs=duration` or `gpus=gpu_num/node_num`")?;
        let (field, formula) = (field.trim(), formula.trim());
        if !JOB_FIELDS.contains(&field) {
            return Err(format!("a job has no `{field}`; the fields are {}", JOB_FIELDS.join(", ")));
        }
        if formula.is_empty() {
            return Err(format!("it names no column for `{field}`"));
        }
        Ok(Self { field: field.into(), formula: formula.into() })
    }
}

/// What a table says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct TableRows {
    pub lines: Vec<Line>,
    rows: usize,
    /// How many rows are left out for which reason, and the line of the first of each.
    left_out: BTreeMap<String, (usize, u64)>,
}

impl TableRows {
    /// One line on the rows that are left out, if there are any.
    pub fn remark(&self) -> Option<String> {
        let count: usize = self.left_out.values().map(|(count, _)| count).sum();
        let mut text = match count {
            0 => return None,
            _ => format!("{count} of {} rows are left out: ", self.rows),
        };
        for (position, (reason, (count, line))) in self.left_out.iter().enumerate() {
            let separator = if position > 0 { "; " } else { "" };
            write!(text, "{separator}{count} where {reason} (the first in line {line})").ok()?;
        }
        Some(text)
    }
}

/// Where the columns of one file are.
struct Columns {
    kind: RowKind,
    formulas: BTreeMap<String, Formula>,
}

/// Reads a table. `mappings` are those the user gave, for files of jobs that have these columns.
pub(super) fn read(path: &Path, text: &str, mappings: &[Mapping]) -> Result<TableRows, String> {
    let stem = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
    let nameless = LAYOUTS.iter().find(|layout| {
        let Some((start, names)) = layout.without_names else { return false };
        stem.starts_with(start) && text.lines().next().is_some_and(|line| !line.contains(names[0]))
    });
    let mut reader = ReaderBuilder::new()
        .has_headers(nameless.is_none())
        .trim(Trim::All)
        .flexible(true)
        .from_reader(text.trim_start_matches('\u{feff}').as_bytes());
    let names: StringRecord = match nameless.and_then(|layout| layout.without_names) {
        Some((_, names)) => names.to_vec().into(),
        None => reader.headers().map_err(|error| error.to_string())?.clone(),
    };
    let columns = columns(&names, mappings)?;
    rows(&mut reader, &columns, names.len())
}

fn columns(names: &StringRecord, mappings: &[Mapping]) -> Result<Columns, String> {
    let has = |name: &str| names.iter().any(|it| it == name);
    let layout = LAYOUTS.iter().find(|layout| layout.recognised_by.iter().all(|name| has(name)));
    let shown = || names.iter().collect::<Vec<_>>().join(", ");
    match (layout, mappings) {
        (Some(layout), mappings) if mappings.is_empty() || layout.kind == RowKind::Nodes => {
            let formulas = layout.columns.iter().filter_map(|(field, formula)| {
                // Releases of one data set differ in columns that are not needed.
                Some(((*field).to_owned(), Formula::parse(formula, names).ok()?))
            });
            Ok(Columns { kind: layout.kind, formulas: formulas.collect() })
        }
        (_, []) => Err(format!(
            "its columns are those of no known data set: {}; say with --columns what they mean, such as --columns \
             at=submit_time,runs=duration,gpus=gpu_num",
            shown()
        )),
        (_, mappings) => {
            let mut formulas = BTreeMap::new();
            for Mapping { field, formula } in mappings {
                let parsed = Formula::parse(formula, names).map_err(|name| {
                    format!("--columns {field}={formula}: there is no column `{name}`; it has {}", shown())
                })?;
                formulas.insert(field.clone(), parsed);
            }
            match NEEDED.into_iter().find(|field| !formulas.contains_key(*field)) {
                Some(field) => {
                    Err(format!("--columns has no `{field}`: a job needs {}", NEEDED.join(" and ")))
                }
                None => Ok(Columns { kind: RowKind::Job, formulas }),
            }
        }
    }
}

fn rows(reader: &mut Reader<&[u8]>, columns: &Columns, width: usize) -> Result<TableRows, String> {
    let mut found = TableRows::default();
    let mut makes: Vec<NodeLine> = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let number = record.position().map_or(0, csv::Position::line);
        found.rows += 1;
        let row = Row { record: &record, columns };
        let outcome = match (record.len() == width, columns.kind) {
            (false, _) => Err(format!("there are not {width} columns")),
            (true, RowKind::Job) => row.job().map(|job| found.lines.push(Line::Job(job))),
            (true, RowKind::Nodes) => {
                row.node().map(|node| match makes.iter_mut().find(|it| is_same(it, &node)) {
                    Some(make) => make.count += 1,
                    None => makes.push(node),
                })
            }
        };
        if let Err(reason) = outcome {
            found.left_out.entry(reason).or_insert((0, number)).0 += 1;
        }
    }
    found.lines.extend(makes.into_iter().map(Line::Nodes));
    Ok(found)
}

/// Whether nodes are of one make.
fn is_same(make: &NodeLine, node: &NodeLine) -> bool {
    NodeLine { count: node.count, ..make.clone() } == *node
}

struct Row<'a> {
    record: &'a StringRecord,
    columns: &'a Columns,
}

impl Row<'_> {
    /// The number of a field; none, where no column says it or its cell is empty.
    fn number(&self, field: &str) -> Result<Option<f64>, String> {
        let Some(formula) = self.columns.formulas.get(field) else { return Ok(None) };
        let value = formula.value(|column| match self.record.get(column).unwrap_or_default() {
            "" => Ok(None),
            cell => number(cell).map(Some).ok_or(()),
        });
        match value {
            Ok(value) if value.is_none_or(f64::is_finite) => Ok(value),
            _ => Err(format!("`{field}` is no number")),
        }
    }

    /// A number that is not negative.
    fn amount(&self, field: &str) -> Result<f64, String> {
        match self.number(field)?.unwrap_or(0.0) {
            amount if amount < 0.0 => Err(format!("`{field}` is below 0")),
            amount => Ok(amount),
        }
    }

    fn needed(&self, field: &str) -> Result<f64, String> {
        self.number(field)?.ok_or_else(|| format!("there is no `{field}`"))
    }

    /// A count; what is a part of one counts as a whole.
    fn count(&self, field: &str) -> Result<u32, String> {
        match self.amount(field)?.ceil() {
            count if count <= f64::from(u32::MAX) => Ok(count as u32),
            _ => Err(format!("`{field}` is too large")),
        }
    }

    fn text(&self, field: &str) -> Option<&str> {
        let column = self.columns.formulas.get(field)?.column()?;
        self.record.get(column).filter(|cell| !cell.is_empty())
    }

    fn job(&self) -> Result<JobLine, String> {
        let runs = self.needed("runs")?;
        if runs < 0.0 {
            return Err("`runs` is below 0".into());
        }
        let gpus = match (self.count("gpus")?, self.text("model")) {
            (0, _) => None,
            // A row that names several models takes any of them.
            (count, Some(model)) if !model.contains('|') => Some(format!("{model}:{count}")),
            (count, _) => Some(count.to_string()),
        };
        let gpus = gpus
            .map(|gpus| gpus.parse())
            .transpose()
            .map_err(|_| "`model` is no name of a model".to_owned())?;
        let name = |field: &str| self.text(field).unwrap_or("default").to_owned();
        Ok(JobLine {
            at: self.needed("at")?,
            runs,
            says: self.number("says")?,
            workspace: name("workspace"),
            user: name("user"),
            nodes: match self.number("nodes")? {
                None => 1,
                Some(_) => match self.count("nodes")? {
                    0 => return Err("`nodes` is 0".into()),
                    nodes => nodes,
                },
            },
            gpus,
            cpus: self.amount("cpus")?,
            memory_gib: self.amount("memory_gib")?,
            priority: match self.number("priority")? {
                None => muster_api::model::spec::DEFAULT_PRIORITY,
                Some(_) => self.count("priority")?,
            },
            preemptible: false,
            exclusive: false,
            saves: None,
        })
    }

    fn node(&self) -> Result<NodeLine, String> {
        let mut node = NodeLine::new(self.count("cpus")?, u64::from(self.count("memory_gib")?));
        node.devices = self.count("devices")?;
        // Nodes without devices are of one make, whatever they say.
        if let Some(model) = self.text("model").filter(|_| node.devices > 0) {
            node.model = model.to_owned();
        }
        Ok(node)
    }
}

/// A cell as a number: as it is, or a moment in seconds, with or without a time zone.
fn number(cell: &str) -> Option<f64> {
    let moment = || {
        let at = cell.parse::<Timestamp>().ok().or_else(|| {
            let civil = cell.parse::<DateTime>().ok()?;
            civil.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
        })?;
        Some(at.as_millisecond() as f64 / 1000.0)
    };
    cell.parse::<f64>().ok().or_else(moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_as(name: &str, text: &str, mappings: &[&str]) -> Result<TableRows, String> {
        let mappings: Vec<Mapping> = mappings.iter().map(|text| text.parse().unwrap()).collect();
        read(Path::new(name), text, &mappings)
    }

    fn jobs(found: &TableRows) -> Vec<&JobLine> {
        found
            .lines
            .iter()
            .filter_map(|line| if let Line::Job(job) = line { Some(job) } else { None })
            .collect()
    }

    #[test]
    fn the_tables_of_alibaba_are_recognised() {
        let tasks = "a1,worker,2,Terminated,1000.0,1600.0,600.0,29.3,50.0,MISC\nb2,ps,1,Running,1000.0,,600.0,29.3,,\n";
        let found = read_as("pai_task_table.csv", tasks, &[]).unwrap();
        let [job] = jobs(&found)[..] else { panic!("{found:?}") };
        assert_eq!((job.at, job.runs, job.nodes, job.cpus, job.memory_gib), (1000.0, 600.0, 2, 6.0, 29.3));
        assert_eq!(job.gpus, Some("MISC:1".parse().unwrap()), "a part of a device is one");
        assert_eq!(
            found.remark().unwrap(),
            "1 of 2 rows are left out: 1 where there is no `runs` (the first in line 2)"
        );
        let machines = "m1,P100,64,512,2\nm2,P100,64,512,2\nm3,CPU,96,512,0\n";
        let found = read_as("pai_machine_spec.csv", machines, &[]).unwrap();
        let with_devices = NodeLine { count: 2, devices: 2, model: "P100".into(), ..NodeLine::new(64, 512) };
        assert_eq!(found.lines, [Line::Nodes(with_devices), Line::Nodes(NodeLine::new(96, 512))]);
        let pods = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
                    p0,12000,16384,1,1000,V100M16|V100M32,LS,Running,0,12537496,10\np1,6000,12288,2,1000,T4,LS,Running,5,65,6\n";
        let found = read_as("openb_pod_list_default.csv", pods, &[]).unwrap();
        let [any, one] = jobs(&found)[..] else { panic!("{found:?}") };
        assert_eq!((any.runs, any.cpus, any.memory_gib), (12_537_486.0, 12.0, 16.0));
        assert_eq!((&any.gpus, &one.gpus), (&Some("1".parse().unwrap()), &Some("T4:2".parse().unwrap())));
        let nodes = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\n";
        let found = read_as("openb_node_list_gpu_node.csv", nodes, &[]).unwrap();
        let node = NodeLine { devices: 2, model: "P100".into(), ..NodeLine::new(64, 256) };
        assert_eq!((found.lines, found.left_out.len()), (vec![Line::Nodes(node)], 0));
    }

    #[test]
    fn the_tables_of_philly_are_recognised() {
        let log = "\u{feff}job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
                   7,ann,\"nlp, 2\",16,32,2,COMPLETED,2020-04-01 00:00:02,,,90,0\n8,bob,cv,0,4,0,FAILED,never,,,90,0\n9,bob\n";
        let found = read_as("cluster_log.csv", log, &[]).unwrap();
        let [job] = jobs(&found)[..] else { panic!("{found:?}") };
        assert_eq!((job.at, job.runs, job.nodes, job.cpus), (1_585_699_202.0, 90.0, 2, 16.0));
        assert_eq!((&*job.workspace, &*job.user, &job.gpus), ("nlp, 2", "ann", &Some("8".parse().unwrap())));
        assert_eq!(found.left_out.values().map(|(count, _)| count).sum::<usize>(), 2);
        let machines = "machineId, number of GPUs, single GPU mem\nm0, 8, 24GB\n";
        let found = read_as("cluster_machine_list.csv", machines, &[]).unwrap();
        assert_eq!(found.lines, [Line::Nodes(NodeLine { devices: 8, ..NodeLine::new(0, 0) })]);
    }

    #[test]
    fn a_mapping_says_what_other_columns_mean() {
        let text = "when,from,to,team,cards,hosts\n2026-01-02T00:00:00Z,10,70,nlp,16,2\n";
        let mapping = ["at=when", "runs=to - from", "workspace=team", "gpus=cards/hosts", "nodes=hosts"];
        let found = read_as("ours.csv", text, &mapping).unwrap();
        let [job] = jobs(&found)[..] else { panic!("{found:?}") };
        assert_eq!((job.runs, job.nodes, &*job.workspace), (60.0, 2, "nlp"));
        assert_eq!(job.gpus, Some("8".parse().unwrap()));
        let wrong = read_as("ours.csv", text, &["at=when", "runs=too-from"]).unwrap_err();
        assert!(wrong.contains("there is no column `too`; it has when, from, to, team"), "{wrong}");
        assert!(read_as("ours.csv", text, &["at=when"]).unwrap_err().contains("no `runs`"));
        assert!(read_as("ours.csv", text, &[]).unwrap_err().contains("--columns"));
        assert!("speed=a".parse::<Mapping>().unwrap_err().contains("the fields are at, runs"));
        assert!("at".parse::<Mapping>().is_err() && "at=".parse::<Mapping>().is_err());
    }

    #[test]
    fn cells_that_make_no_sense_leave_their_row_out() {
        let text = "at,runs,nodes,gpus\n0,-1,1,1\n0,1,0,1\n0,1,1,NaN\n0,1,1e300,1\n0,1,1,1\n";
        let found = read_as("ours.csv", text, &["at=at", "runs=runs", "nodes=nodes", "gpus=gpus"]).unwrap();
        assert_eq!((found.lines.len(), found.left_out.len()), (1, 4), "{found:?}");
    }
}
