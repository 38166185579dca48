//! From a command into the files that it runs, and what they say together.

use std::collections::HashSet;

use muster_model::spec::Command;
use muster_model::{Face, Framework};

use super::python::{self, Weight};
use super::step::Step;
use super::word::{HOLE, ScriptGrowth};
use super::{Code, CommandStep, Detection, Found, Launcher, LauncherCall, add_steps, platform, steps, word};

/// Scripts that run scripts: a wrapper or two are usual.
const MAX_DEPTH: usize = 4;
/// Files that are asked for, those that are not there included.
const MAX_FILES: usize = 200;
/// Texts that are looked at in all.
const MAX_BYTES: usize = 4 << 20;
/// Where a platform puts the code directory; what follows is a folder of it.
const CODE_FOLDERS: [&str; 2] = ["/home/work/user-job-dir/", "/home/ma-user/modelarts/user-job-dir/"];

/// One reason for a framework; the greatest count.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Strength {
    is_certain: bool,
    weight: Weight,
    /// It stands in what is run, not in what that imports.
    is_near: bool,
}

pub(super) struct Follow<'a> {
    code: &'a dyn Code,
    /// Files, each with the arguments that it was run with.
    asked: HashSet<(String, Option<Vec<String>>)>,
    bytes: usize,
    growth: ScriptGrowth,
    launcher: Option<Found<Launcher>>,
    call: Option<Found<LauncherCall>>,
    spawns: Option<String>,
    reasons: Vec<(Strength, Found<Framework>)>,
    faces: Vec<Found<Face>>,
    peers: Option<String>,
}

/// Where commands stand: what they are called in reasons, and the folder that they run in.
struct Place {
    name: String,
    folder: String,
    depth: usize,
}

impl<'a> Follow<'a> {
    pub fn new(code: &'a dyn Code) -> Self {
        Self {
            code,
            asked: HashSet::new(),
            bytes: 0,
            growth: ScriptGrowth::default(),
            launcher: None,
            call: None,
            spawns: None,
            reasons: Vec::new(),
            faces: Vec::new(),
            peers: None,
        }
    }

    pub fn command(&mut self, command: &Command) {
        let text = match command {
            Command::Argv(words) => words.join(" "),
            Command::Shell(script) => script.clone(),
        };
        self.platforms(&text, "the command");
        let place = Place { name: "the command".into(), folder: String::new(), depth: 0 };
        let steps = steps(command, &mut self.growth);
        self.steps(steps, place);
    }

    pub fn detection(self) -> Detection {
        let launcher = self.launcher.as_ref().map(|found| found.what);
        let frameworks = match self.launcher {
            Some(found) => vec![Found { what: found.what.framework(), why: found.why }],
            None => strongest(self.reasons),
        };
        Detection {
            frameworks,
            faces: self.faces,
            launcher,
            call: self.call,
            peers: self.peers,
            spawns: self.spawns,
        }
    }

    fn steps(&mut self, steps: Vec<CommandStep>, mut place: Place) {
        for CommandStep { step, may_be_skipped } in steps {
            match step {
                Step::Launch(launcher, name, rest) => {
                    if self.launcher.is_none() {
                        let why = format!("{} starts {name}", place.name);
                        self.launcher = Some(Found { what: launcher, why });
                        let call = LauncherCall { launcher, name, arguments: rest.clone(), may_be_skipped };
                        self.call = Some(Found { what: call, why: place.name.clone() });
                    }
                    // What the launcher runs says no more about the framework, but about platforms.
                    if let Some(at) =
                        rest.iter().position(|word| word.ends_with(".py") || word.ends_with(".sh"))
                    {
                        self.file(&rest[at], Some(&rest[at + 1..]), &place);
                    }
                }
                Step::Visit(program) => {
                    self.peers.get_or_insert_with(|| format!("{} starts {program}", place.name));
                }
                Step::Code(text) => self.python(&text, &place.name.clone(), None),
                Step::Module(module) => self.module(&module, &place.folder),
                Step::File(file, arguments) => self.file(&file, arguments.as_deref(), &place),
                Step::Enter(folder) => place.folder = joined(&place.folder, &folder),
                Step::Script(..) | Step::Other => {}
            }
        }
    }

    /// A file that is run, in whatever language it is.
    fn file(&mut self, name: &str, arguments: Option<&[String]>, place: &Place) {
        if place.depth >= MAX_DEPTH {
            return;
        }
        let found = candidates(name, &place.folder, &place.name)
            .into_iter()
            .find_map(|path| self.read(path, arguments));
        let Some((path, text)) = found else { return };
        self.platforms(&text, &path);
        let first = text.lines().next().unwrap_or_default();
        let has_shebang = first.starts_with("#!");
        if path.ends_with(".py") || has_shebang && first.contains("python") {
            self.python(&text, &path.clone(), Some(&path));
        } else if is_for_shell(&path, &text) {
            let mut steps = Vec::new();
            for command in word::commands(&text, arguments, &mut self.growth) {
                add_steps(&command, 0, &mut self.growth, &mut steps);
            }
            // A script runs where it is called, not where it stands.
            let place = Place { name: path, folder: place.folder.clone(), depth: place.depth + 1 };
            self.steps(steps, place);
        }
    }

