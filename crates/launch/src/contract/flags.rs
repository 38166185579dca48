//! The flags that a user gave a launcher, compared with the job: how many processes they mean, and what of them cannot be.
//!
//! Only numbers are compared. `$NNODES` in a line for the shell, and ranges, may well be right.

use muster_model::JobSpec;
use muster_model::spec::{FieldCode, FieldError};

use super::command::Launch;
use crate::detect::{Launcher, LauncherCall};

/// The flags of a launcher that have to fit the job, without their dashes.
struct Known {
    /// How many tasks there are.
    nodes: &'static [&'static str],
    /// Which of them this is.
    rank: &'static [&'static str],
    /// Processes of each task.
    locals: &'static [&'static str],
    /// Processes of all tasks.
    world: &'static [&'static str],
    /// That there is one task.
    alone: &'static [&'static str],
}

fn known(launcher: Launcher) -> Known {
    let none = Known { nodes: &[], rank: &[], locals: &[], world: &[], alone: &[] };
    match launcher {
        Launcher::Torchrun | Launcher::Tune => Known {
            nodes: &["nnodes"],
            rank: &["node_rank"],
            locals: &["nproc_per_node"],
            alone: &["standalone"],
            ..none
        },
        Launcher::Accelerate => {
            Known { nodes: &["num_machines"], rank: &["machine_rank"], world: &["num_processes"], ..none }
        }
        Launcher::Fabric => {
            Known { nodes: &["num_nodes"], rank: &["node_rank"], locals: &["devices"], ..none }
        }
        Launcher::Composer => {
            Known { rank: &["node_rank"], locals: &["nproc", "n"], world: &["world_size"], ..none }
        }
        Launcher::Deepspeed => {
            Known { nodes: &["num_nodes"], rank: &["node_rank"], locals: &["num_gpus"], ..none }
        }
        Launcher::Msrun => {
            Known { rank: &["node_rank"], locals: &["local_worker_num"], world: &["worker_num"], ..none }
        }
        Launcher::Paddle => {
            Known { nodes: &["nnodes"], rank: &["rank"], locals: &["nproc_per_node"], ..none }
        }
        // They say what is wrong themselves, and at once.
        Launcher::Horovodrun | Launcher::Mpirun => none,
    }
}

/// How many processes of each task a launcher starts.
pub fn started(spec: &JobSpec, call: &LauncherCall) -> u32 {
    let (known, launch) = (known(call.launcher), Launch::of_arguments(&call.arguments));
    let number = |flags: &[&str]| launch.value(flags)?.parse::<u32>().ok().filter(|number| *number > 0);
    if let Some(locals) = number(known.locals) {
        return locals;
    }
    if call.launcher == Launcher::Accelerate && spec.resources.device_count() == 0 {
        // Without devices it starts the program once on each machine, whatever the number.
        return 1;
    }
    match number(known.world) {
        Some(world) if world % spec.nodes == 0 => world / spec.nodes,
        _ => spec.processes_per_task(),
    }
}

/// What of a launcher's flags cannot be in this job.
pub fn check(spec: &JobSpec, call: &LauncherCall) -> Vec<FieldError> {
    let (known, launch) = (known(call.launcher), Launch::of_arguments(&call.arguments));
    let (tasks, devices) = (spec.nodes, spec.resources.device_count());
    let name = &call.name;
    let mut errors = Vec::new();
    let mut refuse =
        |message: String| errors.push(FieldError::new("command", FieldCode::InvalidValue, message));
    if tasks > 1 && launch.gives(known.alone) {
        let flag = known.alone[0];
        refuse(format!("`--{flag}` keeps {name} to one task, and the job has {tasks}; leave it out"));
    }
    let given = |flags: &'static [&'static str]| {
        let value = launch.value(flags)?;
        Some((flags[0], value.parse::<u32>().ok()?))
    };
    // The launcher of DeepSpeed may use fewer tasks than there are.
    let may_be_fewer = call.launcher == Launcher::Deepspeed;
    if let Some((flag, nodes)) = given(known.nodes)
        && (nodes > tasks || nodes < tasks && !may_be_fewer)
    {
        let has = count(tasks, "task");
        refuse(format!(
            "`--{flag} {nodes}` of {name}: the job has {has}; leave it out, or ask for -N {nodes}"
        ));
    }
    if let Some((flag, rank)) = given(known.rank)
        && (tasks > 1 || rank > 0)
    {
        refuse(format!(
            "`--{flag} {rank}` of {name}: every task would be number {rank}; leave it out, each task finds its own"
        ));
    }
    if let Some((flag, locals)) = given(known.locals)
        && devices > 0
        && locals > devices
    {
        refuse(format!(
            "`--{flag} {locals}` of {name}: a task has {}; leave it out, or ask for --gpus {locals}",
            count(devices, "device")
        ));
    }
    if let Some((flag, world)) = given(known.world)
        && devices > 0
        && world > tasks * devices
    {
        let all = count(tasks * devices, "device");
        refuse(format!(
            "`--{flag} {world}` of {name}: the job has {all} in all; leave it out, or ask for more"
        ));
    }
    errors
}

