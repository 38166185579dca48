//! This machine, as a place where tasks may run: facts are gathered in one place and judged by pure functions.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use muster_api::doctor::Check;
use muster_api::model::node::{Device, Vendor};
use rustix::fs::{Access, access, statfs, statvfs};
use rustix::process::{Resource, getrlimit, getuid};

use crate::entry::{Hooks, Trees};
use crate::home::Home;

/// Every task costs its agent a few open files.
const FEW_OPEN_FILES: u64 = 4096;
/// The agent watches a directory for each task, and whatever else the user runs watches, too.
const FEW_WATCHES: u64 = 8192;
const FEW_INSTANCES: u64 = 64;
/// File systems whose locks and sockets do not hold what a database needs, by their numbers in statfs(2).
const REMOTE: [(i64, &str); 5] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0bd0_0bd0, "Lustre"),
];

pub(super) fn checks(hooks: &Hooks) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Ok(home) = Home::from_environment() {
        checks.extend(data_directory(home.folder()));
    }
    checks.push(shell(access("/bin/sh", Access::EXEC_OK).is_ok()));
    let trees = (hooks.trees)();
    checks.push(process_trees(&trees));
    let systems = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let namespaces = number("/proc/sys/user/max_user_namespaces");
    checks.push(overlay(&systems, getuid().is_root(), namespaces));
    checks.push(platform_paths((hooks.can_mount)()));
    checks.push(open_files(getrlimit(Resource::Nofile).maximum));
    let inotify = "/proc/sys/fs/inotify";
    checks.push(watches(
        number(&format!("{inotify}/max_user_instances")),
        number(&format!("{inotify}/max_user_watches")),
    ));
    checks.push(devices(
        &(hooks.devices)(),
        Path::new("/dev/nvidia0").exists(),
        Path::new("/dev/davinci0").exists(),
        trees.limits_devices,
    ));
    let path = std::env::var_os("PATH").unwrap_or_default();
    checks.extend(["python3", "git"].map(|name| program(name, find(name, &path))));
    checks
}

/// Where the private server's data is, or will be.
fn data_directory(folder: &Path) -> Vec<Check> {
    // Until the first command makes it, what counts is the directory it will be made in.
    let existing = folder.ancestors().find(|it| it.exists()).unwrap_or(Path::new("/"));
    let place = folder.display().to_string();
    let writable = access(existing, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from);
    let mut checks = vec![data(&place, writable, owner_and_mode(folder))];
    if let Ok(disk) = statvfs(existing) {
        let files = (disk.f_files > 0).then_some(disk.f_favail);
        let (free, total) = (disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize);
        checks.push(Check::disk_space("disk space", &place, free, total, files));
    }
    if let Ok(system) = statfs(existing) {
        // Some file systems' numbers have been extended by their sign.
        checks.push(file_system(&place, system.f_type & 0xffff_ffff));
    }
    checks
}

fn owner_and_mode(folder: &Path) -> Option<(u32, u32)> {
    fs::metadata(folder).ok().map(|it| (it.uid(), it.permissions().mode() & 0o777))
}

fn data(place: &str, writable: io::Result<()>, owner_and_mode: Option<(u32, u32)>) -> Check {
    let name = "data directory";
    if let Err(error) = writable {
        let detail = format!("{place} cannot be written: {}", crate::error::system_message(&error));
        return Check::broken(name, detail, "set MUSTER_HOME to a directory of your own");
    }
    match owner_and_mode {
        Some((owner, _)) if owner != getuid().as_raw() => Check::broken(
            name,
            format!("{place} belongs to another user"),
            "set MUSTER_HOME to a directory of your own",
        ),
        Some((_, mode)) if mode & 0o022 != 0 => {
            Check::warning(name, format!("{place} can be written by others"), format!("chmod 700 {place}"))
        }
        Some(_) => Check::ok(name, place),
        None => Check::ok(name, format!("{place}, made by the first command")),
    }
}

fn file_system(place: &str, kind: i64) -> Check {
    match REMOTE.iter().find(|(number, _)| *number == kind) {
        Some((_, name)) => Check::warning(
            "file system",
            format!("{place} is on {name}, where locks are slow and may fail"),
            "set MUSTER_HOME to a directory on a disk of this machine, for example /data/ada/muster",
        ),
        None => Check::ok("file system", "a disk of this machine"),
    }
}

fn shell(exists: bool) -> Check {
    if exists {
        Check::ok("shell", "/bin/sh")
    } else {
        Check::broken(
            "shell",
            "/bin/sh cannot be executed",
            "install a shell: a command given as a line needs it",
        )
    }
}

