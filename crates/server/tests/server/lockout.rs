//! Attempts to log in from many addresses at once do not keep others from logging in.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::team::Team;

const PASSWORD: &str = "correct horse";

/// The status of a login from an address of this machine.
async fn log_in(server: &str, from: [u8; 4], user: &str, password: &str) -> u16 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((from, 0))).unwrap();
    let mut stream = socket.connect(server.parse().unwrap()).await.unwrap();
    let body = json!({ "user": user, "password": password }).to_string();
    let head = format!(
        "POST /api/v1/login HTTP/1.1\r\nhost: server\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    reply.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_addresses_lock_nobody_out() {
    let team = Team::new().await;
    for name in ["owner", "member"] {
        let body = json!({ "password": PASSWORD });
        let path = format!("/users/{name}/password");
        drop(team.server.client.request::<Value>(muster_api::client::Method::PUT, &path, Some(&body)).await);
    }
    assert_eq!(log_in(&team.address, [127, 0, 0, 1], "owner", PASSWORD).await, 200);
    // Until every one of them is turned away, twice in a row.
    let attack = async |last: u8| {
        let mut turned_away = 0;
        for number in 0..40 {
            let status = log_in(&team.address, [127, 1, 0, last], &format!("user{number}"), "guess").await;
            turned_away += u32::from(status == 429);
            if turned_away == 2 {
                return;
            }
        }
    };
    futures::future::join_all((1..=60).map(attack)).await;
    let known = log_in(&team.address, [127, 0, 0, 1], "owner", PASSWORD).await;
    assert_eq!(known, 200, "a client that is known");
    let new = log_in(&team.address, [127, 2, 0, 1], "member", PASSWORD).await;
    assert_eq!(new, 200, "a client that is new");
    team.server.stop().await;
}
