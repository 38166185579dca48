//! Tasks from their preparation to their end.

use std::fs;
use std::time::Duration;

use muster_link::message::ToAgent;
use muster_model::Reason;
use rustix::process::{Signal, kill_process};

use crate::node::{Node, launch, launch_with, prepare, prepare_with, processes_with, task};

#[tokio::test]
async fn a_task_goes_from_prepared_to_ended_and_its_whole_output_arrives() {
    let node = Node::new().await;
    node.run(&task(0), "echo out; echo err >&2; printf '\\377\\000end'; exit 3").await;
    let end = node.server.ended(&task(0)).await;
    assert_eq!(end.failure, Some(Reason::ExitCode { exit_code: 3 }));
    let mut output = node.server.output(&task(0)).await;
    output.sort_unstable();
    let mut expected = b"out\nerr\n\xff\x00end".to_vec();
    expected.sort_unstable();
    assert_eq!(output, expected);
    assert_eq!(node.server.state().tasks[&task(0)].times, [1, 1, 1]);
}
