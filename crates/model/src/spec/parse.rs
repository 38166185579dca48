//! From a map of fields to a [`JobSpec`], with every problem named.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::field::{FieldCode, FieldError, Fields, MAX_REPORTED, Wrong, kind, nearest};
use super::{
    Batch, Command, DEFAULT_GRACE, DEFAULT_PRIORITY, Endpoint, JobSpec, Kind, MAX_NODES, MAX_PRIORITY,
    MAX_PROCESSES, OnFailure, Resources, Retries, Target, Volume,
};
use super::{after, array, batch, glob, kubernetes, machine, secret};
use crate::display_name;
use crate::framework::{CommandOn, Face, Framework};
use crate::quantity::{DeviceRequest, parse_bytes, parse_duration};
use crate::reason::Reason;
use crate::signal::Signal;

/// Longer names break table layouts and host name limits.
const MAX_NAME: usize = 63;
/// Nobody waits longer; added to a time of today it still is a time.
const MAX_DURATION: Duration = Duration::from_secs(36_500 * 86_400);

impl JobSpec {
    /// Reads a spec, or says everything that is wrong with it.
    pub fn from_value(value: Value) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let spec = read(value, &mut errors);
        match spec {
            Some(spec) if errors.is_empty() => Ok(spec),
            _ => Err(errors),
        }
    }

    /// What is wrong with a name, or the name.
    pub fn check_name(text: &str) -> Result<String, FieldError> {
        name(Value::String(text.to_owned()))
            .map_err(|wrong| FieldError::new("name", wrong.code, wrong.message))
    }

    /// The name of a job that was not given one: what its batch script calls it, or its program's name, without directory
    /// and ending.
    pub fn default_name(&self) -> String {
        let argv = match &self.command {
            Command::Argv(argv) => argv.clone(),
            Command::Shell(script) => script.split_whitespace().map(str::to_owned).collect(),
        };
        let script = argv.iter().find(|word| word.ends_with(".py") || word.ends_with(".sh")).or(argv.first());
        let stem = script.map(|word| word.rsplit('/').next().unwrap_or(word)).unwrap_or("job");
        let stem = stem.strip_suffix(".py").or(stem.strip_suffix(".sh")).unwrap_or(stem);
        // What a script calls its job in another script is its display name, and makes no identifier.
        let called = |batch: &'_ Batch| batch.job_name.clone().filter(|name| !is_display_name(name));
        let said = self.batch.as_ref().map(|batch| called(batch).unwrap_or_else(|| batch_stem(stem).into()));
        let name: String = match said {
            Some(said) => said.chars().map(|c| if is_in_name(c) { c } else { '-' }).take(MAX_NAME).collect(),
            None => plain_name(stem),
        };
        let name = name.trim_matches(['-', '_', '.']);
        if name.is_empty() || is_reserved(name) { "job".into() } else { name.into() }
    }
}

/// A script is called after its file, without the ending that says what it is.
fn batch_stem(name: &str) -> &str {
    name.strip_suffix(".sbatch").or(name.strip_suffix(".slurm")).unwrap_or(name)
}

fn plain_name(stem: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c.to_ascii_lowercase() } else { '-' }
    };
    stem.chars().map(plain).take(MAX_NAME).collect()
}

fn is_in_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Names that would be taken for something else.
fn is_reserved(name: &str) -> bool {
    name.starts_with("job_") || name == "last"
}

