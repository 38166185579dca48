//! Sending chunks: only those the server lacks, compressed where the way is long, several in one request, and few
//! requests at a time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_api::model::ChunkId;
use muster_bundle::chunk::{self, Encoder};
use tokio::sync::{OnceCell, mpsc};

use super::Error;
use super::take::{Batch, Message};
use crate::error;
use crate::progress::Bar;
use crate::session::Session;
use crate::threads;

/// Batches on their way at a time: while one is compressed, another travels, and the server waits for its disk with a
/// third.
const IN_FLIGHT: usize = 3;
/// So little is sent without asking whether it is there: the question would take as long.
const UNASKED: usize = 1 << 20;
/// So little is compressed in place: another thread would take as long to start.
const IN_PLACE: usize = 128 << 10;

/// Takes batches to a server.
pub(super) struct Courier<'a, F> {
    pub session: &'a Session,
    may_send: F,
    /// That it may was said.
    may: OnceCell<()>,
    /// Those not in use; each has buffers worth keeping.
    encoders: Arc<Mutex<Vec<Encoder>>>,
}

impl<'a, F: AsyncFn() -> Result<(), error::Error>> Courier<'a, F> {
    pub fn new(session: &'a Session, may_send: F) -> Self {
        Self { session, may_send, may: OnceCell::new(), encoders: Arc::default() }
    }

    /// Asks whether anything may be sent, once.
    pub async fn ask(&self) -> Result<(), Error> {
        let may = self.may.get_or_try_init(async || (self.may_send)().await).await;
        may.map(drop).map_err(Error::Server)
    }

    /// Sends batches as they come, until there are no more.
    pub async fn deliver(&self, mut messages: mpsc::Receiver<Message>) -> Result<(), Error> {
        let mut bar = Bar::new("sending", 0);
        let mut under_way = FuturesUnordered::new();
        let mut is_open = true;
        loop {
            tokio::select! {
                message = messages.recv(), if is_open && under_way.len() < IN_FLIGHT => match message {
                    Some(Message::Begin(bytes)) => bar = Bar::new("sending", bytes),
                    Some(Message::Batch(batch)) => under_way.push(self.send(batch)),
                    None => is_open = false,
                },
                Some(sent) = under_way.next() => bar.add(sent?),
                else => return Ok(()),
            }
        }
    }

    /// Sends what the server lacks of a batch, and gives the length of it all.
    pub async fn send(&self, mut batch: Batch) -> Result<u64, Error> {
        let bytes = batch.bytes;
        if bytes > UNASKED {
            let ids: Vec<ChunkId> = batch.chunks.iter().map(|(id, _)| id.clone()).collect();
            let missing = self.session.call(async |client| client.missing_chunks(ids.clone()).await).await;
            let missing: HashSet<ChunkId> = missing.map_err(Error::Server)?.into_iter().collect();
            batch.chunks.retain(|(id, _)| missing.contains(id));
        }
        if !batch.chunks.is_empty() {
            self.ask().await?;
            let pack = self.pack(batch).await?;
            let sent = self.session.upload(async |client| client.put_chunks(pack.clone()).await).await;
            sent.map_err(Error::Server)?;
        }
        Ok(bytes as u64)
    }

    async fn pack(&self, batch: Batch) -> Result<Vec<Bytes>, Error> {
        if self.session.client().endpoint().is_near() {
            return Ok(raw(batch));
        }
        let encoders = self.encoders.clone();
        if batch.bytes <= IN_PLACE {
            return Ok(vec![pack(&batch, &encoders)]);
        }
        Ok(vec![threads::run(move || pack(&batch, &encoders)).await?])
    }
}

/// Where the way costs nothing, compressing costs more than it saves.
fn raw(batch: Batch) -> Vec<Bytes> {
    let pieces = batch
        .chunks
        .into_iter()
        .flat_map(|(id, content)| [Bytes::copy_from_slice(&chunk::raw_head(&id, &content)), content]);
    pieces.collect()
}

fn pack(batch: &Batch, encoders: &Mutex<Vec<Encoder>>) -> Bytes {
    let spare = encoders.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let mut encoder = spare.unwrap_or_default();
    let mut pack = Vec::with_capacity(batch.bytes / 2);
    for (id, content) in &batch.chunks {
        chunk::push(&mut pack, id, &encoder.encode(content));
    }
    encoders.lock().unwrap_or_else(PoisonError::into_inner).push(encoder);
    Bytes::from(pack)
}
