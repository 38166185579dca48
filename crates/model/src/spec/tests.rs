//! Reading specs as people write them, and telling people everything that is wrong with one.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::node::Vendor;

fn read(value: Value) -> JobSpec {
    JobSpec::from_value(value).unwrap()
}

/// The problems of a spec, as `field: message`.
fn problems(value: Value) -> Vec<String> {
    let errors = JobSpec::from_value(value).unwrap_err();
    errors.into_iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
}

/// The one problem of a spec that is right but for these fields.
fn problem(fields: Value) -> String {
    let mut spec = json!({"command": "true"});
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let mut problems = problems(spec);
    assert_eq!(problems.len(), 1, "{problems:?}");
    problems.remove(0)
}

/// Every field, none of them at its default.
fn full() -> (Value, JobSpec) {
    let value = json!({
        "name": "bert-large", "display_name": "训练 2", "kind": "training", "nodes": 4,
        "resources": {"cpus": 7.5, "memory": "16GB", "gpus": "H100:8", "shm": "2Gi"},
        "image": "pytorch:2.4", "workdir": "/home/ada/bert", "env": {"LR": "0.1", "DEBUG": "1"},
        "setup": "pip install -e .", "setup_once": "make", "command": ["python", "train.py", "--name", "a b"], "framework": "pytorch",
        "faces": "dlws", "processes": 4, "command_on": "first", "peers": true,
        "priority": 700, "preemptible": true, "after": "prep:any", "hold": true, "retries": {"max": 3, "on": ["node_lost", "hung"], "backoff": "30s"},
        "timeout": "1d12h", "grace": "1500ms", "stop_signal": "sigusr1", "on_failure": "continue", "outputs": ["*.pt", "logs/**"],
        "endpoints": [{"name": "board", "port": 6006}], "volumes": [{"name": "data", "path": "/data", "read_only": true}],
        "workspace": "nlp", "on": "local", "in_place": true, "clean_env": true,
        "secrets": ["HF_TOKEN"],
        "batch": {"script": "#!/bin/sh\n", "ntasks": "8", "output": "%j.out", "options": ["--qos=high"]},
        "k8s": {"user": 1000, "node_selector": {"zone": "a"}},
        "node_labels": {"rack": "r1"}, "exclude": "h3",
    });
    let gpus = DeviceRequest { vendor: None, model: Some("H100".into()), count: 8 };
    let spec = JobSpec {
        name: Some("bert-large".into()),
        display_name: Some("训练 2".into()),
        kind: Kind::Training,
        nodes: 4,
        array: None,
        resources: Resources {
            cpus: Some(7.5),
            memory: Some(16 << 30),
            gpus: Some(gpus),
            shm: Some(2 << 30),
        },
        image: Some("pytorch:2.4".into()),
        workdir: Some("/home/ada/bert".into()),
        env: [("LR".into(), "0.1".into()), ("DEBUG".into(), "1".into())].into(),
        secrets: vec![Secret { name: "HF_TOKEN".into(), env: Some("HF_TOKEN".into()), file: None }],
        setup: Some("pip install -e .".into()),
        setup_once: Some("make".into()),
        command: Command::Argv(["python", "train.py", "--name", "a b"].map(String::from).into()),
        framework: Some(Framework::Pytorch),
        faces: Some(vec![Face::Dlws]),
        processes: Some(4),
        command_on: Some(CommandOn::First),
        peers: Some(true),
        priority: 700,
        preemptible: true,
        after: vec![After { job: "prep".into(), on: On::Any }],
        hold: true,
        retries: Retries {
            max: 3,
            on: vec!["node_lost".into(), "hung".into()],
            backoff: Some(Duration::from_secs(30)),
        },
        timeout: Some(Duration::from_secs(129_600)),
        grace: Duration::from_millis(1500),
        stop_signal: "USR1".parse().unwrap(),
        on_failure: OnFailure::Continue,
        outputs: vec!["*.pt".into(), "logs/**".into()],
        endpoints: vec![Endpoint { name: "board".into(), port: 6006 }],
        volumes: vec![Volume { name: "data".into(), path: "/data".into(), read_only: true }],
        batch: Some(Batch {
            script: "#!/bin/sh\n".into(),
            ntasks: Some(8),
            output: Some("%j.out".into()),
            options: vec!["--qos=high".into()],
            ..Batch::default()
        }),
        k8s: Some(Kubernetes {
            user: Some(1000),
            node_selector: [("zone".into(), "a".into())].into(),
            ..Kubernetes::default()
        }),
        workspace: Some("nlp".into()),
        on: Target::Local,
        in_place: true,
        clean_env: true,
        exclusive: false,
        own_home: false,
        without_volumes: false,
        node_labels: [("rack".into(), "r1".into())].into(),
        exclude: vec!["h3".into()],
        labels: BTreeMap::new(),
    };
    (value, spec)
}

