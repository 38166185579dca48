//! Those who should not come in, and those who only want to break something.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the way tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
#[expect(dead_code, reason = "other tests use the rest")]
mod peer;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use russh::client::{AuthResult, KeyboardInteractiveAuthResponse};
use russh::{MethodKind, MethodSet};

use self::host::{Host, NAME, noise};
use self::peer::{block_on, connect, log_in};

const VERSION: &[u8] = b"SSH-2.0-OpenSSH_9.9\r\n";

fn raw(host: &Host) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, host.port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

/// Whether the server hangs up on someone who says this.
fn is_hung_up_on(host: &Host, words: &[u8]) -> bool {
    let mut stream = raw(host);
    // It may have hung up before all is said.
    let _ = stream.write_all(words);
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// A packet that says of itself to be so long.
fn packet(length: u32, rest: &[u8]) -> Vec<u8> {
    [VERSION, &length.to_be_bytes(), rest].concat()
}

#[test]
fn garbage_is_hung_up_on_and_members_come_in_as_ever() {
    let host = Host::start();
    let kexinit = [&[4, 20][..], &[0; 16], &[0xff; 40]].concat();
    let cases: [(&str, Vec<u8>); 10] = [
        ("noise", noise(100_000)),
        ("another protocol", b"GET / HTTP/1.1\r\nHost: task\r\n\r\n".to_vec()),
        ("a first line without an end", vec![b'S'; 1 << 20]),
        ("a first line of another version", b"SSH-1.5-old\r\n".to_vec()),
        ("a packet that is too long", packet(u32::MAX, &[0; 64])),
        ("a packet longer than any channel's", packet((256 << 10) + 1000, &[0; 64])),
        ("a packet without a length", packet(0, &[0; 64])),
        ("a packet all of padding", packet(12, &[255; 12])),
        ("a packet that is noise", packet(1000, &noise(1000))),
        ("an exchange of keys that is none", packet(kexinit.len() as u32, &kexinit)),
    ];
    for (what, words) in cases {
        assert!(is_hung_up_on(&host, &words), "{what}");
    }
    assert_eq!(host.done("ssh", &[NAME, "echo here"]), "here\n");
}

#[test]
fn nothing_but_the_key_opens_the_door() {
    let host = Host::start();
    let refused = |result: &AuthResult| {
        let only = MethodSet::from(&[MethodKind::PublicKey][..]);
        matches!(result, AuthResult::Failure { remaining_methods, partial_success: false } if *remaining_methods == only)
    };
    block_on(async {
        let mut peer = connect(host.port).await;
        assert!(refused(&peer.authenticate_none("root").await.unwrap()));
        assert!(refused(&peer.authenticate_password("root", "secret").await.unwrap()));
        let asked = peer.authenticate_keyboard_interactive_start("root", None).await.unwrap();
        assert!(matches!(asked, KeyboardInteractiveAuthResponse::Failure { .. }), "{asked:?}");
        assert!(refused(&log_in(&mut peer, "another job's").await));
        // And without any of that, nothing is there to be asked for.
        let peer = connect(host.port).await;
        assert!(peer.channel_open_session().await.is_err());
    });
}

#[test]
fn a_crowd_that_says_nothing_keeps_nobody_out() {
    let host = Host::start();
    let mut crowd: Vec<TcpStream> = (0..700).map(|_| raw(&host)).collect();
    let begun = Instant::now();
    assert_eq!(host.done("ssh", &[NAME, "echo here"]), "here\n");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // The first to come had to go; the last may still think about it.
    let mut said = Vec::new();
    crowd[0].read_to_end(&mut said).unwrap();
    assert!(said.starts_with(b"SSH-2.0-muster"));
    let last = crowd.last_mut().unwrap();
    last.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let error = last.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}
