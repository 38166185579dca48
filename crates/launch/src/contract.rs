//! What each framework expects of whoever starts it.

mod deepspeed;
mod horovod;
mod jax;
mod mindspore;
mod mpi;
mod paddle;
mod pytorch;
mod tensorflow;

use muster_model::Framework;
use muster_model::spec::Command;

use crate::{Gang, Part, Plan};

/// Adds what the framework of the plan wants to a task's part.
pub(crate) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    match plan.framework {
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

/// The words that run a command under the framework of the plan.
pub(crate) fn argv(plan: &Plan, command: &Command) -> Vec<String> {
    match plan.framework {
        Framework::Pytorch => pytorch::argv(plan, command),
        Framework::Plain
        | Framework::Deepspeed
        | Framework::Horovod
        | Framework::Mpi
        | Framework::Jax
        | Framework::Tensorflow
        | Framework::Paddle
        | Framework::Mindspore => command.argv(),
    }
}
