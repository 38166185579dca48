//! A program that is asked something, and ended with everything it has started once it has answered, or has not.
//!
//! It is somebody else's program, as whom it runs, and may do all they can: hang, write without end, leave processes behind that
//! keep its output open. So it has a process tree of its own, which is ended whatever happens; what it says is read up to a
//! bound, until the answer is there or the time is over, and never until the end of it. Nothing here ends a process by its
//! number, which may be another's by then: the agent reaps whatever child has ended.
//!
//! `std::process::Command` is not used: it waits for the program to start, which may never be where a home is on a dead file
//! server, and it panics if the agent has reaped a child whose program could not be started.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::Limit;
use crate::account::Person;
use crate::child::{join_keyring, reset_signals};
use crate::processes::signal::wait;
use crate::tree::{Preference, Process, Root, Tree};

/// More than any environment.
const MOST: usize = 4 << 20;
/// As much of it as a person reads.
const LAST_WORDS: usize = 300;
/// As much as a pipe holds.
const CHUNK: usize = 64 << 10;

/// What is to run.
pub(super) struct Program {
    pub(super) file: PathBuf,
    /// From its own name on.
    pub(super) words: Vec<OsString>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) umask: Option<u32>,
    /// Whom it runs as, and with which limits; none is as the agent itself.
    pub(super) person: Option<(Person, Vec<Limit>)>,
    /// The program of root's that becomes somebody else. Its errors are part of what it says, and it is told things. The
    /// machine may move it to a cgroup of its own choice.
    pub(super) is_of_machine: bool,
}

/// A program that runs.
pub(super) struct Throwaway {
    tree: Tree,
    main: Process,
    /// Readable when the program has ended; missing on kernels before 5.3.
    end: Option<OwnedFd>,
    is_of_machine: bool,
    pub(super) input: Option<OwnedFd>,
    output: OwnedFd,
    pub(super) said: Vec<u8>,
    /// Nobody has its output any more.
    is_closed: bool,
    deadline: Instant,
}

/// What nobody can guess, and nothing else is called. To be known by.
pub(super) fn nonce() -> io::Result<String> {
    Ok(format!("login-{:016x}", getrandom::u64().map_err(io::Error::other)?))
}

impl Throwaway {
    /// Start a program in a tree of this name. It has this long for all that it is asked.
    pub(super) fn start(
        mut program: Program,
        name: &str,
        tree: Preference,
        patience: Duration,
    ) -> io::Result<Throwaway> {
        let deadline = Instant::now() + patience;
        // Where there are no cgroups, its processes are found by it.
        program.env.insert("MUSTER_TASK_ID".into(), name.to_owned());
        let tree = Tree::prepare(name, tree, None).map_err(io::Error::other)?;
        Self::start_in(&program, &tree, deadline).inspect_err(|_| tree.remove())
    }