fn read(value: Value, errors: &mut Vec<FieldError>) -> Option<JobSpec> {
    let mut fields = Fields::new(value, "", errors);
    let kind = fields.take("kind", |value| one_of(value, Kind::WORDS)).unwrap_or_default();
    if kind == Kind::Machine {
        machine::refuse_work(&mut fields);
    }
    let command = fields.take("command", command);
    let nodes = fields.take("nodes", |value| whole(value, 1, u64::from(MAX_NODES)));
    let in_place = fields.take("in_place", boolean).unwrap_or(false);
    let array = fields.take("array", array::array);
    let on =
        fields.take("on", |value| text(value)?.parse::<Target>().map_err(Wrong::value)).unwrap_or_default();
    let alone = if array.is_some() { OnFailure::Continue } else { OnFailure::default() };
    let batch = fields.nested("batch", batch::batch);
    let (name, display_name) = names(&mut fields, kind, batch.as_ref());
    let spec = JobSpec {
        name,
        display_name,
        kind,
        nodes: nodes.unwrap_or(1) as u32,
        array,
        resources: fields.nested("resources", resources).unwrap_or_default(),
        image: fields.take("image", text),
        workdir: fields.take("workdir", text),
        env: fields.take("env", env).unwrap_or_default(),
        secrets: fields.nested("secrets", secret::secrets).unwrap_or_default(),
        setup: fields.take("setup", text),
        setup_once: fields.take("setup_once", text),
        framework: fields.take("framework", |value| one_of(value, Framework::WORDS)),
        faces: fields.take("faces", faces),
        processes: fields
            .take("processes", |value| whole(value, 1, u64::from(MAX_PROCESSES)))
            .map(|processes| processes as u32),
        command_on: fields.take("command_on", |value| one_of(value, CommandOn::WORDS)),
        peers: fields.take("peers", boolean),
        priority: fields
            .take("priority", |value| whole(value, 0, u64::from(MAX_PRIORITY)))
            .map_or(DEFAULT_PRIORITY, |priority| priority as u32),
        preemptible: fields.take("preemptible", boolean).unwrap_or(false),
        after: fields.nested("after", after::after).unwrap_or_default(),
        node_labels: fields.take("node_labels", labels).unwrap_or_default(),
        exclude: fields.take("exclude", nodes_named).unwrap_or_default(),
        hold: fields.take("hold", boolean).unwrap_or(false),
        retries: fields.nested("retries", retries).unwrap_or_default(),
        timeout: fields.take("timeout", positive_duration),
        grace: fields.take("grace", duration).unwrap_or(DEFAULT_GRACE),
        stop_signal: fields.take("stop_signal", stop_signal).unwrap_or_default(),
        on_failure: fields
            .take("on_failure", |value| {
                one_of(value, &[("stop", OnFailure::Stop), ("continue", OnFailure::Continue)])
            })
            // One element says nothing about the others.
            .unwrap_or(alone),
        outputs: fields.take("outputs", patterns).unwrap_or_default(),
        endpoints: fields.nested("endpoints", endpoints).unwrap_or_default(),
        volumes: fields.nested("volumes", volumes).unwrap_or_default(),
        without_volumes: fields.take("without_volumes", boolean).unwrap_or(false),
        workspace: fields.take("workspace", self::name),
        in_place,
        clean_env: fields.take("clean_env", boolean).unwrap_or(false),
        command: command.clone().unwrap_or_default(),
        // On a pool a machine is a host; on this machine there is only one, which others use too.
        exclusive: fields
            .take("exclusive", boolean)
            .unwrap_or(kind == Kind::Machine && matches!(on, Target::Ssh(_))),
        own_home: fields.take("own_home", boolean).unwrap_or(false),
        labels: fields.take("labels", labels).unwrap_or_default(),
        batch,
        k8s: fields.nested("k8s", kubernetes::kubernetes),
        on,
    };
    let said = fields.said("command");
    if kind == Kind::Training && command.is_none() && !said {
        let message = "is missing: what should run? for example `python train.py`";
        fields.error("command", Wrong::new(FieldCode::Required, message));
    }
    if kind == Kind::Machine && spec.name.is_none() && !fields.said("name") {
        let message = "is missing: a machine is reached by its name";
        fields.error("name", Wrong::new(FieldCode::Required, message));
    }
    // Whether a cluster has the directory is known to the server that uses it.
    if spec.in_place && !matches!(spec.on, Target::Local | Target::Slurm(_)) {
        let message = format!("works only where the code is, on local; this job runs on {}", spec.on);
        fields.error("in_place", Wrong::new(FieldCode::NotSupported, message));
    }
    if spec.own_home && (kind != Kind::Machine || spec.on != Target::Local) {
        let message =
            "only machines on local have a home directory of their own; hosts have one for each account";
        fields.error("own_home", Wrong::new(FieldCode::NotSupported, message));
    }
    array::refuse(&spec).into_iter().for_each(|(field, wrong)| fields.error(field, wrong));
    let twice = spec.secrets.iter().filter_map(|secret| secret.env.as_ref());
    if let Some(name) = twice.into_iter().find(|name| spec.env.contains_key(*name)) {
        let message = format!("`{name}` is a secret of this job as well; leave one of the two out");
        fields.error("env", Wrong::value(message));
    }
    fields.finish();
    (kind == Kind::Machine || command.is_some()).then_some(spec)
}