    fn module(&mut self, name: &str, folder: &str) {
        let path = name.replace('.', "/");
        let files = ["", "src/"].iter().flat_map(|root| {
            [format!("{root}{path}.py"), format!("{root}{path}/__main__.py")]
                .map(|file| joined(folder, &file))
        });
        let found = files.collect::<Vec<_>>().into_iter().find_map(|path| self.read(path, None));
        if let Some((path, text)) = found {
            self.platforms(&text, &path);
            self.python(&text, &path.clone(), Some(&path));
        }
    }

    /// A script, and the modules beside it that it imports.
    fn python(&mut self, text: &str, name: &str, path: Option<&str>) {
        let seen = python::look(text);
        self.says(seen.says, name, true);
        if let Some(function) = seen.spawns {
            self.spawns.get_or_insert_with(|| format!("{name} calls {function}"));
        }
        let path = path.unwrap_or_default();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for module in &seen.imports {
            let found = module_files(module, folder).into_iter().find_map(|file| self.read(file, None));
            if let Some((path, text)) = found {
                self.platforms(&text, &path);
                self.says(python::look(&text).says, &path, false);
            }
        }
    }

    fn says(&mut self, says: Vec<python::Says>, name: &str, is_near: bool) {
        for says in says {
            let strength = Strength { is_certain: !says.is_optional, weight: says.weight, is_near };
            let why = format!("{name} {}", says.how);
            self.reasons.push((strength, Found { what: says.framework, why }));
        }
    }

    fn platforms(&mut self, text: &str, name: &str) {
        for (face, what) in platform::look(text) {
            if !self.faces.iter().any(|found| found.what == face) {
                self.faces.push(Found { what: face, why: format!("{name} uses {what}") });
            }
        }
    }

    /// A file's text, once for the same arguments.
    fn read(&mut self, path: String, arguments: Option<&[String]>) -> Option<(String, String)> {
        let is_full = self.asked.len() >= MAX_FILES || self.bytes >= MAX_BYTES;
        if is_full || !self.asked.insert((path.clone(), arguments.map(<[String]>::to_vec))) {
            return None;
        }
        let text = self.code.read(&path)?;
        self.bytes += text.len();
        Some((path, text))
    }
}

/// Whether a shell runs a file: by what it is called, or by its first line.
pub(super) fn is_for_shell(path: &str, text: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    path.ends_with(".sh") || path.ends_with(".bash") || first.starts_with("#!") && first.contains("sh")
}

/// The frameworks that the best reasons are for, each with the first of its reasons.
fn strongest(reasons: Vec<(Strength, Found<Framework>)>) -> Vec<Found<Framework>> {
    let Some(best) = reasons.iter().map(|(strength, _)| strength).max().cloned() else { return Vec::new() };
    let mut found: Vec<Found<Framework>> = Vec::new();
    for (_, reason) in reasons.into_iter().filter(|(strength, _)| *strength == best) {
        if !found.iter().any(|known| known.what == reason.what) {
            found.push(reason);
        }
    }
    found
}

/// Where a file may be in the code directory that a command calls so, in a folder and in a script (or in the command itself).
pub(super) fn candidates(name: &str, folder: &str, script: &str) -> Vec<String> {
    if let Some(rest) = CODE_FOLDERS.iter().find_map(|folder| name.strip_prefix(folder)) {
        // The folder is the code directory, or one in it.
        let below = rest.split_once('/').map(|(_, below)| below.to_owned());
        return below.into_iter().chain([rest.to_owned()]).collect();
    }
    // `$(dirname "$0")/train.py`, `cd $HERE; python train.py`: a folder that is not known is most likely the script's own, or
    // the one that it is called in.
    let whole = joined(folder, name);
    let Some((known, rest)) = whole.rsplit_once(HOLE) else {
        // A script may copy the code into the folder before it goes there.
        let at_the_top = joined("", name);
        return if at_the_top == whole { vec![whole] } else { vec![whole, at_the_top] };
    };
    let rest = rest.trim_start_matches('/');
    if rest.is_empty() {
        return Vec::new();
    }
    // `cd train$i` is behind the folder that it is in.
    let around = known.rsplit_once('/').map_or("", |(around, _)| around);
    let own = script.rsplit_once('/').map_or("", |(own, _)| own);
    let mut places = vec![joined(own, rest)];
    places.extend([joined(around, rest), joined("", rest)]);
    places.dedup();
    places
}

/// The files that a module may be which a script in a folder imports.
fn module_files(module: &str, folder: &str) -> Vec<String> {
    let name = module.trim_start_matches('.');
    let up = module.len() - name.len();
    let path = name.replace('.', "/");
    if path.is_empty() || path.contains(HOLE) {
        return Vec::new();
    }
    let folders: Vec<String> = match up {
        0 if folder.is_empty() => vec![String::new()],
        0 => vec![folder.to_owned(), String::new()],
        up => vec![joined(folder, &"../".repeat(up - 1))],
    };
    let files = |folder: &String| {
        [format!("{path}.py"), format!("{path}/__init__.py")].map(|file| joined(folder, &file))
    };
    folders.iter().flat_map(files).collect()
}

/// A path from a folder, without `.` and `..`. An absolute one stays absolute: whoever reads it knows where the code is.
pub(super) fn joined(folder: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{folder}/{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let root = if path.starts_with('/') || folder.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}
