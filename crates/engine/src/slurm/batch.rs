//! What a gang is in Slurm's words: the options of `sbatch`, and the script that it gets. Pure.

use std::time::Duration;

use muster_model::AttemptId;
use muster_model::node::Vendor;
use muster_model::quantity::DeviceRequest;
use muster_model::slurm::option::Takes;
use muster_model::spec::{DEFAULT_PRIORITY, FieldCode, FieldError, JobSpec};

use crate::Gang;

/// Between the time that a job may run and the time after which Slurm takes its nodes back: its files come first, and it may
/// use all of its own time. Slurm also sends the notice up to a minute early.
const MARGIN: Duration = Duration::from_secs(60);
/// The longest name that Slurm's own lists are not made unreadable by.
const NAME: usize = 100;
const MIB: u64 = 1 << 20;
/// What Slurm takes `--nice` for.
const NICE: i64 = 100;

/// What an operator wants of every job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Whom it is charged to.
    pub account: Option<String>,
    /// The quality of service.
    pub qos: Option<String>,
    /// Features that nodes must have.
    pub constraint: Option<String>,
    /// Nodes that are not to be used.
    pub exclude: Option<String>,
    /// Anything else, as `sbatch` takes it: `--licenses=x`.
    pub options: Vec<String>,
}

impl Wishes {
    /// As words for `sbatch`.
    fn words(&self) -> Vec<String> {
        let named = [
            ("account", &self.account),
            ("qos", &self.qos),
            ("constraint", &self.constraint),
            ("exclude", &self.exclude),
        ];
        let named = named.iter().filter_map(|(name, value)| Some(format!("--{name}={}", value.as_ref()?)));
        named.chain(self.options.iter().cloned()).collect()
    }

    /// The `--nice` that every job has, whatever its own priority adds to it. Slurm takes one without a value for 100, and the
    /// last one counts.
    pub(super) fn nice(&self) -> Option<i64> {
        let word = self.options.iter().rev().find(|word| option_name(word) == "--nice")?;
        word.split_once('=').map_or(Some(NICE), |(_, value)| value.parse().ok())
    }
}

/// Options that a job's own script may pass to `sbatch`, and whether they take a value. All others are muster's own to say,
/// or would change whose job it is, where its files go or how muster finds it.
const OPEN: &[(&str, Takes)] = &[
    ("--account", Takes::Value),
    ("--acctg-freq", Takes::Value),
    ("--batch", Takes::Value),
    ("--bb", Takes::Value),
    ("--bbf", Takes::Value),
    ("--cluster-constraint", Takes::Value),
    ("--clusters", Takes::Value),
    ("--constraint", Takes::Value),
    ("--container-entrypoint", Takes::Nothing),
    ("--container-entrypoint-log", Takes::Nothing),
    ("--container-env", Takes::Value),
    ("--container-image", Takes::Value),
    ("--container-mount-home", Takes::Nothing),
    ("--container-mounts", Takes::Value),
    ("--container-name", Takes::Value),
    ("--container-readonly", Takes::Nothing),
    ("--container-remap-root", Takes::Nothing),
    ("--container-save", Takes::Value),
    ("--container-workdir", Takes::Value),
    ("--container-writable", Takes::Nothing),
    ("--contiguous", Takes::Nothing),
    ("--core-spec", Takes::Value),
    ("--cores-per-socket", Takes::Value),
    ("--cpu-freq", Takes::Value),
    ("--deadline", Takes::Value),
    ("--delay-boot", Takes::Value),
    ("--dependency", Takes::Value),
    ("--distribution", Takes::Value),
    ("--exclude", Takes::Value),
    ("--extra-node-info", Takes::Value),
    ("--gpu-bind", Takes::Value),
    ("--gpu-freq", Takes::Value),
    ("--gres", Takes::Value),
    ("--gres-flags", Takes::Value),
    ("--hint", Takes::Value),
    ("--licenses", Takes::Value),
    ("--mail-type", Takes::Value),
    ("--mail-user", Takes::Value),
    ("--mcs-label", Takes::Value),
    ("--mem-bind", Takes::Value),
    ("--mincpus", Takes::Value),
    ("--network", Takes::Value),
    ("--nice", Takes::Maybe),
    ("--no-container-entrypoint", Takes::Nothing),
    ("--no-container-mount-home", Takes::Nothing),
    ("--no-container-remap-root", Takes::Nothing),
    ("--no-kill", Takes::Maybe),
    ("--nodefile", Takes::Value),
    ("--nodelist", Takes::Value),
    ("--ntasks-per-core", Takes::Value),
    ("--ntasks-per-socket", Takes::Value),
    ("--overcommit", Takes::Nothing),
    ("--oversubscribe", Takes::Nothing),
    ("--power", Takes::Value),
    ("--prefer", Takes::Value),
    ("--priority", Takes::Value),
    ("--profile", Takes::Value),
    ("--propagate", Takes::Maybe),
    ("--qos", Takes::Value),
    ("--reboot", Takes::Nothing),
    ("--reservation", Takes::Value),
    ("--sockets-per-node", Takes::Value),
    ("--spread-job", Takes::Nothing),
    ("--switches", Takes::Value),
    ("--thread-spec", Takes::Value),
    ("--threads-per-core", Takes::Value),
    ("--time-min", Takes::Value),
    ("--tmp", Takes::Value),
    ("--tres-bind", Takes::Value),
    ("--use-min-nodes", Takes::Nothing),
    ("--wait-all-nodes", Takes::Value),
    ("--wckey", Takes::Value),
];

