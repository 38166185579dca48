//! Starts a step's process, in its own session, inside the task's cgroups before it runs anything of its own.
//!
//! `std::process::Command` cannot give birth into a cgroup, and between fork and exec a process may only make system
//! calls. So everything is made ready before, and what fails in the child is told through a pipe that a successful
//! exec closes.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{mem, ptr};

use rustix::fs::{Mode, OFlags, fchown, open};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Gid, Pid, Uid, WaitOptions, waitpid};

use super::file::{Launch, Outcome, Step};
use super::program;
use crate::child::{join_keyring, reset_signals};
use crate::tree::Tree;

/// A descriptor number beyond any that a program is given to use.
const HIGH: RawFd = 16;
/// Descriptors that a program only holds have numbers just below this one, or below what it may have. Scripts like 200 for their
/// locks, and shells take 255 and 63 for themselves.
const HELD_BELOW: libc::rlim_t = 250;

/// A step's program, ready to run.
pub(super) struct Program {
    command: String,
    cwd: PathBuf,
    candidates: Vec<PathBuf>,
    files: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    directory: CString,
    umask: Option<u32>,
    person: Option<(u32, u32, Vec<libc::gid_t>)>,
    limits: Vec<libc::rlimit>,
}

/// A process that was started, and may not have reached its program yet.
pub(super) struct Spawned {
    pub(super) pid: Pid,
    /// Ends without a byte when the program runs; else it says what failed.
    pub(super) report: OwnedFd,
}

impl Program {
    pub(super) fn new(launch: &Launch, step: &Step) -> io::Result<Program> {
        let command = step.argv.first().cloned().unwrap_or_default();
        let candidates = program::candidates(&command, &launch.env);
        let env = launch.env.iter().map(|(name, value)| CString::new(format!("{name}={value}")));
        Ok(Program {
            files: candidates.iter().map(|file| c_path(file)).collect::<io::Result<_>>()?,
            argv: step
                .argv
                .iter()
                .map(|argument| CString::new(argument.as_str()))
                .collect::<Result<_, _>>()?,
            env: env.collect::<Result<_, _>>()?,
            directory: c_path(&launch.cwd)?,
            cwd: launch.cwd.clone(),
            umask: launch.umask,
            person: launch.person.as_ref().map(|it| (it.account.uid, it.account.gid, it.groups.clone())),
            limits: launch.limits.iter().map(|limit| limit.raw()).collect(),
            candidates,
            command,
        })
    }

    /// Where a variable is, to be set anew for each run.
    pub(super) fn slot(&self, name: &str) -> Option<usize> {
        let is_it = |entry: &CString| {
            entry.as_bytes().strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
        };
        self.env.iter().position(is_it)
    }

    pub(super) fn set(&mut self, slot: usize, entry: CString) {
        self.env[slot] = entry;
    }

    /// What a report from the child means for the task.
    pub(super) fn explain(&self, report: &[u8; Failure::BYTES]) -> Outcome {
        self.explain_failure(&Failure::decode(report))
    }

    fn explain_failure(&self, failure: &Failure) -> Outcome {
        let error = io::Error::from_raw_os_error(failure.errno);
        match failure.stage {
            Stage::EXEC => {
                let tried =
                    self.candidates.get(failure.candidate as usize).map_or(Path::new(""), PathBuf::as_path);
                program::explain(&self.command, tried, &self.candidates, &self.cwd, &error)
            }
            Stage::DIRECTORY => program::explain_directory(&self.cwd, &error),
            Stage::ACCOUNT => Outcome::LaunchFailed { message: format!("its account: {error}") },
            Stage::LIMITS => Outcome::LaunchFailed { message: format!("the limits of its account: {error}") },
            Stage::CGROUP => Outcome::LaunchFailed { message: format!("its cgroup: {error}") },
            _ => Outcome::LaunchFailed { message: format!("its standard streams: {error}") },
        }
    }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// How far a child came. Plain numbers, since they cross a pipe.
struct Stage;

impl Stage {
    const CGROUP: i32 = 1;
    const STREAMS: i32 = 2;
    const DIRECTORY: i32 = 3;
    const EXEC: i32 = 4;
    const LIMITS: i32 = 5;
    const ACCOUNT: i32 = 6;
}

pub(super) struct Failure {
    stage: i32,
    errno: i32,
    candidate: i32,
}

impl Failure {
    pub(super) const BYTES: usize = 12;

