//! `fastgpu create`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::launch::OWN_HOME;
use muster_api::model::{State, Timestamp};
use muster_api::view::JobSummary;
use muster_ssh::client::Command;

use super::config::{Wanted, boolean, count};
use super::{Generation, list, mount, source};
use crate::call::Caller;
use crate::command::exec;
use crate::command::run::environment;
use crate::error::{Code, Error};
use crate::interrupt::Received;
use crate::machine::{self, Waited};
use crate::quote;
use crate::session::Session;
use crate::spec::{self, Flags, Here};
use crate::target::Target;
use crate::terminal;

/// Flags of several letters with one dash, which only this tool has.
const SPELLINGS: [(&str, &str); 4] =
    [("-np", "--machines"), ("-nas", "--nas"), ("-vpc", "--vpc_name"), ("-cuda", "--install_cuda")];
/// What machines say that have no home directory of their own.
const SHARED_HOME: &str = "note: paths below /root are this computer's, since muster may not mount here: run it as root with \
                           the right to mount, or as another account with user namespaces";
const NO_SUDO: &str =
    "note: /root is each machine's own, and sudo has no effect there: muster does not run as root";
/// What a group is compared by when it is asked for again.
const COMPARED: [&str; 2] = ["instance_type", "image_name"];

#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  fastgpu create --config create.cfg
  fastgpu create --name bert --machines 2 -i ecs.gn6v-c10g1.20xlarge

-np, -nas, -vpc and -cuda are --machines, --nas, --vpc_name and --install_cuda. \
Machines that have the name already are taken, and started if they are stopped. \
Types, images, disks and zones are a cloud's: they are kept with the machines, and shown.")]
pub(super) struct Args {
    /// A file with [fastgpu] or [ncluster] and [cmd]; flags go before it
    #[arg(short = 'c', short_alias = 'f', long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What they are called: task0.NAME, task1.NAME, ...
    #[arg(short, long)]
    name: Option<String>,
    /// How many (1 if absent)
    #[arg(long, alias = "machine", value_name = "N", value_parser = count)]
    machines: Option<u32>,
    /// The type of a cloud's machine
    #[arg(short, long = "instance_type", value_name = "TYPE")]
    instance_type: Option<String>,
    /// The image of a cloud's machine
    #[arg(long = "image_name", alias = "image", value_name = "IMAGE")]
    image_name: Option<String>,
    /// Aliyun, Ubuntu or CentOS, where no image is named
    #[arg(long = "image_type", value_name = "KIND")]
    image_type: Option<String>,
    /// In GB
    #[arg(long = "system_disk_size", value_name = "GB")]
    system_disk_size: Option<String>,
    /// In GB; 0 for none
    #[arg(long = "data_disk_size", value_name = "GB")]
    data_disk_size: Option<String>,
    /// The zone of a cloud
    #[arg(long = "zone_id", value_name = "ZONE")]
    zone_id: Option<String>,
    /// The network of a cloud
    #[arg(long = "vpc_name", alias = "vpc", value_name = "NAME")]
    vpc_name: Option<String>,
    /// At a cloud's spot price
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", value_parser = boolean)]
    spot: Option<bool>,
    /// Do not ask about costs; nobody is asked here
    #[arg(long = "confirm_cost", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", value_parser = boolean)]
    confirm_cost: Option<bool>,
    /// Do not run the install script
    #[arg(long = "skip_setup", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", value_parser = boolean)]
    skip_setup: Option<bool>,
    /// Make the shared directory appear, as `mount` does
    #[arg(long, aliases = ["enable-nas", "enable_nas"], num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", value_parser = boolean)]
    nas: Option<bool>,
    /// Leave the shared directory out
    #[arg(long = "disable_nas", alias = "disable-nas", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", value_parser = boolean, conflicts_with = "nas")]
    disable_nas: Option<bool>,
    /// Install CUDA, on a cloud's machine
    #[arg(long = "install_cuda", alias = "cuda_install", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", value_parser = boolean)]
    install_cuda: Option<bool>,
    /// A shell command to run once on every machine
    #[arg(long = "install_script", value_name = "SCRIPT")]
    install_script: Option<String>,
}

/// The words with the flags of several letters as the parser knows them.
pub(super) fn spelled_out(words: &[OsString]) -> Vec<OsString> {
    let spell = |word: &OsString| -> OsString {
        let Some(text) = word.to_str() else { return word.clone() };
        let (flag, value) = text.split_once('=').map_or((text, None), |(flag, value)| (flag, Some(value)));
        match (SPELLINGS.iter().find(|(short, _)| *short == flag), value) {
            (Some((_, long)), Some(value)) => format!("{long}={value}").into(),
            (Some((_, long)), None) => (*long).into(),
            (None, _) => word.clone(),
        }
    };
    let is_create = words.get(1).is_some_and(|word| word == "create");
    if is_create { words.iter().map(spell).collect() } else { words.to_vec() }
}