/// What a job's own script says to `sbatch`, with the field that says it.
fn user_options(spec: &JobSpec) -> Vec<(String, String)> {
    let Some(batch) = &spec.batch else { return Vec::new() };
    let account =
        batch.account.iter().map(|account| ("batch.account".into(), format!("--account={account}")));
    let options = batch.options.iter().enumerate();
    let options = options.map(|(index, option)| (format!("batch.options[{index}]"), option.clone()));
    account.chain(options).collect()
}

/// Options of a job's own script that it may not say: those that are not its to say, and those that contradict the operator.
pub(super) fn refused_options(spec: &JobSpec, wishes: &Wishes) -> Vec<FieldError> {
    let decided = wishes.words();
    let wrong = |(field, option): (String, String)| {
        let message = option_obstacle(&option, &decided)?;
        Some(FieldError::new(field, FieldCode::NotSupported, message))
    };
    user_options(spec).into_iter().filter_map(wrong).collect()
}

fn option_obstacle(option: &str, decided: &[String]) -> Option<String> {
    let name = option_name(option);
    // `sbatch` takes abbreviations; only whole names are compared, so only whole names are let through.
    let Some((_, takes)) = OPEN.iter().find(|(open, _)| *open == name) else {
        return Some(format!("`{name}` is not an option that a job may pass to sbatch here; leave it out"));
    };
    // Without its value, it would take the next word for it.
    if *takes == Takes::Value && !option.contains('=') {
        return Some(format!("`{name}` needs its value in the same word: {name}=VALUE"));
    }
    let by_operator = decided.iter().find(|word| option_name(word) == name)?;
    (by_operator != option).then(|| {
        format!("`{option}` contradicts `{by_operator}`, which the operator of this server has set for every job; leave it out")
    })
}

fn option_name(option: &str) -> &str {
    option.split('=').next().unwrap_or_default()
}

/// Whose gang it is, and where its files are.
#[derive(Debug)]
pub(super) struct Place<'a> {
    pub(super) attempt: &'a AttemptId,
    /// What the server is called there.
    pub(super) server: &'a str,
    /// The attempt's own directory.
    pub(super) dir: &'a str,
    /// The muster binary.
    pub(super) binary: &'a str,
}

/// What stands in every job's comment before the server's name. A comment is how a job is found whose number nobody has
/// heard.
const COMMENT: &str = "muster:";

/// The comment that an attempt's job has.
pub(super) fn comment(server: &str, attempt: &AttemptId) -> String {
    format!("{COMMENT}{server}:{attempt}")
}

