//! A server that speaks TLS: with a certificate of its own, which clients pin, or with one of an authority.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use muster_link::dial::{self, Channel, Server};
use muster_link::tls::Fingerprint;
use muster_testkit::http::{Door, Request};
use muster_testkit::{Finished, Home, Running, wait_for};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::{home, until};

/// A server on TCP, and what a client elsewhere must know of it.
struct Served<'a> {
    home: &'a Home,
    server: Running,
    address: String,
    token: String,
}

impl<'a> Served<'a> {
    fn start(home: &'a Home, flags: &[&str]) -> Self {
        let folder = home.path();
        let words = ["server", "run", "--home", folder.to_str().expect("plain"), "--listen", "127.0.0.1:0"];
        let server = home.start(words.iter().chain(flags));
        server.wait_for_out("ready\n");
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect("what a server leaves");
        Self { home, address: read("server.address"), token: read("token"), server }
    }

    /// What its operator reads on its machine.
    fn fingerprint(&self) -> String {
        let status = self.home.json(["server", "status", "--json"]);
        status["fingerprint"].as_str().expect("it speaks TLS").to_owned()
    }

    /// A command somewhere else, where nothing is known of the server but this.
    fn elsewhere(&self, words: &[&str], scheme: &str, fingerprint: Option<&str>) -> Command {
        let mut command = self.home.command(words);
        command
            .env("MUSTER_HOME", self.home.shared().join("client"))
            .env("MUSTER_SERVER", format!("{scheme}://{}", self.address))
            .env("MUSTER_TOKEN", &self.token);
        if let Some(fingerprint) = fingerprint {
            command.env("MUSTER_FINGERPRINT", fingerprint);
        }
        command
    }

    fn pinned(&self, words: &[&str], fingerprint: &str) -> Finished {
        Running::start(self.elsewhere(words, "https", Some(fingerprint))).finish()
    }

    fn stop(self) {
        self.server.signal(rustix::process::Signal::TERM);
        assert_eq!(self.server.finish().code(), 0);
    }
}

fn succeeds(done: &Finished) -> String {
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    done.out()
}

fn refused(done: &Finished, code: &str, words: &[&str]) {
    assert_eq!(done.code(), 125, "{}{}", done.out(), done.err());
    assert!(done.err().contains(&format!("error[{code}]")), "{}", done.err());
    for word in words {
        assert!(done.err().contains(word), "`{word}` is not in {}", done.err());
    }
}

#[test]
fn everything_that_a_client_does_goes_over_tls() {
    let home = home();
    let served = Served::start(&home, &["--tls"]);
    let pin = served.fingerprint();
    assert!(served.server.err().contains(&pin), "it says so when it starts: {}", served.server.err());
    assert!(home.ok(["server", "status"]).contains(&pin));
    let remote = |words: &[&str]| served.pinned(words, &pin);

    home.write("word.txt", "from the client");
    let done = remote(&["run", "--", "sh", "-c", "cat word.txt; echo; exit 6"]);
    assert_eq!((done.code(), done.out().as_str()), (6, "from the client\n"), "{}", done.err());

    let bare = home.bare_shells();
    let line = format!("echo begun; {}; echo over", until("end"));
    let submitted = remote(&["run", "-d", "--json", "--env", &bare, "--", "sh", "-c", &line]);
    let job: serde_json::Value = serde_json::from_str(&succeeds(&submitted)).unwrap();
    let job = job["id"].as_str().unwrap();
    let follower = Running::start(served.elsewhere(&["logs", "-f", job], "https", Some(&pin)));
    follower.wait_for_out("begun\n");

    assert_eq!(succeeds(&remote(&["exec", job, "--", "sh", "-c", "echo in it"])), "in it\n");
    let big: String = (0..200_000).map(|i| format!("line {i}\n")).collect();
    home.write("big.txt", &big);
    succeeds(&remote(&["cp", "big.txt", &format!("{job}:there.txt")]));
    succeeds(&remote(&["cp", &format!("{job}:there.txt"), "back.txt"]));
    assert!(fs::read_to_string(home.work().join("back.txt")).unwrap() == big);
    assert_eq!(
        succeeds(&remote(&["session", "run", job, "--", "echo", "in", "a", "session"])),
        "in a session\n"
    );

    home.touch("end");
    let followed = follower.finish();
    assert_eq!((followed.code(), followed.out().as_str()), (0, "begun\nover\n"), "{}", followed.err());
    succeeds(&remote(&["wait", job]));

    // It is the same server after a restart, to those who have pinned it.
    served.stop();
    let again = Served::start(&home, &["--tls"]);
    assert_eq!(again.fingerprint(), pin);
    again.stop();
}

