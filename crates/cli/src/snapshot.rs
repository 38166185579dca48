//! The code directory as a bundle: found, read as far as it changed, and sent as far as the server lacks it.
//!
//! A thread walks, reads, cuts and hashes; what is new goes to the server in batches while it goes on. Memory stays
//! small whatever the size of the tree, each file is read once, and what is sent is what was hashed.
//!
//! What is remembered of the last time is trusted to be on the server too. If it is not, the server says so when the
//! bundle or the job is named, and then everything is read and offered again.

use std::path::{Path, PathBuf};

use muster_api::model::BundleId;
use muster_api::model::bundle::Source;
use muster_api::model::quantity::format_bytes;
use muster_api::view::PutBundle;
use muster_bundle::{chunk, pack};
use tokio::sync::mpsc;

use crate::error::{self, Code as ErrorCode, chain};
use crate::session::Session;
use crate::terminal;
use crate::threads::{self, ThreadError};

mod git;
mod index;
mod remark;
mod send;
mod take;
#[cfg(test)]
mod tests;
mod walk;

use index::{Index, Server, Shelf};
use send::Courier;
use take::{Order, Taken};

/// How often a tree is looked at again that is being edited, before giving up.
const TRIES: u32 = 3;

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A directory that cannot be listed.
    #[error("cannot read the code directory")]
    Walk(#[source] ignore::Error),
    /// A file that cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Folders in folders without end.
    #[error("{} lies deeper than {} folders", path.display(), muster_bundle::listing::MAX_DEPTH)]
    Deep { path: PathBuf },
    #[error(transparent)]
    Pack(pack::Error),
    /// Chunks the server asks for again and again.
    #[error("the server lacks {missing} chunks although they were sent")]
    Refused { missing: usize },
    #[error(transparent)]
    Server(error::Error),
    /// Nobody takes what is read any more; whoever stopped has the reason.
    #[error("the sending has ended")]
    Abandoned,
    /// The thread that reads cannot be made, or has died.
    #[error(transparent)]
    Thread(#[from] ThreadError),
}

impl From<Error> for error::Error {
    fn from(error: Error) -> Self {
        let text = chain(&error);
        match error {
            Error::Server(error) => error,
            Error::Thread(error) => error.into(),
            Error::Walk(_) | Error::Read { .. } | Error::Pack(pack::Error::Read { .. }) => {
                Self::new(ErrorCode::BundleFileUnreadable, text)
            }
            Error::Deep { .. } | Error::Pack(pack::Error::TooMany { .. }) => {
                Self::new(ErrorCode::BundleNameInvalid, text)
            }
            Error::Pack(pack::Error::Changed { .. }) => Self::new(ErrorCode::BundleFileChanges, text),
            Error::Refused { .. } => Self::new(ErrorCode::BundleRefused, text),
            Error::Abandoned => Self::new(ErrorCode::ClientInternal, text),
        }
    }
}

/// Code that can be named in a job.
pub(crate) struct Code {
    pub bundle: BundleId,
    pub source: Option<Source>,
    /// The server had all or some of it the last time and was not asked again: it may refuse a job with it.
    pub is_assumed: bool,
    /// What to remember, where it changed.
    memory: Option<(Shelf, PathBuf, Index)>,
}

impl Code {
    /// The code of a job that is there already.
    pub fn of_job(bundle: BundleId, source: Option<Source>) -> Self {
        Self { bundle, source, is_assumed: false, memory: None }
    }

    /// Remembers what was read, for the next time, beside whatever is done next; what is returned waits for it.
    pub fn remember(self) -> impl Future<Output = ()> {
        // That it cannot be written costs time the next time, and nothing else.
        let save = |(shelf, root, index): (Shelf, PathBuf, Index)| drop(shelf.save(&root, &index));
        let saving = self.memory.map(|memory| threads::run(move || save(memory)));
        async {
            if let Some(saving) = saving {
                let _ = saving.await;
            }
        }
    }
}

/// How much of what was remembered is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trust {
    /// All of it.
    Memory,
    /// None: everything is read, and the server asked about each chunk.
    Nothing,
}

/// Makes sure that the server has the code. `may_send` is asked once, before anything is sent.
pub(crate) async fn upload(
    root: &Path,
    session: &Session,
    mut trust: Trust,
    may_send: impl AsyncFn() -> Result<(), error::Error>,
) -> Result<Code, Error> {
    let courier = Courier::new(session, may_send);
    let mut tries = 1;
    loop {
        match try_upload(root, &courier, trust, tries > 1 || trust == Trust::Nothing).await {
            Err(Error::Pack(pack::Error::Changed { .. })) if tries < TRIES => tries += 1,
            // What it had is gone; nothing that is remembered of it holds.
            Err(Error::Refused { .. }) if trust == Trust::Memory => trust = Trust::Nothing,
            other => return other,
        }
    }
}

