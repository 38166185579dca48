//! The gate in this process, with programs in place of Slurm's that do what Slurm's do at their worst.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::wire::{Submission, Submit};
use super::*;

struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("bin")).unwrap();
        Self { folder }
    }

    fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// A program of this name that is found before any other.
    fn program(&self, name: &str, script: &str) {
        let path = self.dir().join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn gate(&self) -> Arc<Gate> {
        let programs = Programs::new(Some(self.dir().join("bin")), None);
        Arc::new(Gate { dir: self.dir().to_owned(), programs })
    }

    fn attempt(&self) -> Attempt {
        Attempt::new(self.dir(), &attempt())
    }

    async fn submit(&self, is_settled: bool) -> Submission {
        let submit = Submit {
            attempt: attempt(),
            seats: json!({ "seats": [] }),
            script: "#!/bin/sh\n".into(),
            argv: vec!["sbatch".into(), "--parsable".into()],
            is_settled,
        };
        self.attempt().submit(submit, &self.gate().programs).await.unwrap()
    }
}

fn attempt() -> AttemptId {
    "job_0123456789.1".parse().unwrap()
}

#[tokio::test]
async fn a_gang_is_submitted_once_and_its_job_is_remembered() {
    let home = Home::new();
    let (count, argued) = (home.dir().join("count"), home.dir().join("argued"));
    home.program(
        "sbatch",
        &format!("echo >> {}; echo \"$@\" > {}; echo '17;lab'", count.display(), argued.display()),
    );
    assert_eq!(home.submit(false).await, Submission::Job { id: "17".into() });
    assert_eq!(home.submit(false).await, Submission::Job { id: "17".into() });
    assert_eq!(fs::read_to_string(count).unwrap().lines().count(), 1);
    let script = home.attempt().dir().join("script");
    assert_eq!(fs::read_to_string(argued).unwrap().trim(), format!("--parsable {}", script.display()));
    let seats = fs::metadata(home.attempt().dir().join("seats.json")).unwrap();
    assert_eq!(seats.permissions().mode() & 0o777, 0o600, "it has tokens");
    assert_eq!(home.attempt().found(), Found { job: Some("17".into()), is_tried: true, ..Found::default() });
}

#[tokio::test]
async fn what_is_refused_leaves_no_doubt_and_what_is_lost_does() {
    let home = Home::new();
    home.program(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: Invalid qos specification' >&2; exit 1",
    );
    assert!(matches!(home.submit(false).await, Submission::Refused { .. }));
    assert!(!home.attempt().found().is_tried);
    home.program("sbatch", "echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)' >&2; exit 1");
    assert!(matches!(home.submit(false).await, Submission::Later { .. }));
    home.program("sbatch", "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1");
    assert!(matches!(home.submit(false).await, Submission::Doubtful { .. }));
    home.program("sbatch", "echo 18");
    assert!(
        matches!(home.submit(false).await, Submission::Doubtful { .. }),
        "it is not tried again by itself"
    );
    assert_eq!(home.submit(true).await, Submission::Job { id: "18".into() });
}