#[test]
fn a_certificate_that_nobody_knows_and_another_than_the_pinned_are_refused() {
    let home = home();
    let served = Served::start(&home, &["--tls"]);
    let pin = served.fingerprint();
    let other = format!("sha256:{}", "0f".repeat(32));

    let unknown = Running::start(served.elsewhere(&["ps"], "https", None)).finish();
    let remedy = format!("export MUSTER_FINGERPRINT={pin}");
    refused(&unknown, "certificate_unknown", &[&pin, &remedy, "muster server status"]);
    refused(
        &served.pinned(&["ps"], &other),
        "certificate_changed",
        &["HAS CHANGED", &pin, &other, "no token was shown"],
    );
    let wrong = served.pinned(&["ps"], "sha256:12");
    assert_eq!(wrong.code(), 2, "{}", wrong.err());
    assert!(wrong.err().contains("MUSTER_FINGERPRINT"), "{}", wrong.err());

    // Who does not speak TLS there is told so, by name of the remedy.
    let plain = Running::start(served.elsewhere(&["ps"], "http", None)).finish();
    assert!(plain.err().contains("speaks TLS") && plain.err().contains("https://"), "{}", plain.err());
    let reply = Door::Tcp(served.address.clone()).ask(&Request::get("/healthz"));
    reply.problem(400, "invalid_request");
    let mut stray = TcpStream::connect(&served.address).unwrap();
    stray.write_all(b"SSH-2.0-nobody\r\n").unwrap();
    stray.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stray.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    served.stop();

    let without = Served::start(&home, &[]);
    refused(&without.pinned(&["ps"], &pin), "tls_failed", &["does not speak TLS", "http://"]);
    without.stop();
}

/// An authority of the test's own.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("an authority") }
    }

    /// Gives a server a certificate, in the place of the one that it has.
    fn issue(&self, certificate: &Path, key: &Path) {
        let own = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        let issued = params.signed_by(&own, &self.issuer).expect("a certificate");
        for (path, text) in [(certificate, issued.pem()), (key, own.serialize_pem())] {
            let new = path.with_extension("new");
            fs::write(&new, text).expect("a file");
            fs::rename(new, path).expect("in its place");
        }
    }
}

fn files(home: &Home) -> (PathBuf, PathBuf, PathBuf) {
    let at = |name: &str| home.shared().join(name);
    (at("ca.pem"), at("cert.pem"), at("key.pem"))
}

#[test]
fn a_certificate_of_an_authority_is_believed_and_replaced_while_the_server_runs() {
    let home = home();
    let authority = Authority::new();
    let (roots, certificate, key) = files(&home);
    fs::write(&roots, authority.issuer.pem()).unwrap();
    authority.issue(&certificate, &key);
    let flags = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let served = Served::start(&home, &flags);
    let first = served.fingerprint();
    let by_authority = || {
        let mut command = served.elsewhere(&["run", "--", "echo", "believed"], "https", None);
        command.env("SSL_CERT_FILE", &roots);
        Running::start(command).finish()
    };
    assert_eq!(succeeds(&by_authority()), "believed\n");
    let stranger = Running::start(served.elsewhere(&["ps"], "https", None)).finish();
    refused(&stranger, "certificate_unknown", &[&first]);
    succeeds(&served.pinned(&["ps"], &first));

    authority.issue(&certificate, &key);
    wait_for("the new certificate to be shown", || served.fingerprint() != first);
    let second = served.fingerprint();
    assert_eq!(succeeds(&by_authority()), "believed\n");
    succeeds(&served.pinned(&["ps"], &second));
    refused(&served.pinned(&["ps"], &first), "certificate_changed", &[&first, &second]);

    // What cannot be used is not taken.
    fs::write(&key, "not a key").unwrap();
    wait_for("it to be said", || {
        served.fingerprint();
        served.server.err().contains("the old certificate is kept")
    });
    succeeds(&served.pinned(&["ps"], &second));
    served.stop();
}

