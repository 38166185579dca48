//! Files of a task, with the programs people have: `sftp`, `scp`, `rsync`, paramiko; and with packets of our own.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the way tests do")]

#[expect(dead_code, reason = "other tests use the rest")]
mod host;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime};

use self::host::{Host, NAME, noise, read, text, write};

/// Runs a batch of `sftp`, which ends at the first command that fails.
fn sftp(host: &Host, batch: &str) -> String {
    let file = host.path("batch");
    write(&file, batch);
    host.done("sftp", &["-q", "-b", &host.at("batch"), NAME])
}

fn set_modified(path: &Path, second: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
    fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn sftp_does_what_people_do_with_it() {
    let host = Host::start();
    let bytes = noise(3_000_000);
    write(&host.path("local"), &bytes);
    set_modified(&host.path("local"), 1_600_000_000);
    let d = host.dir.path().display();
    let out = sftp(
        &host,
        &format!(
            "mkdir {d}/far\ncd {d}/far\npwd\nput -p {d}/local one\nrename one two\nchmod 640 two\nln -s two link\n\
             ln two hard\nget -p two {d}/back\nls -l\nls -la\nput {d}/local three\nrm three\nmkdir gone\nrmdir gone\n\
             df\ncp two copy\n"
        ),
    );
    let far = host.path("far");
    assert!(out.contains(&format!("Remote working directory: {d}/far")), "{out}");
    assert_eq!(read(&host.path("back")), bytes);
    assert_eq!(fs::metadata(host.path("back")).unwrap().mtime(), 1_600_000_000);
    assert!(read(&far.join("two")) == bytes && read(&far.join("copy")) == bytes);
    assert_eq!(mode(&far.join("two")), 0o640);
    assert_eq!(fs::read_link(far.join("link")).unwrap(), Path::new("two"));
    assert_eq!(fs::metadata(far.join("hard")).unwrap().nlink(), 2);
    let is_two = |line: &&str| line.starts_with("-rw-r-----") && line.ends_with(" two");
    let line = out.lines().find(is_two).unwrap_or_else(|| panic!("{out}"));
    assert!(line.contains(" 3000000 Sep 1"), "{line}");
    assert!(out.contains("lrwxrwxrwx") && out.contains("Avail"), "{out}");
    assert!(!far.join("three").exists() && !far.join("gone").exists() && !far.join("one").exists());
}

#[test]
fn scp_copies_files_and_trees_both_ways_and_keeps_what_it_is_told_to() {
    let host = Host::start();
    let tree = host.path("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    write(&tree.join("a/b/run me"), noise(100_000));
    fs::set_permissions(tree.join("a/b/run me"), fs::Permissions::from_mode(0o750)).unwrap();
    write(&tree.join("é ⚙"), "");
    set_modified(&tree.join("é ⚙"), 1_500_000_000);
    // The protocol of old, which needs an scp there, and the one of now.
    for (round, old) in [&["-O"][..], &[]].into_iter().enumerate() {
        let (far, back) = (host.at(&format!("far{round}")), host.at(&format!("back{round}")));
        host.done("scp", &[old, &["-q", "-rp", &host.at("tree"), &format!("{NAME}:{far}")]].concat());
        host.done("scp", &[old, &["-q", "-rp", &format!("{NAME}:{far}"), &back]].concat());
        for copy in [far, back] {
            let copy = Path::new(&copy);
            assert_eq!(read(&copy.join("a/b/run me")), noise(100_000));
            assert_eq!(mode(&copy.join("a/b/run me")), 0o750);
            assert_eq!(fs::metadata(copy.join("é ⚙")).unwrap().mtime(), 1_500_000_000);
            assert!(copy.join("empty").is_dir());
        }
    }
    let missing = host.run("scp", &["-q", &format!("{NAME}:{}", host.at("nothing")), &host.at("x")]);
    assert!(!missing.status.success() && text(&missing.stderr).contains("No such file"), "{missing:?}");
}

#[test]
fn rsync_sends_what_is_new_and_then_nothing() {
    let host = Host::start();
    let tree = host.path("tree");
    fs::create_dir_all(tree.join("a")).unwrap();
    for i in 0..20 {
        write(&tree.join(format!("a/{i}")), noise(50_000 + i));
    }
    std::os::unix::fs::symlink("a/1", tree.join("link")).unwrap();
    let sync = |from: &str, to: &str| {
        let out = host.done("rsync", &["-a", "--stats", "-e", "ssh", from, to]);
        let line = out.lines().find(|line| line.contains("regular files transferred")).unwrap().to_owned();
        line.split(": ").last().unwrap().parse::<u32>().unwrap()
    };
    let (near, far, back) = (host.at("tree/"), host.at("far/"), host.at("back/"));
    let far = format!("{NAME}:{far}");
    assert_eq!((sync(&near, &far), sync(&near, &far)), (20, 0));
    assert_eq!((sync(&far, &back), sync(&far, &back)), (20, 0));
    assert_eq!(read(&host.path("back/a/7")), noise(50_007));
    assert_eq!(fs::read_link(host.path("back/link")).unwrap(), Path::new("a/1"));
}

#[test]
fn a_directory_of_ten_thousand_files_is_listed_whole() {
    let host = Host::start();
    fs::create_dir(host.path("many")).unwrap();
    for i in 0..10_000 {
        write(&host.path("many").join(format!("file-with-a-name-of-some-length-{i}")), "");
    }
    let out = sftp(&host, &format!("ls -1 {}\n", host.at("many")));
    assert_eq!(out.lines().filter(|line| line.contains("-of-some-length-")).count(), 10_000);
}

/// Speaks packets with the server, through an ordinary `ssh`.
struct Raw {
    child: Child,
}

impl Raw {
    fn start(host: &Host) -> Raw {
        let mut command = host.ssh();
        command.args(["-s", NAME, "sftp"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut raw = Raw { child: command.spawn().unwrap() };
        raw.send(&[&[1], &[0, 0, 0, 3]]);
        let hello = raw.receive().unwrap();
        assert_eq!(hello[..5], [2, 0, 0, 0, 3]);
        assert!(text(&hello).contains("limits@openssh.com"));
        raw
    }

    fn send(&mut self, parts: &[&[u8]]) {
        let packet = string(&parts.concat());
        self.child.stdin.as_mut().unwrap().write_all(&packet).unwrap();
    }

    fn receive(&mut self) -> Option<Vec<u8>> {
        receive(self.child.stdout.as_mut().unwrap())
    }

    fn ask(&mut self, parts: &[&[u8]]) -> Vec<u8> {
        self.send(parts);
        self.receive().unwrap()
    }

    /// The code and text of a status.
    fn status(&mut self, parts: &[&[u8]]) -> (u8, String) {
        let answer = self.ask(parts);
        assert_eq!(answer[0], 101, "{answer:?}");
        let length = answer[12] as usize;
        (answer[8], text(&answer[13..13 + length]))
    }

    fn open(&mut self, path: &[u8], flags: u8) -> Vec<u8> {
        let answer = self.ask(&[&[3], &ID, &string(path), &[0, 0, 0, flags], &[0; 4]]);
        assert_eq!(answer[0], 102, "{}", text(&answer));
        answer[5..].to_vec()
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ID: [u8; 4] = [0, 0, 0, 9];
const READ: u8 = 1;
const WRITE_NEW: u8 = 2 | 8 | 16;

fn receive(from: &mut impl Read) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).ok()?;
    let mut packet = vec![0; u32::from_be_bytes(length) as usize];
    from.read_exact(&mut packet).ok()?;
    Some(packet)
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

#[test]
fn names_are_bytes() {
    let host = Host::start();
    let mut raw = Raw::start(&host);
    let name = [host.dir.path().as_os_str().as_bytes(), b"/caf\xe9"].concat();
    let handle = raw.open(&name, WRITE_NEW);
    assert_eq!(raw.status(&[&[6], &ID, &handle, &[0; 8], &string(b"bytes")]).0, 0);
    assert_eq!(read(Path::new(OsStr::from_bytes(&name))), b"bytes");
    let dir = raw.ask(&[&[11], &ID, &string(host.dir.path().as_os_str().as_bytes())]);
    let listed = raw.ask(&[&[12], &ID, &dir[5..]]);
    assert!(listed.windows(4).any(|part| part == b"caf\xe9"));
}

#[test]
fn what_cannot_be_done_says_why() {
    let host = Host::start();
    let mut raw = Raw::start(&host);
    let at = |name: &str| string(host.at(name).as_bytes());
    fs::create_dir(host.path("dir")).unwrap();
    write(&host.path("dir/file"), "x");
    write(&host.path("other"), "y");
    for (kind, fields, code, why) in [
        (17, at("nothing"), 2, "No such file or directory"),
        (17, at("other/below"), 2, "Not a directory"),
        (11, at("other"), 2, "Not a directory"),
        (15, at("dir"), 4, "Directory not empty"),
        (13, at("dir"), 4, "Is a directory"),
        (14, [at("dir"), vec![0; 4]].concat(), 4, "File exists"),
        // Version 3 does not replace.
        (18, [at("dir/file"), at("other")].concat(), 4, "File exists"),
        (13, string(b"/proc/version"), 3, "Operation not permitted"),
        (17, string(b"a\0b"), 4, "file name contained an unexpected NUL byte"),
        (4, string(&[0, 0, 0, 77]), 4, "no such handle"),
        (12, string(b"nonsense"), 4, "no such handle"),
        (200, string(b"never-heard-of@nobody"), 8, "operation unsupported"),
        (99, Vec::new(), 8, "operation unsupported"),
        (17, vec![0, 0, 1, 0], 5, "bad message"),
    ] {
        let answer = raw.status(&[&[kind], &ID, &fields]);
        assert_eq!(answer, (code, why.to_owned()), "{kind} {:?}", text(&fields));
    }
    let handle = raw.open(host.at("other").as_bytes(), READ);
    let read = |offset: u8| [handle.clone(), vec![0, 0, 0, 0, 0, 0, 0, offset, 0, 0, 0, 10]].concat();
    assert!(raw.ask(&[&[5], &ID, &read(0)]).ends_with(b"\0\0\0\x01y"));
    assert_eq!(raw.status(&[&[5], &ID, &read(1)]).0, 1);
    // The one that OpenSSH added does replace.
    let rename = [string(b"posix-rename@openssh.com"), at("dir/file"), at("other")].concat();
    assert_eq!(raw.status(&[&[200], &ID, &rename]).0, 0);
    assert_eq!(self::read(&host.path("other")), b"x");
}

#[test]
fn a_packet_that_cannot_be_one_ends_the_session_and_nothing_else() {
    let host = Host::start();
    let mut raw = Raw::start(&host);
    raw.child.stdin.as_mut().unwrap().write_all(&[0xff; 64]).unwrap();
    assert_eq!(raw.receive(), None);
    assert_eq!(raw.child.wait().unwrap().code(), Some(1));
    sftp(&host, "pwd\n");
}

#[test]
fn handles_are_bounded_and_given_back() {
    let host = Host::start();
    let mut raw = Raw::start(&host);
    write(&host.path("file"), "");
    let open = [&[3][..], &ID, &string(host.at("file").as_bytes()), &[0, 0, 0, READ], &[0; 4]].concat();
    let first = raw.ask(&[&open]);
    for _ in 1..512 {
        assert_eq!(raw.ask(&[&open])[0], 102);
    }
    assert_eq!(raw.status(&[&open]).0, 4);
    assert_eq!(raw.status(&[&[4], &ID, &first[5..]]).0, 0);
    assert_eq!(raw.ask(&[&open]), first);
}

#[test]
fn a_client_that_asks_for_everything_before_it_reads_gets_everything() {
    let host = Host::start();
    let bytes = noise(40 << 20);
    write(&host.path("large"), &bytes);
    let mut raw = Raw::start(&host);
    let handle = raw.open(host.at("large").as_bytes(), READ);
    // Far more requests than any buffer on the way holds answers.
    let requests: Vec<u8> = (0..bytes.len() as u64 / 8192)
        .flat_map(|i| {
            let (offset, length) = ((i * 8192).to_be_bytes(), 8192u32.to_be_bytes());
            string(&[&[5][..], &ID, &handle, &offset, &length].concat())
        })
        .collect();
    let mut stdin = raw.child.stdin.take().unwrap();
    let asking = thread::spawn(move || stdin.write_all(&requests).map(|()| stdin));
    let _stdin = asking.join().unwrap().unwrap();
    for part in bytes.chunks(8192) {
        let answer = raw.receive().unwrap();
        assert!(answer[0] == 103 && &answer[9..] == part);
    }
}

#[test]
fn paths_begin_at_the_directory_of_the_task_and_at_home_where_asked() {
    let host = Host::start();
    let out = sftp(&host, "pwd\nls Cargo.toml\n");
    let own = std::env::current_dir().unwrap().canonicalize().unwrap();
    assert!(out.contains(&format!("Remote working directory: {}", own.display())), "{out}");
    let mut raw = Raw::start(&host);
    let home = fs::canonicalize(std::env::var_os("HOME").unwrap()).unwrap();
    for (path, real) in [("~", home.clone()), ("~/new", home.join("new")), ("new", own.join("new"))] {
        let answer = raw.ask(&[&[200], &ID, &string(b"expand-path@openssh.com"), &string(path.as_bytes())]);
        let name = string(real.as_os_str().as_bytes());
        assert_eq!(answer[9..9 + name.len()], name, "{path}: {}", text(&answer));
    }
    let nobody = [string(b"expand-path@openssh.com"), string(b"~nobody-of-that-name/x")].concat();
    assert_eq!(raw.status(&[&[200], &ID, &nobody]).0, 2);
}

/// A program with paramiko. `scripts/test.sh` makes its Python environment and says where it is.
#[test]
fn paramiko_copies_and_looks_around() {
    let variable = "MUSTER_PARAMIKO";
    let environment = std::env::var_os(variable).map(std::path::PathBuf::from).unwrap_or_else(|| {
        panic!("{variable} names no Python environment; make it with `eval \"$(scripts/examples.sh)\"`")
    });
    let host = Host::start();
    // A GB with MUSTER_PARAMIKO_BYTES, for those who have the time.
    let bytes = std::env::var("MUSTER_PARAMIKO_BYTES").unwrap_or_else(|_| (64 << 20).to_string());
    let mut python = Command::new(environment.join("bin/python"));
    python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/paramiko_client.py"));
    python.arg(host.port.to_string()).arg(host.key()).arg(host.dir.path()).arg(bytes);
    let done = python.output().unwrap();
    println!("{}", text(&done.stdout));
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
}
