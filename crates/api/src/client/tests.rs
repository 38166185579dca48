//! The client against a server that says exactly what the test wants, byte by byte.

use std::future::Future;
use std::path::PathBuf;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::*;
use crate::problem::Code;
use crate::view::{EventsQuery, LogsQuery};

struct Scene {
    socket: PathBuf,
    _folder: tempfile::TempDir,
    /// The server's end; dropped with the test.
    _server: JoinSet<()>,
}

/// A socket on which `serve` answers.
fn scene<F>(serve: impl FnOnce(UnixListener) -> F) -> Scene
where
    F: Future<Output = ()> + Send + 'static,
{
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("server.sock");
    let mut server = JoinSet::new();
    server.spawn(serve(UnixListener::bind(&socket).unwrap()));
    Scene { socket, _folder: folder, _server: server }
}

async fn accept(listener: &UnixListener) -> UnixStream {
    listener.accept().await.unwrap().0
}

/// Reads one request and returns its head.
async fn request(stream: &mut UnixStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    head
}

async fn reply(stream: &mut UnixStream, status: &str, body: &str) {
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
}

async fn client(scene: &Scene) -> Client {
    Client::connect(Endpoint::unix(&scene.socket).with_token("t0ken").unwrap()).await.unwrap()
}

const WHY: &str = r#"{"code":"running","summary":"it runs"}"#;

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let scene = scene(async |listener| {
        let mut stream = accept(&listener).await;
        for _ in 0..3 {
            let head = request(&mut stream).await;
            assert!(head.starts_with("GET /api/v1/jobs/my%2Fjob/why HTTP/1.1\r\n"), "{head}");
            assert!(head.contains("authorization: Bearer t0ken\r\n"), "{head}");
            reply(&mut stream, "200 OK", WHY).await;
        }
    });
    let client = client(&scene).await;
    for _ in 0..3 {
        assert_eq!(client.why("my/job").await.unwrap().summary, "it runs");
    }
}

#[tokio::test]
async fn a_connection_that_the_server_closed_is_replaced_unnoticed() {
    let scene = scene(async |listener| {
        for _ in 0..3 {
            let mut stream = accept(&listener).await;
            request(&mut stream).await;
            reply(&mut stream, "200 OK", WHY).await;
        }
    });
    let client = client(&scene).await;
    for _ in 0..3 {
        client.why("last").await.unwrap();
    }
}

#[tokio::test]
async fn a_problem_comes_back_with_its_fields() {
    let scene = scene(async |listener| {
        let mut stream = accept(&listener).await;
        let mut problem = Problem::new(Code::Ambiguous, "`job_a` fits 2 jobs");
        problem.hint = Some("type more letters".into());
        request(&mut stream).await;
        reply(&mut stream, "409 Conflict", &serde_json::to_string(&problem).unwrap()).await;
        request(&mut stream).await;
        reply(&mut stream, "502 Bad Gateway", "<html>nginx").await;
    });
    let client = client(&scene).await;
    let Error::Problem(problem) = client.job("job_a").await.unwrap_err() else { panic!("not a problem") };
    assert_eq!((problem.code, problem.hint.as_deref()), (Code::Ambiguous, Some("type more letters")));
    let error = client.job("job_a").await.unwrap_err();
    assert!(
        matches!(&error, Error::Protocol(Protocol::Status { status: 502, excerpt }) if excerpt == "<html>nginx")
    );
    assert!(!error.is_transient());
}

#[tokio::test]
async fn a_missing_server_is_unreachable_and_a_dying_one_is_lost() {
    let gone = Client::connect(Endpoint::unix("/nowhere/server.sock")).await;
    assert!(matches!(gone, Err(Error::Unreachable { .. })));
    let scene = scene(async |listener| {
        let mut stream = accept(&listener).await;
        request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{").await.unwrap();
    });
    let error = client(&scene).await.server().await.unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    assert!(error.is_transient());
}

fn summary() -> serde_json::Value {
    json!({"id": "job_0123456789", "name": "x", "state": "succeeded", "reason": null, "message": null, "nodes": 1,
        "gpus": null, "command": "true", "on": "local", "owner": "me", "attempt": 1, "exit_code": 0,
        "submitted_at": "2026-01-01T00:00:00Z", "started_at": null, "ended_at": null})
}

async fn stream_head(stream: &mut UnixStream) -> String {
    let head = request(stream).await;
    let reply = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(reply).await.unwrap();
    head
}

async fn piece(stream: &mut UnixStream, text: &str) {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await.unwrap();
}

#[tokio::test]
async fn a_log_arrives_in_pieces_and_ends_with_the_job() {
    let scene = scene(async |listener| {
        let mut stream = accept(&listener).await;
        let head = stream_head(&mut stream).await;
        assert!(
            head.starts_with("GET /api/v1/jobs/last/logs?follow=true&cursor=1%400%3A5 HTTP/1.1"),
            "{head}"
        );
        piece(&mut stream, ": alive\n\nevent: lo").await;
        let chunk = r#"{"attempt":1,"rank":0,"stream":"stdout","at":"2026-01-01T00:00:00Z","base64":"/w==","next":6}"#;
        piece(&mut stream, &format!("g\ndata: {chunk}\n")).await;
        piece(&mut stream, "\nevent: news\ndata: {}\n\n").await;
        let end = json!({"job": summary(), "failed_rank": null});
        piece(&mut stream, &format!("event: end\ndata: {end}\n\n")).await;
    });
    let query = LogsQuery { follow: true, cursor: Some("1@0:5".into()), ..LogsQuery::default() };
    let mut logs = client(&scene).await.logs("last", &query).await.unwrap();
    let LogItem::Chunk(chunk) = logs.next().await.unwrap() else { panic!("not a chunk") };
    assert_eq!((&*log_bytes(&chunk).unwrap(), chunk.next), (b"\xff".as_slice(), 6));
    assert!(matches!(logs.next().await.unwrap(), LogItem::End(end) if end.job.exit_code == Some(0)));
}

#[tokio::test]
async fn a_log_that_stops_without_its_end_is_lost() {
    let scene = scene(async |listener| {
        let mut stream = accept(&listener).await;
        stream_head(&mut stream).await;
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    });
    let mut logs = client(&scene).await.logs("last", &LogsQuery::default()).await.unwrap();
    assert!(matches!(logs.next().await, Err(Error::Lost { source: None })));
}

#[tokio::test]
async fn events_that_nobody_follows_just_end() {
    let scene = scene(async |listener| {
        let mut stream = accept(&listener).await;
        let head = stream_head(&mut stream).await;
        assert!(head.starts_with("GET /api/v1/jobs/last/events?after=3 HTTP/1.1"), "{head}");
        let event =
            json!({"seq": 4, "at": "2026-01-01T00:00:00Z", "attempt": 1, "kind": "running", "body": {}});
        piece(&mut stream, &format!("event: event\nid: 4\ndata: {event}\n\n")).await;
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    });
    let query = EventsQuery { after: Some(3), follow: false };
    let mut events = client(&scene).await.events("last", &query).await.unwrap();
    assert!(matches!(events.next().await.unwrap(), Some(EventItem::Event(event)) if event.kind == "running"));
    assert!(events.next().await.unwrap().is_none());
}