#[test]
fn files_that_cannot_be_used_are_named_before_anything_listens() {
    let home = home();
    let (_, certificate, key) = files(&home);
    Authority::new().issue(&certificate, &key);
    let missing = home.shared().join("missing.pem");
    let folder = home.path();
    let run = |flags: &[&str]| {
        let words = ["server", "run", "--home", folder.to_str().unwrap()];
        home.run(words.iter().chain(flags))
    };
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    for (one, other, word) in [
        (&missing, &key, "missing.pem cannot be read; check the path"),
        (&certificate, &missing, "missing.pem cannot be read"),
        (&key, &key, "key.pem has no certificate"),
        (&certificate, &certificate, "cert.pem has no private key"),
    ] {
        let done = run(&["--listen", "127.0.0.1:0", "--tls-cert", &text(one), "--tls-key", &text(other)]);
        assert_eq!(done.code(), 125, "{}", done.err());
        assert!(done.err().contains(word), "{}", done.err());
        assert!(!folder.join("server.address").exists() && !folder.join("server.sock").exists());
    }
    for flags in [&["--tls"][..], &["--listen", "127.0.0.1:0", "--tls-cert", "/c.pem"]] {
        assert_eq!(run(flags).code(), 2, "{flags:?} says too little");
    }
    // As settings.
    home.configure(&format!("[server]\ntls_cert = {certificate:?}\ntls_key = {key:?}\n"));
    let served = Served::start(&home, &[]);
    succeeds(&served.pinned(&["ps"], &served.fingerprint()));
    served.stop();
}

#[test]
fn plain_http_on_an_address_of_the_network_is_refused_unless_it_is_chosen() {
    let home = home();
    let folder = home.path();
    let words = ["server", "run", "--home", folder.to_str().unwrap(), "--listen", "0.0.0.0:0"];
    for more in [&[][..], &["--auth"]] {
        let done = home.run(words.iter().chain(more));
        assert_eq!(done.code(), 125, "{more:?}: {}", done.err());
        assert!(done.err().contains("error: --listen 0.0.0.0:0: plain HTTP"), "{}", done.err());
        assert!(done.err().contains("hint: add --tls"), "{}", done.err());
        assert!(!folder.join("server.address").exists() && !folder.join("server.sock").exists());
    }
    assert_eq!(home.run(words.iter().chain(&["--tls", "--listen-plain-http"])).code(), 2, "one or the other");
    for chosen in [&["--tls"][..], &["--tls", "--auth"], &["--listen-plain-http"]] {
        let server = home.start(words.iter().chain(chosen));
        server.wait_for_out("ready\n");
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.finish().code(), 0, "{chosen:?}");
    }
    home.configure("[server]\ntls = false\n");
    let server = home.start(words);
    server.wait_for_out("ready\n");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.finish().code(), 0, "a setting says so");
}

#[test]
fn an_agent_dials_by_tls_and_takes_no_other_certificate() {
    let home = home();
    let served = Served::start(&home, &["--tls"]);
    let pin: Fingerprint = served.fingerprint().parse().unwrap();
    wait_for("the node's token", || home.path().join("node/token").exists());
    let token = fs::read_to_string(home.path().join("node/token")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let dial = |pinned: Option<Fingerprint>, token: &str| {
        let server = Server::Tls { address: served.address.clone(), pinned };
        let node = "node_local".parse().unwrap();
        runtime.block_on(dial::dial(&server, Channel::Bulk, &node, token)).map(drop)
    };
    dial(Some(pin), token.trim()).unwrap();
    let refused = dial(Some(pin), "wrong").unwrap_err().to_string();
    assert!(refused.contains("401"), "it got as far as that: {refused}");
    let other = dial(Some(Fingerprint::of(b"another")), token.trim()).unwrap_err().to_string();
    assert!(other.contains(&pin.to_string()), "{other}");
    let unknown = dial(None, token.trim()).unwrap_err().to_string();
    assert!(unknown.contains("is not trusted"), "{unknown}");
    served.stop();
}

#[test]
fn two_hundred_who_say_nothing_keep_nobody_waiting() {
    let home = home();
    let served = Served::start(&home, &["--tls"]);
    let pin = served.fingerprint();
    succeeds(&served.pinned(&["ps"], &pin));
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&served.address).unwrap()).collect();
    // Those who have begun and stopped are no better.
    for mut stream in &silent[..100] {
        stream.write_all(&[22, 3, 1, 2]).unwrap();
    }
    let begun = Instant::now();
    succeeds(&served.pinned(&["ps"], &pin));
    // Handshakes are given up after ten seconds; this is far less, on a busy machine too.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(silent);
    served.stop();
}
