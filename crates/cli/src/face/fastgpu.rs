//! `fastgpu`, and `ecluster` as its older generation was called: machines by name, on pools of hosts or on this machine.
//!
//! The names, flags, tables and the `create.cfg` are those that people know and scripts read. What only a cloud has is
//! answered with a plain word.

mod config;
mod create;
mod grid;
mod life;
mod list;
mod mount;
mod query;
mod reach;
mod source;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args as ClapArgs, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::entry::block_on;
use crate::error::{Code, Error, Format, usage};
use crate::machine::Named;
use crate::terminal;

/// Under which of its names it was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    Fastgpu,
    Ecluster,
}

impl Generation {
    pub fn named(word: &str) -> Option<Self> {
        [Self::Fastgpu, Self::Ecluster].into_iter().find(|generation| generation.program() == word)
    }

    /// What people type.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Fastgpu => "fastgpu",
            Self::Ecluster => "ecluster",
        }
    }

    /// The package of its time, after which directories, files and the section of `create.cfg` are called.
    pub const fn package(self) -> &'static str {
        match self {
            Self::Fastgpu => "fastgpu",
            Self::Ecluster => "ncluster",
        }
    }

    /// The line that a list of machines begins with.
    fn region_line(self, region: &str) -> String {
        match self {
            Self::Fastgpu => format!("region={region}"),
            Self::Ecluster => format!("In Region {region}"),
        }
    }
}

/// Machines by name: create, use, stop, start and kill them
#[derive(Debug, Parser)]
#[command(
    arg_required_else_help = true,
    version,
    after_help = "\
A machine is named task0.NAME, a group of them {NAME} or NAME.

Machines come from the place that MUSTER_MACHINES names (ssh/POOL or local), else from the setting \
fastgpu.machines, else from the only pool of hosts there is, else they are on this machine. \
`muster pool add NAME USER@HOST...` makes a pool."
)]
struct Face {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List machines
    Ls(list::Args),
    /// Create machines, or take those that have the name, by flags or a config file
    Create(Box<create::Args>),
    /// Log in to a machine
    Ssh(reach::SshArgs),
    /// Sit down at the terminal in which commands run on a machine; log in, if there is none
    Tmux(reach::TmuxArgs),
    /// Stop machines; their names and files stay
    Stop(life::Args),
    /// Start machines that were stopped
    Start(life::Args),
    /// Give machines back for good
    Kill(life::KillArgs),
    /// Make the shared directory of a pool appear as /fastgpu or /ncluster on its machines
    Mount(One),
    /// Copy files and directories to machines or from one
    Scp(reach::ScpArgs),
    /// Let this computer's address in, in a cloud
    Addip(AddipArgs),
    /// Call machines something else
    Rename(life::RenameArgs),
    /// List the accelerators there are
    Querygpu,
    /// Say which images there are
    Queryimage,
}

/// The machine a command is about.
#[derive(Debug, ClapArgs)]
struct One {
    /// task0.NAME; or NAME, {NAME}
    #[arg(value_name = "NAME")]
    name: Named,
}

#[derive(Debug, ClapArgs)]
struct AddipArgs {
    /// task0.NAME; or NAME, {NAME}
    #[arg(value_name = "NAME")]
    name: Option<Named>,
    /// For all machines, as scripts do before they log in; nothing is to be done
    #[arg(short, long)]
    all: bool,
}

/// Runs a line of words, the first of which is the program.
pub(crate) fn main(generation: Generation, words: &[OsString]) -> ExitCode {
    let face = match parse(generation, words) {
        Ok(face) => face,
        Err(error) => {
            usage::report(&error, Format::Text);
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    block_on(dispatch(generation, face.action)).unwrap_or_else(|error| {
        error.report(Format::Text);
        error.exit_code()
    })
}

fn command(generation: Generation) -> clap::Command {
    Face::command().name(generation.program()).bin_name(generation.program())
}

fn parse(generation: Generation, words: &[OsString]) -> Result<Face, clap::Error> {
    let mut words = create::spelled_out(words);
    if let Some(first) = words.first_mut() {
        *first = generation.program().into();
    }
    let matches = command(generation).try_get_matches_from(words)?;
    Face::from_arg_matches(&matches).map_err(|error| error.format(&mut command(generation)))
}

async fn dispatch(generation: Generation, action: Action) -> Result<ExitCode, Error> {
    match action {
        Action::Ls(args) => list::run(generation, &args).await,
        Action::Create(args) => create::run(generation, &args).await,
        Action::Ssh(args) => reach::ssh(&args).await,
        Action::Tmux(args) => reach::tmux(&args).await,
        Action::Stop(args) => life::stop(&args).await,
        Action::Start(args) => life::start(&args).await,
        Action::Kill(args) => life::kill(&args).await,
        Action::Mount(args) => mount::run(generation, &args.name).await,
        Action::Scp(args) => reach::scp(&args).await,
        Action::Addip(args) if args.all => {
            terminal::note(&format!("{CLOUD_ONLY}; {}", needs_no_address(generation)));
            Ok(ExitCode::SUCCESS)
        }
        Action::Addip(_) => Err(addip(generation)),
        Action::Rename(args) => life::rename(&args).await,
        Action::Querygpu => query::gpus().await,
        Action::Queryimage => query::images(),
    }
}

const CLOUD_ONLY: &str = "addip changes a security group, and only a cloud has those";

fn addip(generation: Generation) -> Error {
    Error::new(Code::CloudOnly, CLOUD_ONLY).hint(needs_no_address(generation))
}

/// What a script is told that lets its own address in before it logs in.
fn needs_no_address(generation: Generation) -> String {
    let program = generation.program();
    format!("`{program} ssh` and `{program} scp` reach these machines without it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        for generation in [Generation::Fastgpu, Generation::Ecluster] {
            command(generation).debug_assert();
        }
    }

    #[test]
    fn help_is_what_users_of_the_other_tool_look_for() {
        insta::assert_snapshot!(command(Generation::Ecluster).term_width(100).render_help());
        let mut all = command(Generation::Fastgpu).term_width(100);
        all.build();
        let create = all.find_subcommand_mut("create").unwrap();
        insta::assert_snapshot!("create_help", create.render_help());
    }

    #[test]
    fn every_command_of_both_generations_is_taken() {
        for line in [
            "ls",
            "ls -a",
            "ls --stop",
            "create --config create.cfg",
            "create -c create.cfg",
            "create -f create.cfg",
            "create --name fastgpu1 --machines 1",
            "create -n a -np 2 -i ecs.gn6v --image u18 --spot --confirm_cost -nas -vpc v -cuda --skip_setup",
            "create --name a --machine 2 --image_type CentOS --system_disk_size 300 --data_disk_size 0 --zone_id z \
             --install_script pwd --enable-nas --cuda_install --vpc_name v --spot False",
            "ssh task0.a",
            "tmux task0.a",
            "stop {ncluster-v100}",
            "start task0.a",
            "kill {a} -y",
            "kill -f task0.a",
            "create --name a --disable_nas",
            "create --name a --disable_nas False",
            "mount task0.a",
            "scp a task0.a:/root/b",
            "addip task0.a",
            "addip -a",
            "rename task0.a task0.b",
            "querygpu",
            "queryimage",
        ] {
            let words: Vec<OsString> =
                std::iter::once("x").chain(line.split_whitespace()).map(OsString::from).collect();
            parse(Generation::Fastgpu, &words).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
}