    fn encode(&self) -> [u8; Failure::BYTES] {
        let mut bytes = [0; Failure::BYTES];
        bytes[0..4].copy_from_slice(&self.stage.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.errno.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.candidate.to_ne_bytes());
        bytes
    }

    fn decode(bytes: &[u8; Failure::BYTES]) -> Failure {
        let [s0, s1, s2, s3, e0, e1, e2, e3, c0, c1, c2, c3] = *bytes;
        Failure {
            stage: i32::from_ne_bytes([s0, s1, s2, s3]),
            errno: i32::from_ne_bytes([e0, e1, e2, e3]),
            candidate: i32::from_ne_bytes([c0, c1, c2, c3]),
        }
    }
}

/// The descriptors that a program has. Its stdin is always empty.
pub(super) struct ProgramDescriptors<'a> {
    /// Its stdout and stderr.
    pub(super) streams: [&'a OwnedFd; 2],
    /// Those that come after them, in order.
    pub(super) more: &'a [OwnedFd],
    /// Those that it holds without knowing of them, under high numbers. Where it may have no such number, it goes without.
    pub(super) held: &'a [OwnedFd],
}

/// Start a program.
pub(super) fn spawn(
    program: &Program,
    descriptors: &ProgramDescriptors<'_>,
    tree: &Tree,
) -> io::Result<Spawned> {
    let ProgramDescriptors { streams, more, held } = *descriptors;
    // Programs open /dev/stdout again, and are then asked whose it is.
    if let Some((uid, gid, _)) = &program.person {
        for stream in streams {
            fchown(stream, Some(Uid::from_raw(*uid)), Some(Gid::from_raw(*gid)))?;
        }
    }
    let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (report, told) = pipe_with(PipeFlags::CLOEXEC)?;
    let argv = pointers(&program.argv);
    let env = pointers(&program.env);
    let files = pointers(&program.files);
    let birthplace = tree.birthplace()?;
    let doors = tree.doors(birthplace.is_some())?;
    // Above all that a program is given, so that giving one never closes another.
    let told = rustix::io::fcntl_dupfd_cloexec(&told, HIGH)?;
    let more =
        more.iter().map(|one| rustix::io::fcntl_dupfd_cloexec(one, HIGH)).collect::<Result<Vec<_>, _>>()?;
    let standard = [null.as_raw_fd(), streams[0].as_raw_fd(), streams[1].as_raw_fd()];
    let given: Vec<_> = standard.into_iter().chain(more.iter().map(AsRawFd::as_raw_fd)).collect();
    let mut child = Child {
        files: &files[..files.len() - 1],
        argv: &argv,
        env: &env,
        directory: &program.directory,
        umask: program.umask,
        person: program.person.as_ref(),
        limits: &program.limits,
        streams: &given,
        held,
        doors: &doors,
        told: told.as_raw_fd(),
    };
    let born = birthplace.map(|place| child.start(Some(place.as_raw_fd())));
    let pid = match born {
        Some(Ok(pid)) => pid,
        // A kernel before 5.7, or a sandbox that has not heard of it: the process is moved after its birth.
        Some(Err(_)) => {
            let doors = tree.doors(false)?;
            child.doors = &doors;
            child.start(None)?
        }
        None => child.start(None)?,
    };
    Ok(Spawned { pid, report })
}

/// What became of a start that was waited for.
pub(super) enum Born {
    Runs(Pid),
    Failed(Outcome),
}

/// Starts programs one after the other, each as cheaply as the machine allows: the child borrows our memory until it is its
/// program, so that nothing is copied for it, and what fails is simply left there.
pub(super) struct Starter {
    null: OwnedFd,
    /// Where they are born.
    birthplace: Option<OwnedFd>,
    stack: Vec<u64>,
}

/// What a child needs that only makes system calls, many times over.
const STACK_WORDS: usize = 8 << 10;

impl Starter {
    pub(super) fn new(tree: &Tree) -> io::Result<Starter> {
        let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Starter { null, birthplace: tree.birthplace()?, stack: vec![0; STACK_WORDS] })
    }

