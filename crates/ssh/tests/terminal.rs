//! Shells and commands on a terminal, as someone at an ordinary `ssh` has them.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the way tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;
mod peer;

use std::process::Stdio;

use muster_testkit::{Terminal, is_alive, wait_for};
use russh::{ChannelMsg, Sig};

use self::host::{Host, NAME, noise, read, text};
use self::peer::{block_on, exec, finish, member};

/// `ssh` on a terminal of its own, with everything typed going to the other side.
fn terminal(host: &Host, arguments: &[&str]) -> Terminal {
    terminal_with(host, "", &[], arguments)
}

/// The same, with options of `ssh`, on a terminal that is set up as people have theirs, and then like this.
fn terminal_with(host: &Host, modes: &str, options: &[&str], arguments: &[&str]) -> Terminal {
    let mut command = host.command("sh");
    command.args(["-c", &format!("stty iutf8 rows 24 columns 80 {modes}; exec \"$@\""), "sh"]);
    command.arg(host.ssh().get_program()).args(["-tt", "-e", "none"]).args(options).arg(NAME).args(arguments);
    Terminal::start(&command)
}

/// A shell with a prompt that can be waited for: what is typed before it has taken note of a signal may be lost.
fn shell(host: &Host) -> Terminal {
    let terminal = terminal(host, &["PS1=please: exec bash --norc --noprofile --noediting -i"]);
    terminal.wait_for("please:", 1);
    terminal
}

/// The number after a word that the other side has written.
fn number(terminal: &Terminal, word: &str) -> u32 {
    terminal.wait_for(word, 1);
    let screen = terminal.screen();
    let (_, rest) = screen.split_once(word).unwrap();
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{word}: {screen}"))
}

#[test]
fn the_shell_is_interactive_and_no_login_shell() {
    let host = Host::start();
    // The files that an interactive shell reads at its start are not those of the developer: they may ask, or wait for a lock.
    let home = format!("HOME={}", host.dir.path().display());
    let mut terminal = terminal_with(&host, "", &["-o", &format!("SetEnv={home}")], &[]);
    terminal.press("case $-$0 in -*) echo is log\"\"in;; *i*/*) echo is inter\"\"active;; esac\r");
    terminal.wait_for("is interactive", 1);
    terminal
        .press("test -t 0 && test -t 1 && test -t 2 && test -w \"$SSH_TTY\" && echo $TERM on a t\"\"ty\r");
    terminal.wait_for("xterm on a tty", 1);
    terminal.press("exit 7\r");
    assert_eq!(terminal.finish().0.code(), Some(7));
}

#[test]
fn its_size_follows_the_window() {
    let host = Host::start();
    let wait =
        "stty size; trap 'stty size' WINCH; echo ready; while ! read -t 60 line; do :; done; echo $line";
    let mut terminal = terminal(&host, &[&format!("exec bash -c \"{wait}\"")]);
    terminal.wait_for("ready", 1);
    for (rows, columns) in [(50, 132), (24, 80)] {
        terminal.resize(rows, columns);
        terminal.wait_for(&format!("{rows} {columns}"), 1);
    }
    terminal.press("bye\r");
    assert!(terminal.finish().0.success());
}

#[test]
fn its_modes_are_those_of_the_peers_terminal() {
    let host = Host::start();
    let (status, screen) = terminal_with(&host, "intr ^G -ixon erase ^H", &[], &["stty", "-a"]).finish();
    assert!(status.success() && screen.contains("intr = ^G") && screen.contains("erase = ^H"), "{screen}");
    assert!(screen.contains("-ixon") && screen.contains(" iutf8"), "{screen}");
}

#[test]
fn text_of_every_script_goes_both_ways_and_is_erased_by_the_letter() {
    let host = Host::start();
    let mut terminal = terminal(
        &host,
        &["echo ready; read -r line; echo \"got:$line:\"; stty -echo; read -r line; echo \"got:$line:\""],
    );
    terminal.wait_for("ready", 1);
    // Wide, combining, and outside the basic plane: each is one letter to the key that erases one.
    terminal.press("漢字é🦀\u{7f}\u{7f}\u{7f}x\r");
    terminal.wait_for("got:漢x:", 1);
    terminal.press("e\u{301} 👩‍🚀 ﷽\r");
    terminal.wait_for("got:e\u{301} 👩‍🚀 ﷽:", 1);
    assert!(terminal.finish().0.success());
}

#[test]
fn an_editor_edits_a_file_and_saves_it() {
    let host = Host::start();
    let mut terminal = terminal(&host, &["vim", "-N", "-u", "NONE", "-i", "NONE", &host.at("notes")]);
    terminal.wait_for("[New", 1);
    terminal.press("ione\rtwo 🦀\x1bk0Dithree\x1b:wq\r");
    assert!(terminal.finish().0.success());
    assert_eq!(text(&read(&host.path("notes"))), "three\ntwo 🦀\n");
}

#[test]
fn control_c_ends_the_command_and_not_the_shell() {
    let host = Host::start();
    let mut terminal = shell(&host);
    terminal.press("sh -c 'echo sle\"\"eps; exec sleep 1000'\r");
    terminal.wait_for("sleeps", 1);
    terminal.press("\x03");
    terminal.wait_for("please:", 2);
    terminal.press("echo was $?.\r");
    terminal.wait_for("was 130.", 1);
    terminal.press("exit 0\r");
    assert!(terminal.finish().0.success());
}

