//! Headers, and the fields they become.

use serde_json::{Value, json};

use super::*;

fn around(nodes: Option<u32>) -> Around<'static> {
    Around { nodes, on_slurm: false, variable: &|name| (name == "HERE").then(|| "yes".to_owned()) }
}

fn script(header: &str) -> String {
    let lines: String = header.split('|').map(|line| format!("#SBATCH {}\n", line.trim())).collect();
    format!("#!/bin/bash\n{lines}srun hostname\n")
}

/// The fields without the script, and the notes.
fn fields(header: &str, nodes: Option<u32>) -> (Value, Vec<String>) {
    let Script { mut fields, notes } = read(&script(header), &around(nodes)).unwrap();
    let batch = fields.get_mut("batch").and_then(Value::as_object_mut).unwrap();
    assert_eq!(batch.remove("script"), Some(json!(script(header))));
    if batch.is_empty() {
        fields.remove("batch");
    }
    (Value::Object(fields), notes)
}

#[test]
fn every_header_becomes_the_fields_of_a_job() {
    for (header, expected) in [
        ("-N 2", json!({"nodes": 2})),
        ("--ntasks=4", json!({"nodes": 1, "batch": {"ntasks": 4}})),
        (
            "--nodes=2|--ntasks-per-node=4|-c 8",
            json!({"nodes": 2, "resources": {"cpus": 32}, "batch": {"ntasks_per_node": 4, "cpus_per_task": 8}}),
        ),
        ("-n 10 --ntasks-per-node 4", json!({"nodes": 3, "batch": {"ntasks": 10, "ntasks_per_node": 4}})),
        ("-N2 -n3", json!({"nodes": 2, "batch": {"ntasks": 3}})),
        ("--gres=gpu:a100:4", json!({"nodes": 1, "resources": {"gpus": "a100:4"}})),
        ("-N 2|-G 8", json!({"nodes": 2, "resources": {"gpus": "4"}})),
        ("--gpus-per-node=8", json!({"nodes": 1, "resources": {"gpus": "8"}})),
        (
            "--ntasks-per-node=4 --gpus-per-task=2",
            json!({"nodes": 1, "resources": {"gpus": "8"}, "batch": {"ntasks_per_node": 4, "gpus_per_task": 2}}),
        ),
        (
            "--gpus-per-node=4 --ntasks-per-gpu=1 --cpus-per-gpu=8",
            json!({"nodes": 1, "resources": {"cpus": 32, "gpus": "4"}, "batch": {"ntasks_per_node": 4}}),
        ),
        ("--mem=16G", json!({"nodes": 1, "resources": {"memory": 16_u64 << 30}})),
        ("--mem=0", json!({"nodes": 1})),
        (
            "-c 4 --mem-per-cpu=2G",
            json!({"nodes": 1, "resources": {"cpus": 4, "memory": 8_u64 << 30}, "batch": {"cpus_per_task": 4}}),
        ),
        (
            "--gres=gpu:2 --mem-per-gpu=4000",
            json!({"nodes": 1, "resources": {"gpus": "2", "memory": 8000_u64 << 20}}),
        ),
        ("-t 1-12:30", json!({"nodes": 1, "timeout": "131400s"})),
        ("--time=UNLIMITED", json!({"nodes": 1})),
        ("--exclusive", json!({"nodes": 1, "exclusive": true})),
        ("--chdir=/data/run", json!({"nodes": 1, "workdir": "/data/run"})),
        ("--export=ALL,A=1", json!({"nodes": 1, "env": {"A": "1"}})),
        ("--export=NONE", json!({"nodes": 1, "clean_env": true})),
        ("--export=HERE,B=x", json!({"nodes": 1, "clean_env": true, "env": {"HERE": "yes", "B": "x"}})),
        (
            "-J 'my job'|-o logs/%x-%j.out|-e logs/%j.err --open-mode=append --signal=B:USR1@90",
            json!({"nodes": 1, "batch": {"job_name": "my job", "output": "logs/%x-%j.out", "error": "logs/%j.err",
                "append": true, "signal": "B:USR1@90"}}),
        ),
        ("-N 2 # two|-N 3", json!({"nodes": 3})),
        ("-d afterok:prep:data", json!({"nodes": 1, "after": ["prep:ok", "data:ok"]})),
        ("--hold", json!({"nodes": 1, "hold": true})),
    ] {
        let (found, notes) = fields(header, None);
        assert_eq!((found, notes), (expected, vec![]), "{header}");
    }
}

