use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::frame::{Choice, Done, Message};
use super::*;
use crate::listing::{Entry, Kind, Time};

/// One end of a socket; the other end may cut it after so many bytes.
struct End {
    stream: UnixStream,
    left: usize,
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = bytes.len().min(self.left);
        self.left -= count;
        self.stream.write(&bytes[..count])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Wire for End {
    fn is_ready(&mut self) -> io::Result<bool> {
        self.stream.set_nonblocking(true)?;
        let mut one = [0];
        let peeked = rustix::net::recv(&self.stream, &mut one, rustix::net::RecvFlags::PEEK);
        self.stream.set_nonblocking(false)?;
        Ok(peeked.is_ok())
    }
}

#[derive(Default, Debug)]
struct Seen {
    done: Vec<String>,
    skipped: Vec<String>,
    problems: Vec<(String, String, bool)>,
    moved: u64,
    found: u64,
}

impl Watch for Seen {
    fn found(&mut self, _: u64, bytes: u64) {
        self.found += bytes;
    }
    fn moved(&mut self, bytes: u64) {
        self.moved += bytes;
    }
    fn done(&mut self, path: &[u8], _: u64) {
        self.done.push(text(path));
    }
    fn skipped(&mut self, path: &[u8], _: u64) {
        self.skipped.push(text(path));
    }
    fn problem(&mut self, path: &[u8], reason: &str, is_failure: bool) {
        self.problems.push((text(path), reason.to_owned(), is_failure));
    }
}

fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

struct Copied {
    sent: Result<(), Error>,
    received: Result<(), Error>,
    sender: Seen,
    receiver: Seen,
}

/// Copies as the two ends do, with `cut` bytes from the sender at most.
fn copy_cut(sources: &[Source], to: &str, root: &Path, force: bool, cut: usize) -> Copied {
    let (one, other) = UnixStream::pair().unwrap();
    let to = Destination::new(to.as_bytes(), root.join(to));
    let receiving = thread::spawn(move || {
        let mut channel = Channel::new(End { stream: other, left: usize::MAX });
        let mut seen = Seen::default();
        let expected = Expected::anything();
        let received = Receiver { channel: &mut channel, to, expected, force, watch: &mut seen }.run();
        (received, seen)
    });
    let mut sender = Seen::default();
    let mut channel = Channel::new(End { stream: one, left: cut });
    let sent = send(&mut channel, sources, sources.len() > 1, &mut sender);
    drop(channel);
    let (received, receiver) = receiving.join().unwrap();
    Copied { sent, received, sender, receiver }
}

fn copy(sources: &[Source], to: &str, root: &Path) -> Copied {
    let copied = copy_cut(sources, to, root, false, usize::MAX);
    copied.sent.as_ref().unwrap();
    copied.received.as_ref().unwrap();
    copied
}

fn source(path: &Path) -> Source {
    Source { path: path.to_owned(), base: base(path.as_os_str().as_bytes()).map(<[u8]>::to_vec) }
}

/// Everything below a directory: name, mode, content or target, seconds.
fn tree(root: &Path) -> Vec<(PathBuf, u32, Vec<u8>, i64)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let content = if stat.is_symlink() {
                path.read_link().unwrap().as_os_str().as_bytes().to_vec()
            } else if stat.is_dir() {
                folders.push(path.clone());
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(root).unwrap().to_owned();
            found.push((name, stat.mode() & 0o777, content, stat.mtime()));
        }
    }
    found.sort();
    found
}

/// A tree with one of everything.
fn make(root: &Path) {
    fs::create_dir_all(root.join("a/empty")).unwrap();
    fs::write(root.join("a/run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("a/run.sh"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::write(root.join("a/nothing"), "").unwrap();
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"odd\xff\nname")), "odd").unwrap();
    fs::write(root.join("large"), pattern(3 << 20)).unwrap();
    symlink("/nowhere/at all", root.join("a/link")).unwrap();
    fs::create_dir(root.join("sealed")).unwrap();
    fs::write(root.join("sealed/inner"), "inner").unwrap();
    fs::set_permissions(root.join("sealed"), fs::Permissions::from_mode(0o555)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::open(root.join("a/run.sh")).unwrap().set_modified(old).unwrap();
    fs::File::open(root.join("a")).unwrap().set_modified(old).unwrap();
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| ((at * 2_654_435_761) >> 7) as u8).collect()
}