    pub(super) fn start(
        &mut self,
        program: &Program,
        descriptors: &ProgramDescriptors<'_>,
        tree: &Tree,
    ) -> io::Result<Born> {
        // Becoming somebody else is done by the C library for all threads, of which it would find ours.
        if program.person.is_some() {
            return start_apart(program, descriptors, tree);
        }
        let (argv, env, files) = (pointers(&program.argv), pointers(&program.env), pointers(&program.files));
        let doors = tree.doors(self.birthplace.is_some())?;
        let [stdout, stderr] = descriptors.streams;
        let given = [self.null.as_raw_fd(), stdout.as_raw_fd(), stderr.as_raw_fd()];
        let child = Child {
            files: &files[..files.len() - 1],
            argv: &argv,
            env: &env,
            directory: &program.directory,
            umask: program.umask,
            person: None,
            limits: &program.limits,
            streams: &given,
            held: descriptors.held,
            doors: &doors,
            told: -1,
        };
        let mut errand = Errand { child: &child, failure: None };
        let pid = match borrow_and_start(&mut errand, self.birthplace.as_ref(), &mut self.stack) {
            Ok(pid) => pid,
            // An old kernel, or a sandbox that has not heard of it.
            Err(_) => return start_apart(program, descriptors, tree),
        };
        match &errand.failure {
            Some(failure) => {
                // It has ended already; nobody else is to hear of it.
                let _ = waitpid(Some(pid), WaitOptions::empty());
                Ok(Born::Failed(program.explain_failure(failure)))
            }
            None => Ok(Born::Runs(pid)),
        }
    }
}

/// The same for a child that tells through a pipe.
fn start_apart(program: &Program, descriptors: &ProgramDescriptors<'_>, tree: &Tree) -> io::Result<Born> {
    let Spawned { pid, report } = spawn(program, descriptors, tree)?;
    let mut bytes = [0; Failure::BYTES];
    match rustix::io::retry_on_intr(|| rustix::io::read(&report, &mut bytes)) {
        Ok(Failure::BYTES) => {
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Ok(Born::Failed(program.explain(&bytes)))
        }
        Ok(_) | Err(_) => Ok(Born::Runs(pid)),
    }
}

/// A child that is being born, and where it leaves word.
struct Errand<'a> {
    child: &'a Child<'a>,
    failure: Option<Failure>,
}

#[expect(unsafe_code, reason = "we are the child")]
extern "C" fn begin(errand: *mut libc::c_void) -> ! {
    // SAFETY: the pointer is to the parent's errand; the parent does not run while we do.
    unsafe {
        let errand = &mut *errand.cast::<Errand>();
        errand.failure = Some(errand.child.try_run());
        libc::_exit(127)
    }
}

#[expect(
    unsafe_code,
    reason = "no other way to start a process copies nothing and gives birth into a cgroup"
)]
fn borrow_and_start(errand: &mut Errand, birthplace: Option<&OwnedFd>, stack: &mut [u64]) -> io::Result<Pid> {
    // SAFETY: all-zero is a valid `clone_args`: it asks for nothing.
    let mut arguments: libc::clone_args = unsafe { mem::zeroed() };
    arguments.flags = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    // Sixteen bytes are what a stack is aligned to.
    let bottom = stack.as_mut_ptr().addr().next_multiple_of(16);
    arguments.stack = bottom as u64;
    arguments.stack_size = ((stack.as_mut_ptr_range().end.addr() - bottom) & !15) as u64;
    if let Some(place) = birthplace {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = place.as_raw_fd() as u64;
    }
    // SAFETY: the child has a stack of its own, and shares our memory until it has become its program or ended: CLONE_VFORK
    // holds us back until then, so that nobody changes what it uses. No signal has a handler here, so that none runs in it.
    // It only makes system calls, and never returns here.
    let pid = unsafe { clone_and_call(&raw mut arguments, (&raw mut *errand).cast()) };
    match Pid::from_raw(i32::try_from(pid.max(0)).unwrap_or(0)) {
        Some(pid) => Ok(pid),
        None => Err(io::Error::from_raw_os_error(i32::try_from(-pid).unwrap_or(libc::EINVAL))),
    }
}

