use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use super::*;
use crate::keys;
use crate::server::Server;

/// A client and its server, in one process, and the way between them, which breaks with what is in `tasks`.
async fn connected(tasks: &mut JoinSet<()>) -> Client {
    let key = Arc::new(keys::random().unwrap());
    let (near, mut near_end) = tokio::io::duplex(64 << 10);
    let (mut far_end, far) = tokio::io::duplex(64 << 10);
    tasks.spawn(async move {
        let _ = tokio::io::copy_bidirectional(&mut near_end, &mut far_end).await;
    });
    let server = Server::new(keys::random().unwrap());
    let authorized = key.public_key().clone();
    tasks.spawn(async move { server.serve(far, authorized).await });
    Client::connect(near, key).await.unwrap()
}

fn command(line: &str) -> Command {
    Command { line: Some(line.into()), ..Command::default() }
}

/// What a command wrote to both outputs, and its code.
async fn finish(mut output: Output) -> (String, String, u8) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    loop {
        match output.next().await.unwrap() {
            Event::Stdout(data) => out.extend_from_slice(&data),
            Event::Stderr(data) => err.extend_from_slice(&data),
            Event::Ended(code) => {
                return (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), code);
            }
        }
    }
}

#[tokio::test]
async fn a_command_has_its_two_outputs_its_variables_and_its_code() {
    let mut tasks = JoinSet::new();
    let client = connected(&mut tasks).await;
    let env = vec![("WORD".to_owned(), "it's here".to_owned())];
    let command = Command { env, ..command("echo $WORD; echo err >&2; exit 3") };
    let (output, _input) = client.run(&command).await.unwrap();
    assert_eq!(finish(output).await, ("it's here\n".into(), "err\n".into(), 3));
}

#[tokio::test]
async fn what_goes_in_comes_out_and_has_an_end() {
    let mut tasks = JoinSet::new();
    let client = connected(&mut tasks).await;
    let (output, input) = client.run(&command("cat")).await.unwrap();
    // More than fits on the way, in both directions at once.
    let text = "größe\n".repeat(1_000_000);
    let writing = async {
        let mut writer = Box::pin(input.writer());
        writer.write_all(text.as_bytes()).await.unwrap();
        input.end().await.unwrap();
    };
    let ((out, _, code), ()) = tokio::join!(finish(output), writing);
    assert!(out == text, "{} of {} bytes", out.len(), text.len());
    assert_eq!(code, 0);
}

#[tokio::test]
async fn a_signal_reaches_the_command_and_is_its_end() {
    let mut tasks = JoinSet::new();
    let client = connected(&mut tasks).await;
    let (mut output, input) = client.run(&command("echo ready; exec sleep 60")).await.unwrap();
    assert_eq!(output.next().await.unwrap(), Event::Stdout("ready\n".into()));
    input.signal(Signal::Interrupt).await.unwrap();
    assert_eq!(finish(output).await.2, 130);
}

#[tokio::test]
async fn a_connection_that_breaks_is_never_an_exit_code() {
    let mut tasks = JoinSet::new();
    let client = connected(&mut tasks).await;
    // It ends when its input does, so that nothing is left of it.
    let (mut output, _input) = client.run(&command("echo ready; read line")).await.unwrap();
    assert_eq!(output.next().await.unwrap(), Event::Stdout("ready\n".into()));
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    assert!(matches!(output.next().await, Err(Error::Lost(_))));
    assert!(client.run(&command("true")).await.is_err_and(|error| error.is_lost()));
}

#[tokio::test]
async fn another_key_is_refused() {
    let (near, far) = tokio::io::duplex(64 << 10);
    let authorized = keys::random().unwrap().public_key().clone();
    let server = Server::new(keys::random().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { server.serve(far, authorized).await });
    let refused = Client::connect(near, Arc::new(keys::random().unwrap())).await;
    assert!(matches!(refused, Err(Error::KeyRefused)));
}

#[tokio::test]
async fn one_that_speaks_no_ssh_is_not_waited_for() {
    let (near, far) = tokio::io::duplex(64 << 10);
    drop(far);
    assert!(matches!(Client::connect(near, Arc::new(keys::random().unwrap())).await, Err(Error::Lost(_))));
}