fn count(number: u32, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::spec;

    /// A job with so many tasks and devices in each.
    fn job(command: &str, nodes: u32, devices: u32) -> JobSpec {
        let words: Vec<&str> = command.split(' ').collect();
        let mut fields = json!({"command": words, "nodes": nodes});
        if devices > 0 {
            fields["resources"] = json!({"gpus": devices});
        }
        spec(fields)
    }

    fn problems(command: &str, nodes: u32, devices: u32) -> Vec<String> {
        crate::check(&job(command, nodes, devices)).into_iter().map(|error| error.message).collect()
    }

    #[test]
    fn flags_that_cannot_be_are_refused_with_the_remedy() {
        for (command, nodes, devices, expected) in [
            (
                "torchrun --standalone t.py",
                2,
                0,
                "`--standalone` keeps torchrun to one task, and the job has 2; leave it out",
            ),
            (
                "torchrun --nnodes=4 t.py",
                2,
                0,
                "`--nnodes 4` of torchrun: the job has 2 tasks; leave it out, or ask for -N 4",
            ),
            (
                "env A=1 torchrun --node-rank 0 t.py",
                2,
                0,
                "`--node_rank 0` of torchrun: every task would be number 0; leave it out, each task finds its own",
            ),
            (
                "python -m torch.distributed.run --nproc_per_node=8 t.py",
                1,
                2,
                "`--nproc_per_node 8` of python -m torch.distributed.run: a task has 2 devices; leave it out, or ask for \
                 --gpus 8",
            ),
            (
                "accelerate launch --num_processes 8 t.py",
                2,
                2,
                "`--num_processes 8` of accelerate launch: the job has 4 devices in all; leave it out, or ask for more",
            ),
            (
                "deepspeed --num_nodes 3 t.py",
                2,
                0,
                "`--num_nodes 3` of deepspeed: the job has 2 tasks; leave it out, or ask for -N 3",
            ),
        ] {
            assert_eq!(problems(command, nodes, devices), [expected], "{command}");
        }
        assert_eq!(problems("torchrun --nnodes 3 --node_rank 1 --standalone t.py", 2, 0).len(), 3);
    }

    #[test]
    fn flags_that_fit_or_are_not_known_yet_are_let_through() {
        for (command, nodes, devices) in [
            ("torchrun --standalone t.py", 1, 0),
            ("torchrun --nnodes=2 --nproc_per_node=8 t.py", 2, 8),
            ("torchrun --nnodes=1:4 --nproc_per_node=auto t.py", 2, 8),
            ("torchrun --nnodes $WORLD_SIZE --node_rank $RANK t.py", 2, 8),
            ("torchrun --nproc_per_node 8 t.py", 1, 0),
            ("torchrun t.py --nnodes 7 --node_rank 3", 2, 0),
            ("torchrun ./train --nnodes 7", 2, 0),
            ("torchrun -m pkg.train --nnodes 7", 2, 0),
            ("torchrun --nnodes 1 --node_rank 0 t.py", 1, 0),
            ("deepspeed --num_nodes 1 --num_gpus 1 t.py", 2, 8),
            ("python t.py --nnodes 7", 2, 0),
        ] {
            assert_eq!(problems(command, nodes, devices), [""; 0], "{command}");
        }
        let each =
            json!({"command": ["torchrun", "--standalone", "t.py"], "nodes": 2, "command_on": "processes"});
        assert_eq!(crate::check(&spec(each)), []);
    }

    #[test]
    fn processes_are_counted_as_the_launcher_is_told() {
        for (command, nodes, devices, expected) in [
            ("torchrun t.py", 2, 8, 8),
            ("torchrun --nproc_per_node 4 t.py", 2, 8, 4),
            ("cd . && torchrun --nproc-per-node=4 t.py", 2, 0, 4),
            ("msrun --local_worker_num=2 t.py", 1, 8, 2),
            ("accelerate launch t.py", 2, 8, 8),
            ("accelerate launch --num_processes 8 t.py", 2, 8, 4),
            ("accelerate launch --num_processes 8 t.py", 2, 0, 1),
            ("accelerate-launch t.py", 2, 0, 1),
            ("mpirun -n 3 ./a", 1, 8, 8),
            ("fabric run --devices 2 t.py", 2, 8, 2),
            ("composer -n 4 t.py", 2, 8, 4),
            ("tune run --nproc_per_node 2 full_finetune_distributed --config x", 1, 8, 2),
        ] {
            let mut spec = job(command, nodes, devices);
            if command.contains("&&") {
                spec.command = muster_model::spec::Command::Shell(command.into());
            }
            assert_eq!(crate::Plan::of(&spec).started(), expected, "{command}");
        }
    }
}
