//! Ports, sockets and keys through a connection, with the host's ordinary OpenSSH client.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the way tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use self::host::{Host, Master, NAME, noise, text, wait_for};

const OWN: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A port that is free now. Whoever asks for it is told if it no longer is.
fn free_port() -> u16 {
    TcpListener::bind((OWN, 0)).unwrap().local_addr().unwrap().port()
}

/// Answers everyone who connects, to the end of the test.
fn serve(answer: impl Fn(TcpStream) + Send + Sync + Clone + 'static) -> u16 {
    let listener = TcpListener::bind((OWN, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            thread::spawn(move || answer(stream.unwrap()));
        }
    });
    port
}

/// Says everything back after it has heard everything, which takes a stream whose ends are apart.
fn echo_at_the_end(mut stream: impl Read + Write) {
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    stream.write_all(&heard).unwrap();
}

fn is_echoed(mut stream: TcpStream, bytes: &[u8]) -> bool {
    let mut writing = stream.try_clone().unwrap();
    let sent = bytes.to_vec();
    let writer = thread::spawn(move || {
        writing.write_all(&sent).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
    });
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).unwrap();
    writer.join().unwrap();
    heard == bytes
}

fn connect(port: u16) -> TcpStream {
    let mut stream = None;
    wait_for("the forward", || {
        stream = TcpStream::connect((OWN, port)).ok();
        stream.is_some()
    });
    stream.unwrap()
}

#[test]
fn a_port_of_the_task_is_a_port_here_and_each_side_ends_by_itself() {
    let host = Host::start();
    let (port, far) = (free_port(), serve(echo_at_the_end));
    let nobody = free_port();
    let refused = free_port();
    let _master = host.master(&[
        "-L",
        &format!("{port}:localhost:{far}"),
        "-L",
        &format!("{refused}:127.0.0.1:{nobody}"),
    ]);
    assert!(is_echoed(connect(port), &noise(5_000_000)));
    let many: Vec<_> =
        (0..50).map(|_| thread::spawn(move || is_echoed(connect(port), &noise(20_000)))).collect();
    assert!(many.into_iter().all(|one| one.join().unwrap()));
    let mut none = Vec::new();
    let _ = connect(refused).read_to_end(&mut none);
    assert_eq!(none, b"");
}

#[test]
fn one_stream_can_be_all_there_is() {
    let host = Host::start();
    let far = serve(echo_at_the_end);
    let mut command = host.ssh();
    command.args(["-W", &format!("127.0.0.1:{far}"), NAME]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"there and back").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "there and back");
}

#[test]
fn a_client_that_leaves_in_the_middle_leaves_nothing_open() {
    let host = Host::start();
    let (send, ended) = std::sync::mpsc::channel();
    let far = serve(move |mut stream| {
        let block = vec![7; 1 << 16];
        while stream.write_all(&block).is_ok() {}
        send.send(()).unwrap();
    });
    let port = free_port();
    let _master = host.master(&["-L", &format!("{port}:127.0.0.1:{far}")]);
    let mut stream = connect(port);
    stream.read_exact(&mut [0; 1000]).unwrap();
    drop(stream);
    ended.recv_timeout(Duration::from_secs(30)).expect("the task's side ends too");
}

#[test]
fn any_address_the_task_can_reach_is_reached_through_socks() {
    let host = Host::start();
    let (port, far) = (free_port(), serve(echo_at_the_end));
    let _master = host.master(&["-D", &port.to_string()]);
    let mut stream = connect(port);
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [5, 0]);
    // By its name, which the task looks up.
    let ask = [&[5, 1, 0, 3, 9][..], b"localhost", &far.to_be_bytes()].concat();
    stream.write_all(&ask).unwrap();
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..2], [5, 0]);
    assert!(is_echoed(stream, &noise(1_000_000)));
}