#[test]
fn a_tree_arrives_as_it_was_and_is_skipped_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("data");
    make(&from);
    let first = copy(&[source(&from)], "copy", folder.path());
    assert_eq!(tree(&from), tree(&folder.path().join("copy")));
    assert_eq!((first.sender.done.len(), first.receiver.done.len()), (6, 6));
    assert_eq!((first.sender.moved, first.receiver.moved), (first.sender.found, first.sender.found));
    // It is a directory now, so that it would go into it; a slash or not.
    let into = copy(&[source(&from)], "copy/", folder.path());
    assert_eq!(into.sender.done.len(), 6);
    assert_eq!(tree(&from), tree(&folder.path().join("copy/data")));
    let again = copy(&[source(&from)], "copy", folder.path());
    assert_eq!((again.sender.done.len(), again.sender.skipped.len()), (0, 6));
    assert_eq!(again.sender.moved, again.sender.found);
    assert!(!folder.path().join(".copy.muster-part").exists());
}

#[test]
fn what_differs_is_replaced_and_force_replaces_all() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("file");
    fs::write(&from, "new").unwrap();
    fs::write(folder.path().join("there"), "older").unwrap();
    fs::set_permissions(folder.path().join("there"), fs::Permissions::from_mode(0o400)).unwrap();
    assert_eq!(copy(&[source(&from)], "there", folder.path()).sender.done, ["file"]);
    assert_eq!(fs::read(folder.path().join("there")).unwrap(), b"new");
    assert_eq!(copy(&[source(&from)], "there", folder.path()).sender.skipped, ["file"]);
    let forced = copy_cut(&[source(&from)], "there", folder.path(), true, usize::MAX);
    assert_eq!(forced.sender.done, ["file"]);
    // Only the mode differs: that alone is set.
    fs::set_permissions(&from, fs::Permissions::from_mode(0o711)).unwrap();
    assert_eq!(copy(&[source(&from)], "there", folder.path()).sender.skipped, ["file"]);
    assert_eq!(fs::metadata(folder.path().join("there")).unwrap().mode() & 0o777, 0o711);
}

#[test]
fn a_copy_that_is_cut_anywhere_goes_on_and_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("data");
    make(&from);
    let whole = 3 << 20;
    for cut in [1, 200, 1000, whole / 3, whole / 2, whole, whole + 300] {
        let name = format!("copy{cut}");
        let first = copy_cut(&[source(&from)], &name, folder.path(), false, cut);
        assert!(matches!(first.sent, Err(Error::Lost(_))), "{cut}: {:?}", first.sent);
        assert!(matches!(first.received, Err(Error::Lost(_))), "{cut}: {:?}", first.received);
        let part = folder.path().join(&name).join(".large.muster-part");
        let kept = part.metadata().map_or(0, |stat| stat.len());
        let second = copy(&[source(&from)], &name, folder.path());
        assert_eq!(tree(&from), tree(&folder.path().join(&name)), "{cut}");
        assert_eq!(second.sender.moved, second.sender.found);
        assert!(kept == 0 || !part.exists());
    }
}

#[test]
fn a_part_of_something_else_is_never_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("large");
    fs::write(&from, pattern(3 << 20)).unwrap();
    let part = folder.path().join("to/.large.muster-part");
    fs::create_dir(folder.path().join("to")).unwrap();
    let mut other = pattern(2 << 20);
    other[1 << 20] ^= 1;
    for content in [other, pattern(4 << 20), Vec::new(), pattern(2 << 20)] {
        fs::write(&part, &content).unwrap();
        copy(&[source(&from)], "to/", folder.path());
        let there = folder.path().join("to/large");
        assert_eq!(fs::read(&there).unwrap(), pattern(3 << 20));
        fs::remove_file(there).unwrap();
    }
}

