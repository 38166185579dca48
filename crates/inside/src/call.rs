//! One call, from its first line on.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_link::control::{self, Received};
use muster_link::message::{Call, Called};
use muster_ssh::keys;
use muster_ssh::server::Server;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::copy;
use crate::pass_on::Peers;
use crate::session::{Sessions, wire};

/// The agent says at once what a call is for.
const FIRST_LINE: Duration = Duration::from_secs(10);

/// What calls have in common.
#[derive(Clone)]
pub(crate) struct House {
    ssh: Server,
    sessions: Arc<Sessions>,
    peers: Arc<Peers>,
}

impl House {
    pub(crate) fn new(sessions: Sessions, dir: &Path) -> Result<House, keys::Error> {
        // Whoever comes this way was brought here by the server, and knows where by that: any key will do.
        let peers = Arc::new(Peers::of(dir));
        Ok(House { ssh: Server::new(keys::random()?), sessions: Arc::new(sessions), peers })
    }
}

pub(crate) async fn answer(stream: UnixStream, house: House) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let refused = |code: &str, message: String| Called::Refused { code: code.to_owned(), message };
    match timeout(FIRST_LINE, control::receive(&mut stream)).await?? {
        Some(Received::Message(Call::Ssh { key })) => match keys::parse(&key) {
            Ok(key) => {
                say(&mut stream, &Called::Open).await?;
                house.ssh.serve(stream, key).await;
                Ok(())
            }
            Err(error) => say(&mut stream, &refused("invalid", format!("key: {error}"))).await,
        },
        Some(Received::Message(Call::Copy)) => {
            say(&mut stream, &Called::Open).await?;
            copy::serve(stream, house.peers).await
        }
        Some(Received::Message(Call::Session { ask })) => wire::answer(stream, &house.sessions, ask).await,
        Some(Received::Unknown { .. }) => {
            let message = "this node's version does not know such a call; upgrade its agent";
            say(&mut stream, &refused("unsupported", message.to_owned())).await
        }
        None => Ok(()),
    }
}

async fn say(stream: &mut BufReader<UnixStream>, answer: &Called) -> io::Result<()> {
    control::send(stream, answer).await?;
    stream.flush().await
}