#[test]
fn every_field_is_read() {
    let (value, spec) = full();
    assert_eq!(read(value), spec);
}

#[test]
fn what_is_left_out_or_null_has_its_default() {
    let spec =
        read(json!({"command": "true", "name": null, "resources": null, "env": null, "retries": null}));
    assert_eq!((spec.nodes, spec.priority, spec.grace), (1, DEFAULT_PRIORITY, DEFAULT_GRACE));
    assert_eq!(
        (spec.resources, spec.retries, spec.on),
        (Resources::default(), Retries::default(), Target::Local)
    );
    assert_eq!((spec.name, spec.timeout, spec.on_failure), (None, None, OnFailure::Stop));
}

#[test]
fn values_are_read_as_yaml_and_flags_give_them() {
    let spec = read(json!({
        "command": "echo hi | cat", "nodes": "2", "image": 2.4, "env": {"N": 3, "ON": true, "EMPTY": null},
        "resources": {"cpus": "0.5", "memory": 1024, "gpus": 8}, "retries": 2, "timeout": 90, "preemptible": "true",
        "outputs": "*.pt",
    }));
    assert_eq!(spec.command.argv(), ["/bin/sh", "-c", "echo hi | cat"]);
    assert_eq!((spec.nodes, spec.image.as_deref(), spec.preemptible), (2, Some("2.4"), true));
    let env: Vec<(&str, &str)> =
        spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(env, [("EMPTY", ""), ("N", "3"), ("ON", "true")]);
    assert_eq!((spec.resources.cpu_millis(), spec.resources.memory), (500, Some(1024)));
    assert_eq!(spec.resources.device_count(), 8);
    assert_eq!((spec.retries.max, spec.timeout), (2, Some(Duration::from_secs(90))));
    assert_eq!(spec.outputs, ["*.pt"]);
}

#[test]
fn a_target_is_an_engine_and_a_part_of_it() {
    for (text, target, engine) in [
        ("local", Target::Local, "local"),
        ("ssh/lab", Target::Ssh("lab".into()), "ssh"),
        ("slurm", Target::Slurm(String::new()), "slurm"),
        ("slurm/gpu", Target::Slurm("gpu".into()), "slurm"),
        ("k8s", Target::Kubernetes(String::new()), "k8s"),
        ("k8s/prod", Target::Kubernetes("prod".into()), "k8s"),
        ("kubernetes/prod", Target::Kubernetes("prod".into()), "k8s"),
    ] {
        let on = read(json!({"command": "true", "on": text})).on;
        assert_eq!((on.engine(), on), (engine, target));
    }
    for bad in ["", "ssh", "ssh/", "moon/base"] {
        assert!(
            problem(json!({"on": bad})).starts_with(&format!("on: `{bad}` is not a place to run")),
            "{bad}"
        );
    }
}

