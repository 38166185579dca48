//! `kill -9` at seeded moments of a job's life. Whatever dies: the job exists, every byte of its log is there once, its
//! exit code is right, nothing ran twice, and no process or place is left behind.
//!
//! A few seeds run by default; `MUSTER_CRASH_ROUNDS=50` runs more of them, `MUSTER_CRASH_SEED` starts elsewhere.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use muster_testkit::{Home, wait_for, wait_for_some};

use crate::home;

const LINES: usize = 120;
const NODES: u32 = 2;

/// Prints numbered lines on both outputs and notes, after each, that it was written; ends with code 7.
const TASK: &str = r#"
use strict; use IO::Handle;
STDOUT->autoflush(1); STDERR->autoflush(1);
my ($witness, $rank) = ($ENV{WITNESS}, $ENV{RANK});
open(my $ran, '>>', "$witness/ran") or die; syswrite($ran, "$rank\n"); close($ran);
open(my $at, '>>', "$witness/at.$rank") or die;
for my $i (0 .. $ARGV[0] - 1) {
    syswrite(STDOUT, "out $rank $i\n"); syswrite(STDERR, "err $rank $i\n");
    syswrite($at, "x");
    select(undef, undef, undef, 0.002);
}
exit 7;
"#;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Agent,
    Supervisor,
    Client,
    ServerAndAgent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Submit,
    Start,
    Run,
    End,
}

const VICTIMS: [Victim; 5] =
    [Victim::Server, Victim::Agent, Victim::Supervisor, Victim::Client, Victim::ServerAndAgent];
const MOMENTS: [Moment; 4] = [Moment::Submit, Moment::Start, Moment::Run, Moment::End];

/// A small generator, so that a seed names a run for ever.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % limit
    }
}

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

struct Scene {
    home: Home,
    witness: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let home = home();
        home.configure("[local]\ndevices = [\"H100:4\"]\n");
        home.write("task.pl", TASK);
        let witness = home.work().parent().expect("a parent").join("witness");
        std::fs::create_dir(&witness).expect("the witness");
        Self { home, witness }
    }

    fn client(&self) -> Child {
        let nodes = NODES.to_string();
        let lines = LINES.to_string();
        let words =
            ["run", "--name", "crash", "--nodes", &nodes, "--gpus", "1", "--", "perl", "task.pl", &lines];
        let out = |name: &str| std::fs::File::create(self.witness.join(name)).expect("a file for the output");
        let mut command = self.home.command(words);
        command.env("WITNESS", &self.witness).stdout(out("client.out")).stderr(out("client.err"));
        command.stdin(Stdio::null()).spawn().expect("the client starts")
    }

    fn written(&self, rank: u32) -> usize {
        std::fs::metadata(self.witness.join(format!("at.{rank}"))).map_or(0, |file| file.len() as usize)
    }

    fn wait_for_moment(&self, moment: Moment, random: &mut Random) {
        let tasks = self.home.path().join("node/tasks");
        match moment {
            Moment::Submit => {
                // Nothing can be seen from outside before a job is accepted, so this moment is a stretch of time.
                let begun = Instant::now();
                let until = Duration::from_millis(random.below(150));
                wait_for("the moment", || begun.elapsed() >= until);
            }
            Moment::Start => wait_for("a task to be prepared", || {
                std::fs::read_dir(&tasks).is_ok_and(|mut entries| entries.next().is_some())
            }),
            Moment::Run => {
                let lines = 1 + random.below(LINES as u64 - 20) as usize;
                wait_for("output", || (0..NODES).any(|rank| self.written(rank) >= lines));
            }
            // Whichever rank ends first has the other stopped.
            Moment::End => wait_for("a last line", || (0..NODES).any(|rank| self.written(rank) >= LINES)),
        }
    }

    fn kill(&self, victim: Victim, client: &mut Child) -> usize {
        match victim {
            Victim::Server => self.home.kill("server"),
            Victim::Agent => self.home.kill("agent"),
            Victim::Supervisor => self.home.kill("supervise"),
            Victim::Client => usize::from(client.kill().is_ok()),
            Victim::ServerAndAgent => self.home.kill("server") + self.home.kill("agent"),
        }
    }

    /// The job, if one was accepted.
    fn job(&self) -> Option<String> {
        let jobs = self.home.json(["ps", "--all", "--json"]);
        let items = jobs.as_array().or_else(|| jobs["items"].as_array()).cloned().unwrap_or_default();
        assert!(items.len() <= 1, "one request made {} jobs", items.len());
        items.first().map(|job| job["id"].as_str().expect("an id").to_owned())
    }

    fn log(&self, job: &str, rank: u32) -> (String, String) {
        let finished = self.home.run(["logs", job, "--task", &rank.to_string()]);
        assert!(finished.status.success(), "{}", finished.err());
        (finished.out(), finished.err())
    }

    fn check_nothing_is_left(&self) {
        self.home.wait_for_no_tasks();
        let nodes = wait_for_some("the node to be back", || {
            let nodes = self.home.json(["nodes", "--json"]);
            let items = nodes.as_array().or_else(|| nodes["items"].as_array()).cloned().unwrap_or_default();
            items.iter().all(|node| node["connected"] == true).then_some(items)
        });
        for node in nodes {
            assert_eq!(node["slots_used"], 0, "{node}");
            for device in node["devices"].as_array().expect("devices") {
                assert!(device["job"].is_null(), "a device is still taken: {device}");
            }
        }
    }

    fn ran(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.witness.join("ran")).unwrap_or_default();
        let mut ranks: Vec<u32> = text.lines().map(|line| line.parse().expect("a rank")).collect();
        ranks.sort_unstable();
        ranks
    }
}

