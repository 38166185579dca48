use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use futures::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::room::Bounds;
use super::*;
use crate::tls::Certificate;

const HELLO: &str = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

/// What the handlers of a server do, as far as it matters here: some know who asks, and some do not.
fn app() -> Router {
    let slowly = async |Extension(origin): Extension<Origin>| {
        origin.seat.know();
        let pieces = stream::iter(0..10).then(|_| async {
            sleep(SPANS.pause * 3 / 4).await;
            Ok::<_, io::Error>(Bytes::from_static(b"."))
        });
        Body::from_stream(pieces)
    };
    let upload = async |Extension(origin): Extension<Origin>, body: Bytes| {
        origin.seat.know();
        body.len().to_string()
    };
    let known =
        axum::middleware::from_fn(async |request: axum::extract::Request, next: axum::middleware::Next| {
            request.extensions().get::<Origin>().unwrap().seat.know();
            next.run(request).await
        });
    let known = Router::new().route("/slowly", get(slowly)).route("/upload", post(upload)).layer(known);
    known
        .route("/", get(async || "hello"))
        .route("/stranger", post(async |body: Bytes| body.len().to_string()))
}

/// A port, who serves it, and what stops it.
async fn listening(bounds: Bounds, tls: Option<Shake>) -> (SocketAddr, JoinSet<()>, CancellationToken) {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, stop, mut serving) = (tcp.local_addr().unwrap(), CancellationToken::new(), JoinSet::new());
    let port = Port { room: Arc::new(Room::new(bounds)), ..Port::new(tcp, tls) };
    serving.spawn(port.serve(app(), stop.clone()));
    (address, serving, stop)
}

const MANY: Bounds = Bounds { of_address: 100, strangers: 100, all: 100 };

/// All that is said to whoever says this, and how long it took until nothing more comes.
async fn answer(address: SocketAddr, said: &str) -> (String, Duration) {
    let (begun, mut stream) = (Instant::now(), TcpStream::connect(address).await.unwrap());
    stream.write_all(said.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // How it ended does not matter, only that it did.
    drop(stream.read_to_end(&mut answer).await);
    (String::from_utf8(answer).unwrap(), begun.elapsed())
}

#[tokio::test(start_paused = true)]
async fn whoever_says_nothing_or_half_of_it_is_cut_off() {
    let (address, _serving, _stop) = listening(MANY, None).await;
    assert!(answer(address, HELLO).await.0.ends_with("hello"));
    let most = SPANS.stranger + SPANS.farewell + Duration::from_secs(1);
    let halves = [
        "",
        "GET / HTT",
        "GET / HTTP/1.1\r\nhost: x\r\n",
        "POST /stranger HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n123",
    ];
    for half in halves {
        let (said, took) = answer(address, half).await;
        assert!(!said.contains("200 OK"), "{half}: {said}");
        assert!((SPANS.stranger..most).contains(&took), "{half}: {took:?}");
    }
    // Nor does one stay by asking again and again, if nobody knows who asks.
    let (begun, mut stream) = (Instant::now(), TcpStream::connect(address).await.unwrap());
    let mut buffer = [0; 1024];
    while stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.is_ok() {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(_) => sleep(Duration::from_secs(1)).await,
        }
    }
    assert!(begun.elapsed() < most);
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_is_not_cut_off() {
    let (address, _serving, _stop) = listening(MANY, None).await;
    let (said, took) = answer(address, "GET /slowly HTTP/1.0\r\n\r\n").await;
    assert!(said.ends_with("\r\n\r\n.........."), "{said}");
    assert!(took > SPANS.head * 5);

    let head = "POST /upload HTTP/1.0\r\ncontent-length: 10\r\n\r\n";
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..10 {
        sleep(SPANS.pause * 3 / 4).await;
        stream.write_all(b"x").await.unwrap();
    }
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    assert!(said.ends_with("10"), "{said}");

    // An upload that stands still is.
    let (said, took) = answer(address, &format!("{head}x")).await;
    assert!(said.starts_with("HTTP/1.0 400 "), "{said}");
    assert!((SPANS.pause..SPANS.pause * 2).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_silent_give_way_to_whoever_comes() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = Certificate::own(dir.path(), &["localhost"]).unwrap();
    let connector = muster_link::tls::Connector::new(Some(certificate.fingerprint())).unwrap();
    let bounds = Bounds { of_address: 3, ..MANY };
    let (address, _serving, stop) = listening(bounds, Some(Shake::new(certificate).unwrap())).await;
    let begun = Instant::now();
    let mut silent = Vec::new();
    for _ in 0..9 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let stream = TcpStream::connect(address).await.unwrap();
    let mut stream = connector.connect("nobody.example", stream).await.unwrap();
    stream.write_all(HELLO.as_bytes()).await.unwrap();
    let mut said = String::new();
    drop(stream.read_to_string(&mut said).await);
    assert!(said.ends_with("hello"), "{said}");
    // The first were given up long before their time was over, the last when it was.
    assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
    assert!(begun.elapsed() < SPANS.handshake / 2);
    assert_eq!(silent[8].read(&mut [0]).await.unwrap_or(0), 0);
    assert!(begun.elapsed() < SPANS.handshake * 2);
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn whoever_is_being_answered_when_it_stops_gets_the_answer() {
    let (address, mut serving, stop) = listening(MANY, None).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"POST /upload HTTP/1.0\r\ncontent-length: 2\r\n\r\nx").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    stop.cancel();
    stream.write_all(b"y").await.unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).await.unwrap();
    assert!(said.ends_with('2'), "{said}");
    serving.join_next().await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}
