//! The file that says where somebody is who leads to the server.
//!
//! Agents that another scheduler starts do not know on which of a site's networks they are, so all addresses are tried at
//! once. One of them may be somebody else's from where the agent is: before a token goes there, both sides show that they
//! have read the file, which only its owner can.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A network that is so slow is as good as none, and another address may be better.
const REACH: Duration = Duration::from_secs(5);
/// The longest word; ours are shorter.
const MOST: usize = 256;

/// Where somebody is who leads to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Post {
    /// The running kernel there: on the same machine its loopback address is the nearest.
    pub boot_id: String,
    /// Names and addresses, all with the same port.
    pub addresses: Vec<String>,
    /// Where it listens.
    pub port: u16,
    /// What whoever comes says first, on a line.
    pub ask: String,
    /// What is said to them then, on a line.
    pub answer: String,
}

impl Post {
    /// The kernel that runs here.
    pub fn boot_id() -> String {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    }

    /// Lets somebody in who has come: whether they have read the file.
    pub async fn admit(&self, stream: &mut TcpStream) -> io::Result<()> {
        expect(stream, &self.ask).await?;
        stream.write_all(format!("{}\n", self.answer).as_bytes()).await
    }

    async fn enter(self, address: String) -> io::Result<TcpStream> {
        let entering = async {
            let mut stream = TcpStream::connect((address.as_str(), self.port)).await?;
            stream.set_nodelay(true)?;
            stream.write_all(format!("{}\n", self.ask).as_bytes()).await?;
            expect(&mut stream, &self.answer).await?;
            Ok(stream)
        };
        tokio::time::timeout(REACH, entering).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

/// Connects to whichever address of the file answers first.
pub(super) async fn connect(path: &Path) -> io::Result<TcpStream> {
    let post: Post = serde_json::from_slice(&tokio::fs::read(path).await?)?;
    let near = (post.boot_id == Post::boot_id()).then(|| "127.0.0.1".to_owned());
    let mut tries = JoinSet::new();
    for address in near.into_iter().chain(post.addresses.clone()) {
        tries.spawn(post.clone().enter(address));
    }
    let mut failure = io::Error::new(io::ErrorKind::AddrNotAvailable, "the file names no address");
    while let Some(tried) = tries.join_next().await {
        match tried.map_err(io::Error::other)? {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Reads exactly this line: what follows belongs to others.
async fn expect(stream: &mut TcpStream, word: &str) -> io::Result<()> {
    let mut said = vec![0; word.len() + 1];
    if said.len() > MOST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    stream.read_exact(&mut said).await?;
    // Whoever guesses learns nothing from how long it takes.
    let differs = said.iter().zip(word.as_bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    match differs == 0 && said.last() == Some(&b'\n') {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is somebody else")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn listener() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn post(port: u16, addresses: &[&str]) -> Post {
        let addresses = addresses.iter().map(|it| it.to_string()).collect();
        Post { boot_id: "another".into(), addresses, port, ask: "open".into(), answer: "come in".into() }
    }

    fn written(post: &Post) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), serde_json::to_vec(post).unwrap()).unwrap();
        file
    }

    #[tokio::test]
    async fn whoever_answers_rightly_is_found_among_addresses_that_do_not() {
        let (listener, port) = listener().await;
        let post = post(port, &["127.0.0.99", "127.0.0.1", "no-such-host.invalid"]);
        let file = written(&post);
        let (connected, _server) = tokio::join!(connect(file.path()), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            post.admit(&mut stream).await.unwrap();
            stream.write_all(b"more").await.unwrap();
            stream
        });
        let mut rest = [0; 4];
        connected.unwrap().read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"more");
    }

    #[tokio::test]
    async fn a_stranger_is_told_nothing_and_lets_nobody_in() {
        let (listener, port) = listener().await;
        let ours = post(port, &["127.0.0.1"]);
        let file = written(&ours);
        let (connected, ()) = tokio::join!(connect(file.path()), async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(b"something else\n").await.unwrap();
        });
        assert_eq!(connected.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let (admitted, _guess) =
            tokio::join!(async { ours.admit(&mut listener.accept().await.unwrap().0).await }, async {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                stream.write_all(b"oven\n").await.unwrap();
                stream
            });
        assert_eq!(admitted.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_or_names_nobody_is_an_error() {
        assert!(connect(Path::new("/no/such/file")).await.is_err());
        assert!(connect(written(&post(1, &[])).path()).await.is_err());
    }
}
