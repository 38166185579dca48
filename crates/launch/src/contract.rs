//! What each framework expects of whoever starts it.

mod command;
mod deepspeed;
pub mod flags;
mod horovod;
mod hostfile;
mod jax;
mod launched;
mod mindspore;
pub(crate) mod mpi;
mod paddle;
mod process;
mod pytorch;
mod tensorflow;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use muster_model::Framework;
use muster_model::launch::{Process, Work};
use muster_model::node::Vendor;
use muster_model::spec::Command;

pub use command::{Reader, reader};
pub use launched::logged_processes;

use crate::detect::Launcher;
use crate::{Gang, Member, Part, Plan, base};
use process::Place;

/// Adds what the framework of the plan wants to a task's part.
pub(crate) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    part.work = Work::Run(vec![Process::new(words(plan, &gang.spec.command, &Place::of(gang, rank)))]);
    if plan.framework == Framework::Plain {
        process::spread(gang, plan.copies(), rank, part, |_| BTreeMap::new());
        return;
    }
    let own = started_by(plan);
    if plan.leader && matches!(own, Framework::Horovod | Framework::Mpi) {
        // What mpirun and horovodrun start finds the task's variables, and libraries that read these before MPI's would
        // take the task's number for the process's.
        base::remove_process_variables(part);
    }
    contract(own, gang, plan, rank, part);
    if own != plan.framework {
        contract(plan.framework, gang, plan, rank, part);
    }
    if plan.each && matches!(own, Framework::Horovod | Framework::Mpi) {
        process::spread(gang, plan.copies(), rank, part, |_| BTreeMap::new());
    }
    launched::add(gang, plan, own, part);
}

/// The list of hosts that launchers look for first, for every command that reaches the other tasks: DeepSpeed's launcher in a
/// script finds it without a flag.
pub(crate) fn add_hostfile(gang: &Gang, plan: &Plan, part: &mut Part) {
    if !part.has(hostfile::JOB) {
        part.file(hostfile::JOB, hostfile::slots(gang, plan));
    }
}

fn contract(framework: Framework, gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    match framework {
        Framework::Plain => {}
        Framework::Pytorch => pytorch::add(gang, plan, rank, part),
        Framework::Deepspeed => deepspeed::add(gang, plan, rank, part),
        Framework::Horovod => horovod::add(gang, plan, rank, part),
        Framework::Mpi => mpi::add(gang, plan, rank, part),
        Framework::Jax => jax::add(gang, plan, rank, part),
        Framework::Tensorflow => tensorflow::add(gang, plan, rank, part),
        Framework::Paddle => paddle::add(gang, plan, rank, part),
        Framework::Mindspore => mindspore::add(gang, plan, rank, part),
    }
}

/// Whose launcher the command starts, if it does: JAX may well be started by mpirun, and DeepSpeed by torchrun.
fn started_by(plan: &Plan) -> Framework {
    match plan.launcher {
        Some(
            Launcher::Torchrun
            | Launcher::Accelerate
            | Launcher::Fabric
            | Launcher::Tune
            | Launcher::Composer,
        ) => Framework::Pytorch,
        Some(Launcher::Deepspeed) => Framework::Deepspeed,
        Some(Launcher::Horovodrun) => Framework::Horovod,
        Some(Launcher::Mpirun) => Framework::Mpi,
        Some(Launcher::Msrun) => Framework::Mindspore,
        Some(Launcher::Paddle) => Framework::Paddle,
        None => plan.framework,
    }
}

/// The words that run a command under the framework of the plan, with variables in place of what only a gang can tell.
pub(crate) fn argv(plan: &Plan, command: &Command) -> Vec<String> {
    words(plan, command, &Place::unknown())
}

/// Whether one task runs the command and reaches the others itself.
pub(crate) fn leads(plan: &Plan) -> bool {
    match started_by(plan) {
        // Whatever the command is, it is or gets a launcher.
        Framework::Horovod | Framework::Mpi => true,
        Framework::Plain
        | Framework::Pytorch
        | Framework::Deepspeed
        | Framework::Jax
        | Framework::Tensorflow
        | Framework::Paddle
        | Framework::Mindspore => plan.launcher.is_some_and(Launcher::leads),
    }
}

fn words(plan: &Plan, command: &Command, place: &Place) -> Vec<String> {
    let argv = match command {
        Command::Argv(argv) if plan.framework == Framework::Plain => return command::read(argv),
        Command::Argv(argv) => command::interpreted(argv),
        // A launcher that is hidden in it is left as it is; one is put before the shell as before any program.
        Command::Shell(_) => command.argv(),
    };
    match started_by(plan) {
        Framework::Pytorch => pytorch::words(plan, argv, place),
        Framework::Deepspeed => deepspeed::words(plan, argv, place),
        Framework::Horovod => horovod::words(plan, argv, place),
        Framework::Mpi => mpi::words(plan, argv),
        Framework::Mindspore => mindspore::words(plan, argv, place),
        Framework::Plain | Framework::Jax | Framework::Tensorflow | Framework::Paddle => argv,
    }
}

fn has(member: &Member, vendor: Vendor) -> bool {
    member.devices.iter().any(|(_, device)| device.vendor == vendor)
}

/// Shows a process that is one of several its own device alone.
fn own_device(member: &Member, slot: process::Slot) -> Option<(String, String)> {
    let (number, device) = member.devices.get(slot.local as usize).filter(|_| slot.locals > 1)?;
    let name = match device.vendor {
        Vendor::Nvidia => "CUDA_VISIBLE_DEVICES",
        Vendor::Ascend => "ASCEND_RT_VISIBLE_DEVICES",
    };
    Some((name.to_owned(), number.to_string()))
}
