//! The device controller of cgroup v2: a small program that the kernel asks before a process of the cgroup opens or
//! makes a device file. The program denies a list of character devices and allows everything else.
//!
//! The kernel keeps the program as long as the cgroup, so nothing is to be undone.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use super::device_limit::DeviceNumber;

/// More accelerators than any node has; it bounds the jumps of the program.
const MOST_DEVICES: usize = 1024;

// From <linux/bpf.h>.
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
/// Programs of the cgroups above stay in force: a device is open to a task only if all of them allow it.
const ALLOW_MULTI: u32 = 2;
const DEVICE_CHAR: i32 = 2;
const LOAD_WORD: u8 = 0x61;
const AND: u8 = 0x57;
const MOVE: u8 = 0xb7;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

/// Where the context has the kind of the device, its major and its minor number.
const KIND_AT: i16 = 0;
const MAJOR_AT: i16 = 4;
const MINOR_AT: i16 = 8;
/// The lower half of the first word is the kind; the upper half is what is wanted of it.
const KIND_MASK: i32 = 0xffff;

/// One instruction, as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// The destination in the lower half, the source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// The part of `union bpf_attr` that loads a program.
#[repr(C)]
struct LoadAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// The part that attaches one.
#[repr(C)]
struct AttachAttributes {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

/// Denies devices to every process of a cgroup.
pub(super) fn attach(cgroup: &Path, denied: &[DeviceNumber]) -> io::Result<()> {
    if denied.len() > MOST_DEVICES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let directory = File::open(cgroup)?;
    let program = load(&instructions(denied))?;
    let attributes = AttachAttributes {
        target: directory.as_raw_fd().cast_unsigned(),
        program: program.as_raw_fd().cast_unsigned(),
        kind: ATTACH_CGROUP_DEVICE,
        flags: ALLOW_MULTI,
    };
    bpf(PROG_ATTACH, &attributes).map(drop)
}

/// The program: for each denied device a comparison that ends with 0, and 1 after all of them.
fn instructions(denied: &[DeviceNumber]) -> Vec<Instruction> {
    let make = |code, destination: u8, source: u8, offset, immediate| Instruction {
        code,
        registers: source << 4 | destination,
        offset,
        immediate,
    };
    let answer = |value| [make(MOVE, 0, 0, 0, value), make(EXIT, 0, 0, 0, 0)];
    // Each device takes four instructions; `denied` is bounded by the caller.
    let all = i16::try_from(denied.len() * 4).unwrap_or(i16::MAX - 2);
    let mut program = vec![
        make(LOAD_WORD, 2, 1, KIND_AT, 0),
        make(AND, 2, 0, 0, KIND_MASK),
        make(LOAD_WORD, 3, 1, MAJOR_AT, 0),
        make(LOAD_WORD, 4, 1, MINOR_AT, 0),
        make(JUMP_UNLESS_EQUAL, 2, 0, all, DEVICE_CHAR),
    ];
    for device in denied {
        program.push(make(JUMP_UNLESS_EQUAL, 3, 0, 3, device.major.cast_signed()));
        program.push(make(JUMP_UNLESS_EQUAL, 4, 0, 2, device.minor.cast_signed()));
        program.extend(answer(0));
    }
    program.extend(answer(1));
    program
}

#[expect(unsafe_code, reason = "the descriptor comes from a system call that no library wraps")]
fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"GPL";
    let attributes = LoadAttributes {
        kind: PROG_TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        instructions: program.as_ptr().addr() as u64,
        license: license.as_ptr().addr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
    };
    let descriptor = bpf(PROG_LOAD, &attributes)?;
    // SAFETY: the kernel has just made this descriptor for us, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[expect(unsafe_code, reason = "no library wraps this system call")]
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes of the attributes, takes the rest of its union as zero, and
    // writes nothing, since no log is asked for. What the attributes point to outlives the call.
    let done =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    match i32::try_from(done) {
        Ok(descriptor) if descriptor >= 0 => Ok(descriptor),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would get: the few instructions that the program uses, carried out.
    fn allows(program: &[Instruction], kind: u32, major: u32, minor: u32) -> bool {
        let context = [(3 << 16) | kind, major, minor];
        let mut registers = [0i64; 5];
        let mut at = 0;
        loop {
            let it = program[at];
            let (to, immediate) = (usize::from(it.registers & 15), i64::from(it.immediate));
            at += 1;
            match it.code {
                LOAD_WORD => registers[to] = i64::from(context[usize::try_from(it.offset).unwrap() / 4]),
                AND => registers[to] &= immediate,
                MOVE => registers[to] = immediate,
                JUMP_UNLESS_EQUAL if registers[to] != immediate => at += usize::try_from(it.offset).unwrap(),
                JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[0] == 1,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn the_program_denies_its_list_and_nothing_else() {
        let denied = [(195, 0), (195, 3), (236, 1)].map(|(major, minor)| DeviceNumber { major, minor });
        let program = instructions(&denied);
        for device in denied {
            assert!(!allows(&program, 2, device.major, device.minor), "{device:?}");
            // A block device of the same number is another device.
            assert!(allows(&program, 1, device.major, device.minor), "{device:?}");
        }
        for (major, minor) in [(195, 1), (195, 255), (236, 0), (236, 3), (1, 3), (0, 0)] {
            assert!(allows(&program, 2, major, minor), "{major}:{minor}");
        }
        assert!(allows(&instructions(&[]), 2, 195, 0));
    }

    #[test]
    fn jumps_of_the_longest_program_stay_inside() {
        let denied: Vec<_> =
            (0..MOST_DEVICES as u32).map(|minor| DeviceNumber { major: 195, minor }).collect();
        let program = instructions(&denied);
        assert!(allows(&program, 1, 195, 0));
        assert!(!allows(&program, 2, 195, MOST_DEVICES as u32 - 1));
        assert!(allows(&program, 2, 195, MOST_DEVICES as u32));
    }
}