#[test]
fn what_has_no_effect_here_is_said_once() {
    for (header, note) in [
        ("--mail-type=END|--mail-user=a@b.c", "without effect here: --mail-type, --mail-user"),
        (
            "-p gpu -A lab --qos=high -x n3",
            "for Slurm alone (`--on slurm/PARTITION`): --qos=high, --exclude=n3, --partition=gpu, --account=lab",
        ),
        ("--nodes=2-4", "--nodes=2-4: it gets 2; `--nodes 4` asks for more"),
        ("-N 4 -n 2", "--ntasks=2 cannot run on 4 nodes: it gets 2, as from sbatch"),
        ("--export=ALL,NOT_THERE", "--export: NOT_THERE is not set here"),
        ("--dependency=afterok:12", "for Slurm alone (`--on slurm/PARTITION`): --dependency=afterok:12"),
        (
            "--container-image=a.sqsh|--no-container-mount-home",
            "for Slurm alone (`--on slurm/PARTITION`): --container-image=a.sqsh, --no-container-mount-home",
        ),
        ("--gres=gpu:1,nvme:2", "for Slurm alone (`--on slurm/PARTITION`): --gres=nvme:2"),
    ] {
        assert_eq!(fields(header, None).1, [note], "{header}");
    }
    let slurm = Around { on_slurm: true, ..around(None) };
    let Script { fields, notes } = read(&script("-p gpu --qos=high -n 4"), &slurm).unwrap();
    assert_eq!((notes.len(), &fields["batch"]["options"]), (0, &json!(["--qos=high"])));
    assert_eq!(fields["resources"], json!({"cpus": 4}));
}

#[test]
fn options_of_pyxis_go_to_slurm_as_they_are_written() {
    let header = "--container-image=nvcr.io#nvidia/pytorch:24.05-py3|--container-mounts /data:/data,$HOME/x:/x:ro|\
                  --no-container-mount-home --container-entrypoint-log";
    let slurm = Around { on_slurm: true, ..around(None) };
    let Script { fields, notes } = read(&script(header), &slurm).unwrap();
    let expected = json!([
        "--container-image=nvcr.io#nvidia/pytorch:24.05-py3",
        "--container-mounts=/data:/data,$HOME/x:/x:ro",
        "--no-container-mount-home",
        "--container-entrypoint-log"
    ]);
    assert_eq!((&fields["batch"]["options"], notes.len()), (&expected, 0));
}

#[test]
fn the_nodes_of_the_command_line_win() {
    let (found, notes) = fields("--nodes=2-4|--ntasks-per-node=2|-G 8", Some(4));
    let expected = json!({"nodes": 4, "resources": {"gpus": "2"}, "batch": {"ntasks_per_node": 2}});
    assert_eq!((found, notes.len()), (expected, 0));
}

#[test]
fn what_cannot_be_is_refused_with_its_line() {
    for (header, expected) in [
        (
            "--array=9-0",
            "2 --array `9-0` ends before it begins; write indices such as 1-1000, 0-20:5 or 1,4,7-9, and %16 after them for how many may run at once",
        ),
        ("-N 2|-b now+1hour", "3 -b comes later"),
        (
            "-N 2|-d prep",
            "3 -d `prep` is not a dependency; write afterok:JOB, afterany:JOB or afternotok:JOB",
        ),
        ("--ntask-per-node=2", "2 --ntask-per-node there is no such option; did you mean --ntasks-per-node?"),
        (
            "--time=1h",
            "2 --time `1h` is not a time; write MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]]",
        ),
        ("-N two", "2 -N `two` is not a number of nodes; write 2 or 2-4"),
        ("hostname", "2 `hostname` is not an option; options begin with -"),
        ("--job-name='x", "2  a quote is opened and not closed"),
        ("hetjob", "2 hetjob jobs of several parts cannot be run; submit each part as a job of its own"),
        ("--wrap=x", "2 --wrap a script has its commands in it; `muster run -- COMMAND` runs one without"),
    ] {
        let problems = read(&script(header), &around(None)).unwrap_err();
        let shown = |one: &Problem| format!("{} {} {}", one.line, one.option, one.message);
        assert_eq!(problems.iter().map(shown).collect::<Vec<_>>(), [expected], "{header}");
    }
    assert_eq!(read(&script("-N x|--array=x|-t y"), &around(None)).unwrap_err().len(), 3);
    assert_eq!(read("#SBATCH -N 2\n", &around(None)).unwrap_err()[0].line, 1);
}

#[test]
fn scripts_are_told_from_other_files() {
    assert!(is_script("#!/bin/bash\n#SBATCH -N 2\n"));
    assert!(
        !is_script("#!/bin/bash\necho\n")
            && !is_script("# a comment\nnodes: 2\n")
            && !is_script("#SBATCH -N 2\n")
    );
}

#[test]
fn the_fields_are_those_of_a_job() {
    let header = "-N 2 --ntasks-per-node=4 -c 2 --gres=gpu:h100:4 --mem=64G -t 2:00:00 -J bert -o %x.out -p gpu --signal=USR1@60";
    let mut fields = read(&script(header), &around(None)).unwrap().fields;
    fields.insert("command".into(), json!(["train.sbatch"]));
    let mut spec = muster_model::JobSpec::from_value(Value::Object(fields)).unwrap();
    crate::settle(&mut spec);
    assert_eq!(spec.default_name(), "bert");
    assert_eq!(spec.batch.as_ref().map(|batch| batch.tasks(spec.nodes)), Some(8));
    assert_eq!(spec.command_on, Some(muster_model::CommandOn::First));
    assert_eq!(spec.faces, Some(vec![muster_model::Face::Slurm]));
}
