//! The programs of a real Slurm, beside those of the same name in the task's directory.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use super::TASK_DIR;

/// The site's program of this name: the next one on the `PATH`.
pub(super) fn command(name: &str) -> Option<Command> {
    let own = env::var_os(TASK_DIR).map(|dir| PathBuf::from(dir).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).filter(|folder| Some(folder) != own.as_ref());
    folders.map(|folder| folder.join(name)).find(|program| program.is_file()).map(Command::new)
}

/// The site's `srun`, for what only Slurm can do, such as MPI by its own plugins. It starts its step beside the agent's.
pub(super) fn srun() -> Option<Command> {
    let mut command = command("srun")?;
    // The agent's step has all of the nodes, and shares them. Its options are not those of this step.
    command.env("SLURM_OVERLAP", "1");
    for name in
        ["SLURM_CPU_BIND", "SLURM_KILL_BAD_EXIT", "SLURM_MPI_TYPE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_WAIT"]
    {
        command.env_remove(name);
    }
    Some(command)
}