fn expected(stream: &str, rank: u32, lines: usize) -> String {
    (0..lines).fold(String::new(), |mut text, i| {
        let _ = writeln!(text, "{stream} {rank} {i}");
        text
    })
}

/// One kill, and everything that must hold after it.
fn survive(victim: Victim, moment: Moment, seed: u64) {
    let mut random = Random(seed);
    let scene = Scene::new();
    if moment == Moment::Submit && random.below(2) == 0 {
        scene.home.ok(["server", "start"]);
    }
    let mut client = scene.client();
    scene.wait_for_moment(moment, &mut random);
    let killed = scene.kill(victim, &mut client);
    assert!(killed > 0 || moment != Moment::Run, "while a job runs there is a {victim:?} to kill");
    let status = client.wait().expect("the client can be waited for");
    let Some(job) = scene.job() else {
        let said = std::fs::read_to_string(scene.witness.join("client.err")).unwrap_or_default();
        assert_eq!(
            (victim, moment),
            (Victim::Client, Moment::Submit),
            "an accepted job is gone; {status}: {said}"
        );
        return scene.check_nothing_is_left();
    };
    let waited = scene.home.run(["wait", &job]);
    let shown = scene.home.job(&job);
    if victim == Victim::Supervisor && killed > 0 && shown["reason"]["code"] == "supervisor_lost" {
        check_cut_short(&scene, &job);
    } else {
        assert_eq!(shown["state"], "failed", "{shown}");
        assert_eq!(shown["reason"]["code"], "exit_code", "{shown}");
        assert_eq!((shown["exit_code"].as_i64(), waited.code()), (Some(7), 7), "{shown}");
        check_whole(&scene, &job, moment);
        if victim != Victim::Client {
            assert_eq!(status.code(), Some(7), "the attached client lost the exit code");
            check_client_output(&scene);
        }
    }
    scene.check_nothing_is_left();
}

/// The first rank to end stops the other, so one of them is whole and the other may be cut short by SIGTERM; each is a
/// beginning of what it prints, with nothing missing, nothing twice, and everything it is known to have written.
fn check_whole(scene: &Scene, job: &str, moment: Moment) {
    let ran = scene.ran();
    match moment {
        // A kill between two launches of a gang lets the first rank end before the other has begun; it then never does.
        Moment::Submit | Moment::Start => {
            assert!(
                !ran.is_empty() && ran.windows(2).all(|pair| pair[0] != pair[1]),
                "no rank ran twice: {ran:?}"
            );
        }
        Moment::Run | Moment::End => {
            assert_eq!(ran, (0..NODES).collect::<Vec<_>>(), "every rank ran exactly once")
        }
    }
    let whole = (0..NODES).filter(|rank| check_beginning(scene, job, *rank) == LINES).count();
    assert!(whole >= 1, "the rank that ended first has its whole log");
}

