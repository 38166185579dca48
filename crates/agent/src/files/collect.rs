//! What a task leaves behind: the files that its job asked for, sent to the server as a bundle.
//!
//! Nothing of it is kept in memory or on disk: files are read once for their names and again for the chunks that the
//! server lacks. The task is over, so both readings find the same.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use muster_bundle::chunk::{self, Encoder};
use muster_bundle::listing::{self, Entry, Kind};
use muster_bundle::pack::{self, Found, Known, Packer, Source, Stamp};
use muster_bundle::tree;
use muster_link::control::{self, Received};
use muster_link::message::{Kept, Lacks, StreamHeader};
use muster_link::session::Stream;
use muster_model::ChunkId;
use muster_model::file::OUTPUT;
use muster_model::task::Outputs;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::sync::mpsc;

use super::{Directory, Files as View};
use crate::bulk::Bulk;
use crate::{disk, words};

/// Records that may wait for the network.
const AHEAD: usize = 4;
/// How often the server may refuse before it is believed: its disk may be full for a while.
const REFUSALS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// Why a task's outputs are not on the server.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("`{pattern}` is not a pattern of files")]
    Pattern {
        pattern: String,
        #[source]
        source: globset::Error,
    },
    #[error("its files cannot be read")]
    Read(#[from] io::Error),
    #[error(transparent)]
    Pack(#[from] pack::Error),
    #[error("the server does not take them: {0}")]
    Refused(String),
    /// Worth another try, as often as it takes.
    #[error("the link was lost")]
    Lost(#[source] io::Error),
}

/// Send what matches the patterns. Waits for a server as long as it takes: the caller drops this when nobody wants it.
pub(crate) async fn collect(view: View, patterns: Vec<String>, bulk: Bulk) -> Outputs {
    let (mut refusals, mut pause) = (0, FIRST_PAUSE);
    let view = Arc::new(view);
    loop {
        let error = match try_collect(&view, &patterns, &bulk).await {
            Ok(outputs) => return outputs,
            Err(Error::Lost(error)) => words(&error),
            Err(error @ Error::Refused(_)) if refusals < REFUSALS => {
                refusals += 1;
                words(&error)
            }
            Err(error) => return Outputs::Failed { message: words(&error) },
        };
        tracing::warn!(error, "outputs could not be sent and will be again");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// What matches the patterns, to be read without a server: each with its path in the task's directory.
pub(crate) fn gather_here(view: &View, patterns: &[String]) -> io::Result<Vec<Entry>> {
    let found = find(view, &matcher(patterns).map_err(io::Error::other)?)?;
    let (output, work) = (OUTPUT.as_bytes(), b"work/".as_slice());
    let placed = |mut entry: Entry| {
        entry.path = match entry.path.strip_prefix(output) {
            Some(inside) if inside.is_empty() || inside.starts_with(b"/") => [b"output", inside].concat(),
            _ => [work, &entry.path].concat(),
        };
        entry
    };
    Ok(found.into_iter().map(|found| placed(found.entry)).collect())
}

async fn try_collect(view: &Arc<View>, patterns: &[String], bulk: &Bulk) -> Result<Outputs, Error> {
    let (from, patterns) = (Arc::clone(view), patterns.to_vec());
    let (found, tree) = disk::work(move || {
        from.read(|| {
            let found = find(&from, &matcher(&patterns)?)?;
            let mut packer = Packer::new(Directories(Arc::clone(&from)), found.clone(), Known::default());
            while packer.next()?.is_some() {}
            Ok::<_, Error>((found, packer.finish()?))
        })?
    })
    .await?;
    let (_, stream) = bulk.open().await;
    let mut stream = BufReader::new(stream);
    let lacks = offer(&mut stream, &tree.manifest.text()).await.map_err(Error::Lost)?;
    let kept = send(Arc::clone(view), found, tree.listing, lacks, stream).await?;
    let files =
        tree.found.iter().filter(|found| matches!(found.entry.kind, Kind::File { .. })).count() as u64;
    match (kept.bundle, kept.error) {
        (Some(bundle), _) => Ok(Outputs::Collected { bundle, files, bytes: tree.manifest.bytes() }),
        (None, error) => Err(Error::Refused(error.unwrap_or_default())),
    }
}

/// Say what there is, and hear what of it is missing.
async fn offer(stream: &mut BufReader<Stream>, manifest: &str) -> io::Result<HashSet<ChunkId>> {
    control::send(stream, &StreamHeader::PutBundle).await?;
    stream.write_u64_le(manifest.len() as u64).await?;
    stream.write_all(manifest.as_bytes()).await?;
    stream.flush().await?;
    match control::receive::<Lacks>(stream).await? {
        Some(Received::Message(lacks)) => Ok(lacks.chunks.into_iter().collect()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the server did not say what it lacks")),
    }
}

async fn send(
    view: Arc<View>,
    found: Vec<Found>,
    listing: Vec<u8>,
    lacks: HashSet<ChunkId>,
    mut stream: BufReader<Stream>,
) -> Result<Kept, Error> {
    let (sender, mut records) = mpsc::channel(AHEAD);
    let reading = disk::work(move || {
        let files = Arc::clone(&view);
        files.read(|| read_again(view, found, &listing, lacks, &sender))?
    });
    let sending = async {
        while let Some(record) = records.recv().await {
            let record: Vec<u8> = record;
            stream.write_all(&record).await?;
        }
        stream.shutdown().await?;
        control::receive::<Kept>(&mut stream).await
    };
    let (read, sent) = tokio::join!(reading, sending);
    match (sent, read) {
        (Ok(Some(Received::Message(kept))), Ok(())) => Ok(kept),
        (_, Err(error)) => Err(error),
        (Ok(_), Ok(())) => Err(Error::Lost(io::ErrorKind::UnexpectedEof.into())),
        (Err(error), Ok(())) => Err(Error::Lost(error)),
    }
}

/// Read all again, and give the chunks that are missing, each once.
fn read_again(
    view: Arc<View>,
    found: Vec<Found>,
    listing: &[u8],
    mut lacks: HashSet<ChunkId>,
    to: &mpsc::Sender<Vec<u8>>,
) -> Result<(), Error> {
    let mut encoder = Encoder::default();
    let mut give = |id: &ChunkId, content: &[u8]| {
        let mut record = Vec::new();
        chunk::push(&mut record, id, &encoder.encode(content));
        to.blocking_send(record).map_err(|_| Error::Lost(io::ErrorKind::BrokenPipe.into()))
    };
    let mut at = 0;
    for piece in pack::cut_whole(listing) {
        let end = at + piece.bytes as usize;
        if lacks.remove(&piece.id) {
            give(&piece.id, &listing[at..end])?;
        }
        at = end;
    }
    let mut packer = Packer::new(Directories(view), found, Known::default());
    while !lacks.is_empty()
        && let Some(packed) = packer.next()?
    {
        if let Some(content) = packed.content
            && lacks.remove(&packed.chunk.id)
        {
            give(&packed.chunk.id, &content)?;
        }
    }
    Ok(())
}

fn matcher(patterns: &[String]) -> Result<GlobSet, Error> {
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        let wrong = |source| Error::Pattern { pattern: pattern.clone(), source };
        let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
        set.add(GlobBuilder::new(pattern).literal_separator(true).build().map_err(wrong)?);
        // A directory that is named means all that is in it.
        let inside = format!("{}/**", pattern.trim_end_matches('/'));
        set.add(GlobBuilder::new(&inside).literal_separator(true).build().map_err(wrong)?);
    }
    set.build().map_err(|source| Error::Pattern { pattern: patterns.join(", "), source })
}

/// The files that match, with the directories they lie in.
fn find(view: &View, wanted: &GlobSet) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    let output = rustix::fs::fstat(&view.output)?;
    let top = tree::describe(OUTPUT.into(), &output, None);
    let mut of_output = gather(&view.output, OUTPUT.as_bytes(), wanted)?;
    if !of_output.is_empty()
        && let Some(entry) = top
    {
        found.push(self::found(entry, Stamp::default()));
    }
    found.append(&mut of_output);
    // A directory of the code that has the name of the output directory cannot be told from it.
    let of_work = gather(&view.work, b"", wanted)?;
    let is_other =
        |found: &Found| found.entry.path.split(|byte| *byte == b'/').next() != Some(OUTPUT.as_bytes());
    found.extend(of_work.into_iter().filter(is_other));
    found.sort_by(|one, other| listing::compare(&one.entry.path, &other.entry.path));
    Ok(found)
}

fn gather(root: &Directory, prefix: &[u8], wanted: &GlobSet) -> io::Result<Vec<Found>> {
    let mut gathered = Vec::new();
    // The directories the walk is in that nothing was found in yet.
    let mut waiting: Vec<Entry> = Vec::new();
    tree::walk(root.as_fd(), true, &mut |mut entry: Entry, at: BorrowedFd<'_>, name: &OsStr| {
        if !prefix.is_empty() {
            entry.path = [prefix, b"/", &entry.path].concat();
        }
        waiting.retain(|directory| is_in(&entry.path, &directory.path));
        let is_wanted = wanted.is_match(Path::new(OsStr::from_bytes(&entry.path)));
        if entry.kind == Kind::Directory && !is_wanted {
            waiting.push(entry);
        } else if is_wanted {
            let stamp = match entry.kind {
                Kind::File { .. } => Stamp::of(&tree::open_file(at, name)?.metadata()?),
                Kind::Directory | Kind::Link { .. } => Stamp::default(),
            };
            gathered.extend(waiting.drain(..).map(|directory| found(directory, Stamp::default())));
            gathered.push(found(entry, stamp));
        }
        Ok(true)
    })?;
    Ok(gathered)
}

fn is_in(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

fn found(entry: Entry, stamp: Stamp) -> Found {
    Found { entry, stamp, is_settled: false }
}

/// Both directories of a task, by the names that files have in its outputs.
struct Directories(Arc<View>);

impl Source for Directories {
    type File = File;

    fn open(&self, path: &[u8]) -> io::Result<File> {
        let inside = path.strip_prefix(OUTPUT.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
        let (root, path) = inside.map_or((&self.0.work, path), |path| (&self.0.output, path));
        Ok(tree::open(root.as_fd(), path)?.into())
    }

    fn stamp(&self, file: &File) -> io::Result<Option<Stamp>> {
        let metadata = file.metadata()?;
        Ok(metadata.is_file().then(|| Stamp::of(&metadata)))
    }

    fn read_at(&self, file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(file, into, offset)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(patterns: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let (work, output) = (folder.path().join("work"), folder.path().join("output"));
        for path in [
            "work/checkpoints/a/1.pt",
            "work/checkpoints/2.pt",
            "work/train.py",
            "work/@output/x",
            "output/m.json",
            "output/d/e",
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "content").unwrap();
        }
        let open = |path: &Path| super::super::plain(path).unwrap();
        let view = View { work: open(&work), output: open(&output), reader: None };
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let found = find(&view, &matcher(&patterns).unwrap()).unwrap();
        // What is found makes a listing that a server and a client take.
        let listing = listing::encode(found.iter().map(|found| &found.entry));
        listing::decode(&listing)
            .unwrap()
            .iter()
            .map(|entry| String::from_utf8_lossy(&entry.path).into_owned())
            .collect()
    }

    #[test]
    fn patterns_find_files_and_the_directories_they_lie_in() {
        assert_eq!(names(&["checkpoints/*.pt"]), ["checkpoints", "checkpoints/2.pt"]);
        assert_eq!(
            names(&["checkpoints/**"]),
            ["checkpoints", "checkpoints/2.pt", "checkpoints/a", "checkpoints/a/1.pt"]
        );
        assert_eq!(names(&["./checkpoints/a/"]), ["checkpoints", "checkpoints/a", "checkpoints/a/1.pt"]);
        assert_eq!(names(&["*.py", "@output/*.json"]), ["@output", "@output/m.json", "train.py"]);
        assert_eq!(names(&["@output"]), ["@output", "@output/d", "@output/d/e", "@output/m.json"]);
        assert_eq!(names(&["nothing*"]), [""; 0]);
    }

    #[test]
    fn a_bad_pattern_is_named() {
        let error = matcher(&["a[".to_owned()]).unwrap_err();
        assert!(words(&error).contains("`a[`"), "{}", words(&error));
    }
}