#[test]
fn every_problem_is_reported_at_once() {
    let problems = problems(json!({
        "nodes": 0, "comand": "true", "resources": {"memory": "lots", "gpu": 1}, "env": {"A=B": "1"},
        "timeout": "soon", "endpoints": [{"name": "x", "port": 0}, {"port": 80}, 5], "volumes": "data",
        "retries": {"max": -1, "on": ["bad_luck"]}, "priority": 2000, "on": "ssh/gpu", "in_place": true,
    }));
    let fields: Vec<&str> = problems.iter().map(|problem| problem.split(": ").next().unwrap()).collect();
    assert_eq!(
        fields,
        [
            "nodes",
            "resources.memory",
            "resources.gpu",
            "env",
            "priority",
            "retries.max",
            "retries.on",
            "timeout",
            "endpoints[0].port",
            "endpoints[1]",
            "endpoints[2]",
            "volumes",
            "command",
            "in_place",
            "comand",
        ]
    );
}

#[test]
fn an_unknown_field_names_the_one_that_was_meant() {
    assert_eq!(problem(json!({"comand": 1})), "comand: there is no field `comand`; did you mean `command`?");
    assert_eq!(
        problem(json!({"resources": {"gpu": 1}})),
        "resources.gpu: there is no field `gpu`; did you mean `gpus`?"
    );
    assert_eq!(
        problem(json!({"retries": {"backof": 1}})),
        "retries.backof: there is no field `backof`; did you mean `backoff`?"
    );
    assert_eq!(problem(json!({"zeppelin": 1})), "zeppelin: there is no field `zeppelin`");
}

#[test]
fn a_wrong_type_is_named() {
    for (fields, expected) in [
        (json!({"name": ["a"]}), "name: must be a text, not a list"),
        (json!({"kind": "party"}), "kind: must be training or machine, not `party`"),
        (json!({"nodes": 1.5}), "nodes: must be a whole number from 1 to 100000, not `1.5`"),
        (json!({"nodes": {}}), "nodes: must be a whole number from 1 to 100000, not a map"),
        (json!({"resources": 8}), "resources: must be a map of fields, not a number"),
        (
            json!({"resources": {"cpus": true}}),
            "resources.cpus: must be a number of CPUs from 0.001 to 100000, such as 4 or 0.5, not `true`",
        ),
        (json!({"env": ["A=1"]}), "env: must be a map of names to values, not a list"),
        (json!({"env": {"A": []}}), "env: A: must be a text, not a list"),
        (json!({"preemptible": "maybe"}), "preemptible: must be true or false, not `maybe`"),
        (
            json!({"retries": "often"}),
            "retries: must be a whole number from 0 to 1000, not `often` (or a map with max, on, backoff)",
        ),
        (json!({"timeout": 0}), "timeout: must be more than nothing; leave it out for no limit of its own"),
        (json!({"on_failure": "panic"}), "on_failure: must be stop or continue, not `panic`"),
        (
            json!({"on_failure": "contnue"}),
            "on_failure: must be stop or continue, not `contnue`; did you mean `continue`?",
        ),
        (
            json!({"retries": {"on": ["node_list"]}}),
            "retries.on: `node_list` is not a reason; did you mean `node_lost`?",
        ),
        (json!({"outputs": {"a": 1}}), "outputs: must be a text, not a map"),
        (json!({"outputs": ["*.pt", "../x"]}), "outputs: `../x` leads out of the task's directory with `..`"),
        (json!({"endpoints": {}}), "endpoints: must be a list, not a map"),
        (json!({"setup": "a\0b"}), "setup: must not contain a NUL character"),
        (
            json!({"in_place": true, "on": "ssh/lab"}),
            "in_place: works only where the code is, on local; this job runs on ssh/lab",
        ),
        (
            json!({"own_home": true}),
            "own_home: only machines on local have a home directory of their own; hosts have one for each account",
        ),
    ] {
        assert_eq!(problem(fields), expected);
    }
    assert_eq!(
        problems(json!(["python"])),
        [
            ": must be a map of fields, not a list",
            "command: is missing: what should run? for example `python train.py`",
        ]
    );
}

#[test]
fn gangs_have_one_to_a_hundred_thousand_tasks() {
    for nodes in [json!(0), json!(-1), json!(1_000_000), json!("many"), json!(1e30)] {
        assert!(
            problem(json!({"nodes": nodes})).starts_with("nodes: must be a whole number from 1 to 100000")
        );
    }
    assert_eq!(read(json!({"command": "true", "nodes": MAX_NODES})).nodes, MAX_NODES);
}