#[test]
fn control_z_stops_the_command_and_fg_brings_it_back() {
    let host = Host::start();
    let mut terminal = shell(&host);
    terminal.press("sh -c 'echo sle\"\"eps; exec sleep 1000'\r");
    terminal.wait_for("sleeps", 1);
    terminal.press("\x1a");
    terminal.wait_for("please:", 2);
    terminal.press("echo stopped: $(jobs -ps | wc -l).\r");
    terminal.wait_for("stopped: 1.", 1);
    terminal.press("fg\r");
    terminal.wait_for("exec sleep 1000", 3);
    terminal.press("\x03");
    terminal.wait_for("please:", 4);
    terminal.press("echo left: $(jobs -p | wc -l).\r");
    terminal.wait_for("left: 0.", 1);
    terminal.press("exit 0\r");
    assert!(terminal.finish().0.success());
}

#[test]
fn ten_megabytes_pasted_arrive_byte_for_byte() {
    let host = Host::start();
    let bytes = noise(10 << 20);
    let line =
        format!("stty raw -echo; echo ready; head -c {} > '{}'; echo taken", bytes.len(), host.at("pasted"));
    let mut terminal = terminal(&host, &[&line]);
    terminal.wait_for("ready", 1);
    terminal.paste(&bytes);
    terminal.wait_for("taken", 1);
    assert!(terminal.finish().0.success());
    assert!(read(&host.path("pasted")) == bytes);
}

#[test]
fn all_output_comes_before_the_end() {
    let host = Host::start();
    let (status, screen) = terminal(&host, &["seq 100000; exit 3"]).finish();
    assert_eq!(status.code(), Some(3));
    let expected: String = (1..=100_000).map(|i| format!("{i}\r\n")).collect();
    assert!(screen.starts_with(&expected), "{} of {}", screen.len(), expected.len());
}

#[test]
fn what_a_command_leaves_in_the_background_does_not_keep_the_terminal() {
    let host = Host::start();
    let mut terminal = terminal(&host, &["trap '' HUP; sleep 1000 & echo pid $!, read; read line"]);
    let pid = number(&terminal, "pid ");
    terminal.press("\r");
    assert!(terminal.finish().0.success());
    assert!(is_alive(pid));
    muster_testkit::kill(pid);
}

#[test]
fn a_peer_that_is_gone_leaves_nobody_on_its_terminal() {
    let host = Host::start();
    // A shell with a child in the foreground, neither of which looks at its input.
    let terminal = terminal(&host, &["echo shell $$,; sh -c 'echo child $$,; sleep 1000; true'; true"]);
    let pids = [number(&terminal, "shell "), number(&terminal, "child ")];
    // Dropped, the client is killed and says nothing.
    drop(terminal);
    wait_for("the shell and its child to end", || !pids.iter().any(|pid| is_alive(*pid)));
}

#[test]
fn the_end_of_input_is_typed() {
    let host = Host::start();
    let mut child = host
        .ssh()
        .args(["-tt", NAME, "stty -echo; echo ready; cat; echo over"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"a line\nand a piece").unwrap();
    drop(stdin);
    let done = child.wait_with_output().unwrap();
    assert!(text(&done.stdout).ends_with("a line\r\nand a pieceover\r\n"), "{done:?}");
}

#[test]
fn signals_reach_a_command_and_on_a_terminal_whoever_has_it() {
    let host = Host::start();
    let sleep = "sh -c 'echo ready; exec sleep 1000'";
    block_on(async {
        let peer = member(host.port).await;
        let mut piped = exec(&peer, &format!("trap 'echo caught' USR1; {sleep}; echo on; sleep 1000")).await;
        for (word, signal) in [("ready\n", Sig::USR1), ("caught\non\n", Sig::TERM)] {
            let mut said = String::new();
            while said != word {
                if let Some(ChannelMsg::Data { data }) = piped.wait().await {
                    said += &text(&data);
                }
            }
            piped.signal(signal).await.unwrap();
        }
        assert_eq!(finish(&mut piped).await.1, Some(143));
        let mut terminal = peer.channel_open_session().await.unwrap();
        terminal.request_pty(false, "xterm", 80, 24, 640, 480, &[]).await.unwrap();
        // The shell is not in the foreground, and lives to tell.
        terminal.exec(false, format!("set -m; {sleep}; echo was $?; exit 4")).await.unwrap();
        while !matches!(terminal.wait().await, Some(ChannelMsg::Data { data }) if text(&data).contains("ready"))
        {
        }
        terminal.signal(Sig::USR1).await.unwrap();
        let (output, status) = finish(&mut terminal).await;
        assert!(text(&output).contains("was 138") && status == Some(4), "{}: {status:?}", text(&output));
    });
}

#[test]
fn what_was_sent_before_a_channel_is_closed_arrives() {
    let host = Host::start();
    block_on(async {
        let peer = member(host.port).await;
        let channel = exec(&peer, &format!("cat > '{}'; echo > '{}'", host.at("got"), host.at("over"))).await;
        channel.data_bytes(vec![b'x'; 1_000_000]).await.unwrap();
        channel.close().await.unwrap();
        // The connection goes on, and so does the command.
        let line = format!("until [ -s '{}' ]; do sleep 0.01; done", host.at("over"));
        assert_eq!(finish(&mut exec(&peer, &line).await).await.1, Some(0));
    });
    assert_eq!(read(&host.path("got")).len(), 1_000_000);
}
