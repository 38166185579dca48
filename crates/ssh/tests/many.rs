//! Much at once: channels, connections, input that nobody reads.

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
mod peer;

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::host::{Host, NAME, noise, text};
use self::peer::{block_on, exec, finish, member};

/// Of commands at the same time that one task has to stand.
const MANY: usize = 200;

#[test]
fn two_hundred_commands_run_at_once_on_one_connection() {
    let host = Host::start();
    block_on(async {
        let peer = member(host.port).await;
        let mut channels = Vec::new();
        for _ in 0..MANY {
            channels.push(exec(&peer, "read -r word; echo \"$word\"; exit 3").await);
        }
        // All of them are there before the first gets to its end.
        for (number, channel) in channels.iter_mut().enumerate() {
            channel.data_bytes(format!("{number}\n")).await.unwrap();
            assert_eq!(finish(channel).await, (format!("{number}\n").into_bytes(), Some(3)));
        }
    });
}

#[test]
fn two_hundred_commands_run_at_once_on_as_many_connections() {
    let host = Host::start();
    let port = host.port;
    block_on(async {
        let mut connecting = JoinSet::new();
        for _ in 0..MANY {
            connecting.spawn(async move {
                let peer = member(port).await;
                let channel = exec(&peer, "read -r word; echo \"$word\"").await;
                (peer, channel)
            });
        }
        for (_peer, mut channel) in connecting.join_all().await {
            channel.data_bytes("word\n").await.unwrap();
            assert_eq!(finish(&mut channel).await, (b"word\n".to_vec(), Some(0)));
        }
    });
}

#[test]
fn ordinary_clients_come_together() {
    let host = Host::start();
    let start = |number: usize| {
        let mut command = host.ssh();
        command.args([NAME, &format!("echo {number}")]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let clients: Vec<_> = (0..20).map(start).collect();
    for (number, client) in clients.into_iter().enumerate() {
        assert_eq!(text(&client.wait_with_output().unwrap().stdout), format!("{number}\n"));
    }
}

#[test]
fn a_connection_takes_as_many_commands_in_turn_as_anyone_wants() {
    let host = Host::start();
    block_on(async {
        let peer = member(host.port).await;
        for _ in 0..600 {
            assert_eq!(finish(&mut exec(&peer, ":").await).await.1, Some(0));
        }
    });
}

#[test]
fn channels_and_variables_have_bounds() {
    let host = Host::start();
    block_on(async {
        let peer = member(host.port).await;
        let mut channels = Vec::new();
        let refused = loop {
            match peer.channel_open_session().await {
                Ok(channel) => channels.push(channel),
                Err(error) => break error,
            }
            assert!(channels.len() < 10_000);
        };
        assert!(
            matches!(refused, russh::Error::ChannelOpenFailure(_)) && channels.len() >= MANY,
            "{refused:?}"
        );
        drop(channels.split_off(1));
        let mut channel = channels.pop().unwrap();
        for number in 0..300 {
            channel.set_env(false, format!("VARIABLE_{number}"), "x").await.unwrap();
        }
        channel.exec(false, "env | grep -c ^VARIABLE_").await.unwrap();
        assert_eq!(text(&finish(&mut channel).await.0), "256\n");
    });
    block_on(async {
        let peer = member(host.port).await;
        let mut channel = exec(&peer, &format!(": {}", "x".repeat(200_000))).await;
        assert_eq!(finish(&mut channel).await.1, Some(127));
    });
}

#[test]
fn a_command_that_does_not_read_delays_nobody_else() {
    let host = Host::start();
    block_on(async {
        let peer = member(host.port).await;
        let mut stalled = exec(&peer, "echo $$; exec sleep 1000").await;
        let pid = loop {
            if let Some(russh::ChannelMsg::Data { data }) = stalled.wait().await {
                break text(&data).trim().parse().unwrap();
            }
        };
        let (mut reading, writing) = stalled.split();
        let mut feeding = JoinSet::new();
        // Far more than is ever taken.
        feeding.spawn(async move { writing.data_bytes(vec![0; 1 << 30]).await });
        feeding.spawn(async move {
            while reading.wait().await.is_some() {}
            Ok(())
        });
        let mut slowest = Duration::ZERO;
        for number in 0..20 {
            let begun = Instant::now();
            let line = format!("echo {number}");
            assert_eq!(text(&finish(&mut exec(&peer, &line).await).await.0), format!("{number}\n"));
            slowest = slowest.max(begun.elapsed());
        }
        eprintln!("the slowest of the others took {slowest:?}");
        muster_testkit::kill(pid);
        assert!(slowest < Duration::from_secs(10), "{slowest:?}");
    });
}

#[test]
fn a_command_that_begins_late_gets_all_and_its_output_comes_back() {
    let host = Host::start();
    let bytes = noise(24 << 20);
    block_on(async {
        let peer = member(host.port).await;
        // More than is held without a second thought, and more than an output's window.
        let (mut reading, writing) = exec(&peer, "sleep 1; exec cat").await.split();
        let sent = bytes.clone();
        let mut feeding = JoinSet::new();
        feeding.spawn(async move {
            writing.data_bytes(sent).await.unwrap();
            writing.eof().await.unwrap();
        });
        let mut output = Vec::new();
        while let Some(message) = reading.wait().await {
            if let russh::ChannelMsg::Data { data } = message {
                output.extend_from_slice(&data);
            }
        }
        assert!(output == bytes, "{} of {}", output.len(), bytes.len());
    });
}