fn process_trees(trees: &Trees) -> Check {
    let name = "process trees";
    let service = "start muster where it owns its cgroup: `systemd-run --user --scope -p Delegate=yes muster server start`";
    if !trees.is_certain {
        return Check::warning(
            name,
            format!(
                "tasks are found and ended by {}: one that forks very fast may escape for a moment",
                trees.way
            ),
            service,
        );
    }
    if !trees.limits_memory {
        return Check::warning(
            name,
            format!("ended by {}; memory limits are not enforced", trees.way),
            service,
        );
    }
    Check::ok(name, format!("ended by {}; memory limits are enforced", trees.way))
}

fn overlay(systems: &str, is_root: bool, namespaces: Option<u64>) -> Check {
    let is_there = systems.lines().any(|line| line.split_whitespace().last() == Some("overlay"));
    let may_mount = is_root || namespaces.is_some_and(|count| count > 0);
    match (is_there, may_mount) {
        (true, true) => Check::ok("overlayfs", "tasks can share one copy of the code"),
        (false, _) => Check::warning(
            "overlayfs",
            "the kernel has none: every task gets a copy of the code of its own",
            "modprobe overlay; without it large trees take longer to start",
        ),
        (true, false) => Check::warning(
            "overlayfs",
            "this user may not mount it: every task gets a copy of the code of its own",
            "sysctl user.max_user_namespaces=10000; without it large trees take longer to start",
        ),
    }
}

/// Where the files of launch contracts and platforms are: `/job/hostfile`, `/home/work/run_train.sh`.
fn platform_paths(can_mount: bool) -> Check {
    let name = "platform paths";
    if can_mount {
        return Check::ok(name, "real, for the task alone: /job/hostfile, /pod.env, /user/config");
    }
    Check::warning(
        name,
        "below the task's directory, since this user may not mount: variables and the command's words name them there",
        "run muster as root, or with CAP_SYS_ADMIN; scripts that have such a path inside do not find it otherwise",
    )
}

fn open_files(most: Option<u64>) -> Check {
    match most {
        Some(most @ ..FEW_OPEN_FILES) => Check::warning(
            "open files",
            format!("at most {most}: enough for about {} tasks at once", most / 8),
            "raise the hard limit: `nofile` in /etc/security/limits.conf, or LimitNOFILE= of the service",
        ),
        Some(most) => Check::ok("open files", format!("up to {most}")),
        None => Check::ok("open files", "no limit"),
    }
}

fn watches(instances: Option<u64>, watches: Option<u64>) -> Check {
    let few = |value: Option<u64>, least| value.is_some_and(|value| value < least);
    let shown = |value: Option<u64>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
    let detail = format!("{} instances, {} watches for each user", shown(instances), shown(watches));
    if few(instances, FEW_INSTANCES) || few(watches, FEW_WATCHES) {
        return Check::warning(
            "inotify",
            detail,
            "sysctl fs.inotify.max_user_instances=512 fs.inotify.max_user_watches=65536; without it logs come later",
        );
    }
    Check::ok("inotify", detail)
}

/// What the drivers offer, and whether cards are there that they do not.
fn devices(found: &[Device], nvidia_node: bool, ascend_node: bool, limits: bool) -> Check {
    let has = |vendor| found.iter().any(|device| device.vendor == vendor);
    if nvidia_node && !has(Vendor::Nvidia) {
        return Check::broken(
            "devices",
            "there are NVIDIA devices in /dev, and the driver's library does not list them",
            "does `nvidia-smi` work? a driver and a library of different versions need a reboot",
        );
    }
    if ascend_node && !has(Vendor::Ascend) {
        return Check::broken(
            "devices",
            "there are Ascend devices in /dev, and `npu-smi` does not list them",
            "does `npu-smi info` work? it must be in PATH where the server is started",
        );
    }
    let mut models: Vec<(&str, usize)> = Vec::new();
    for device in found {
        match models.iter_mut().find(|(model, _)| *model == device.model) {
            Some((_, count)) => *count += 1,
            None => models.push((&device.model, 1)),
        }
    }
    let texts: Vec<String> = models.iter().map(|(model, count)| format!("{count}x {model}")).collect();
    if texts.is_empty() {
        return Check::ok("devices", "no accelerators");
    }
    let how = if limits { "a device cgroup" } else { "variables only" };
    Check::ok("devices", format!("{}; tasks are limited to theirs by {how}", texts.join(", ")))
}