impl Args {
    fn wanted(&self) -> Result<Wanted, Error> {
        let flags = Wanted {
            name: self.name.clone(),
            machines: self.machines,
            instance_type: self.instance_type.clone(),
            image_name: self.image_name.clone(),
            image_type: self.image_type.clone(),
            system_disk_size: self.system_disk_size.clone(),
            data_disk_size: self.data_disk_size.clone(),
            zone_id: self.zone_id.clone(),
            vpc_name: self.vpc_name.clone(),
            spot: self.spot,
            skip_setup: self.skip_setup,
            nas: self.nas.or(self.disable_nas.map(|off| !off)),
            install_cuda: self.install_cuda,
            install_script: self.install_script.clone(),
            confirm_cost: self.confirm_cost,
        };
        match &self.config {
            Some(path) => Ok(flags.or(Wanted::read(path)?)),
            None => Ok(flags),
        }
    }
}

pub(super) async fn run(generation: Generation, args: &Args) -> Result<ExitCode, Error> {
    let wanted = args.wanted()?;
    let caller = Caller::open().await?;
    let session = &caller.session;
    let job = match take(session, generation, &wanted).await? {
        Taken::Machines(job) => *job,
        Taken::Interrupted(signal) => {
            return Ok(ExitCode::from(u8::try_from(signal.exit_code()).unwrap_or(130)));
        }
    };
    if wanted.install_cuda == Some(true) {
        terminal::note("drivers and CUDA are those of the hosts; nothing is installed");
    }
    if wanted.nas != Some(false) {
        mount::if_there_is_one(&caller, generation, &job, wanted.nas == Some(true)).await?;
    }
    if job.on == "local" {
        tell_of_home(&caller, &job).await?;
    }
    let script = wanted.install_script.as_deref().filter(|_| wanted.skip_setup != Some(true));
    let code = match script {
        Some(script) => set_up(&caller, generation, &job, script).await?,
        None => ExitCode::SUCCESS,
    };
    let rows = machine::rows(session, std::slice::from_ref(&job)).await?;
    let region = source::region(session).await;
    let text = list::text(generation, &region, &rows, false, Timestamp::now());
    terminal::to_stdout(&text)?;
    Ok(code)
}

enum Taken {
    Machines(Box<JobSummary>),
    Interrupted(Received),
}

/// The machines that have the name, or new ones.
async fn take(session: &Session, generation: Generation, wanted: &Wanted) -> Result<Taken, Error> {
    let Some(name) = &wanted.name else {
        let message = "the machines need a name";
        return Err(Error::new(Code::Usage, message).hint("--name NAME, or name=NAME in the config file"));
    };
    let found = machine::lookup(session, name).await?;
    let is_new = found.is_none();
    let job = match found {
        Some(found) => {
            compare(generation, &found, wanted)?;
            compare_members(session, generation, &found, wanted).await?;
            if matches!(found.state, State::Suspended | State::Stopping) {
                terminal::remark(&format!("{name} is stopped: starting it"));
                machine::resume(session, found.id.as_str()).await?;
            }
            machine::start_rest(session, found.id.as_str(), true).await?;
            found
        }
        None => make(session, generation, wanted, name).await?,
    };
    match machine::until_ready(session, job.id.as_str()).await? {
        Waited::Ready(ready) => {
            if is_new {
                machine::all_or_none(session, &ready).await?;
            }
            Ok(Taken::Machines(Box::new(ready.summary)))
        }
        Waited::Interrupted(signal) => {
            if is_new {
                machine::kill(session, job.id.as_str()).await?;
                terminal::note(&format!("`{name}` was given back"));
            }
            Ok(Taken::Interrupted(signal))
        }
    }
}

async fn make(
    session: &Session,
    generation: Generation,
    wanted: &Wanted,
    name: &str,
) -> Result<JobSummary, Error> {
    let here = Here::now()?;
    let place = source::place(session).await?;
    let (program, on) = (generation.program(), &place.on);
    terminal::remark(&format!("{program}: machines are on {on} ({})", place.why));
    let flags = Flags {
        name: Some(name.to_owned()),
        nodes: wanted.machines.map(|count| count.to_string()),
        // Scripts have paths of root's home, which on hosts is there.
        own_home: place.on == "local",
        on: Some(place.on),
        // Scripts of this tool go from one machine to the other, and to themselves.
        peers: true,
        ..Flags::default()
    };
    let request = spec::assemble_machine(&flags, &wanted.labels(), None, &here)?;
    let environment = environment(&request.spec, &here, session);
    Ok(machine::create(session, &flags, request.value, environment).await?.summary)
}