/// The C library has no `clone3`, and its way to call the kernel cannot be used by a child that comes back on another stack.
///
/// # Safety
/// The arguments ask for a stack, and for what `borrow_and_start` says.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "see the safety section")]
unsafe fn clone_and_call(arguments: *mut libc::clone_args, errand: *mut libc::c_void) -> i64 {
    let mut result: i64 = libc::SYS_clone3;
    // SAFETY: the parent goes on behind the block with all registers as they were; the child leaves it by the call.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r9",
            "call r8",
            "ud2",
            "2:",
            inlateout("rax") result,
            in("rdi") arguments,
            in("rsi") size_of::<libc::clone_args>(),
            in("r8") begin as extern "C" fn(*mut libc::c_void) -> !,
            in("r9") errand,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
#[expect(unsafe_code, reason = "see the safety section")]
unsafe fn clone_and_call(arguments: *mut libc::clone_args, errand: *mut libc::c_void) -> i64 {
    let mut result: i64 = arguments as i64;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x3",
            "blr x2",
            "brk 1",
            "2:",
            inlateout("x0") result,
            in("x1") size_of::<libc::clone_args>(),
            in("x2") begin as extern "C" fn(*mut libc::c_void) -> !,
            in("x3") errand,
            in("x8") libc::SYS_clone3,
            lateout("x30") _,
        );
    }
    result
}

/// # Safety
/// As above.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[expect(unsafe_code, reason = "the others need one that is")]
unsafe fn clone_and_call(_: *mut libc::clone_args, _: *mut libc::c_void) -> i64 {
    -i64::from(libc::ENOSYS)
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Missing from `libc`, whose constants for `clone` have 32 bits.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// All that the child needs, in a form that needs no memory to be had.
struct Child<'a> {
    files: &'a [*const libc::c_char],
    argv: &'a [*const libc::c_char],
    env: &'a [*const libc::c_char],
    directory: &'a CString,
    umask: Option<u32>,
    person: Option<&'a (u32, u32, Vec<libc::gid_t>)>,
    limits: &'a [libc::rlimit],
    streams: &'a [RawFd],
    held: &'a [OwnedFd],
    doors: &'a [OwnedFd],
    told: RawFd,
}