/// Muster needs neither; most training code does.
fn program(name: &str, found: Option<PathBuf>) -> Check {
    match found {
        Some(path) => Check::ok(name, path.display().to_string()),
        None => Check::ok(name, "not in PATH; only jobs that use it need it"),
    }
}

fn find(name: &str, path: &std::ffi::OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .map(|folder| folder.join(name))
        .find(|file| access(file, Access::EXEC_OK).is_ok())
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use muster_api::doctor::Health::{Broken, Ok as Well, Warning};

    use super::*;

    fn device(vendor: Vendor, model: &str) -> Device {
        Device {
            index: 0,
            vendor,
            model: model.into(),
            uuid: String::new(),
            memory_bytes: 1,
            simulated: false,
            ip: None,
        }
    }

    #[test]
    fn a_data_directory_is_writable_ours_and_private() {
        let own = getuid().as_raw();
        assert_eq!(data("/d", Ok(()), Some((own, 0o700))).status, Well);
        assert_eq!(data("/d", Ok(()), None).status, Well);
        assert_eq!(data("/d", Ok(()), Some((own, 0o777))).status, Warning);
        assert_eq!(data("/d", Ok(()), Some((own + 1, 0o700))).status, Broken);
        assert_eq!(data("/d", Err(io::ErrorKind::PermissionDenied.into()), None).status, Broken);
        let found = data_directory(&tempfile::tempdir().unwrap().path().join("new/er"));
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn a_directory_on_the_network_is_a_warning() {
        assert_eq!(file_system("/d", 0xef53).status, Well);
        assert!(file_system("/d", 0x6969).detail.contains("NFS"));
    }

    #[test]
    fn a_machine_without_a_shell_is_broken() {
        assert_eq!((shell(true).status, shell(false).status), (Well, Broken));
    }

    #[test]
    fn trees_that_are_not_held_or_not_limited_are_a_warning() {
        let trees = |is_certain, limits_memory| Trees {
            way: "cgroup v2",
            is_certain,
            limits_memory,
            limits_devices: true,
        };
        assert_eq!(process_trees(&trees(true, true)).status, Well);
        assert_eq!(process_trees(&trees(true, false)).status, Warning);
        assert_eq!(process_trees(&trees(false, false)).status, Warning);
    }

    #[test]
    fn overlays_need_a_kernel_and_the_right() {
        let systems = "nodev\tproc\nnodev\toverlay\n\text4\n";
        assert_eq!(overlay(systems, true, None).status, Well);
        assert_eq!(overlay(systems, false, Some(1000)).status, Well);
        assert!(overlay(systems, false, Some(0)).remedy.unwrap().contains("namespaces"));
        assert!(overlay("nodev\tproc\n", true, None).remedy.unwrap().contains("modprobe"));
    }

    #[test]
    fn paths_that_are_not_real_are_a_warning() {
        assert_eq!((platform_paths(true).status, platform_paths(false).status), (Well, Warning));
    }

    #[test]
    fn low_limits_are_warnings() {
        assert_eq!((open_files(Some(1024)).status, open_files(Some(4096)).status), (Warning, Well));
        assert_eq!(open_files(None).status, Well);
        assert_eq!(watches(Some(128), Some(65_536)).status, Well);
        assert_eq!(watches(Some(8), Some(65_536)).status, Warning);
        assert_eq!(watches(Some(128), Some(100)).status, Warning);
        assert_eq!(watches(None, None).status, Well);
    }

    #[test]
    fn devices_that_their_driver_does_not_list_are_broken() {
        let found =
            [device(Vendor::Nvidia, "H100"), device(Vendor::Nvidia, "H100"), device(Vendor::Ascend, "910B")];
        let detail = |limits| devices(&found, true, true, limits).detail;
        assert_eq!(detail(true), "2x H100, 1x 910B; tasks are limited to theirs by a device cgroup");
        assert_eq!(detail(false), "2x H100, 1x 910B; tasks are limited to theirs by variables only");
        assert_eq!(devices(&[], false, false, true).detail, "no accelerators");
        assert_eq!(devices(&found[2..], true, true, true).status, Broken);
        assert_eq!(devices(&found[..2], true, true, true).status, Broken);
    }

    #[test]
    fn a_program_is_found_in_path_or_not_and_neither_is_a_fault() {
        let path = std::ffi::OsStr::new("/nowhere:/bin");
        assert_eq!(find("sh", path), Some("/bin/sh".into()));
        assert_eq!(find("no-such-program", path), None);
        assert!(program("git", None).detail.contains("not in PATH"));
    }
}