/// Machines of the name that are others than were asked for are not taken.
fn compare(generation: Generation, found: &JobSummary, wanted: &Wanted) -> Result<(), Error> {
    let differs = |what: String| {
        let remedy =
            format!("terminate it: `{} kill {{{}}}`; or use another name", generation.program(), found.name);
        Err(Error::new(Code::MachineMismatch, what).hint(remedy))
    };
    let asked = wanted.machines.unwrap_or(1);
    if found.nodes < asked {
        return differs(format!(
            "{asked} machines were asked for as `{}`, and {} exist",
            found.name, found.nodes
        ));
    }
    let wanted = wanted.labels();
    for key in COMPARED {
        let want = wanted.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        let have = found.labels.get(key).map_or("", String::as_str);
        if let Some(want) = want.filter(|want| *want != have) {
            return differs(format!(
                "`{}` exists with {key} `{have}`, and `{want}` was asked for",
                found.name
            ));
        }
    }
    Ok(())
}

/// A group of which some were killed is taken only by who does not ask for those.
async fn compare_members(
    session: &Session,
    generation: Generation,
    found: &JobSummary,
    wanted: &Wanted,
) -> Result<(), Error> {
    let job = session.call(async |client| client.job(found.id.as_str()).await).await?;
    let kept = machine::kept(&job);
    let Some(missing) = (0..wanted.machines.unwrap_or(1)).find(|rank| !kept.contains(rank)) else {
        return Ok(());
    };
    let message = format!("task{missing}.{0} was killed, and the rest of `{0}` exists", found.name);
    let remedy = format!(
        "terminate that, too: `{} kill {{{}}}`; or use another name",
        generation.program(),
        found.name
    );
    Err(Error::new(Code::MachineMismatch, message).hint(remedy))
}

/// Runs the script on every machine that has not run it.
async fn set_up(
    caller: &Caller,
    generation: Generation,
    job: &JobSummary,
    script: &str,
) -> Result<ExitCode, Error> {
    let marker = format!("_{}_install_script", generation.package());
    let lines = script.lines().filter(|line| !line.trim().is_empty());
    let echoed: Vec<String> = lines.map(|line| format!("{}\n{line}", echo(line))).collect();
    let text = format!("{}\necho ok > {marker}\n", echoed.join("\n"));
    let once = format!("[ -e {marker} ] || exec bash -e -c \"$1\"");
    let line = Some(quote::line(["sh", "-c", &once, "sh", &text]));
    let target = Target { job: job.id.to_string(), task: None };
    let whom = exec::Whom { target, all: true, wait: false, stdin: false };
    exec::run_in(caller, &whom, &Command { line, ..Command::default() }, false).await
}

/// Says that machines share the home directory of this computer's account, where none can be shown of their own.
async fn tell_of_home(caller: &Caller, job: &JobSummary) -> Result<(), Error> {
    let echo = |note: &str| format!("echo {} >&2", String::from_utf8_lossy(&quote::line([note])));
    let line = format!(
        "if [ \"$PWD\" != {OWN_HOME} ]; then {}; elif [ \"$(id -u)\" != 0 ]; then {}; fi",
        echo(SHARED_HOME),
        echo(NO_SUDO)
    );
    let rank =
        machine::reachable(&caller.session.call(async |client| client.job(job.id.as_str()).await).await?);
    let target = Target { job: job.id.to_string(), task: rank.first().copied() };
    let whom = exec::Whom { target, all: false, wait: false, stdin: false };
    let command = Command { line: Some(line.into_bytes()), ..Command::default() };
    exec::run_in(caller, &whom, &command, false).await.map(drop)
}

fn echo(line: &str) -> String {
    let words = quote::line(["echo", &format!("* {line}")]);
    String::from_utf8_lossy(&words).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::config::KEYS;
    use super::*;

    #[test]
    fn every_key_of_the_file_is_a_flag() {
        let command = Args::augment_args(clap::Command::new("create"));
        for key in KEYS {
            let is_flag = |arg: &clap::Arg| {
                arg.get_long() == Some(key) || arg.get_all_aliases().is_some_and(|all| all.contains(&key))
            };
            assert!(command.get_arguments().any(is_flag), "--{key}");
        }
    }

    #[test]
    fn flags_of_several_letters_are_spelled_out_where_they_are_meant() {
        let spelled = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            spelled_out(&words)
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(spelled("x create -n a -np 2 -nas"), "x create -n a --machines 2 --nas");
        assert_eq!(spelled("x create -np=2"), "x create --machines=2");
        assert_eq!(spelled("x ssh a -np"), "x ssh a -np");
    }
}
