//! The job file that is written: prose begins with `# `, what is switched off with a bare `#`.

use muster_api::model::JobSpec;
use muster_api::model::node::Device;
use muster_api::model::quantity::format_bytes;
use serde_json::{Value, json};

use super::look::Seen;

/// What the job runs, as far as could be guessed.
pub(super) fn command(seen: &Seen) -> Value {
    match (&seen.script, &seen.notebook) {
        (Some(script), _) if script.ends_with(".sh") => json!(["sh", script]),
        (Some(script), _) => json!(["python", script]),
        (None, Some(notebook)) => {
            json!(["jupyter", "nbconvert", "--to", "notebook", "--execute", "--inplace", notebook])
        }
        (None, None) => json!("echo replace me with what should run"),
    }
}

pub(super) fn text(seen: &Seen, devices: &[Device]) -> String {
    let mut text = "\
# A job for muster. `muster run muster.yaml` runs it and shows its output, `muster submit muster.yaml` does not wait;
# flags go on top: `muster run muster.yaml --nodes 2`. Fields behind a bare # are switched off.
"
    .to_owned();
    let mut part = |lines: String| text.push_str(&format!("\n{lines}"));
    part(what(seen));
    part(how_many(seen, devices));
    part(environment(seen));
    part(life());
    if !seen.large.is_empty() {
        part(leave_out(seen));
    }
    text
}

fn what(seen: &Seen) -> String {
    let mut text = String::new();
    if let Some(name) = name(seen) {
        text.push_str(&format!("name: {name}\n\n"));
    }
    text.push_str(
        "# What every task runs, in a copy of this directory: a list of words, or one text for the shell.\n",
    );
    if !seen.others.is_empty() {
        text.push_str(&format!("# There are also: {}.\n", seen.others.join(", ")));
    }
    text.push_str(&format!("command: {}\n", written(&command(seen))));
    text
}

/// A command as people write it in YAML: `[python, train.py]`. JSON is YAML too, whatever letters a word has.
fn written(command: &Value) -> String {
    let is_plain = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/'))
    };
    let Value::Array(words) = command else { return command.to_string() };
    let words = words.iter().map(|word| match word.as_str() {
        Some(text) if is_plain(text) => text.to_owned(),
        _ => word.to_string(),
    });
    format!("[{}]", words.collect::<Vec<_>>().join(", "))
}

/// The directory's name, if a job may be called so.
fn name(seen: &Seen) -> Option<String> {
    let name = seen.name.as_ref()?.to_lowercase();
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let name: String = name.chars().map(allowed).take(40).collect();
    let name = name.trim_matches(['-', '_', '.']);
    // A name that YAML would read as a number or a yes is quoted nowhere else in the file.
    let is_plain = name.starts_with(|c: char| c.is_ascii_alphabetic())
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&name);
    let is_allowed = JobSpec::from_value(json!({"command": "x", "name": name})).is_ok();
    (is_plain && is_allowed).then(|| name.to_owned())
}

fn how_many(seen: &Seen, devices: &[Device]) -> String {
    let mut text = "\
# How many tasks start together, or not at all. Each finds RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
nodes: 1

# What each task gets. Without gpus it sees no accelerator.
"
    .to_owned();
    match devices.first() {
        Some(device) => text.push_str(&format!(
            "resources:\n  gpus: 1 # this machine has {}x {}\n  #cpus: 4\n  #memory: 16GB\n",
            devices.len(),
            device.model
        )),
        None => text.push_str(
            "#resources:\n  #gpus: 1 # this machine has none; \"H100:8\" asks for a model\n  #cpus: 4\n  #memory: 16GB\n",
        ),
    }
    if let Some((framework, _)) = seen.frameworks.first() {
        let why: Vec<&str> = seen.frameworks.iter().map(|(_, why)| why.as_str()).collect();
        let which = match seen.frameworks.as_slice() {
            [_] => "found like this when it is absent",
            _ => "more than one is possible, so say which",
        };
        text.push_str(&format!(
            "\n# The launch contract; {which}: {}.\n#framework: {framework}\n",
            why.join(", ")
        ));
    }
    text
}

fn environment(seen: &Seen) -> String {
    let mut text = "\
# On this machine tasks have the environment you type the command in, a virtual environment included.
# Variables on top of it:
#env:
  #BATCH: \"32\"
"
    .to_owned();
    let setups: Vec<(&str, String)> = [
        (seen.requirements, "requirements.txt", "pip install -r requirements.txt".to_owned()),
        (seen.pyproject, "pyproject.toml", "pip install -e .".to_owned()),
    ]
    .into_iter()
    .filter(|(is_there, ..)| *is_there)
    .map(|(_, file, setup)| (file, setup))
    .chain(seen.environment.as_deref().map(|file| (file, format!("conda env update --file {file}"))))
    .collect();
    match setups.first() {
        Some((file, setup)) => {
            text.push_str(&format!("\n# Before the command, in every task, each time. {file} is here; where it is installed already, leave it off.\n#setup: {setup}\n"));
            for (file, setup) in &setups[1..] {
                text.push_str(&format!("# {file} is here, too: {setup}\n"));
            }
        }
        None => text.push_str("\n# A shell script before the command, in every task.\n#setup: make data\n"),
    }
    if seen.dockerfile {
        text.push_str(
            "\n# There is a Dockerfile. Engines that run images take the name of one that is pushed; this machine does not.\n#image: registry.example.com/team/image:tag\n",
        );
    }
    text
}