    fn start_in(program: &Program, tree: &Tree, deadline: Instant) -> io::Result<Throwaway> {
        let (output, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        let null = || open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let (stdin, input) = match program.is_of_machine {
            true => pipe_with(PipeFlags::CLOEXEC).map(|(theirs, ours)| (theirs, Some(ours)))?,
            false => (null()?, None),
        };
        let stderr = if program.is_of_machine { theirs.try_clone()? } else { null()? };
        let (held, go) = pipe_with(PipeFlags::CLOEXEC)?;
        let child = Child::new(program, [stdin, theirs, stderr], tree.doors(false)?, held, go)?;
        let pid = child.start()?;
        // It waits for us, so that this number is certainly still its own. Without the word it ends by itself.
        let main = Process::of(pid)?;
        let end = main.pidfd().ok();
        rustix::io::write(&child.go, b"g")?;
        Ok(Throwaway {
            tree: tree.clone(),
            main,
            end,
            is_of_machine: program.is_of_machine,
            input,
            output,
            said: Vec::new(),
            is_closed: false,
            deadline,
        })
    }

    pub(super) fn pid(&self) -> i32 {
        self.main.pid
    }

    /// Tell it something short.
    pub(super) fn tell(&self, words: &str) -> io::Result<()> {
        let input = self.input.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        // What is shorter than a pipe is written at once or not at all.
        rustix::io::write(input, words.as_bytes()).map(drop).map_err(io::Error::from)
    }

    /// Listen until it has said this. Fails when it has not and never will, or has taken too long, or has said too much.
    pub(super) fn hear(&mut self, is_all: impl Fn(&[u8]) -> bool) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        loop {
            // Asked before it is read: what it has said before its end is in the pipe by then.
            let is_over = !self.main.is_alive();
            match rustix::io::read(&self.output, &mut buffer) {
                Ok(count) if count > 0 && self.said.len() < MOST => {
                    self.said.extend_from_slice(&buffer[..count]);
                    continue;
                }
                Err(Errno::INTR) => continue,
                // Only now is it looked at, so that it is not looked through again and again.
                _ if is_all(&self.said) => return Ok(()),
                Ok(0) => {
                    self.is_closed = true;
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(_) => return Err(io::ErrorKind::FileTooLarge.into()),
                Err(Errno::AGAIN) if is_over => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(Errno::AGAIN) => self.wait()?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The end of what it has said, on a line.
    pub(super) fn last_words(&self) -> String {
        let end = &self.said[self.said.len().saturating_sub(LAST_WORDS)..];
        let words = String::from_utf8_lossy(end).split_whitespace().collect::<Vec<_>>().join(" ");
        words.replace(char::is_control, "")
    }

    /// Wait until it says something more, or ends.
    fn wait(&self) -> io::Result<()> {
        if Instant::now() >= self.deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let end = self.end.iter().map(AsFd::as_fd);
        wait(end.chain([self.output.as_fd()]), Some(self.deadline))
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        let root = Root::Orphans(Some(self.main));
        let killed = self.tree.kill(root);
        // Where all has ended by itself there is nothing to look for.
        if self.is_of_machine && !self.is_closed {
            self.tree.kill_strays(root);
        }
        if !killed.survivors.is_empty() {
            tracing::warn!(pids = ?killed.survivors, "what a login has started cannot be killed");
        }
        self.tree.remove();
        if let Some(end) = &self.end {
            // The agent may have done so.
            let _ = waitid(WaitId::PidFd(end.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
    }
}

/// All that the child needs, in a form that needs no memory to be had.
struct Child {
    file: CString,
    words: Strings,
    env: Strings,
    umask: Option<u32>,
    person: Option<Becoming>,
    streams: [OwnedFd; 3],
    doors: Vec<OwnedFd>,
    held: OwnedFd,
    go: OwnedFd,
}

struct Becoming {
    groups: Vec<rustix::process::Gid>,
    gid: rustix::process::Gid,
    uid: rustix::process::Uid,
    limits: Vec<libc::rlimit>,
    home: CString,
}

/// Strings as the kernel takes them: pointers, of which the last is null.
struct Strings {
    pointers: Vec<*const libc::c_char>,
    _strings: Vec<CString>,
}

impl Strings {
    fn new(strings: impl Iterator<Item = Vec<u8>>) -> io::Result<Strings> {
        let strings = strings.map(CString::new).collect::<Result<Vec<_>, _>>()?;
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        Ok(Strings { pointers, _strings: strings })
    }
}

impl Child {
    fn new(
        program: &Program,
        streams: [OwnedFd; 3],
        doors: Vec<OwnedFd>,
        held: OwnedFd,
        go: OwnedFd,
    ) -> io::Result<Child> {
        let words = program.words.iter().map(|word| word.clone().into_vec());
        let env = program.env.iter().map(|(name, value)| format!("{name}={value}").into_bytes());
        let person = program.person.as_ref().map(|(person, limits)| {
            Ok::<_, io::Error>(Becoming {
                groups: person.groups.iter().map(|group| rustix::process::Gid::from_raw(*group)).collect(),
                gid: person.gid(),
                uid: person.uid(),
                limits: limits.iter().map(|limit| limit.raw()).collect(),
                home: CString::new(person.account.home.as_str())?,
            })
        });
        Ok(Child {
            file: CString::new(program.file.as_os_str().as_bytes())?,
            words: Strings::new(words)?,
            env: Strings::new(env)?,
            umask: program.umask,
            person: person.transpose()?,
            streams,
            doors,
            held,
            go,
        })
    }

    #[expect(unsafe_code, reason = "std cannot start a program without waiting for it")]
    fn start(&self) -> io::Result<Pid> {
        // SAFETY: the child makes system calls only, on what was made ready before, until it is another program or has ended.
        match unsafe { libc::fork() } {
            // SAFETY: we are the child.
            0 => unsafe { self.run() },
            pid => Pid::from_raw(pid.max(0)).ok_or_else(io::Error::last_os_error),
        }
    }

    /// The child's whole life before its program.
    ///
    /// # Safety
    /// Must be called in a child alone. It never returns, and only makes system calls.
    #[expect(unsafe_code, reason = "see the safety section")]
    unsafe fn run(&self) -> ! {
        // SAFETY: the same holds there, and all pointers are to what the parent has made ready.
        unsafe {
            reset_signals();
            let what = match self.become_it() {
                Err(what) => what,
                Ok(()) => {
                    libc::execve(
                        self.file.as_ptr(),
                        self.words.pointers.as_ptr(),
                        self.env.pointers.as_ptr(),
                    );
                    "its program cannot be run\n"
                }
            };
            libc::write(self.streams[1].as_raw_fd(), what.as_ptr().cast(), what.len());
            libc::_exit(127)
        }
    }

    /// Be in the tree, and whom it is to be. In the order in which each is still possible.
    ///
    /// # Safety
    /// As `run`.
    #[expect(unsafe_code, reason = "see the safety section")]
    unsafe fn become_it(&self) -> Result<(), &'static str> {
        // SAFETY: system calls only, with valid pointers.
        unsafe {
            // Else it would wait for its own word where the agent has ended.
            libc::close(self.go.as_raw_fd());
            if libc::read(self.held.as_raw_fd(), [0_u8].as_mut_ptr().cast(), 1) != 1 {
                return Err("nobody wants it\n");
            }
            libc::setsid();
            for door in &self.doors {
                rustix::io::write(door, b"0").map_err(|_| "its cgroup cannot be entered\n")?;
            }
            for (target, stream) in (0..).zip(&self.streams) {
                if libc::dup2(stream.as_raw_fd(), target) < 0 {
                    return Err("its streams cannot be made\n");
                }
            }
            let _ = rustix::process::chdir(c"/");
            if let Some(umask) = self.umask {
                libc::umask(umask as libc::mode_t);
            }
            if let Some(person) = &self.person {
                person.apply()?;
            }
            // Not before: who becomes somebody else has this forgotten. If the agent goes, it goes.
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            Ok(())
        }
    }
}

impl Becoming {
    /// # Safety
    /// As `Child::run`.
    #[expect(unsafe_code, reason = "rustix sets limits by name alone")]
    unsafe fn apply(&self) -> Result<(), &'static str> {
        for (resource, limit) in (0..).zip(&self.limits) {
            // SAFETY: the limit is valid, and one that the kernel does not know is refused.
            if unsafe { libc::setrlimit(resource, limit) } < 0 {
                return Err("its limits cannot be set\n");
            }
        }
        // What root's own session may hold is nothing for anybody else.
        // SAFETY: we are a child that is about to become another program.
        if !unsafe { join_keyring() } {
            return Err("it cannot leave the keys of root's session\n");
        }
        // This thread is all there is of the process.
        set_thread_groups(&self.groups)
            .and_then(|()| set_thread_res_gid(self.gid, self.gid, self.gid))
            .and_then(|()| set_thread_res_uid(self.uid, self.uid, self.uid))
            .map_err(|_| "it cannot be whom it should\n")?;
        // A login without its home begins where it is.
        let _ = rustix::process::chdir(&self.home);
        Ok(())
    }
}