#[test]
fn a_command_must_name_a_program() {
    for bad in
        [json!([]), json!([""]), json!(["", "x"]), json!(""), json!("  \n"), json!({"run": "x"}), json!(true)]
    {
        let problems = problems(json!({"command": bad}));
        assert!(problems.len() == 1 && problems[0].starts_with("command: must"), "{problems:?}");
    }
    assert!(problems(json!({}))[0].starts_with("command: is missing"));
}

#[test]
fn names_of_variables_have_no_equals_sign() {
    for bad in ["A=B", "=", "", "A\0"] {
        let problem = problem(json!({"env": {bad: "1"}}));
        assert!(
            problem.contains("cannot be the name of a variable: a name is not empty and has no `=`"),
            "{bad:?}"
        );
    }
}

#[test]
fn names_cannot_be_taken_for_selectors_or_break_host_names() {
    let long = "x".repeat(64);
    for bad in ["last", "job_1", "", "-x", ".x", "a b", "a/b", "task 1", long.as_str()] {
        assert!(problem(json!({"name": bad})).starts_with("name: "), "{bad}");
    }
    assert_eq!(read(json!({"command": "true", "name": "a.b-c_1"})).name.as_deref(), Some("a.b-c_1"));
}

#[test]
fn an_unnamed_job_is_called_after_its_script() {
    for (command, name) in [
        (json!(["python", "src/Train_2.py", "--x"]), "train_2"),
        (json!("bash run.sh && echo done"), "run"),
        (json!(["/usr/bin/nvidia-smi"]), "nvidia-smi"),
        (json!(["./---"]), "job"),
    ] {
        assert_eq!(read(json!({"command": command})).default_name(), name);
    }
}

#[test]
fn a_command_is_shown_as_one_would_type_it() {
    let spec = read(json!({"command": ["python", "a b.py", "--x=1", "it's", ""]}));
    assert_eq!(spec.command.to_string(), r"python 'a b.py' --x=1 'it'\''s' ''");
}

#[test]
fn a_full_spec_reads_back_what_it_writes() {
    let (_, spec) = full();
    let value = serde_json::to_value(&spec).unwrap();
    assert_eq!(serde_json::from_value::<JobSpec>(value.clone()).unwrap(), spec);
    assert_eq!(read(value), spec);
}

fn word() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}"
        .prop_filter("would be taken for a selector", |word| !word.starts_with("job_") && word != "last")
}

/// Any text a user may type, without NUL.
fn text() -> impl Strategy<Value = String> {
    any::<String>().prop_map(|text| text.replace('\0', ""))
}

/// Durations as people write them, also finer than can be kept.
fn span() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (1u64..1_000_000).prop_map(|seconds| format!("{seconds}")),
        (1u64..3_000_000_000_000).prop_map(|millis| format!("{millis}ms")),
        (0.000_01f64..8e5).prop_map(|hours| format!("{hours}h")),
    ]
    .prop_map(|text| crate::quantity::parse_duration(&text).unwrap())
}

fn device_request() -> impl Strategy<Value = DeviceRequest> {
    let kind = prop_oneof![
        Just((None, None)),
        Just((Some(Vendor::Ascend), None)),
        Just((Some(Vendor::Nvidia), None)),
        "[A-Z][A-Z0-9.-]{1,8}[0-9]".prop_map(|model| (None, Some(model))),
    ];
    (kind, 1u32..100).prop_map(|((vendor, model), count)| DeviceRequest { vendor, model, count })
}

fn resources() -> impl Strategy<Value = Resources> {
    let bytes = || prop::option::of(1u64..1 << 50);
    (prop::option::of(0.001f64..100_000.0), bytes(), prop::option::of(device_request()), bytes())
        .prop_map(|(cpus, memory, gpus, shm)| Resources { cpus, memory, gpus, shm })
}