fn life() -> String {
    "\
# The longest it may run, and how often it is tried again.
#timeout: 12h
#retries: { max: 2, backoff: 30s }
"
    .to_owned()
}

fn leave_out(seen: &Seen) -> String {
    let mut text =
        "# Large, and copied to every task. What the job does not need, write into .musterignore:\n"
            .to_owned();
    for (name, bytes) in &seen.large {
        text.push_str(&format!("#   {name}  ({})\n", format_bytes(*bytes)));
    }
    text
}

#[cfg(test)]
mod tests {
    use muster_api::model::Framework;
    use muster_api::model::node::Vendor;
    use serde_json::Map;

    use super::*;

    fn device() -> Device {
        Device {
            index: 0,
            vendor: Vendor::Nvidia,
            model: "H100".into(),
            uuid: String::new(),
            memory_bytes: 80 << 30,
            simulated: false,
            ip: None,
        }
    }

    /// One of each kind of directory, and one with everything.
    fn kinds() -> Vec<Seen> {
        let script =
            || Seen { name: Some("My Project".into()), script: Some("train.py".into()), ..Seen::default() };
        vec![
            Seen::default(),
            script(),
            Seen { requirements: true, ..script() },
            Seen { pyproject: true, requirements: true, ..script() },
            Seen { environment: Some("environment.yml".into()), ..script() },
            Seen { frameworks: vec![(Framework::Pytorch, "train.py imports torch".into())], ..script() },
            Seen { dockerfile: true, ..script() },
            Seen { script: Some("it's \"odd\": #1 — 训练.py".into()), ..Seen::default() },
            Seen { script: Some("run.sh".into()), others: vec!["a.py".into()], ..Seen::default() },
            Seen { notebook: Some("a b.ipynb".into()), ..Seen::default() },
            Seen {
                requirements: true,
                dockerfile: true,
                large: vec![("data/".into(), 3 << 30)],
                frameworks: vec![(Framework::Deepspeed, "train.py imports deepspeed".into())],
                ..script()
            },
        ]
    }

    fn read(text: &str) -> JobSpec {
        let yaml: serde_yaml_ng::Value =
            serde_yaml_ng::from_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let fields: Map<String, Value> = serde_json::from_value(serde_json::to_value(yaml).unwrap()).unwrap();
        JobSpec::from_value(Value::Object(fields)).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
    }

    #[test]
    fn what_is_written_is_a_job_for_every_kind_of_directory() {
        for seen in kinds() {
            for devices in [vec![], vec![device()]] {
                let spec = read(&text(&seen, &devices));
                assert_eq!(serde_json::to_value(&spec.command).unwrap(), command(&seen));
                assert_eq!(spec.resources.device_count() as usize, devices.len());
            }
        }
    }

    #[test]
    fn what_is_switched_off_is_right_when_it_is_switched_on() {
        for seen in kinds() {
            let text = text(&seen, &[]);
            let on: Vec<String> = text
                .lines()
                .map(|line| {
                    let bare = line.trim_start();
                    let indent = &line[..line.len() - bare.len()];
                    match bare.strip_prefix('#') {
                        Some(rest) if !rest.starts_with(' ') => format!("{indent}{rest}"),
                        _ => line.to_owned(),
                    }
                })
                .collect();
            let spec = read(&on.join("\n"));
            assert_eq!((spec.resources.device_count(), spec.retries.max), (1, 2));
            assert!(spec.setup.is_some() && spec.timeout.is_some() && spec.env.len() == 1);
            assert_eq!(spec.framework, seen.frameworks.first().map(|(framework, _)| *framework));
        }
    }

    #[test]
    fn the_directorys_name_is_the_jobs_where_it_can_be() {
        let name = |text: &str| name(&Seen { name: Some(text.into()), ..Seen::default() });
        assert_eq!(name("My Project").as_deref(), Some("my-project"));
        for text in ["job_x", "last", "2024", "训练", "true", "on"] {
            assert_eq!(name(text), None, "{text}");
        }
    }

    #[test]
    fn a_whole_draft() {
        insta::assert_snapshot!("draft", text(&kinds()[10], &[device()]));
    }
}