fn check_cut_short(scene: &Scene, job: &str) {
    let ran = scene.ran();
    assert!(ran.windows(2).all(|pair| pair[0] != pair[1]), "a rank ran twice: {ran:?}");
    for rank in 0..NODES {
        check_beginning(scene, job, rank);
    }
}

fn check_beginning(scene: &Scene, job: &str, rank: u32) -> usize {
    let (out, err) = scene.log(job, rank);
    let lines = out.lines().count();
    assert!(
        expected("out", rank, LINES).starts_with(&out),
        "rank {rank}: stdout is not what was printed:\n{out}"
    );
    assert!(
        expected("err", rank, LINES).starts_with(&err),
        "rank {rank}: stderr is not what was printed:\n{err}"
    );
    let written = scene.written(rank);
    assert!(lines >= written, "rank {rank} wrote {written} lines, and {lines} are in the log");
    lines
}

/// An attached client shows every line once, whatever died under it.
fn check_client_output(scene: &Scene) {
    let read = |name: &str| std::fs::read_to_string(scene.witness.join(name)).unwrap_or_default();
    let out = read("client.out");
    for rank in 0..NODES {
        let label = format!("out {rank} ");
        let shown: Vec<&str> =
            out.lines().filter_map(|line| line.split_once(&label).map(|(_, i)| i)).collect();
        let numbers: Vec<usize> = shown.iter().map(|i| i.trim().parse().expect("a number")).collect();
        assert_eq!(
            numbers,
            (0..numbers.len()).collect::<Vec<_>>(),
            "rank {rank}, as the client showed it:\n{out}"
        );
        assert!(
            numbers.len() >= scene.written(rank),
            "rank {rank}: the client lost lines:\n{out}\n{}",
            read("client.err")
        );
    }
}

fn rounds(victim: Victim) {
    let first = number("MUSTER_CRASH_SEED", 1);
    for round in 0..number("MUSTER_CRASH_ROUNDS", 1) {
        for moment in MOMENTS {
            let seed = first + round;
            eprintln!("seed {seed}: {victim:?} at {moment:?}");
            survive(victim, moment, seed * 31 + moment as u64);
        }
    }
}

#[test]
fn a_killed_server_costs_nothing() {
    rounds(VICTIMS[0]);
}

#[test]
fn a_killed_agent_costs_nothing() {
    rounds(VICTIMS[1]);
}

#[test]
fn a_killed_supervisor_ends_its_task_and_loses_no_byte() {
    rounds(VICTIMS[2]);
}

#[test]
fn a_killed_client_leaves_its_job_running() {
    rounds(VICTIMS[3]);
}

#[test]
fn server_and_agent_killed_together_cost_nothing() {
    rounds(VICTIMS[4]);
}

#[test]
fn a_job_may_end_while_no_server_and_no_agent_is_there() {
    let scene = Scene::new();
    let mut client = scene.client();
    // As early as both run: the first rank that ends has the other stopped, if the server still lives.
    wait_for("both ranks to run", || (0..NODES).all(|rank| scene.written(rank) >= 1));
    client.kill().expect("the client dies first, or it would start a server");
    client.wait().expect("the client is gone");
    scene.home.kill("server");
    scene.home.kill("agent");
    wait_for("the gang to end by itself", || scene.written(0) >= LINES && scene.written(1) >= LINES);
    wait_for("its supervisors to be gone", || scene.home.processes().is_empty());
    let job = scene.job().expect("the job is there");
    assert_eq!(scene.home.run(["wait", &job]).code(), 7);
    assert_eq!(scene.ran(), [0, 1]);
    assert_eq!(check_beginning(&scene, &job, 0), LINES);
    assert_eq!(check_beginning(&scene, &job, 1), LINES);
    scene.check_nothing_is_left();
}
