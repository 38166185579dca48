//! `muster submit`: a job of a file, or of a batch script of Slurm's, and back to the prompt.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;

use super::run::{self, How};
use crate::error::Error;
use crate::spec::Flags;

/// Submit the job of a file and return at once
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "muster submit FILE [OPTIONS] [-- COMMAND...]\n       muster submit SCRIPT [OPTIONS] [-- ARGUMENTS...]",
    after_help = "\
Examples:
  muster submit train.yaml
  muster submit train.yaml --nodes 8 --name big -- python train.py --large
  JOB=$(muster submit train.yaml) && muster wait \"$JOB\"
  sed s/LR/0.1/ train.yaml | muster submit -
  muster submit train.sbatch --nodes 2 -- --lr 0.1
  muster submit train.sbatch --on slurm

A script for Slurm's sbatch is a job, too: its #SBATCH lines are read, flags win over them, and it runs once, on the first node, \
where it finds SLURM_* variables and an srun, whatever the engine.

It is `muster run --detach FILE`: the id of the job is all that stdout gets. \
Paths in the file are relative to the file, those on the command line and of stdin to the current directory.

Exit codes:
  0    submitted
  2    what was asked for is wrong; nothing was submitted
  125  muster itself failed"
)]
pub(crate) struct Args {
    /// The job in YAML or JSON, or a script with #SBATCH lines; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    flags: Flags,
    /// Check everything and show what would be submitted
    #[arg(long)]
    dry_run: bool,
    /// Print the job as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let how = How { detach: true, dry_run: args.dry_run, json: args.json };
    run::from_file(&args.flags, Some(&args.file), how).await
}