/// Adds a remote forward to a connection; its port is what OpenSSH prints when it asked for any.
fn forward_back(master: &Master<'_>, forward: &str) -> String {
    let done = master.ssh(&["-O", "forward", "-R", forward, NAME]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    text(&done.stdout).trim().to_owned()
}

/// The addresses on which a port is listened on.
fn addresses(port: u16) -> Vec<String> {
    let listed = Command::new("ss").args(["-Hltn", &format!("sport = :{port}")]).output().unwrap();
    let column = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    text(&listed.stdout).lines().filter_map(column).collect()
}

#[test]
fn a_port_of_ours_is_a_port_of_the_task_until_it_is_taken_back() {
    let host = Host::start();
    let near = serve(echo_at_the_end);
    let master = host.master(&[]);
    let port: u16 = forward_back(&master, &format!("0:127.0.0.1:{near}")).parse().unwrap();
    assert!(is_echoed(connect(port), &noise(3_000_000)));
    // Only those in the machine itself get in.
    let listening = addresses(port);
    assert!(listening.contains(&format!("127.0.0.1:{port}")), "{listening:?}");
    assert!(
        listening.iter().all(|at| at.starts_with("127.0.0.1:") || at.starts_with("[::1]:")),
        "{listening:?}"
    );
    let fixed = free_port();
    forward_back(&master, &format!("{fixed}:127.0.0.1:{near}"));
    assert!(is_echoed(connect(fixed), b"again"));
    let cancel = format!("{fixed}:127.0.0.1:{near}");
    assert!(master.ssh(&["-O", "cancel", "-R", &cancel, NAME]).status().unwrap().success());
    wait_for("the port to be free", || TcpStream::connect((OWN, fixed)).is_err());
    // Everyone, when asked for.
    let open = free_port();
    forward_back(&master, &format!("*:{open}:127.0.0.1:{near}"));
    let listening = addresses(open);
    assert!(listening.iter().any(|at| at.starts_with("*:") || at.starts_with("0.0.0.0:")), "{listening:?}");
    drop(master);
    wait_for("the port to go with the connection", || TcpStream::connect((OWN, port)).is_err());
}

#[test]
fn a_port_that_is_taken_is_refused() {
    let host = Host::start();
    let taken = serve(echo_at_the_end);
    let mut command = host.ssh();
    command.args(["-o", "ExitOnForwardFailure=yes", "-R", &format!("{taken}:127.0.0.1:1"), NAME, "true"]);
    let done = command.output().unwrap();
    assert_eq!(done.status.code(), Some(255), "{done:?}");
}

#[test]
fn sockets_are_forwarded_as_ports_are() {
    let host = Host::start();
    let listener = UnixListener::bind(host.path("far")).unwrap();
    thread::spawn(move || listener.incoming().for_each(|stream| echo_at_the_end(stream.unwrap())));
    let (here, there) = (host.at("here"), host.at("there"));
    // What a killed process left behind is in nobody's way.
    drop(UnixListener::bind(&there).unwrap());
    let forward = format!("{here}:{}", host.at("far"));
    let back = format!("{there}:{}", host.at("far"));
    let master = host.master(&["-L", &forward, "-R", &back]);
    for path in [here, there] {
        let mut stream = None;
        wait_for("the socket", || {
            stream = UnixStream::connect(&path).ok();
            stream.is_some()
        });
        let mut stream = stream.unwrap();
        stream.write_all(b"through").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = String::new();
        stream.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "through", "{path}");
    }
    drop(master);
    wait_for("the socket to be removed", || !host.path("there").exists());
}

/// An agent with one key, to the end of the test.
struct KeyAgent {
    child: Child,
}

impl KeyAgent {
    fn start(host: &Host) -> KeyAgent {
        let mut command = Command::new("ssh-agent");
        let child = command.args(["-D", "-a"]).arg(host.path("agent")).stdout(Stdio::null()).spawn().unwrap();
        let agent = KeyAgent { child };
        wait_for("the agent", || host.path("agent").exists());
        let key = host.path("key");
        let make = ["-q", "-t", "ed25519", "-N", "", "-C", "my key", "-f"];
        assert!(Command::new("ssh-keygen").args(make).arg(&key).status().unwrap().success());
        let added =
            Command::new("ssh-add").arg("-q").arg(&key).env("SSH_AUTH_SOCK", host.path("agent")).status();
        assert!(added.unwrap().success());
        agent
    }
}

