//! A terminal in a task, all the way from an ordinary `ssh`.

use muster_testkit::{Home, Terminal, is_alive, wait_for};

use super::ssh;
use crate::{home, until};

/// A running task, and its name for `ssh`.
fn task(home: &Home) -> (String, String) {
    let id = home.submit(&[
        "--env",
        &home.bare_shells(),
        "--env",
        "WORD=of the task",
        "--",
        "sh",
        "-c",
        &until("go"),
    ]);
    home.wait_for_state(&id, "running");
    let host = format!("task0.{id}");
    (id, host)
}

fn terminal(home: &Home, host: &str, line: &[&str]) -> Terminal {
    Terminal::start(&ssh(home, &[&["-tt", "-e", "none", host][..], line].concat()))
}

fn number(terminal: &Terminal, word: &str) -> u32 {
    terminal.wait_for(word, 1);
    let screen = terminal.screen();
    let digits =
        screen.split_once(word).map(|(_, rest)| rest.chars().take_while(char::is_ascii_digit).collect());
    let digits: String = digits.unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("{word}: {screen}"))
}

#[test]
fn a_shell_in_a_task_has_what_the_task_has_and_a_terminal_like_ones_own() {
    let home = home();
    home.write("code.txt", "its code\n");
    let (id, host) = task(&home);
    let mut terminal = terminal(&home, &host, &["PS1=please: exec bash --norc --noprofile --noediting -i"]);
    terminal.wait_for("please:", 1);
    terminal.press("cat code.txt; echo $WORD; echo 漢字 🦀 r\"\"eady\r");
    terminal.wait_for("漢字 🦀 ready", 1);
    let screen = terminal.screen();
    assert!(screen.contains("its code\r\nof the task\r\n"), "{screen}");
    terminal.resize(50, 132);
    // The word of it goes the same way as what is typed, before it.
    terminal.press("stty size\r");
    terminal.wait_for("50 132", 1);
    terminal.press("sh -c 'echo sle\"\"eps; exec sleep 1000'\r");
    terminal.wait_for("sleeps", 1);
    terminal.press("\x03");
    terminal.wait_for("please:", 4);
    terminal.press("echo was $?.\r");
    terminal.wait_for("was 130.", 1);
    terminal.press("exit 5\r");
    assert_eq!(terminal.finish().0.code(), Some(5));
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}

#[test]
fn a_client_that_is_killed_leaves_nobody_on_its_terminal() {
    let home = home();
    let (id, host) = task(&home);
    let terminal =
        terminal(&home, &host, &["echo shell $$,; sh -c 'echo child $$,; sleep 1000; true'; true"]);
    let pids = [number(&terminal, "shell "), number(&terminal, "child ")];
    drop(terminal);
    wait_for("the shell and its child to end", || !pids.iter().any(|pid| is_alive(*pid)));
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}

#[test]
fn ten_megabytes_pasted_into_a_task_arrive_byte_for_byte() {
    let home = home();
    let (id, host) = task(&home);
    let bytes: Vec<u8> = (0..10_u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let line = format!("stty raw -echo; echo ready; head -c {} | b2sum; echo taken", bytes.len());
    let mut terminal = terminal(&home, &host, &[&line]);
    terminal.wait_for("ready", 1);
    terminal.paste(&bytes);
    terminal.wait_for("taken", 1);
    home.write("pasted", &bytes);
    let sum =
        std::process::Command::new("b2sum").arg(home.work().join("pasted")).output().expect("coreutils");
    let sum = String::from_utf8_lossy(&sum.stdout);
    let sum = sum.split_whitespace().next().expect("a sum");
    assert!(terminal.finish().1.contains(sum));
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}