#[test]
fn what_cannot_be_read_or_replaced_does_not_stop_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("data");
    fs::create_dir_all(from.join("d")).unwrap();
    fs::write(from.join("x"), "x").unwrap();
    fs::write(from.join("y"), "y").unwrap();
    fs::write(from.join("d/z"), "z").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    fs::create_dir_all(folder.path().join("to/data/x")).unwrap();
    fs::write(folder.path().join("to/data/d"), "in the way").unwrap();
    let sources = [source(&from), source(&folder.path().join("absent"))];
    let copied = copy(&sources, "to", folder.path());
    assert_eq!(copied.sender.done, ["data/y"]);
    let mut failed: Vec<_> = copied
        .sender
        .problems
        .iter()
        .filter(|(_, _, is_failure)| *is_failure)
        .map(|(path, ..)| path)
        .collect();
    failed.sort();
    let absent = folder.path().join("absent").display().to_string();
    assert_eq!(failed, [&absent, "data/d", "data/d/z", "data/x"]);
    assert!(copied.sender.problems.iter().any(|(path, _, is_failure)| path == "data/socket" && !is_failure));
    assert_eq!(copied.sender.problems.len(), copied.receiver.problems.len());
    assert_eq!(fs::read(folder.path().join("to/data/d")).unwrap(), b"in the way");
}

#[test]
fn destinations_are_those_of_cp() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::write(root.join("f"), "f").unwrap();
    fs::write(root.join("g"), "g").unwrap();
    fs::create_dir_all(root.join("dir")).unwrap();
    symlink("f", root.join("link")).unwrap();
    copy(&[source(&root.join("f"))], "dir", root);
    copy(&[source(&root.join("f"))], "renamed", root);
    copy(&[source(&root.join("f"))], "made/deep/", root);
    copy(&[source(&root.join("f")), source(&root.join("g"))], "both", root);
    copy(&[source(&root.join("both/."))], "contents", root);
    // Whoever names a link means what it leads to.
    copy(&[source(&root.join("link"))], "followed", root);
    for made in
        ["dir/f", "renamed", "made/deep/f", "both/f", "both/g", "contents/f", "contents/g", "followed"]
    {
        assert!(root.join(made).symlink_metadata().is_ok_and(|stat| stat.is_file()), "{made}");
    }
    for (sources, to) in [(vec!["f"], "absent/f"), (vec!["f"], "f/"), (vec!["f", "g"], "f")] {
        let sources: Vec<_> = sources.iter().map(|name| source(&root.join(name))).collect();
        let refused = copy_cut(&sources, to, root, false, usize::MAX);
        assert!(matches!(refused.sent, Err(Error::Peer(_))), "{to}: {:?}", refused.sent);
        assert!(matches!(refused.received, Err(Error::Here(_))), "{to}");
    }
    let same = [source(&root.join("f")), source(&root.join("dir/f"))];
    assert_eq!(copy(&same, "dir", root).sender.problems.len(), 1);
}

#[test]
fn patterns_find_what_a_shell_would() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for name in ["a1.txt", "a2.txt", ".a3.txt", "b.log", "[x].txt"] {
        fs::write(root.join(name), name).unwrap();
    }
    fs::create_dir_all(root.join("d1/e")).unwrap();
    fs::write(root.join("d1/e/f"), "").unwrap();
    let found = |pattern: &str| -> Vec<String> {
        let at = Surroundings { home: Some(root.to_owned()), output: Some(root.join("d1")) };
        let found = expand(pattern.as_bytes(), &at).unwrap();
        found.into_iter().map(|one| text(&one.base.unwrap_or_default())).collect()
    };
    assert_eq!(found("~/a*.txt"), ["a1.txt", "a2.txt"]);
    assert_eq!(found("~/.a*"), [".a3.txt"]);
    assert_eq!(found("~/?.log"), ["b.log"]);
    assert_eq!(found("~/[ab]*"), ["a1.txt", "a2.txt", "b.log"]);
    assert_eq!(found("~/[x].txt"), ["[x].txt"]);
    assert_eq!(found("~/d*/*/f"), ["f"]);
    assert_eq!(found("@output/e"), ["e"]);
    assert_eq!(found("@output"), ["output"]);
    assert_eq!(found("~"), [""]);
    assert_eq!(found("~/none*"), ["none*"]);
}

