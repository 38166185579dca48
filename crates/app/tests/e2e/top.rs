//! `muster top`, on a terminal of its own and without one.

use crate::{home_with, until};

#[test]
fn a_picture_is_printed_where_there_is_no_terminal() {
    let home = home_with("[local]\ndevices = [\"H100:2\"]\n");
    let job = home.submit(&["--name", "digits", "--gpus", "2", "--", "sh", "-c", &until("go")]);
    home.wait_for_state(&job, "running");
    home.submit(&["--name", "waiting", "--gpus", "1", "--", "true"]);
    for words in [&["top"][..], &["top", "--once"]] {
        let text = home.ok(words);
        for part in
            ["Nodes 1, devices 2/2 in use", "2/2 ##", "Queue 1", "waiting", "My jobs", "digits", "Quota"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let picture = home.json(["top", "--json"]);
    assert_eq!(picture["queue"]["items"][0]["name"], "waiting", "{picture}");
    assert_eq!(picture["nodes"][0]["devices"][1]["job"], job.as_str());
    home.touch("go");
    home.wait_for_state("waiting", "succeeded");
}

#[test]
fn the_screen_follows_what_happens_and_gives_the_terminal_back() {
    let home = home_with("[local]\ndevices = [\"H100:2\"]\n");
    home.wait_for_node();
    let mut terminal = home.start_on_terminal(["top"]);
    terminal.resize(30, 140);
    terminal.wait_for("Queue 0", 1);
    // What happens is shown as it happens.
    let job = home.submit(&["--name", "digits", "--gpus", "2", "--", "sh", "-c", &until("go")]);
    terminal.wait_for("digits", 1);
    terminal.wait_for("##", 1);
    // A small window has the part that is looked at, as wide as it is.
    terminal.resize(10, 60);
    terminal.wait_for(&format!("└{}┘", "─".repeat(58)), 1);
    terminal.press("\t/");
    terminal.wait_for("filter:", 1);
    terminal.press("nothing\rq");
    let (status, screen) = terminal.finish();
    assert_eq!(status.code(), Some(0), "{screen}");
    assert!(screen.contains("\x1b[?1049h") && screen.ends_with_restored(), "{screen:?}");

    let mut terminal = home.start_on_terminal(["top"]);
    terminal.resize(30, 140);
    terminal.wait_for("Nodes", 1);
    terminal.press("\x03");
    let (status, screen) = terminal.finish();
    assert_eq!(status.code(), Some(0), "{screen}");
    assert!(screen.ends_with_restored(), "{screen:?}");
    home.touch("go");
    home.wait_for_state(&job, "succeeded");
}

trait Restored {
    fn ends_with_restored(&self) -> bool;
}

impl Restored for String {
    /// The other screen is left, and the cursor is back.
    fn ends_with_restored(&self) -> bool {
        let left = self.rfind("\x1b[?1049l");
        left.is_some()
            && left > self.rfind("\x1b[?1049h")
            && self.rfind("\x1b[?25h") > self.rfind("\x1b[?25l")
    }
}