/// Whose job it is, if it is one of this server's.
pub(super) fn read_comment(comment: &str, server: &str) -> Option<AttemptId> {
    let (theirs, attempt) = comment.trim().strip_prefix(COMMENT)?.split_once(':')?;
    (theirs == server).then_some(())?;
    attempt.parse().ok()
}

/// The words after `sbatch`. The script's name comes last and is not among them. `max_time` is the longest time limit that the
/// gang's partition gives a job.
pub(super) fn options(
    gang: &Gang,
    wishes: &Wishes,
    place: &Place,
    max_time: Option<Duration>,
) -> Vec<String> {
    let spec = &*gang.spec;
    let mut words = vec![
        "--parsable".to_owned(),
        // Muster tries again itself, with a new attempt.
        "--no-requeue".to_owned(),
        // What the gate has is little, and all of it is wanted. Anything else makes Slurm run a login shell first.
        "--export=ALL".to_owned(),
        format!("--job-name={}", name(&gang.name)),
        format!("--comment={}", comment(place.server, place.attempt)),
        format!("--chdir={}", place.dir),
        format!("--output={}/batch.log", place.dir),
        "--open-mode=append".to_owned(),
        format!("--nodes={}", spec.nodes),
        format!("--ntasks={}", spec.nodes),
        "--ntasks-per-node=1".to_owned(),
    ];
    // Without one it is the cluster's default partition.
    if !gang.place.is_empty() {
        words.push(format!("--partition={}", gang.place));
    }
    words.extend(resources(spec));
    words.extend(time_limit(spec, max_time).map(|minutes| format!("--time={minutes}")));
    words.push(notice(spec));
    // Only an administrator may go before others.
    let nice = DEFAULT_PRIORITY.checked_sub(spec.priority).filter(|nice| *nice > 0);
    words.extend(nice.map(|nice| format!("--nice={nice}")));
    words.extend(user_options(spec).into_iter().map(|(_, option)| option));
    // The last word counts, and it is the operator's.
    words.extend(wishes.words());
    words.extend(
        wishes
            .nice()
            .zip(nice)
            .map(|(wanted, nice)| format!("--nice={}", wanted.saturating_add(nice.into()))),
    );
    words
}

fn resources(spec: &JobSpec) -> Vec<String> {
    let mut words = Vec::new();
    words.extend(cpus(spec).map(|cpus| format!("--cpus-per-task={cpus}")));
    let memory = spec.resources.memory.map(|bytes| bytes.div_ceil(MIB).max(1));
    // A whole node has all of its memory, which Slurm calls none.
    let memory = memory.or(spec.exclusive.then_some(0));
    words.extend(memory.map(|mebibytes| format!("--mem={mebibytes}M")));
    words.extend(spec.resources.gpus.as_ref().and_then(gres).map(|gres| format!("--gres={gres}")));
    if spec.exclusive {
        words.push("--exclusive".to_owned());
    }
    words
}

fn cpus(spec: &JobSpec) -> Option<u64> {
    spec.resources.cpus.map(|cpus| (cpus.ceil() as u64).max(1))
}

/// Sites name the types of their devices in small letters.
fn gres(request: &DeviceRequest) -> Option<String> {
    let DeviceRequest { vendor, model, count } = request;
    let name = match vendor {
        Some(Vendor::Ascend) => "npu",
        Some(Vendor::Nvidia) | None => "gpu",
    };
    let model = model.as_ref().map(|model| format!(":{}", model.to_ascii_lowercase())).unwrap_or_default();
    (*count > 0).then(|| format!("{name}{model}:{count}"))
}

/// The time limit of the allocation, in minutes: the job's own with the grace and the margin, as far as the partition allows. A
/// job that itself asks for more than that is Slurm's to refuse.
fn time_limit(spec: &JobSpec, max_time: Option<Duration>) -> Option<u64> {
    let timeout = spec.timeout?;
    let wanted = minutes(timeout + spec.grace + MARGIN);
    let allowed = max_time.filter(|max| minutes(timeout) <= max.as_secs() / 60).map(|max| max.as_secs() / 60);
    Some(allowed.map_or(wanted, |allowed| wanted.min(allowed)))
}