async fn try_upload(
    root: &Path,
    courier: &Courier<'_, impl AsyncFn() -> Result<(), error::Error>>,
    trust: Trust,
    is_repeated: bool,
) -> Result<Code, Error> {
    let session = courier.session;
    let shelf = Shelf::from_environment();
    let order =
        Order::new(root, leave_out(session, shelf.as_ref()), shelf.clone(), trust).repeated(is_repeated);
    let (sender, batches) = mpsc::channel(1);
    let take = async { threads::run(move || take::take(&order, &sender)).await? };
    let look = async {
        Ok(match walk::repository(root) {
            Some(_) => git::look(root).await,
            None => None,
        })
    };
    let (mut taken, (), state) = tokio::try_join!(take, courier.deliver(batches), look)?;
    if !is_repeated {
        remark::on_skipped(&taken.skipped);
    }

    let endpoint = session.client().endpoint().to_string();
    let server = taken.index.server(&endpoint);
    let is_known = server.is_some() && taken.index.manifest == taken.manifest && !taken.is_under_way;
    let last_diff = server.and_then(|server| server.diff.clone());
    let diff = state.as_ref().and_then(|state| Some((chunk::id(state.diff.as_ref()?), state.diff.clone()?)));
    let diff_id = diff.as_ref().map(|(id, _)| id.clone());
    let is_diff_known = diff_id.is_some() && diff_id == last_diff;
    if let Some((id, content)) = diff.filter(|_| !is_diff_known) {
        taken.rest.push(id, content.into());
    }
    courier.send(std::mem::take(&mut taken.rest)).await?;
    if !is_known {
        courier.ask().await?;
        commit(session, &taken).await?;
    }
    let source = state.map(|state| Source {
        commit: state.commit,
        branch: state.branch,
        dirty: state.is_dirty,
        diff: diff_id.clone(),
    });
    let bundle = chunk::bundle_id(&taken.manifest);
    let memory = remembered(taken, Server { endpoint, diff: diff_id });
    Ok(Code {
        bundle,
        source,
        is_assumed: is_known || is_diff_known,
        memory: shelf.zip(memory).map(|(shelf, index)| (shelf, root.to_owned(), index)),
    })
}

/// What is never part of the code: muster's own files.
fn leave_out(session: &Session, shelf: Option<&Shelf>) -> Vec<PathBuf> {
    let home = session.home().map(|home| home.folder());
    let folders = home.into_iter().chain(shelf.map(Shelf::folder));
    // The root of a walk has no links in its path, so neither must these.
    folders.map(|folder| folder.canonicalize().unwrap_or_else(|_| folder.to_owned())).collect()
}

/// Names the bundle.
async fn commit(session: &Session, taken: &Taken) -> Result<(), Error> {
    let bundle =
        PutBundle { listing: taken.manifest.listing.clone(), content: taken.manifest.content.clone() };
    let status =
        session.upload(async |client| client.put_bundle(&bundle).await).await.map_err(Error::Server)?;
    match status.missing.len() {
        0 => Ok(()),
        missing => Err(Error::Refused { missing }),
    }
}

/// What to remember; none if it is what was remembered.
fn remembered(taken: Taken, server: Server) -> Option<Index> {
    let Taken { manifest, files, index: old, .. } = taken;
    let is_same_bundle = old.manifest == manifest;
    if is_same_bundle && old.files == files && old.servers.first() == Some(&server) {
        return None;
    }
    let mut index = Index { manifest, files, servers: if is_same_bundle { old.servers } else { Vec::new() } };
    index.add_server(server);
    Some(index)
}

/// Says what would be sent.
pub(crate) async fn preview(root: &Path, session: &Session) -> Result<(), Error> {
    let leave_out = leave_out(session, Shelf::from_environment().as_ref());
    let owned = root.to_owned();
    let tree = threads::run(move || walk::walk(&owned, &leave_out, 0)).await??;
    let (files, bytes) = tree.size();
    terminal::remark(&format!("code: {files} files, {} from {}", format_bytes(bytes), root.display()));
    remark::on_skipped(&tree.skipped);
    Ok(())
}