fn retries() -> impl Strategy<Value = Retries> {
    let codes: Vec<String> = Reason::examples().iter().map(|reason| reason.code().to_owned()).collect();
    let on = prop::sample::subsequence(codes, 0..4);
    (0u32..=1000, on, prop::option::of(span())).prop_map(|(max, on, backoff)| Retries { max, on, backoff })
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (word(), prop::collection::vec(text(), 0..4))
            .prop_map(|(program, arguments)| { Command::Argv([vec![program], arguments].concat()) }),
        (word(), text()).prop_map(|(word, rest)| Command::Shell(word + &rest)),
    ]
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![
        Just(Target::Local),
        word().prop_map(Target::Ssh),
        word().prop_map(Target::Slurm),
        word().prop_map(Target::Kubernetes),
    ]
}

fn spec() -> impl Strategy<Value = JobSpec> {
    let what = (prop::option::of(word()), 1..=MAX_NODES, resources(), command(), retries(), target());
    let texts = (prop::option::of(text()), prop::option::of(text()), prop::collection::vec(word(), 0..3));
    let env = prop::collection::btree_map("[A-Za-z_ é.-]{1,8}", text(), 0..4);
    let endpoints = prop::collection::vec((word(), 1u16..), 0..3);
    let volumes = prop::collection::vec((word(), "/[a-z0-9./ é-]{0,12}", any::<bool>()), 0..3);
    let labels = prop::collection::btree_map("[a-z0-9._/-]{1,8}", "[^\\x00]{0,20}", 0..3);
    let rest = (0..=MAX_PRIORITY, prop::option::of(span()), span(), any::<[bool; 5]>());
    (what, texts, env, endpoints, volumes, labels, rest).prop_map(
        |(what, texts, env, endpoints, volumes, labels, rest)| {
            let (name, nodes, resources, command, retries, on) = what;
            let (image, setup, outputs) = texts;
            let (priority, timeout, grace, [preemptible, keep_going, in_place, clean_env, exclusive]) = rest;
            JobSpec {
                secrets: clean_env
                    .then(|| Secret { name: "a-b".into(), env: None, file: Some("c.d".into()) })
                    .into_iter()
                    .collect(),
                workspace: name.clone(),
                display_name: preemptible.then(|| "训练任务".into()),
                workdir: image.clone(),
                setup_once: setup.clone(),
                framework: keep_going.then_some(Framework::Jax),
                faces: preemptible.then(|| vec![Face::Dlws, Face::Modelarts]),
                processes: clean_env.then_some(MAX_PROCESSES),
                command_on: in_place.then_some(CommandOn::First),
                peers: preemptible.then_some(keep_going),
                kind: Kind::Training,
                on_failure: if keep_going { OnFailure::Continue } else { OnFailure::Stop },
                endpoints: endpoints.into_iter().map(|(name, port)| Endpoint { name, port }).collect(),
                volumes: volumes
                    .into_iter()
                    .map(|(name, path, read_only)| Volume { name, path, read_only })
                    .collect(),
                in_place: in_place && on == Target::Local,
                k8s: keep_going.then(|| Kubernetes {
                    user: clean_env.then_some(1000),
                    queue: exclusive.then(|| "team-a".into()),
                    secrets: [("TOKEN".into(), "hub/token".into())].into(),
                    ..Kubernetes::default()
                }),
                batch: preemptible.then(|| Batch {
                    script: format!("#!{}", image.clone().unwrap_or_default()),
                    job_name: setup.clone(),
                    ntasks_per_node: clean_env.then_some(nodes),
                    append: keep_going,
                    signal: exclusive.then(|| "B:USR1@60".into()),
                    options: outputs.iter().map(|word: &String| format!("--{word}")).collect(),
                    ..Batch::default()
                }),
                name,
                nodes,
                array: None,
                resources,
                image,
                env,
                setup,
                command,
                priority,
                preemptible,
                after: exclusive.then(|| After { job: "job_1".into(), on: On::Failed }).into_iter().collect(),
                node_labels: labels.clone(),
                exclude: if exclusive { vec!["node_gpu.h1".into()] } else { Vec::new() },
                hold: keep_going,
                retries,
                timeout,
                grace,
                stop_signal: if clean_env { "USR2".parse().unwrap() } else { Signal::TERM },
                outputs,
                on,
                clean_env,
                exclusive,
                own_home: false,
                without_volumes: keep_going,
                labels,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_spec_reads_back_what_it_writes(spec in spec()) {
        let value = serde_json::to_value(&spec).unwrap();
        prop_assert_eq!(&serde_json::from_value::<JobSpec>(value.clone()).unwrap(), &spec);
        prop_assert_eq!(read(value), spec);
    }
}

#[test]
fn a_problem_has_the_code_of_its_kind() {
    for (fields, code) in [
        (json!({"nodez": 2}), FieldCode::UnknownField),
        (json!({"nodes": 0}), FieldCode::OutOfRange),
        (json!({"nodes": "-1"}), FieldCode::OutOfRange),
        (json!({"nodes": [2]}), FieldCode::WrongType),
        (json!({"nodes": "two"}), FieldCode::WrongType),
        (json!({"resources": {"cpus": 1e9}}), FieldCode::OutOfRange),
        (json!({"resources": {"gpus": "x:y"}}), FieldCode::InvalidValue),
        (json!({"resources": {"memory": "0"}}), FieldCode::OutOfRange),
        (json!({"timeout": "-5s"}), FieldCode::InvalidValue),
        (json!({"env": {"A": []}}), FieldCode::WrongType),
        (json!({"env": {"A=B": 1}}), FieldCode::InvalidValue),
        (json!({"command": ""}), FieldCode::Required),
        (json!({"endpoints": [{"name": "x"}]}), FieldCode::Required),
        (json!({"in_place": true, "on": "ssh/lab"}), FieldCode::NotSupported),
    ] {
        let mut all = json!({"command": "true"});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let errors = JobSpec::from_value(all).unwrap_err();
        assert_eq!(errors.iter().map(|error| error.code).collect::<Vec<_>>(), [code], "{fields}");
    }
}

#[test]
fn of_very_many_mistakes_the_first_are_named() {
    let mut fields: serde_json::Map<String, Value> = (0..5000).map(|i| (format!("f{i}"), json!(1))).collect();
    fields.insert("command".into(), json!("true"));
    fields.insert("endpoints".into(), json!(vec![json!({"colour": 1}); 5000]));
    let errors = JobSpec::from_value(Value::Object(fields)).unwrap_err();
    assert!(errors.len() < 50, "{}", errors.len());
    assert!(errors.iter().any(|error| error.message == "there are 4980 more fields that do not exist"));
}

#[test]
fn no_time_is_longer_than_a_hundred_years() {
    for field in ["timeout", "grace"] {
        assert!(problem(json!({field: 1e16})).starts_with(&format!("{field}: must be at most 36500d")));
    }
    assert_eq!(
        read(json!({"command": "x", "timeout": "36500d"})).timeout.unwrap().as_secs(),
        36_500 * 86_400
    );
}

#[test]
fn a_machine_has_a_name_and_no_command() {
    let spec = read(
        json!({"kind": "machine", "name": "v100", "nodes": 2, "labels": {"image_name": "u18", "spot": true}}),
    );
    assert_eq!((spec.kind, spec.nodes, spec.exclusive), (Kind::Machine, 2, false));
    assert!(spec.command.is_nothing());
    assert_eq!(spec.labels["spot"], "true");
    let value = serde_json::to_value(&spec).unwrap();
    assert_eq!(value.get("command"), None);
    // What was stored can be submitted again.
    assert_eq!(read(value), spec);
    let errors =
        JobSpec::from_value(json!({"kind": "machine", "command": "true", "outputs": ["x"]})).unwrap_err();
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["command", "outputs", "name"]);
}

#[test]
fn a_machine_of_a_pool_is_a_whole_host_unless_said_otherwise() {
    let machine = |more: Value| {
        let mut all = json!({"kind": "machine", "name": "m", "on": "ssh/gpu"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read(all).exclusive
    };
    assert!(machine(json!({})));
    assert!(!machine(json!({"exclusive": false})));
    assert!(!machine(json!({"on": "local"})));
    assert!(!read(json!({"command": "x", "on": "ssh/gpu"})).exclusive);
    assert!(read(json!({"command": "x", "exclusive": true})).exclusive);
}

#[test]
fn labels_are_few_and_short() {
    let long = "x".repeat(257);
    for wrong in [json!([1]), json!({"a b": "c"}), json!({"": "c"}), json!({"a": [1]}), json!({"a": long})] {
        let errors = JobSpec::from_value(json!({"command": "x", "labels": wrong})).unwrap_err();
        assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), ["labels"]);
    }
}

#[test]
fn a_name_of_another_script_is_the_display_name_and_the_command_makes_the_identifier() {
    let read = |more: Value| {
        let mut all = json!({"command": ["python", "train.py"]});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        JobSpec::from_value(all)
    };
    for (fields, name, shown) in [
        (json!({"name": "训练任务"}), None, Some("训练任务")),
        (json!({"name": "gro\u{308}ße"}), None, Some("größe")),
        (json!({"name": "bert", "display_name": "训练任务"}), Some("bert"), Some("训练任务")),
        (json!({"display_name": "My training, take 2"}), None, Some("My training, take 2")),
        (json!({"name": "bert"}), Some("bert"), None),
    ] {
        let spec = read(fields.clone()).unwrap();
        assert_eq!((spec.name.as_deref(), spec.display_name.as_deref()), (name, shown), "{fields}");
        assert_eq!(spec.default_name(), "train", "{fields}");
        // What was stored can be submitted again.
        assert_eq!(JobSpec::from_value(serde_json::to_value(&spec).unwrap()).unwrap(), spec);
    }
    for (fields, expected) in [
        (
            json!({"name": "训\u{202e}练"}),
            "name: must not contain a character that changes the direction of text",
        ),
        (json!({"display_name": "a\u{200b}"}), "display_name: must not contain an invisible character"),
        (json!({"display_name": "job_1"}), "display_name: `job_1` would be taken for a job id"),
        (json!({"display_name": "last"}), "display_name: `last` would be taken for a job id"),
        (json!({"display_name": ["x"]}), "display_name: must be a text, not a list"),
        // Which of the two would be meant?
        (json!({"name": "训练", "display_name": "任务"}), "name: must be 1 to 63 letters"),
        (json!({"name": "训练", "kind": "machine", "command": null}), "name: must be 1 to 63 letters"),
    ] {
        let errors = read(fields.clone()).unwrap_err();
        let said = errors.iter().map(|error| format!("{}: {}", error.field, error.message));
        assert!(
            said.clone().any(|one| one.starts_with(expected)),
            "{fields}: {:?}",
            said.collect::<Vec<_>>()
        );
    }
    let error = read(json!({"name": "my run"})).unwrap_err().remove(0);
    assert!(error.message.ends_with("not `my run`; `display_name` takes it"), "{}", error.message);
}

#[test]
fn what_a_batch_script_calls_its_job_in_another_script_is_the_display_name() {
    let called = |job_name: &str, more: Value| {
        let batch = json!({"script": "#!/bin/bash\n", "job_name": job_name});
        let mut all = json!({"command": ["train.sbatch"], "batch": batch});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let spec = read(all);
        (spec.name.clone().unwrap_or_else(|| spec.default_name()), spec.display_name)
    };
    assert_eq!(called("训练任务", json!({})), ("train".into(), Some("训练任务".into())));
    assert_eq!(called("训练-v2", json!({"name": "bert"})), ("bert".into(), Some("训练-v2".into())));
    assert_eq!(called("训练", json!({"display_name": "x"})), ("train".into(), Some("x".into())));
    assert_eq!(called("my job", json!({})), ("my-job".into(), None));
    // Slurm takes any text; what nobody should see is not shown.
    assert_eq!(called("训\u{202e}练", json!({})), ("job".into(), None));
}