fn stop_signal(value: Value) -> Result<Signal, Wrong> {
    let signal: Signal = text(value)?.parse().map_err(Wrong::value)?;
    if signal.tells_something() {
        return Ok(signal);
    }
    Err(Wrong::value(format!(
        "must be a signal that a task can hear, not {signal}; with `grace: 0s` it gets none"
    )))
}

pub(super) fn text(value: Value) -> Result<String, Wrong> {
    let text = match value {
        Value::String(text) => text,
        // YAML reads `image: 2.4` as a number where a person meant the text.
        Value::Number(number) => number.to_string(),
        other => return Err(Wrong::kind("a text", &other)),
    };
    if text.contains('\0') { Err(Wrong::value("must not contain a NUL character")) } else { Ok(text) }
}

pub(super) fn texts(value: Value) -> Result<Vec<String>, Wrong> {
    match value {
        Value::Array(items) => items.into_iter().map(text).collect(),
        other => Ok(vec![text(other)?]),
    }
}

/// Who wants to leave out more nodes than this wants a label.
const MAX_EXCLUDED: usize = 1000;

fn nodes_named(value: Value) -> Result<Vec<String>, Wrong> {
    let named = texts(value)?;
    if named.len() > MAX_EXCLUDED {
        let message = format!("names {} nodes; at most {MAX_EXCLUDED} are allowed", named.len());
        return Err(Wrong::new(FieldCode::OutOfRange, message));
    }
    match named.iter().find(|name| !is_label(name)) {
        Some(wrong) => Err(Wrong::value(format!("`{}` cannot be the name of a node", clipped(wrong)))),
        None => Ok(named),
    }
}

/// Labels are for finding a job, not for keeping data with it.
const MAX_LABELS: usize = 64;
const MAX_LABEL: usize = 256;

fn labels(value: Value) -> Result<BTreeMap<String, String>, Wrong> {
    let Value::Object(map) = value else { return Err(Wrong::kind("a map of names to texts", &value)) };
    if map.len() > MAX_LABELS {
        let message = format!("has {} labels; at most {MAX_LABELS} are allowed", map.len());
        return Err(Wrong::new(FieldCode::OutOfRange, message));
    }
    map.into_iter().map(label).collect()
}

/// Whether a text can be the name of a label.
pub fn is_label(name: &str) -> bool {
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/');
    !name.is_empty() && name.len() <= MAX_LABEL && name.bytes().all(valid)
}

fn label((name, value): (String, Value)) -> Result<(String, String), Wrong> {
    if !is_label(&name) {
        return Err(Wrong::value(format!(
            "`{}` cannot be the name of a label: it is 1 to {MAX_LABEL} letters, digits, `-`, `_`, `.` or `/`",
            clipped(&name)
        )));
    }
    let value = match value {
        Value::Bool(value) => value.to_string(),
        other => {
            text(other).map_err(|wrong| Wrong::new(wrong.code, format!("`{name}` {}", wrong.message)))?
        }
    };
    if value.len() > MAX_LABEL {
        let message =
            format!("`{name}` has a value of {} bytes; at most {MAX_LABEL} are allowed", value.len());
        return Err(Wrong::new(FieldCode::OutOfRange, message));
    }
    Ok((name, value))
}

