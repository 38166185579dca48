//! What nodes see: manifests and chunks as they are stored, and a place for what tasks leave behind.

use std::io;

use muster_api::model::bundle::{Chunk, Manifest};
use muster_api::model::{BundleId, ChunkId};
use muster_bundle::chunk::{self, Encoder};
use muster_link::control::{self, Received};
use muster_link::dial::{Channel, Server as Address, dial};
use muster_link::message::{Kept, Lacks, StreamHeader};
use muster_link::session::{self, Opener, Side, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinHandle;

use crate::fixture::{Server, manifest, pack};

/// A node's second connection.
struct Node {
    opener: Opener,
    _driver: JoinHandle<io::Result<()>>,
}

impl Node {
    async fn dial(server: &Server) -> Self {
        let node = "node_local".parse().unwrap();
        let key = std::fs::read_to_string(server.dir.path().join("server.key")).unwrap();
        let key = *blake3::hash(key.trim().as_bytes()).as_bytes();
        let token = blake3::keyed_hash(&key, b"node_local").to_hex().to_string();
        let address = Address::Unix(server.dir.path().join("server.sock"));
        let connection = dial(&address, Channel::Bulk, &node, &token).await.unwrap();
        let (opener, _incoming, driver) = session::start(connection, Side::Agent);
        #[expect(clippy::disallowed_methods, reason = "a test: it ends with the connection")]
        Self { opener, _driver: tokio::spawn(driver) }
    }

    async fn open(&self, header: &StreamHeader) -> BufReader<Stream> {
        let mut stream = BufReader::new(self.opener.open().await.unwrap());
        control::send(&mut stream, header).await.unwrap();
        stream.flush().await.unwrap();
        stream
    }

    async fn manifest(&self, bundle: BundleId) -> String {
        let mut stream = self.open(&StreamHeader::Manifest { bundle }).await;
        let length = stream.read_u64_le().await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text.len() as u64, length);
        text
    }

    async fn chunks(&self, chunks: Vec<ChunkId>) -> Vec<Vec<u8>> {
        let count = chunks.len();
        let mut stream = self.open(&StreamHeader::Chunks { chunks }).await;
        let mut all = Vec::new();
        for _ in 0..count {
            let mut stored = vec![0; stream.read_u32_le().await.unwrap() as usize];
            stream.read_exact(&mut stored).await.unwrap();
            all.push(stored);
        }
        all
    }

    /// Sends a bundle; gives what the server lacked, and its last word.
    async fn put(&self, manifest: &Manifest, pack: &[u8]) -> (Vec<ChunkId>, Kept) {
        let mut stream = self.open(&StreamHeader::PutBundle).await;
        let text = manifest.text();
        stream.write_u64_le(text.len() as u64).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let Some(Received::Message(Lacks { chunks })) = control::receive(&mut stream).await.unwrap() else {
            panic!("the server says what it lacks");
        };
        stream.write_all(pack).await.unwrap();
        stream.shutdown().await.unwrap();
        let Some(Received::Message(kept)) = control::receive(&mut stream).await.unwrap() else {
            panic!("the server says whether it has it");
        };
        (chunks, kept)
    }
}

fn outputs(contents: &[&[u8]]) -> Manifest {
    let chunk = |content: &&[u8]| Chunk { id: chunk::id(content), bytes: content.len() as u64 };
    Manifest { listing: Vec::new(), content: contents.iter().map(chunk).collect() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_a_manifest_and_chunks_as_they_are_stored() {
    let server = Server::new().await;
    let content = vec![5; 100_000];
    let bundle = server.bundle(&content).await;
    let node = Node::dial(&server).await;
    let expected = Manifest { listing: Vec::new(), content: manifest(&content).content };
    assert_eq!(node.manifest(bundle).await, expected.text());
    assert_eq!(node.manifest(BundleId::from_digest(&"0".repeat(64)).unwrap()).await, "");
    let got = node.chunks(vec![chunk::id(b"nobody's"), chunk::id(&content)]).await;
    assert_eq!(got, [Vec::new(), Encoder::default().encode(&content)]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_task_leaves_behind_is_kept_once_it_is_whole() {
    let server = Server::new().await;
    let node = Node::dial(&server).await;
    let (one, two) = (&b"checkpoint"[..], &b"metrics"[..]);
    let whole = outputs(&[one, two]);
    let (lacked, kept) = node.put(&whole, &pack(&[two])).await;
    assert_eq!(lacked, [chunk::id(one), chunk::id(two)]);
    assert_eq!(kept.bundle, None);
    assert_eq!(kept.error.as_deref(), Some("1 of its chunks did not come"));
    let (lacked, kept) = node.put(&whole, &pack(&[one])).await;
    assert_eq!(lacked, [chunk::id(one)]);
    assert_eq!((kept.bundle, kept.error), (Some(chunk::bundle_id(&whole)), None));
    let (lacked, kept) = node.put(&whole, b"").await;
    assert!(lacked.is_empty() && kept.bundle.is_some(), "{kept:?}");
    let (_, kept) = node.put(&outputs(&[b"third"]), b"not a pack").await;
    assert!(kept.error.unwrap().contains("cut off"));
    assert_eq!(node.manifest(chunk::bundle_id(&whole)).await, whole.text());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_a_node_finds_damaged_is_looked_at_and_sent_anew() {
    let server = Server::new().await;
    let (good, bad) = (chunk::id(b"good"), chunk::id(b"bad"));
    server.bundle(b"bad").await;
    server.bundle(b"good").await;
    std::fs::write(server.file(&bad), Encoder::default().encode(b"bit rot")).unwrap();
    let node = Node::dial(&server).await;
    let chunks = vec![good.clone(), bad.clone()];
    let mut stream = node.open(&StreamHeader::Damaged { chunks: chunks.clone() }).await;
    stream.shutdown().await.unwrap();
    // It ends when they were looked at.
    drop(stream.read_u8().await);
    assert!(!server.file(&bad).exists());
    assert_eq!(server.client.missing_chunks(chunks).await.unwrap(), [bad]);
    server.stop().await;
}