#[tokio::test]
async fn a_submission_that_outlives_its_gate_keeps_others_from_making_another() {
    let home = Home::new();
    let go = home.dir().join("go");
    home.program("sbatch", &format!("until test -e {}; do sleep 0.01; done; echo 19", go.display()));
    let (first, ()) = tokio::join!(home.submit(false), async {
        let is_tried = async {
            while !home.attempt().found().is_tried {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(QUESTION, is_tried).await.expect("it is tried");
        // The program has started, or is about to: either way the lock is taken.
        assert_eq!(home.submit(true).await, Submission::Busy);
        fs::write(&go, "").unwrap();
    });
    assert_eq!(first, Submission::Job { id: "19".into() });
}

#[tokio::test]
async fn what_is_closed_is_not_begun_and_what_an_agent_claimed_is_known() {
    let home = Home::new();
    home.attempt().close().unwrap();
    assert_eq!(home.submit(true).await, Submission::Closed);
    fs::write(home.attempt().dir().join("claim"), "23\n").unwrap();
    assert_eq!(home.attempt().found().job.as_deref(), Some("23"));
}

#[test]
fn what_is_long_over_is_removed_and_what_is_live_is_not() {
    let home = Home::new();
    let attempts: Vec<AttemptId> = (1..=2).map(|number| AttemptId { number, ..attempt() }).collect();
    for id in &attempts {
        fs::create_dir_all(home.dir().join(id.to_string()).join("0/tasks")).unwrap();
    }
    attempt::sweep(home.dir(), &[], Duration::from_secs(60)).unwrap();
    let exists = |id: &AttemptId| home.dir().join(id.to_string()).exists();
    assert!(attempts.iter().all(exists), "they are young");
    attempt::sweep(home.dir(), &attempts[..1], Duration::ZERO).unwrap();
    assert_eq!(attempts.iter().map(exists).collect::<Vec<_>>(), [true, false]);
    assert!(home.dir().join("bin").exists(), "nothing else is touched");
}

#[test]
fn what_a_removed_job_has_left_goes_and_nothing_else() {
    let home = Home::new();
    let other: AttemptId = "job_9876543210.1".parse().unwrap();
    let attempts: Vec<AttemptId> = (1..=2).map(|number| AttemptId { number, ..attempt() }).collect();
    for id in attempts.iter().chain([&other]) {
        fs::create_dir_all(home.dir().join(id.to_string()).join("0/tasks")).unwrap();
    }
    for _ in 0..2 {
        attempt::remove(home.dir(), &attempt().job).unwrap();
        assert!(attempts.iter().all(|id| !home.dir().join(id.to_string()).exists()));
        assert!(home.dir().join(other.to_string()).exists() && home.dir().join("bin").exists());
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named_with_what_helps() {
    let programs = Programs::new(None, None);
    let ran = programs.run(&["no-such-program".into()], Stdio::null(), QUESTION).await;
    assert!(ran.code.is_none() && ran.stderr.contains("slurm.programs"), "{ran:?}");
    let slow = programs.run(&["sleep".into(), "60".into()], Stdio::null(), Duration::from_millis(10)).await;
    assert!(slow.code.is_none() && slow.stderr.contains("no end"), "{slow:?}");
}

/// The engine's side of a gate that serves.
async fn with_gate<T>(home: &Home, body: impl AsyncFnOnce(Opener, Incoming, Post) -> T) -> T {
    let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(64 * 1024);
    let (listener, post) = listen(home.dir(), vec!["127.0.0.1".into()]).unwrap();
    let (opener, incoming, driver) = session::start(ours, Side::Server);
    tokio::select! {
        () = converse(theirs, home.gate(), listener, post.clone()) => panic!("the gate ended"),
        _ = driver => panic!("the way to the gate ended"),
        done = body(opener, incoming, post) => done,
    }
}

async fn ask(opener: &Opener, ask: Ask) -> Answer {
    let mut stream = opener.open().await.unwrap();
    wire::say(&mut stream, &ask).await.unwrap();
    hear(&mut stream).await.unwrap()
}

#[tokio::test]
async fn programs_are_run_and_agents_are_handed_on() {
    let home = Home::new();
    with_gate(&home, async |opener, mut incoming, post| {
        let answer =
            ask(&opener, Ask::Run { argv: vec!["sh".into(), "-c".into(), "echo $TZ; exit 3".into()] }).await;
        let Answer::Ran(ran) = answer else { panic!("{answer:?}") };
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), "UTC\n"));
        let Answer::Who(who) = ask(&opener, Ask::Who).await else { panic!("it knows itself") };
        assert_eq!(who.dir, home.dir().to_string_lossy());
        let mut agent = TcpStream::connect(("127.0.0.1", post.port)).await.unwrap();
        agent.write_all(format!("{}\nhello", post.ask).as_bytes()).await.unwrap();
        let mut engine = incoming.next().await.unwrap();
        let mut said = [0; 5];
        engine.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
        engine.write_all(b"welcome").await.unwrap();
        engine.flush().await.unwrap();
        let mut heard = vec![0; post.answer.len() + 1 + 7];
        agent.read_exact(&mut heard).await.unwrap();
        assert!(heard.ends_with(b"\nwelcome"));
    })
    .await;
}

#[tokio::test]
async fn the_next_gate_is_found_where_the_last_one_was() {
    let home = Home::new();
    let first = with_gate(&home, async |_, _, post| post).await;
    let second = with_gate(&home, async |_, _, post| post).await;
    assert_eq!(first, second);
    let occupied = std::net::TcpListener::bind(("0.0.0.0", first.port));
    let third = with_gate(&home, async |_, _, post| post).await;
    assert_eq!(occupied.is_ok(), third.port != first.port);
}