#[test]
fn names_are_those_of_their_last_component() {
    for (path, name) in [
        ("a", Some("a")),
        ("a/b/", Some("b")),
        ("/x//", Some("x")),
        ("", None),
        (".", None),
        ("a/..", None),
        ("/", None),
    ] {
        assert_eq!(base(path.as_bytes()), name.map(str::as_bytes), "{path}");
    }
}

/// What a sender without manners can do: it says these words, whatever it hears.
fn hostile(words: &[Message], to: &Path, expected: Expected) -> Result<(), Error> {
    let (one, other) = UnixStream::pair().unwrap();
    one.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let to = Destination::new(b"", to.to_owned());
    let words = words.to_vec();
    let sending = thread::spawn(move || {
        let mut rest = one.try_clone().unwrap();
        let mut channel = Channel::new(End { stream: one, left: usize::MAX });
        for word in &words {
            if channel.send(word).and_then(|()| channel.flush()).is_err() {
                break;
            }
        }
        rest.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = io::copy(&mut rest, &mut io::sink());
    });
    let mut channel = Channel::new(End { stream: other, left: usize::MAX });
    let received = Receiver { channel: &mut channel, to, expected, force: false, watch: &mut () }.run();
    drop(channel);
    sending.join().unwrap();
    received
}

fn named(path: &[u8], kind: Kind) -> Entry {
    Entry { path: path.to_vec(), kind, mode: 0o644, mtime: Time::default() }
}

fn done() -> Message {
    Message::Done(Done::Whole { mode: 0o644, mtime: Time::default() })
}

#[test]
fn nothing_is_written_outside_whatever_the_names() {
    let begin = Message::Begin { is_several: true, base: None };
    let file = |path: &[u8]| named(path, Kind::File { size: 0 });
    let link = |path: &[u8], target: &[u8]| named(path, Kind::Link { target: target.to_vec() });
    let batches: Vec<Vec<Entry>> = vec![
        vec![file(b"../evil")],
        vec![file(b"/tmp/muster-evil")],
        vec![file(b"a/../../evil")],
        vec![file(b"..")],
        vec![file(b"")],
        vec![file(b"a\0b")],
        vec![file(b"a//b")],
        vec![link(b"out", b".."), file(b"out/evil")],
        vec![link(b"out", b".."), named(b"out", Kind::Directory), file(b"out/evil")],
        vec![named(b"d", Kind::Directory), link(b"d", b".."), file(b"d/../evil")],
        vec![named(b"../evil", Kind::Directory)],
        vec![link(b"../evil", b"x")],
        vec![file(&[b'a'; 300])],
        vec![file(&b"a/".repeat(400))],
    ];
    for entries in batches {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        fs::create_dir(&to).unwrap();
        let shown = format!("{entries:?}");
        let files = entries.iter().filter(|entry| matches!(entry.kind, Kind::File { .. })).count();
        let mut words = vec![begin.clone(), Message::Batch(entries)];
        words.extend((0..files).map(|_| done()));
        words.push(Message::End);
        let _ = hostile(&words, &to, Expected::anything());
        let outside: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(outside, std::slice::from_ref(&to), "{shown}");
        assert!(!Path::new("/tmp/muster-evil").exists());
        let inside = tree(&to);
        assert!(
            inside.iter().all(|(path, ..)| !path.ends_with("evil") || path.components().count() == 1),
            "{shown}"
        );
    }
}

#[test]
fn what_was_not_asked_for_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let begin = Message::Begin { is_several: true, base: None };
    for (name, asked) in
        [("results", true), ("a.txt", true), (".bashrc", false), ("results2", false), (".x.txt", false)]
    {
        let expected = Expected::of([&b"out/results/"[..], b"logs/*.txt"]);
        let entry = named(name.as_bytes(), Kind::File { size: 0 });
        let words = [begin.clone(), Message::Batch(vec![entry]), done(), Message::End];
        let received = hostile(&words, folder.path(), expected);
        assert_eq!(received.is_ok(), asked, "{name}: {received:?}");
        assert_eq!(folder.path().join(name).exists(), asked, "{name}");
    }
}