impl Child<'_> {
    #[expect(unsafe_code, reason = "only clone3 can give birth into a cgroup")]
    fn start(&self, birthplace: Option<RawFd>) -> io::Result<Pid> {
        // SAFETY: all-zero is a valid `clone_args`: it asks for nothing.
        let mut arguments: libc::clone_args = unsafe { mem::zeroed() };
        arguments.exit_signal = libc::SIGCHLD as u64;
        let pid = match birthplace {
            Some(place) => {
                arguments.flags = CLONE_INTO_CGROUP;
                arguments.cgroup = place as u64;
                // SAFETY: the arguments are valid and without CLONE_VM, so the child has memory of its own and goes on
                // here as after a fork. There is one thread, so no lock can be held by another one.
                unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size_of_val(&arguments)) as i32 }
            }
            // SAFETY: as above.
            None => unsafe { libc::fork() },
        };
        match pid {
            // SAFETY: we are the child.
            0 => unsafe { self.run() },
            _ => Pid::from_raw(pid.max(0)).ok_or_else(io::Error::last_os_error),
        }
    }

    /// The child's whole life before its program.
    ///
    /// # Safety
    /// Must be called in a child of a process with one thread. It never returns, and only makes system calls.
    #[expect(unsafe_code, reason = "see the safety section")]
    unsafe fn run(&self) -> ! {
        // SAFETY: the same holds there, and all pointers are to what the parent has made ready.
        unsafe {
            let failure = self.try_run();
            let bytes = failure.encode();
            libc::write(self.told, bytes.as_ptr().cast(), bytes.len());
            libc::_exit(127)
        }
    }

    /// # Safety
    /// As `run`.
    #[expect(unsafe_code, reason = "see the safety section")]
    unsafe fn try_run(&self) -> Failure {
        // SAFETY: system calls only, with valid pointers.
        unsafe {
            reset_signals();
            libc::setsid();
            for door in self.doors {
                if libc::write(door.as_raw_fd(), c"0".as_ptr().cast(), 1) < 0 {
                    return failed(Stage::CGROUP, 0);
                }
            }
            for (resource, limit) in self.limits.iter().enumerate() {
                if libc::setrlimit(resource as _, limit) < 0 {
                    return failed(Stage::LIMITS, 0);
                }
            }
            // Before the others, which may take the numbers that these have here.
            self.leave_held();
            for (target, stream) in self.streams.iter().enumerate() {
                if libc::dup2(*stream, target as RawFd) < 0 {
                    return failed(Stage::STREAMS, 0);
                }
            }
            // What root's own session may hold is nothing for anybody else.
            if self.person.is_some() && !join_keyring() {
                return failed(Stage::ACCOUNT, 0);
            }
            // From here on it is whom it runs as, so that it goes only where they may.
            if let Some((uid, gid, groups)) = self.person
                && (libc::setgroups(groups.len(), groups.as_ptr()) < 0
                    || libc::setgid(*gid) < 0
                    || libc::setuid(*uid) < 0)
            {
                return failed(Stage::ACCOUNT, 0);
            }
            if libc::chdir(self.directory.as_ptr()) < 0 {
                return failed(Stage::DIRECTORY, 0);
            }
            if let Some(mask) = self.umask {
                libc::umask(mask as libc::mode_t);
            }
            self.exec()
        }
    }

    /// Leave the program what it holds, without which it runs as well.
    ///
    /// # Safety
    /// As `run`.
    #[expect(unsafe_code, reason = "see the safety section")]
    unsafe fn leave_held(&self) {
        // SAFETY: system calls only, with valid pointers; all-zero is a valid `rlimit`.
        unsafe {
            let mut limit: libc::rlimit = mem::zeroed();
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            let end = limit.rlim_cur.min(HELD_BELOW) as RawFd;
            let first = end - self.held.len() as RawFd;
            if first >= HIGH {
                for held in self.held {
                    libc::fcntl(held.as_raw_fd(), libc::F_DUPFD, first);
                }
            }
        }
    }

    /// Try each file in turn. As in any shell, one that may not be run is passed over for a later one that may, and
    /// remembered if there is none.
    ///
    /// # Safety
    /// As `run`.
    #[expect(unsafe_code, reason = "see the safety section")]
    unsafe fn exec(&self) -> Failure {
        let mut refused = None;
        let mut last = Failure { stage: Stage::EXEC, errno: libc::ENOENT, candidate: 0 };
        for (candidate, file) in self.files.iter().enumerate() {
            // SAFETY: the file and both lists end with a null, and live as long as this process.
            unsafe { libc::execve(*file, self.argv.as_ptr(), self.env.as_ptr()) };
            last = failed(Stage::EXEC, candidate as i32);
            match last.errno {
                libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG => {}
                libc::EACCES => refused = refused.or(Some(candidate as i32)),
                _ => return last,
            }
        }
        match refused {
            Some(candidate) => Failure { stage: Stage::EXEC, errno: libc::EACCES, candidate },
            None => last,
        }
    }
}

#[expect(unsafe_code, reason = "`io::Error::last_os_error` is not promised to need no memory")]
fn failed(stage: i32, candidate: i32) -> Failure {
    // SAFETY: the pointer is to this thread's error number, always.
    Failure { stage, errno: unsafe { *libc::__errno_location() }, candidate }
}
