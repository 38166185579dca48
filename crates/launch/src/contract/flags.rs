//! The flags that a user gave a launcher, compared with the job: how many processes they mean, and what of them does not fit.
//!
//! Only numbers are compared. `$NNODES` in a line for the shell, and ranges, may well be right. What surely fails is told apart
//! from what only looks wrong: a valid job must not be refused.

use muster_model::{CommandOn, JobSpec};

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
    /// Where the processes meet, if not where muster says.
    meeting: &'static [&'static str],
}

fn known(launcher: Launcher) -> Known {
    let none = Known { nodes: &[], rank: &[], locals: &[], world: &[], alone: &[], meeting: &[] };
    match launcher {
        Launcher::Torchrun | Launcher::Tune => Known {
            nodes: &["nnodes"],
            rank: &["node_rank"],
            locals: &["nproc_per_node"],
            alone: &["standalone"],
            meeting: &["rdzv_backend", "rdzv_endpoint", "master_addr"],
            ..none
        },
        Launcher::Accelerate => Known {
            nodes: &["num_machines"],
            rank: &["machine_rank"],
            world: &["num_processes"],
            meeting: &["main_process_ip", "rdzv_backend"],
            ..none
        },
        Launcher::Fabric => Known {
            nodes: &["num_nodes"],
            rank: &["node_rank"],
            locals: &["devices"],
            meeting: &["main_address"],
            ..none
        },
        Launcher::Composer => Known {
            rank: &["node_rank"],
            locals: &["nproc", "n"],
            world: &["world_size"],
            meeting: &["master_addr"],
            ..none
        },
        Launcher::Deepspeed => Known {
            nodes: &["num_nodes"],
            rank: &["node_rank"],
            locals: &["num_gpus"],
            meeting: &["hostfile", "H", "master_addr"],
            ..none
        },
        Launcher::Msrun => Known {
            rank: &["node_rank"],
            locals: &["local_worker_num"],
            world: &["worker_num"],
            meeting: &["master_addr"],
            ..none
        },
        Launcher::Paddle => Known {
            nodes: &["nnodes"],
            rank: &["rank"],
            locals: &["nproc_per_node"],
            meeting: &["master", "ips"],
            ..none
        },
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
    let is_single_device = |word: &String| word.ends_with("_single_device");
    if call.launcher == Launcher::Tune && call.arguments.iter().any(is_single_device) {
        return 1;
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

/// What of a launcher's flags does not fit a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagProblem {
    /// What, and the remedy.
    pub message: String,
    /// The job would surely fail, or wait for ever.
    pub is_fatal: bool,
}

/// What of a launcher's flags does not fit this job.
pub fn check(spec: &JobSpec, call: &LauncherCall) -> Vec<FlagProblem> {
    let (known, launch) = (known(call.launcher), Launch::of_arguments(&call.arguments));
    let (tasks, devices) = (spec.nodes, spec.resources.device_count());
    let is_first_alone =
        spec.command_on.map_or(call.launcher.leads(), |command_on| command_on == CommandOn::First);
    // Where task 0 alone calls the launcher, it may well keep to that task.
    let callers = if is_first_alone { 1 } else { tasks };
    let name = &call.name;
    let is_alone = launch.gives(known.alone);
    // Then processes of other jobs, or of this task alone, may be meant.
    let meets_elsewhere = is_alone || launch.gives(known.meeting);
    let mut problems = Vec::new();
    let mut add = |is_fatal: bool, message: String| problems.push(FlagProblem { message, is_fatal });
    if callers > 1 && is_alone && launch.value(known.nodes) != Some("1") {
        let flag = known.alone[0];
        add(true, format!("`--{flag}` keeps {name} to one task, and the job has {tasks}; leave it out"));
    }
    let given = |flags: &'static [&'static str]| {
        let value = launch.value(flags)?;
        Some((flags[0], value.parse::<u32>().ok()?))
    };
    // The launcher of DeepSpeed may use fewer tasks than there are.
    let may_be_fewer = call.launcher == Launcher::Deepspeed;
    if let Some((flag, nodes)) = given(known.nodes)
        && (nodes > tasks || nodes < callers && !may_be_fewer)
    {
        let has = count(tasks, "task");
        add(
            !meets_elsewhere,
            format!("`--{flag} {nodes}` of {name}: the job has {has}; leave it out, or ask for -N {nodes}"),
        );
    }
    if let Some((flag, rank)) = given(known.rank)
        && (callers > 1 || rank > 0)
    {
        add(
            !meets_elsewhere && (callers > 1 || tasks == 1),
            format!(
                "`--{flag} {rank}` of {name}: every task would be number {rank}; leave it out, each task finds its own"
            ),
        );
    }
    if let Some((flag, locals)) = given(known.locals) {
        // Several processes may share a device, or use none.
        if devices > 0 && locals > devices {
            add(
                false,
                format!(
                    "`--{flag} {locals}` of {name}: a task has {}; leave it out, or ask for --gpus {locals}",
                    count(devices, "device")
                ),
            );
        } else if tasks.checked_mul(locals).is_none() {
            add(
                true,
                format!(
                    "`--{flag} {locals}` of {name}: {} of {locals} processes each are more than {}; use fewer",
                    count(tasks, "task"),
                    u32::MAX
                ),
            );
        }
    }
    let in_all = tasks.saturating_mul(devices);
    if let Some((flag, world)) = given(known.world)
        && devices > 0
        && world > in_all
    {
        let all = count(in_all, "device");
        add(
            false,
            format!("`--{flag} {world}` of {name}: the job has {all} in all; leave it out, or ask for more"),
        );
    }
    problems
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

    /// What is said of flags with which a job is not refused.
    fn warnings(spec: &JobSpec) -> Vec<String> {
        assert_eq!(crate::check(spec), []);
        let call = crate::detect::launcher_call(&spec.command).unwrap();
        check(spec, &call).into_iter().map(|problem| problem.message).collect()
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
                "torchrun --no-python=True --node_rank 1 ./train",
                1,
                0,
                "`--node_rank 1` of torchrun: every task would be number 1; leave it out, each task finds its own",
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
        assert_eq!(problems("torchrun --nnodes 3 --node_rank 1 t.py", 2, 0).len(), 2);
    }

    #[test]
    fn flags_that_may_be_meant_are_let_through_with_a_warning() {
        for (command, nodes, devices, expected) in [
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
                "torchrun --standalone --nnodes=1 t.py",
                2,
                0,
                "`--nnodes 1` of torchrun: the job has 2 tasks; leave it out, or ask for -N 1",
            ),
            (
                "torchrun --nnodes=4 --rdzv-backend=c10d --rdzv-endpoint=head:29400 t.py",
                2,
                0,
                "`--nnodes 4` of torchrun: the job has 2 tasks; leave it out, or ask for -N 4",
            ),
        ] {
            assert_eq!(warnings(&job(command, nodes, devices)), [expected], "{command}");
        }
        for script in [
            "if [ -n \"$A\" ]; then torchrun --nnodes=4 t.py; else torchrun t.py; fi",
            "[ $RANK = 0 ] || exit 0; torchrun --nnodes=4 t.py",
            "test -e x && bash -c 'torchrun --nnodes=4 t.py'",
        ] {
            let spec = spec(json!({"command": script, "nodes": 2}));
            assert_eq!(warnings(&spec).len(), 1, "{script}");
        }
        for certain in ["cd . && torchrun --nnodes=4 t.py", "composer -n 4000000000 t.py"] {
            let spec = spec(json!({"command": certain, "nodes": 2}));
            assert_eq!(crate::check(&spec).len(), 1, "{certain}");
        }
    }

    #[test]
    fn a_launcher_on_the_first_task_alone_may_keep_to_it() {
        for command in [
            "torchrun --standalone t.py",
            "torchrun --nnodes=1 --node_rank=0 t.py",
            "accelerate launch --num_machines 1 --machine_rank 0 t.py",
            "fabric run --num-nodes 1 t.py",
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            let spec = spec(json!({"command": words, "nodes": 2, "command_on": "first"}));
            assert_eq!(warnings(&spec), [""; 0], "{command}");
        }
        let words = ["torchrun", "--nnodes=4", "t.py"];
        let spec = spec(json!({"command": words, "nodes": 2, "command_on": "first"}));
        assert_eq!(crate::check(&spec).len(), 1);
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
            ("torchrun --no-python ./train --nnodes 7", 2, 0),
            ("torchrun --no-python=True ./train --nnodes 7", 2, 0),
            ("accelerate launch --multi_gpu ./train --machine_rank 3", 2, 0),
            ("deepspeed --no_ssh ./train --num_nodes 7", 2, 0),
            ("torchrun --node_rank 0 --rdzv-backend c10d t.py", 1, 0),
            ("torchrun --node_rank 1 --nnodes 1:2 --master_addr head t.py", 1, 0),
            ("torchrun -m pkg.train --nnodes 7", 2, 0),
            ("torchrun --nnodes 1 --node_rank 0 t.py", 1, 0),
            ("deepspeed --num_nodes 1 --num_gpus 1 t.py", 2, 8),
            ("python t.py --nnodes 7", 2, 0),
            ("composer --world_size 4294967295 t.py", 100_000, 65_536),
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
            ("tune run lora_finetune_single_device --config x", 1, 8, 1),
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