/// More are a list of files, not patterns.
const MAX_PATTERNS: usize = 100;

fn patterns(value: Value) -> Result<Vec<String>, Wrong> {
    let patterns = texts(value)?;
    if patterns.len() > MAX_PATTERNS {
        let message = format!("has {} patterns; at most {MAX_PATTERNS} are allowed", patterns.len());
        return Err(Wrong::new(FieldCode::OutOfRange, message));
    }
    let check = |pattern: &String| glob::check(pattern);
    patterns.iter().try_for_each(check).map_err(|message| Wrong::new(FieldCode::InvalidValue, message))?;
    Ok(patterns)
}

/// `none` says that there is to be none, where an absent field means that they are looked for.
fn faces(value: Value) -> Result<Vec<Face>, Wrong> {
    let mut faces = Vec::new();
    for word in texts(value)?.iter().flat_map(|text| text.split(',')).filter(|word| *word != "none") {
        faces.push(one_of(Value::String(word.trim().to_owned()), Face::WORDS)?);
    }
    faces.sort();
    faces.dedup();
    Ok(faces)
}

pub(super) fn boolean(value: Value) -> Result<bool, Wrong> {
    match value {
        Value::Bool(value) => Ok(value),
        Value::String(text) if text == "true" || text == "false" => Ok(text == "true"),
        other => {
            Err(Wrong::new(FieldCode::WrongType, format!("must be true or false, not {}", shown(&other))))
        }
    }
}

pub(super) fn whole(value: Value, least: u64, most: u64) -> Result<u64, Wrong> {
    let number = match &value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    let wrong = || {
        let code = if is_number(&value) { FieldCode::OutOfRange } else { FieldCode::WrongType };
        Wrong::new(code, format!("must be a whole number from {least} to {most}, not {}", shown(&value)))
    };
    number.filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
}

/// A number of any kind, also one written as a text: a flag's value always is.
fn is_number(value: &Value) -> bool {
    match value {
        Value::Number(_) => true,
        Value::String(text) => text.trim().parse::<f64>().is_ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

fn one_of<T: Copy>(value: Value, choices: &[(&str, T)]) -> Result<T, Wrong> {
    let text = text(value)?;
    choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let near = nearest(&text, &names).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        Wrong::value(format!("must be {}, not `{}`{near}", names.join(" or "), clipped(&text)))
    })
}

fn duration(value: Value) -> Result<Duration, Wrong> {
    let text = text(value)?;
    let span = parse_duration(&text).map_err(Wrong::value)?;
    if span > MAX_DURATION {
        let message = format!("must be at most 36500d, a hundred years, not `{}`", clipped(&text));
        return Err(Wrong::new(FieldCode::OutOfRange, message));
    }
    Ok(span)
}

fn positive_duration(value: Value) -> Result<Duration, Wrong> {
    duration(value).and_then(|span| if span.is_zero() { Err(nothing()) } else { Ok(span) })
}

