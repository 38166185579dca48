//! Output streams for the processes that a launcher starts.
//!
//! A launcher's processes inherit its stdout and stderr, and tear each other's lines apart there: Python is told not to buffer,
//! and then writes the end of a line by itself. Where the node makes streams for each process, Python moves to its own when it
//! starts (`sitecustomize`). A process recognises the task's streams by their inodes, so redirected output stays where it is.
//! mpirun puts pipes of its own in between and merges them in blocks of 4 KiB: its processes are told whether mpirun writes to
//! the task's streams, because only the words of the command say so.

use muster_model::launch::{MOST_LOGGED_PROCESSES, Work};
use muster_model::spec::Command;
use muster_model::{Framework, JobSpec};

use super::command::{Launch, typed};
use crate::detect::Launcher;
use crate::{Gang, Part, Plan, shim};

/// Says that mpirun's output is the task's.
const MPI_OUTPUT: &str = "MUSTER_MPI_OUTPUT";

pub(super) fn add(gang: &Gang, plan: &Plan, own: Framework, part: &mut Part) {
    let is_musters = matches!(&part.work, Work::Run(processes) if processes.len() > 1);
    let Some(count) = launched(gang.spec, plan, own).filter(|_| !is_musters) else { return };
    shim::sitecustomize(part);
    part.surroundings.launched_processes = count;
    if own == Framework::Mpi {
        // Said either way: the submitter may be a task, whose variable would go along.
        let is_tasks = writes_to_task(plan, &gang.spec.command);
        part.fact(MPI_OUTPUT, if is_tasks { "task" } else { "" });
    }
}

/// How many processes of each task its log tells apart; 1 where there is only the task. The rank of a process counts them through.
pub fn logged_processes(spec: &JobSpec) -> u32 {
    let plan = Plan::of(spec);
    let own = super::started_by(&plan);
    let count = match launched(spec, &plan, own) {
        Some(count) => count,
        None if own == Framework::Horovod && !plan.each => 1,
        None => plan.copies(),
    };
    // A spec may say any number.
    count.min(u32::from(MOST_LOGGED_PROCESSES))
}

/// How many processes of a task have a launcher that lets them share its output.
fn launched(spec: &JobSpec, plan: &Plan, own: Framework) -> Option<u32> {
    if plan.idle || plan.each || plan.framework == Framework::Plain {
        return None;
    }
    let count = count(spec, plan);
    let is_shared = match own {
        Framework::Pytorch | Framework::Deepspeed => count > 1,
        // mpirun gathers the lines of all tasks.
        Framework::Mpi => true,
        // Their launchers read the lines of their processes, or put them into files.
        Framework::Horovod | Framework::Paddle | Framework::Mindspore => false,
        Framework::Plain | Framework::Jax | Framework::Tensorflow => false,
    };
    is_shared.then_some(count)
}

/// How many processes a launcher starts in each task, as far as it is known.
fn count(spec: &JobSpec, plan: &Plan) -> u32 {
    match plan.launcher {
        Some(Launcher::Mpirun) => {
            let argv = typed(&spec.command);
            let given = Launch::of(&argv, Launcher::Mpirun).value(&["n", "np", "c"]);
            let given = given.and_then(|value| value.parse::<u32>().ok()).unwrap_or(0);
            plan.processes.max(given.div_ceil(plan.nodes))
        }
        Some(_) => plan.launched,
        // muster puts a launcher in front of a program, and a script may have one.
        None => plan.processes,
    }
}

/// Whether what mpirun writes is what the task writes. In a script or before a redirection it may go anywhere.
fn writes_to_task(plan: &Plan, command: &Command) -> bool {
    match (plan.launcher, command) {
        // muster puts it in front of a program.
        (None, _) => plan.single,
        (Some(_), Command::Argv(argv)) => Launch::of(argv, Launcher::Mpirun).is_found(),
        (Some(_), Command::Shell(line)) => !line.contains(['|', '>', '`', '(']),
    }
}
