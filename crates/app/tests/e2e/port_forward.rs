//! `muster port-forward`: ports of tasks on this machine.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use muster_testkit::{Home, Running, wait_for, wait_for_some};
use rustix::process::Signal;
use serde_json::Value;

use crate::{home, python};

/// Reads everything, then answers with how much it was and goes: what cannot work without the end of one direction alone.
const COUNTER: &str = "
import os, socket, threading
server = socket.socket()
server.bind(('127.0.0.1', 0))
server.listen(64)
open(os.environ['SHARED'] + '/port.new', 'w').write(str(server.getsockname()[1]))
os.rename(os.environ['SHARED'] + '/port.new', os.environ['SHARED'] + '/port')
def serve(peer):
    total = 0
    while piece := peer.recv(65536):
        total += len(piece)
    peer.sendall(f'{os.environ[\"RANK\"]}:{total}'.encode())
    peer.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
";

fn serving(home: &Home) -> (String, String) {
    home.write("counter.py", COUNTER);
    let id = home.submit(&["--name", "web", "--framework", "plain", "--", python(), "counter.py"]);
    home.wait_for_state(&id, "running");
    (id, home.wait_for_file("port"))
}

/// The ports that a `--json` one has said.
fn local_port(forward: &Running) -> u16 {
    let line = wait_for_some("the ports", || forward.out().lines().next().map(str::to_owned));
    let said: Value = serde_json::from_str(&line).expect("a line of JSON");
    let port = said["ports"][0]["local"].as_u64().and_then(|port| u16::try_from(port).ok());
    port.expect("a port")
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket has timeouts");
    stream
}

fn ask(port: u16, bytes: usize) -> std::io::Result<String> {
    let mut stream = connect(port);
    stream.write_all(&vec![b'x'; bytes])?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn connections_go_through_whole_and_keep_their_halves() {
    let home = home();
    let (id, remote) = serving(&home);
    let mut forward = home.start(["port-forward", "web", &format!(":{remote}"), "--json"]);
    let port = local_port(&forward);
    assert_eq!(ask(port, 0).unwrap(), "0:0");
    assert_eq!(ask(port, 3 << 20).unwrap(), format!("0:{}", 3 << 20));
    std::thread::scope(|scope| {
        for i in 0..20 {
            scope.spawn(move || assert_eq!(ask(port, i * 1000).unwrap(), format!("0:{}", i * 1000)));
        }
    });
    // A connection that nobody reads from or writes to holds up none of the others.
    let _silent = connect(port);
    assert_eq!(ask(port, 5).unwrap(), "0:5");
    assert!(!forward.is_over());
    home.ok(["stop", &id]);
    let done = forward.finish();
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(done.err().contains(&format!("{id}: stopped")), "{}", done.err());
}

#[test]
fn it_goes_on_when_server_and_agent_start_again() {
    let home = home();
    let (id, remote) = serving(&home);
    let forward = home.start(["port-forward", &id, &format!(":{remote}"), "--json"]);
    let port = local_port(&forward);
    assert_eq!(ask(port, 1).unwrap(), "0:1");
    for role in ["server", "agent"] {
        assert!(home.kill(role) > 0, "{role}");
        wait_for("a connection after the restart", || ask(port, 2).is_ok_and(|answer| answer == "0:2"));
    }
    assert!(home.kill("inside") > 0);
    wait_for("a connection to another who answers", || ask(port, 3).is_ok_and(|answer| answer == "0:3"));
    forward.signal(Signal::INT);
    assert_eq!(forward.finish().code(), 130);
    home.ok(["stop", &id]);
}

#[test]
fn a_port_that_cannot_be_used_is_said_with_the_remedy() {
    let home = home();
    let (id, remote) = serving(&home);
    let busy = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let taken = busy.local_addr().unwrap().port();
    let done = home.run(["port-forward", "web", &format!("{taken}:{remote}")]);
    assert_eq!(done.code(), 2);
    assert!(done.err().contains(&format!("hint: `muster port-forward web :{remote}`")), "{}", done.err());
    for (words, said) in [("0", "port 0"), ("x", "ports are 1 to 65535"), ("80:", "ports are 1 to 65535")] {
        let done = home.run(["port-forward", "web", words]);
        assert!(done.code() == 2 && done.err().contains(said), "{words}: {}", done.err());
    }
    let forward = home.start(["port-forward", "web", &format!(":{remote}"), ":1"]);
    let lines = wait_for_some("both lines", || {
        let lines: Vec<String> = forward.out().lines().map(str::to_owned).collect();
        (lines.len() == 2).then_some(lines)
    });
    assert!(
        lines[0].starts_with("http://127.0.0.1:") && lines[0].ends_with(&format!(" → task 0, port {remote}"))
    );
    let dead = lines[1].trim_start_matches("http://127.0.0.1:").split(' ').next().unwrap().parse().unwrap();
    assert!(ask(dead, 1).is_err(), "a connection to nothing is reset, not answered");
    assert!(ask(dead, 1).is_err());
    wait_for("the note", || forward.err().contains("nothing listens on port 1 of task 0"));
    assert_eq!(forward.err().matches("nothing listens").count(), 1, "it is said once");
    forward.signal(Signal::TERM);
    assert_eq!(forward.finish().code(), 143);
    home.ok(["stop", &id]);
}