fn bytes(value: Value) -> Result<u64, Wrong> {
    match parse_bytes(&text(value)?) {
        Ok(0) => Err(nothing()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(Wrong::value(error)),
    }
}

fn nothing() -> Wrong {
    Wrong::new(FieldCode::OutOfRange, "must be more than nothing; leave it out for no limit of its own")
}

/// The identifier of a job and its display name. A name in another script than identifiers have is the display name: the
/// identifier is made from the command then, as without a name.
fn names(fields: &mut Fields, kind: Kind, batch: Option<&Batch>) -> (Option<String>, Option<String>) {
    let shown = fields.take("display_name", displayed);
    let has_one = shown.is_some() || fields.said("display_name");
    let given = fields.take("name", |value| match &value {
        Value::String(text) if kind == Kind::Training && !has_one && !text.is_ascii() => {
            displayed(value).map(|text| (None, Some(text)))
        }
        _ => name(value.clone()).map(|name| (Some(name), None)).map_err(|wrong| match displayed(value) {
            Ok(_) if !has_one => {
                Wrong::new(wrong.code, format!("{}; `display_name` takes it", wrong.message))
            }
            _ => wrong,
        }),
    });
    let (name, named) = given.unwrap_or_default();
    let called = batch.and_then(|batch| batch.job_name.as_ref()).filter(|_| !has_one);
    let called = called.filter(|text| is_display_name(text)).map(|text| display_name::normalized(text));
    (name, shown.or(named).or(called))
}

/// Whether what a batch script calls its job is for people to read, and no identifier can be made of it.
fn is_display_name(text: &str) -> bool {
    !text.is_ascii() && display_name::check("", text).is_ok()
}

/// Names that would be taken for another job's id or for a selector are no display names either: jobs are found by them.
fn displayed(value: Value) -> Result<String, Wrong> {
    let checked = display_name::check("", &text(value)?);
    let name = checked.map_err(|error| Wrong::new(error.code, error.message))?;
    if is_reserved(&name) {
        return Err(reserved(&name));
    }
    Ok(name)
}

fn reserved(name: &str) -> Wrong {
    Wrong::value(format!("`{name}` would be taken for a job id or selector; choose another name"))
}

/// Names are used in host names, file names and shell lines.
fn name(value: Value) -> Result<String, Wrong> {
    let name = text(value)?;
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let starts_well = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if name.len() > MAX_NAME || !starts_well || !name.bytes().all(valid) {
        return Err(Wrong::value(format!(
            "must be 1 to {MAX_NAME} letters, digits, `-`, `_` or `.`, starting with a letter or digit, not `{}`",
            clipped(&name)
        )));
    }
    if is_reserved(&name) { Err(reserved(&name)) } else { Ok(name) }
}

fn command(value: Value) -> Result<Command, Wrong> {
    match value {
        Value::Array(words) => {
            let argv: Vec<String> = words.into_iter().map(text).collect::<Result<_, _>>()?;
            match argv.first() {
                Some(program) if !program.is_empty() => Ok(Command::Argv(argv)),
                _ => Err(Wrong::new(FieldCode::Required, "must name a program to run")),
            }
        }
        other => {
            let script = text(other)?;
            if script.trim().is_empty() {
                Err(Wrong::new(FieldCode::Required, "must not be empty: what should run?"))
            } else {
                Ok(Command::Shell(script))
            }
        }
    }
}

fn env(value: Value) -> Result<BTreeMap<String, String>, Wrong> {
    let Value::Object(map) = value else {
        return Err(Wrong::kind("a map of names to values", &value));
    };
    map.into_iter()
        .map(|(name, value)| {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(Wrong::value(variable_name(&name)));
            }
            let value = match value {
                Value::Bool(value) => value.to_string(),
                Value::Null => String::new(),
                other => text(other).map_err(|wrong| {
                    Wrong::new(wrong.code, format!("{}: {}", clipped(&name), wrong.message))
                })?,
            };
            Ok((name, value))
        })
        .collect()
}

fn resources(value: Value, errors: &mut Vec<FieldError>) -> Resources {
    let mut fields = Fields::new(value, "resources.", errors);
    let resources = Resources {
        cpus: fields.take("cpus", cpus),
        memory: fields.take("memory", bytes),
        gpus: fields
            .take("gpus", |value| text(value)?.parse::<DeviceRequest>().map_err(Wrong::value))
            .filter(|request| request.count > 0),
        shm: fields.take("shm", bytes),
    };
    fields.finish();
    resources
}

fn cpus(value: Value) -> Result<f64, Wrong> {
    let number = match &value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    };
    number.filter(|cpus| cpus.is_finite() && (0.001..=100_000.0).contains(cpus)).ok_or_else(|| {
        let code = if is_number(&value) { FieldCode::OutOfRange } else { FieldCode::WrongType };
        Wrong::new(
            code,
            format!("must be a number of CPUs from 0.001 to 100000, such as 4 or 0.5, not {}", shown(&value)),
        )
    })
}