impl Drop for KeyAgent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_of_ours_can_be_used_in_the_task_and_leave_no_trace() {
    let host = Host::start();
    let _agent = KeyAgent::start(&host);
    let line = "ssh-add -l && stat -c %a $(dirname $SSH_AUTH_SOCK) && echo $SSH_AUTH_SOCK";
    let done = host.ssh().args(["-A", NAME, line]).env("SSH_AUTH_SOCK", host.path("agent")).output().unwrap();
    let out = text(&done.stdout);
    let lines: Vec<&str> = out.lines().collect();
    let [key, "700", socket] = lines[..] else { panic!("{done:?}") };
    assert!(key.contains("my key (ED25519)"), "{key}");
    wait_for("the socket to go", || !std::path::Path::new(socket).parent().unwrap().exists());
    // Unasked, a command has none; whoever started the server may have.
    let done = host.ssh().args(["-a", NAME, "echo $SSH_AUTH_SOCK"]).output().unwrap();
    assert!(!text(&done.stdout).contains("muster-agent"), "{done:?}");
}

/// A shell in the task, through a connection that others share, and how long it takes to answer.
struct Shell {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn start(master: &Master<'_>) -> Shell {
        let mut command = master.ssh(&[NAME, "cat"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Shell { child, out }
    }

    fn round_trip(&mut self) -> Duration {
        let begun = Instant::now();
        self.child.stdin.as_mut().unwrap().write_all(b"hello\n").unwrap();
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        assert_eq!(line, "hello\n");
        begun.elapsed()
    }

    /// The slowest of some.
    fn slowest(&mut self) -> Duration {
        (0..20).map(|_| self.round_trip()).max().unwrap()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a busy machine may take for what takes it a millisecond.
const SOON: Duration = Duration::from_secs(2);

#[test]
fn a_download_that_nobody_reads_delays_no_shell() {
    let host = Host::start();
    let far = serve(|mut stream| {
        let block = vec![7; 1 << 16];
        while stream.write_all(&block).is_ok() {}
    });
    let port = free_port();
    let master = host.master(&["-L", &format!("{port}:127.0.0.1:{far}")]);
    let mut shell = Shell::start(&master);
    shell.round_trip();
    let stalled: Vec<TcpStream> = (0..3).map(|_| connect(port)).collect();
    // Until the last buffer on the way is full, which shows in that nothing moves any more.
    let (mut before, mut looks) = (0, 0);
    wait_for("the download to stand still", || {
        let waiting: usize = stalled.iter().map(waiting_bytes).sum();
        looks = if waiting > 0 && waiting == before { looks + 1 } else { 0 };
        before = waiting;
        looks == 100
    });
    let slowest = shell.slowest();
    println!("beside a stalled download: {slowest:?}");
    assert!(slowest < SOON, "{slowest:?}");
}

fn waiting_bytes(stream: &TcpStream) -> usize {
    rustix::io::ioctl_fionread(stream).unwrap() as usize
}

#[test]
fn an_upload_that_nobody_reads_delays_no_shell_while_it_is_small() {
    let host = Host::start();
    // Connected by the system, and never looked at.
    let listener = TcpListener::bind((OWN, 0)).unwrap();
    let far = listener.local_addr().unwrap().port();
    let port = free_port();
    let master = host.master(&["-L", &format!("{port}:127.0.0.1:{far}")]);
    let mut shell = Shell::start(&master);
    shell.round_trip();
    let mut stalled = connect(port);
    stalled.write_all(&noise(12 << 20)).unwrap();
    let slowest = shell.slowest();
    println!("beside a stalled upload: {slowest:?}");
    assert!(slowest < SOON, "{slowest:?}");
    // And nothing of it is lost when somebody does look.
    stalled.shutdown(Shutdown::Write).unwrap();
    let mut heard = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut heard).unwrap();
    assert!(heard == noise(12 << 20));
}