/// Slurm counts in minutes.
fn minutes(span: Duration) -> u64 {
    span.as_secs().div_ceil(60).max(1)
}

/// The agent hears that the time is nearly over early enough for its task to have its grace. It is the batch script where
/// there is one node, and a step's process where there are several.
fn notice(spec: &JobSpec) -> String {
    let whom = if spec.nodes == 1 { "B:" } else { "" };
    // Slurm takes no more than this.
    let before = (spec.grace.as_secs() + 5).min(65_535);
    format!("--signal={whom}TERM@{before}")
}

/// A name without what Slurm or a terminal might take for something else.
fn name(text: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "-_.+@/".contains(c) { c } else { '-' };
    let name: String = text.chars().take(NAME).map(plain).collect();
    if name.is_empty() { "muster".into() } else { name }
}

/// The script. It has nothing in it that is anybody's secret: whoever administers the cluster can read it.
pub(super) fn script(spec: &JobSpec, place: &Place) -> String {
    let agent = format!("{} agent --gang {}", quoted(place.binary), quoted(place.dir));
    let line = match spec.nodes {
        1 => agent,
        nodes => {
            let cpus = cpus(spec).map(|cpus| format!(" --cpus-per-task={cpus}")).unwrap_or_default();
            // Whoever has a whole node has its devices, and a step has only those that it asks for.
            let all = "${SLURM_GPUS_ON_NODE:+--gres=gpu:$SLURM_GPUS_ON_NODE} ";
            let all = if spec.exclusive && spec.resources.gpus.is_none() { all } else { "" };
            // Agents end one after the other, and none of them is to be hurried by the end of another. They hold their
            // processes together themselves, and what people start beside them is to find room.
            format!(
                "srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1{cpus} --export=ALL --overlap --cpu-bind=none --mpi=none \
                 --input=none --kill-on-bad-exit=0 --wait=0 {all}{agent}"
            )
        }
    };
    format!("#!/bin/sh\n# {}\nexec {line}\n", place.attempt)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn gang(fields: &[(&str, serde_json::Value)]) -> Gang {
        let mut value = serde_json::json!({ "command": ["true"] });
        for (name, field) in fields {
            value[name] = field.clone();
        }
        let spec = JobSpec::from_value(value).unwrap();
        Gang { name: "train now!".into(), place: "gpu".into(), spec: Arc::new(spec), volumes: Vec::new() }
    }

    fn attempt() -> AttemptId {
        "job_0123456789.2".parse().unwrap()
    }

    fn place(attempt: &AttemptId) -> Place<'_> {
        Place { attempt, server: "0a1b2c3d", dir: "/home/ada/.muster/s/a", binary: "/home/ada/.muster/bin/m" }
    }

    fn of(fields: &[(&str, serde_json::Value)], wishes: &Wishes) -> Vec<String> {
        options(&gang(fields), wishes, &place(&attempt()), None)
    }

    fn batch(account: Option<&str>, options: &[&str]) -> serde_json::Value {
        serde_json::json!({ "script": "#!/bin/sh\n", "account": account, "options": options })
    }

    #[test]
    fn every_job_is_known_by_its_comment_and_never_begun_twice_by_slurm() {
        let words = of(&[], &Wishes::default());
        let expected = [
            "--parsable",
            "--no-requeue",
            "--export=ALL",
            "--job-name=train-now-",
            "--comment=muster:0a1b2c3d:job_0123456789.2",
            "--chdir=/home/ada/.muster/s/a",
            "--output=/home/ada/.muster/s/a/batch.log",
            "--open-mode=append",
            "--nodes=1",
            "--ntasks=1",
            "--ntasks-per-node=1",
            "--partition=gpu",
            "--signal=B:TERM@15",
        ];
        assert_eq!(words, expected);
        assert_eq!(read_comment("muster:0a1b2c3d:job_0123456789.2", "0a1b2c3d"), Some(attempt()));
        for other in ["muster:other:job_0123456789.2", "muster:0a1b2c3d:x", "(null)", ""] {
            assert_eq!(read_comment(other, "0a1b2c3d"), None, "{other}");
        }
    }

    #[test]
    fn what_a_spec_asks_for_has_an_option() {
        let cases: &[(&str, serde_json::Value, &[&str])] = &[
            ("nodes", 4.into(), &["--nodes=4", "--ntasks=4", "--signal=TERM@15"]),
            ("gpus", 8.into(), &["--gres=gpu:8"]),
            ("gpus", "H100:8".into(), &["--gres=gpu:h100:8"]),
            ("gpus", "nvidia:2".into(), &["--gres=gpu:2"]),
            ("gpus", "ascend:8".into(), &["--gres=npu:8"]),
            ("cpus", 4.into(), &["--cpus-per-task=4"]),
            ("cpus", 0.5.into(), &["--cpus-per-task=1"]),
            ("memory", "16GB".into(), &["--mem=16384M"]),
            ("memory", "1KiB".into(), &["--mem=1M"]),
            ("exclusive", true.into(), &["--exclusive", "--mem=0M"]),
            // 2 h, 10 s of grace and the margin.
            ("timeout", "2h".into(), &["--time=122"]),
            ("timeout", "1s".into(), &["--time=2"]),
            ("grace", "2m".into(), &["--signal=B:TERM@125"]),
            ("priority", 400.into(), &["--nice=100"]),
        ];
        for (field, value, expected) in cases {
            let field_value = match *field {
                "gpus" | "cpus" | "memory" => ("resources", serde_json::json!({ *field: value })),
                field => (field, value.clone()),
            };
            let words = of(&[field_value], &Wishes::default());
            for word in *expected {
                assert!(words.iter().any(|it| it == word), "{field} = {value}: no {word} in {words:?}");
            }
        }
        for priority in [500, 900] {
            let words = of(&[("priority", priority.into())], &Wishes::default());
            assert!(!words.iter().any(|word| word.starts_with("--nice")), "{words:?}");
        }
    }

    #[test]
    fn options_of_pyxis_reach_sbatch() {
        let pyxis = [
            "--container-image=nvcr.io#nvidia/pytorch:24.05-py3",
            "--container-mounts=/data:/data",
            "--no-container-mount-home",
            "--container-entrypoint-log",
        ];
        let gang = gang(&[("batch", batch(None, &pyxis))]);
        assert_eq!(refused_options(&gang.spec, &Wishes::default()), []);
        let words = of(&[("batch", batch(None, &pyxis))], &Wishes::default());
        assert!(words.ends_with(&pyxis.map(String::from)), "{words:?}");
    }

    #[test]
    fn a_priority_is_added_to_the_operators_nice() {
        let nice = |options: &[&str], priority: u32| {
            let options = options.iter().map(|option| option.to_string()).collect();
            let words = of(&[("priority", priority.into())], &Wishes { options, ..Wishes::default() });
            words.into_iter().rfind(|word| word.starts_with("--nice"))
        };
        assert_eq!(nice(&["--nice=1000"], 400).unwrap(), "--nice=1100");
        assert_eq!(nice(&["--nice=1000"], 500).unwrap(), "--nice=1000");
        assert_eq!(nice(&["--nice=5", "--nice"], 490).unwrap(), "--nice=110");
        assert_eq!(nice(&["--nice=-20"], 490).unwrap(), "--nice=-10");
        assert_eq!(nice(&[], 500), None);
    }

    #[test]
    fn an_allocation_is_no_longer_than_its_partition_allows() {
        let time = |timeout: &str, minutes: Option<u64>| {
            let max_time = minutes.map(|minutes| Duration::from_secs(60 * minutes));
            let gang = gang(&[("timeout", timeout.into())]);
            let words = options(&gang, &Wishes::default(), &place(&attempt()), max_time);
            words.into_iter().find(|word| word.starts_with("--time=")).unwrap()
        };
        assert_eq!(time("3m59s", None), "--time=6");
        assert_eq!(time("3m59s", Some(5)), "--time=5");
        assert_eq!(time("5m", Some(5)), "--time=5");
        assert_eq!(time("4m1s", Some(5)), "--time=5");
        assert_eq!(time("2m", Some(5)), "--time=4", "its own limit, the grace and the margin");
        assert_eq!(time("5m1s", Some(5)), "--time=7", "Slurm says that this is too much");
    }

    #[test]
    fn a_gang_without_a_partition_goes_to_the_default_one() {
        let gang = Gang { place: String::new(), ..gang(&[]) };
        let words = options(&gang, &Wishes::default(), &place(&attempt()), None);
        assert!(!words.iter().any(|word| word.starts_with("--partition")), "{words:?}");
    }

    #[test]
    fn what_the_operator_wants_comes_last_so_that_it_wins() {
        let wishes = Wishes {
            account: Some("lab".into()),
            qos: Some("high".into()),
            constraint: Some("nvlink&ib".into()),
            exclude: Some("n[1-3]".into()),
            options: vec!["--licenses=a".into(), "--mem=0".into()],
        };
        let words = of(&[], &wishes);
        let last = ["--account=lab", "--qos=high", "--constraint=nvlink&ib", "--exclude=n[1-3]"];
        assert_eq!(words[words.len() - 6..words.len() - 2], last);
        assert_eq!(words[words.len() - 2..], ["--licenses=a", "--mem=0"]);
    }

    #[test]
    fn a_script_says_nothing_that_the_operator_or_muster_has_said() {
        let wishes = Wishes {
            account: Some("lab".into()),
            qos: Some("normal".into()),
            options: vec!["--licenses=a".into()],
            ..Wishes::default()
        };
        let refused = |account, options: &[&str]| -> Vec<String> {
            let errors = refused_options(&gang(&[("batch", batch(account, options))]).spec, &wishes);
            errors.into_iter().map(|error| format!("{} {}", error.field, error.message)).collect()
        };
        for (account, option) in [
            (None, "--qos=high"),
            (None, "--licenses=b"),
            (None, "--account=rich"),
            (Some("rich"), "--reboot"),
        ] {
            let errors = refused(account, &[option]);
            assert_eq!(errors.len(), 1, "{errors:?}");
            let expected = account.map_or("batch.options[0] ", |_| "batch.account ");
            assert!(errors[0].starts_with(expected) && errors[0].contains("operator"), "{errors:?}");
        }
        // Abbreviations, options without their value, and what muster says itself.
        for option in [
            "--qo=high",
            "--acc=rich",
            "--qos",
            "--reservation",
            "--comment=muster:0a:job_0123456789.2",
            "--uid=0",
        ] {
            assert_eq!(refused(None, &[option]).len(), 1, "{option}");
        }
        for option in ["--array=1-3", "--wrap=id", "--chdir=/", "--export=NONE", "--requeue", "--nodes=9"] {
            assert!(refused(None, &[option])[0].contains(option_name(option)), "{option}");
        }
        assert!(
            refused(Some("lab"), &["--qos=normal", "--reservation=x", "--nice", "--constraint=ib"])
                .is_empty()
        );
        // Whatever comes that far, the operator has the last word.
        let words = of(&[("batch", batch(Some("rich"), &["--qos=high"]))], &wishes);
        let at = |word: &str| words.iter().position(|it| it == word).unwrap();
        assert!(
            at("--account=rich") < at("--account=lab") && at("--qos=high") < at("--qos=normal"),
            "{words:?}"
        );
    }

    #[test]
    fn one_node_needs_no_step_and_several_have_one_agent_each() {
        let attempt = attempt();
        let one = script(&gang(&[]).spec, &place(&attempt));
        let expected = "#!/bin/sh\n# job_0123456789.2\nexec '/home/ada/.muster/bin/m' agent --gang '/home/ada/.muster/s/a'\n";
        assert_eq!(one, expected);
        let spec = gang(&[("nodes", 3.into()), ("resources", serde_json::json!({ "cpus": 2 }))]).spec;
        let several = script(&spec, &Place { dir: "/it's", ..place(&attempt) });
        assert!(several.contains("exec srun --nodes=3 --ntasks=3 --ntasks-per-node=1 --cpus-per-task=2 "));
        assert!(several.ends_with(
            r"agent --gang '/it'\''s'
"
        ));
    }
}
