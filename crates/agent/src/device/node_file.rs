//! Device files of accelerators: which of them a task must not open.
//!
//! Only files of one accelerator each are considered: `/dev/nvidiaN` and `/dev/davinciN`. Files that all tasks need, such
//! as `nvidiactl`, `nvidia-uvm`, `davinci_manager`, `devmm_svm` and `hisi_hdc`, stay open: without the file of a device
//! they lead to none. So do the files of MIG instances, which need the file of their GPU.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use muster_model::node::{Device, Vendor};

use super::first_ascend;
use crate::tree::DeviceNumber;

/// Where device files are, and where the NVIDIA driver describes its GPUs.
#[derive(Debug)]
struct DeviceFiles {
    dev: PathBuf,
    nvidia: PathBuf,
}

/// The accelerators of this machine that were not given to a task. Simulated ones have no files.
pub(crate) fn denied(node: &[Device], given: &[u32]) -> Vec<DeviceNumber> {
    if node.iter().all(|device| device.simulated) {
        return Vec::new();
    }
    let files = DeviceFiles { dev: "/dev".into(), nvidia: "/proc/driver/nvidia/gpus".into() };
    files.denied(node, given)
}

impl DeviceFiles {
    fn denied(&self, node: &[Device], given: &[u32]) -> Vec<DeviceNumber> {
        let given: Vec<&Device> = node.iter().filter(|device| given.contains(&device.index)).collect();
        let mut denied = Vec::new();
        for (vendor, prefix) in [(Vendor::Nvidia, "nvidia"), (Vendor::Ascend, "davinci")] {
            let files = numbered(&self.dev, prefix);
            let own = given.iter().filter(|device| device.vendor == vendor);
            let own: Option<Vec<u32>> = own.map(|device| self.file_of(device, node, &files)).collect();
            match own {
                Some(own) => denied.extend(files.iter().filter(|(n, _)| !own.contains(n)).map(|(_, it)| *it)),
                // The task must have what it was given, so that nothing of this vendor is denied.
                None => {
                    tracing::warn!(%vendor, "the device file of a device was not found: devices are limited by variables only")
                }
            }
        }
        denied
    }

    /// The number in the name of a device's file.
    fn file_of(&self, device: &Device, node: &[Device], files: &[(u32, DeviceNumber)]) -> Option<u32> {
        let number = match device.vendor {
            Vendor::Nvidia => self.nvidia_minor(&device.uuid)?,
            // The driver counts its devices in the order of their files. Unless both agree on how many there are, a file
            // cannot be told.
            Vendor::Ascend => {
                let count = node.iter().filter(|it| it.vendor == Vendor::Ascend).count();
                let position = device.index.checked_sub(first_ascend(node))?;
                files.get(position as usize).filter(|_| files.len() == count)?.0
            }
        };
        files.iter().any(|(n, _)| *n == number).then_some(number)
    }

    /// The file of a GPU has the number that its driver gave it, which is not the one that NVML counts by.
    fn nvidia_minor(&self, uuid: &str) -> Option<u32> {
        fs::read_dir(&self.nvidia).ok()?.flatten().find_map(|gpu| {
            let text = fs::read_to_string(gpu.path().join("information")).ok()?;
            let field = |name: &str| {
                text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)
            };
            (field("GPU UUID")?.1.trim() == uuid).then(|| field("Device Minor")?.1.trim().parse().ok())?
        })
    }
}

/// The character devices called like this with a number behind it, in the order of their numbers.
fn numbered(dev: &Path, prefix: &str) -> Vec<(u32, DeviceNumber)> {
    let file = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let number = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
        let found = entry.metadata().ok().filter(|found| found.file_type().is_char_device())?;
        let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        Some((number, DeviceNumber { major, minor }))
    };
    let mut files: Vec<_> = fs::read_dir(dev).into_iter().flatten().flatten().filter_map(file).collect();
    files.sort_unstable();
    files
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

    use super::*;

    /// A machine with two GPUs, whose driver counts the other way round, and two NPUs.
    struct Machine {
        root: tempfile::TempDir,
        files: DeviceFiles,
        devices: Vec<Device>,
    }

    fn device(index: u32, vendor: Vendor, uuid: &str) -> Device {
        Device {
            index,
            vendor,
            model: "X".into(),
            uuid: uuid.into(),
            memory_bytes: 1,
            simulated: false,
            ip: None,
        }
    }

    impl Machine {
        /// None where device files cannot be made: without root.
        fn new() -> Option<Machine> {
            let root = tempfile::tempdir().unwrap();
            let files = DeviceFiles { dev: root.path().join("dev"), nvidia: root.path().join("gpus") };
            fs::create_dir(&files.dev).unwrap();
            let nodes =
                [("nvidia0", 195, 0), ("nvidia1", 195, 1), ("nvidiactl", 195, 255), ("nvidia-uvm", 510, 0)];
            let npus = [("davinci3", 236, 3), ("davinci10", 236, 10), ("davinci_manager", 237, 0)];
            for (name, major, minor) in nodes.into_iter().chain(npus) {
                let mode = Mode::RUSR | Mode::WUSR;
                mknodat(CWD, files.dev.join(name), FileType::CharacterDevice, mode, makedev(major, minor))
                    .ok()?;
            }
            fs::write(files.dev.join("nvidia7"), "no device").unwrap();
            for (bus, uuid, minor) in [("0000:01:00.0", "GPU-a", 1), ("0000:02:00.0", "GPU-b", 0)] {
                let folder = files.nvidia.join(bus);
                fs::create_dir_all(&folder).unwrap();
                let text =
                    format!("Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
                fs::write(folder.join("information"), text).unwrap();
            }
            let devices = vec![
                device(0, Vendor::Nvidia, "GPU-a"),
                device(1, Vendor::Nvidia, "GPU-b"),
                device(2, Vendor::Ascend, "npu-0"),
                device(3, Vendor::Ascend, "npu-1"),
            ];
            Some(Machine { root, files, devices })
        }

        fn denied(&self, given: &[u32]) -> Vec<(u32, u32)> {
            self.files.denied(&self.devices, given).iter().map(|it| (it.major, it.minor)).collect()
        }
    }

    #[test]
    fn a_task_is_denied_every_accelerator_that_is_not_its_own() {
        let Some(machine) = Machine::new() else { return };
        assert_eq!(machine.denied(&[]), [(195, 0), (195, 1), (236, 3), (236, 10)]);
        assert_eq!(machine.denied(&[0]), [(195, 0), (236, 3), (236, 10)]);
        assert_eq!(machine.denied(&[1, 3]), [(195, 1), (236, 3)]);
        assert_eq!(machine.denied(&[0, 1, 2, 3]), []);
    }

    #[test]
    fn a_device_whose_file_is_not_known_is_not_taken_from_its_task() {
        let Some(machine) = Machine::new() else { return };
        fs::remove_dir_all(machine.root.path().join("gpus/0000:01:00.0")).unwrap();
        assert_eq!(machine.denied(&[0]), [(236, 3), (236, 10)]);
        assert_eq!(machine.denied(&[1]), [(195, 1), (236, 3), (236, 10)]);
        fs::remove_file(machine.files.dev.join("davinci3")).unwrap();
        assert_eq!(machine.denied(&[1, 2]), [(195, 1)]);
        assert_eq!(machine.denied(&[1]), [(195, 1), (236, 10)]);
    }

    #[test]
    fn simulated_devices_have_no_files() {
        let mut simulated = device(0, Vendor::Nvidia, "x");
        simulated.simulated = true;
        assert_eq!(denied(&[simulated], &[]), []);
    }
}