#[test]
fn words_out_of_turn_are_an_error_and_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let begin = Message::Begin { is_several: true, base: None };
    let file = Message::Batch(vec![named(b"f", Kind::File { size: 3 })]);
    let wrong = [
        vec![Message::End],
        vec![begin.clone(), begin.clone()],
        vec![begin.clone(), Message::Data(3)],
        vec![begin.clone(), file.clone(), Message::End],
        vec![begin.clone(), file.clone(), Message::Start(7), done()],
        vec![begin.clone(), file.clone(), file.clone()],
        vec![begin.clone(), Message::Plan(vec![Choice::Same])],
        vec![begin, file, Message::Data(3)],
    ];
    for words in wrong {
        let received = hostile(&words, folder.path(), Expected::anything());
        assert!(received.is_err(), "{words:?}");
        assert!(!folder.path().join("f").exists());
    }
}

fn any_time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Time { seconds, nanos })
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    let kind = prop_oneof![
        Just(Kind::Directory),
        any::<u64>().prop_map(|size| Kind::File { size }),
        bytes().prop_map(|target| Kind::Link { target }),
    ];
    (bytes(), kind, 0..0o777_u32, any_time()).prop_map(|(path, kind, mode, mtime)| Entry {
        path,
        kind,
        mode,
        mtime,
    })
}

fn any_message() -> impl Strategy<Value = Message> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    let choice = prop_oneof![
        Just(Choice::Same),
        Just(Choice::Made),
        Just(Choice::Whole),
        (any::<u64>(), any::<[u8; 32]>()).prop_map(|(offset, digest)| Choice::From { offset, digest }),
        "[a-z ]{0,50}".prop_map(Choice::Refused),
    ];
    prop_oneof![
        (bytes(), any::<bool>(), any::<bool>()).prop_map(|(to, force, pass_on)| Message::Ask(Ask::Put {
            to,
            force,
            pass_on
        })),
        proptest::collection::vec(bytes(), 0..5).prop_map(|paths| Message::Ask(Ask::Get { paths })),
        (any::<bool>(), "[a-z]{1,9}")
            .prop_map(|(is_several, base)| Message::Begin { is_several, base: Some(base.into_bytes()) }),
        proptest::collection::vec(any_entry(), 0..9).prop_map(Message::Batch),
        proptest::collection::vec(choice, 0..9).prop_map(Message::Plan),
        any::<u64>().prop_map(Message::Start),
        (0..0o777_u32, any_time()).prop_map(|(mode, mtime)| Message::Done(Done::Whole { mode, mtime })),
        "[a-z ]{0,50}".prop_map(|reason| Message::Done(Done::Failed(reason))),
        proptest::collection::vec((any::<u32>(), "[a-z ]{0,50}"), 0..9).prop_map(Message::Report),
        (bytes(), "[a-z ]{0,50}", any::<bool>()).prop_map(|(path, reason, is_failure)| Message::Problem {
            path,
            reason,
            is_failure
        }),
        Just(Message::End),
        Just(Message::Finished),
    ]
}

proptest! {
    #[test]
    fn messages_read_back_what_was_said(message in any_message()) {
        prop_assert_eq!(Message::decode(message.kind(), &message.encode()), Some(message));
    }

    #[test]
    fn garbage_is_refused_and_never_a_panic(kind in 0..20_u8, bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Message::decode(kind, &bytes);
    }

    #[test]
    fn a_message_that_is_cut_short_is_refused(message in any_message(), cut in any::<prop::sample::Index>()) {
        let bytes = message.encode();
        if !bytes.is_empty() {
            let cut = cut.index(bytes.len());
            // A list may end earlier and still be one.
            if let Some(shorter) = Message::decode(message.kind(), &bytes[..cut]) {
                prop_assert_ne!(shorter, message);
            }
        }
    }

    #[test]
    fn a_receiver_survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(&bytes).unwrap();
        one.shutdown(std::net::Shutdown::Write).unwrap();
        let mut channel = Channel::new(End { stream: other, left: usize::MAX });
        let to = Destination::new(b"to/", folder.path().join("to"));
        let expected = Expected::anything();
        let received = Receiver { channel: &mut channel, to, expected, force: false, watch: &mut () }.run();
        prop_assert!(received.is_err());
    }
}
