//! What is drawn, and what keys do.

use muster_api::model::node::{Device, Vendor};
use muster_api::model::{JobId, State, Timestamp};
use muster_api::quota::{
    AvailableView, LargestView, QueueView, QueuedView, QuotaView, ResourceView, WorkspaceQuotaView,
};
use muster_api::view::{DeviceView, JobSummary, NodeView};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

fn node(name: &str, used: u32) -> NodeView {
    let device = |index| DeviceView {
        device: Device {
            index,
            vendor: Vendor::Nvidia,
            model: "H100".into(),
            uuid: String::new(),
            memory_bytes: 80 << 30,
            simulated: true,
            ip: None,
        },
        // Jobs of others have no name here.
        job: (index + 1 < used).then(|| JobId::from_random(7)),
        in_use: index < used,
        now: None,
    };
    NodeView {
        id: format!("node_{name}").parse().unwrap(),
        engine: "local".into(),
        pool: None,
        host: name.into(),
        connected: true,
        drained: false,
        labels: Default::default(),
        error: None,
        agent_pid: None,
        agent_version: None,
        cpu_millis: 8000,
        cpu_millis_used: 500,
        memory_bytes: 16 << 30,
        memory_bytes_used: 1 << 30,
        slots: 64,
        slots_used: 1,
        now: None,
        devices: (0..4).map(device).collect(),
    }
}

fn queued(number: u64, name: &str, priority: u32) -> QueuedView {
    QueuedView {
        position: Some(number),
        job: JobId::from_random(number),
        name: name.into(),
        display_name: None,
        user: "ada".into(),
        workspace: "nlp".into(),
        on: "local".into(),
        priority,
        nodes: 1,
        gpus: Some("H100:8".into()),
        cpu_millis: 0,
        memory_bytes: 0,
        exclusive: false,
        elements: None,
        waiting_since: Timestamp::UNIX_EPOCH,
        code: "out_of_quota".into(),
        summary: "workspace nlp has as much as it may".into(),
        starts_at: None,
    }
}

fn picture() -> Picture {
    let resource = ResourceView {
        resource: "gpus".into(),
        nominal: Some(4),
        borrow: None,
        lend: None,
        used: 6,
        borrowed: 2,
        lent: 0,
        left: Some(0),
    };
    let available = AvailableView {
        on: "local".into(),
        model: "H100".into(),
        all: 8,
        free: 2,
        quota_left: Some(0),
        largest: Some(LargestView { nodes: 1, gpus: 2 }),
    };
    let at = Timestamp::UNIX_EPOCH;
    let job: JobSummary = serde_json::from_value(serde_json::json!({
        "id": JobId::from_random(7), "name": "bert", "state": State::Running, "reason": null, "message": null, "nodes": 1,
        "gpus": "2", "command": "python train.py", "on": "local", "owner": "ada", "attempt": 1, "exit_code": null,
        "submitted_at": at, "started_at": at, "ended_at": null
    }))
    .unwrap();
    Picture {
        at: at + std::time::Duration::from_secs(120),
        user: "ada".into(),
        nodes: vec![node("a", 4), node("b", 2)],
        queue: QueueView { items: vec![queued(1, "gpt", 700), queued(2, "alex", 900)], waiting: 2 },
        jobs: vec![job],
        quota: QuotaView {
            workspaces: vec![WorkspaceQuotaView {
                workspace: "nlp".into(),
                weight: 1.0,
                resources: vec![resource],
            }],
            available: vec![available],
            ..QuotaView::default()
        },
        trouble: None,
    }
}

fn drawn(screen: &mut Screen, picture: &Picture, size: (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| screen.draw(frame, picture)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..size.1).map(line).collect::<Vec<_>>().join("\n")
}

fn press(screen: &mut Screen, keys: &[KeyCode]) {
    keys.iter().for_each(|key| screen.on_key(KeyEvent::from(*key)));
}

fn letters(text: &str) -> Vec<KeyCode> {
    text.chars().map(KeyCode::Char).collect()
}

#[test]
fn a_wide_screen_has_all_parts_at_once() {
    insta::assert_snapshot!(drawn(&mut Screen::default(), &picture(), (130, 24)));
}

#[test]
fn a_narrow_screen_has_the_part_that_is_looked_at() {
    let mut screen = Screen::default();
    insta::assert_snapshot!(drawn(&mut screen, &picture(), (80, 8)));
    press(&mut screen, &[KeyCode::Tab]);
    let text = drawn(&mut screen, &picture(), (80, 8));
    assert!(text.contains("[Queue]") && text.contains("gpt") && !text.contains("node_a"), "{text}");
    press(&mut screen, &[KeyCode::BackTab, KeyCode::Left]);
    assert!(drawn(&mut screen, &picture(), (80, 8)).contains("[Quota]"));
}

#[test]
fn no_size_is_too_small() {
    for size in [(1, 1), (5, 3), (20, 2), (300, 100)] {
        drawn(&mut Screen::default(), &picture(), size);
    }
}

#[test]
fn a_filter_is_typed_kept_and_taken_away() {
    let mut screen = Screen::default();
    press(&mut screen, &[KeyCode::Tab, KeyCode::Char('/')]);
    press(&mut screen, &letters("GPq"));
    press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
    let text = drawn(&mut screen, &picture(), (100, 10));
    assert!(text.contains("filter: GP ") && text.contains("gpt") && !text.contains("alex"), "{text}");
    press(&mut screen, &[KeyCode::Esc]);
    assert!(drawn(&mut screen, &picture(), (100, 10)).contains("alex"));
    assert!(!screen.is_over());
    press(&mut screen, &[KeyCode::Esc]);
    assert!(screen.is_over());
}

#[test]
fn a_column_sorts_as_numbers_and_turns_round() {
    let mut screen = Screen::default();
    press(&mut screen, &[KeyCode::Tab]);
    let order = |screen: &mut Screen| {
        let text = drawn(screen, &picture(), (120, 10));
        (text.find("gpt") < text.find("alex"), text)
    };
    assert!(order(&mut screen).0, "as the server has it");
    // The first column is the position, the second the name.
    press(&mut screen, &letters("ss"));
    let (is_first, text) = order(&mut screen);
    assert!(!is_first && text.contains("NAMEv"), "{text}");
    press(&mut screen, &letters("r"));
    assert!(order(&mut screen).0);
    press(&mut screen, &letters("r"));
    press(&mut screen, &letters("ssssssss"));
    assert!(!order(&mut screen).1.contains("v "), "after the last column, as the server has it");
}

#[test]
fn it_is_left_by_q_and_by_ctrl_c_also_while_typing() {
    let mut screen = Screen::default();
    press(&mut screen, &letters("/q"));
    assert!(!screen.is_over());
    screen.on_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(screen.is_over());
    let mut screen = Screen::default();
    press(&mut screen, &letters("q"));
    assert!(screen.is_over());
}

#[test]
fn a_server_that_is_away_is_said_and_the_last_picture_stays() {
    let picture = Picture { trouble: Some("the server does not answer: gone".into()), ..picture() };
    let text = drawn(&mut Screen::default(), &picture, (80, 10));
    assert!(text.starts_with("the server does not answer") && text.contains("node_a"), "{text}");
}