/// `retries: 3` is short for `retries: {max: 3}`.
fn retries(value: Value, errors: &mut Vec<FieldError>) -> Retries {
    let most = 1000;
    if !value.is_object() {
        return match whole(value, 0, most) {
            Ok(max) => Retries { max: max as u32, ..Retries::default() },
            Err(wrong) => {
                let message = format!("{} (or a map with max, on, backoff)", wrong.message);
                errors.push(FieldError::new("retries", wrong.code, message));
                Retries::default()
            }
        };
    }
    let mut fields = Fields::new(value, "retries.", errors);
    let retries = Retries {
        max: fields.take("max", |value| whole(value, 0, most)).unwrap_or(0) as u32,
        on: fields.take("on", reason_codes).unwrap_or_default(),
        backoff: fields.take("backoff", duration),
    };
    fields.finish();
    retries
}

fn reason_codes(value: Value) -> Result<Vec<String>, Wrong> {
    let codes = texts(value)?;
    let known: Vec<&str> = Reason::examples().iter().map(Reason::code).collect();
    match codes.iter().find(|code| !known.contains(&code.as_str())) {
        Some(unknown) => {
            let meant = match nearest(unknown, &known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("the reasons are {}", known.join(", ")),
            };
            Err(Wrong::value(format!("`{}` is not a reason; {meant}", clipped(unknown))))
        }
        None => Ok(codes),
    }
}

fn endpoints(value: Value, errors: &mut Vec<FieldError>) -> Vec<Endpoint> {
    list(value, "endpoints", errors, |fields| {
        let name = fields.take("name", name);
        let port = fields.take("port", |value| whole(value, 1, 65_535));
        Some(Endpoint { name: name?, port: port? as u16 })
    })
}

fn volumes(value: Value, errors: &mut Vec<FieldError>) -> Vec<Volume> {
    list(value, "volumes", errors, |fields| {
        let name = fields.take("name", name);
        let path = fields.take("path", mount_path);
        let read_only = fields.take("read_only", boolean).unwrap_or(false);
        Some(Volume { name: name?, path: path?, read_only })
    })
}

fn mount_path(value: Value) -> Result<String, Wrong> {
    let path = text(value)?;
    if path.starts_with('/') && !path.contains(':') {
        return Ok(path);
    }
    Err(Wrong::value(format!("must be an absolute path, such as /data, not `{}`", clipped(&path))))
}

fn list<T>(
    value: Value,
    field: &str,
    errors: &mut Vec<FieldError>,
    read: impl Fn(&mut Fields) -> Option<T>,
) -> Vec<T> {
    let Value::Array(items) = value else {
        let wrong = Wrong::kind("a list", &value);
        errors.push(FieldError::new(field, wrong.code, wrong.message));
        return Vec::new();
    };
    let mut all = Vec::new();
    let first = errors.len();
    for (i, item) in items.into_iter().enumerate() {
        let prefix = format!("{field}[{i}].");
        let before = errors.len();
        if before - first >= MAX_REPORTED {
            break;
        }
        let mut fields = Fields::new(item, &prefix, errors);
        let read = read(&mut fields);
        fields.finish();
        match read {
            Some(item) => all.push(item),
            None if errors.len() == before => {
                let field = format!("{field}[{i}]");
                errors.push(FieldError::new(field, FieldCode::Required, "lacks a field it needs"));
            }
            None => {}
        }
    }
    all
}

/// Why a text cannot be the name of a variable of the environment; the server says the same of what a client sends.
fn variable_name(name: &str) -> String {
    format!(
        "`{}` cannot be the name of a variable: a name is not empty and has no `=` and no NUL in it",
        clipped(name)
    )
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => format!("`{}`", clipped(text)),
        Value::Number(_) | Value::Bool(_) => format!("`{value}`"),
        Value::Null | Value::Array(_) | Value::Object(_) => kind(value).into(),
    }
}

pub(super) fn clipped(text: &str) -> String {
    let mut shown: String = text.chars().take(60).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
