//! The accelerators of this node: found through their makers' own tools, or declared in configuration.
//!
//! Declared devices are simulated: they are counted, assigned and shown as such, but nothing computes on them. When any
//! are declared, the real ones are not looked for, so that a test or a demonstration is the same on every machine.
//!
//! That a maker's library or tool is missing is the normal case and no error. One that is there and fails is told to
//! the log, and the node then has no devices of that maker.

mod ascend;
mod declared;
mod lent;
mod node_file;
mod nvidia;

pub use declared::{Declared, ParseError};
pub use lent::Lent;
pub(crate) use node_file::denied;

use muster_model::metrics::DeviceUse;
use muster_model::node::{Device, Vendor};

/// The devices of this node, each with a number of its own. May take seconds where a driver is slow: call it from a
/// thread that may block.
pub fn discover(declared: &[Declared]) -> Vec<Device> {
    let mut devices = match declared {
        [] => nvidia::discover().into_iter().chain(ascend::discover()).collect(),
        declared => Declared::devices(declared),
    };
    let first = first_ascend(&devices);
    for device in devices.iter_mut().filter(|device| device.vendor == Vendor::Ascend) {
        device.index += first;
    }
    devices
}

/// Every driver counts from 0, and a node's devices must be told apart by their numbers: where there are both, the
/// Ascend ones come after the others.
fn first_ascend(devices: &[Device]) -> u32 {
    let nvidia = devices.iter().filter(|device| device.vendor == Vendor::Nvidia);
    nvidia.map(|device| device.index + 1).max().unwrap_or(0)
}

/// What can be read from this node's devices while they work. Simulated ones have nothing to tell.
#[derive(Debug)]
pub(crate) struct Gauges {
    nvidia: Option<nvidia::Gauge>,
    ascend: Option<ascend::Gauge>,
    /// The numbers of the NVIDIA devices, and of the first Ascend one.
    nvidia_devices: Vec<u32>,
    first_ascend: u32,
}

impl Gauges {
    /// May take seconds where a driver is slow.
    pub(crate) fn open(devices: &[Device]) -> Gauges {
        let of = |vendor| {
            devices
                .iter()
                .filter(move |device| device.vendor == vendor && !device.simulated)
                .map(|it| it.index)
        };
        let nvidia_devices: Vec<u32> = of(Vendor::Nvidia).collect();
        Gauges {
            nvidia: if nvidia_devices.is_empty() { None } else { nvidia::Gauge::open() },
            ascend: of(Vendor::Ascend).next().map(|_| ascend::Gauge::default()),
            nvidia_devices,
            first_ascend: first_ascend(devices),
        }
    }

    /// How the devices are, those that answer.
    pub(crate) fn read(&self) -> Vec<DeviceUse> {
        let nvidia = self.nvidia.iter().flat_map(|gauge| {
            self.nvidia_devices.iter().filter_map(|index| gauge.read(*index)).collect::<Vec<_>>()
        });
        let ascend = self.ascend.iter().flat_map(ascend::Gauge::read);
        let numbered = ascend.map(|chip| DeviceUse { index: chip.index + self.first_ascend, ..chip });
        nvidia.chain(numbered).collect()
    }
}

/// The variables through which a task sees those of the node's devices that it was given, and no others. All are always
/// set, also for a task without devices: an absent variable means every device, an empty one means none.
pub fn visible(node: &[Device], given: &[u32]) -> Vec<(String, String)> {
    let given: Vec<&Device> = node.iter().filter(|device| given.contains(&device.index)).collect();
    // As the driver counts, not the node.
    let list = |vendor, first: u32| {
        let own = given.iter().filter(|device| device.vendor == vendor);
        own.map(|device| (device.index - first).to_string()).collect::<Vec<_>>().join(",")
    };
    let mut variables = vec![
        ("CUDA_VISIBLE_DEVICES".to_owned(), list(Vendor::Nvidia, 0)),
        ("ASCEND_RT_VISIBLE_DEVICES".to_owned(), list(Vendor::Ascend, first_ascend(node))),
    ];
    if given.iter().any(|device| device.vendor == Vendor::Nvidia) {
        // CUDA otherwise counts the fastest first, and our numbers, which are NVML's, would name other devices.
        variables.push(("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible_of(declared: &str, given: &[u32]) -> Vec<(String, String)> {
        let declared: Vec<Declared> = declared.split(' ').map(|text| text.parse().unwrap()).collect();
        visible(&discover(&declared), given)
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_task_sees_its_devices_and_no_others() {
        let nvidia = [
            ("CUDA_VISIBLE_DEVICES", "1,3"),
            ("ASCEND_RT_VISIBLE_DEVICES", ""),
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ];
        assert_eq!(visible_of("H100:4", &[1, 3]), pairs(&nvidia));
        let ascend = [("CUDA_VISIBLE_DEVICES", ""), ("ASCEND_RT_VISIBLE_DEVICES", "0")];
        assert_eq!(visible_of("ascend:1", &[0]), pairs(&ascend));
    }

    #[test]
    fn devices_of_two_makers_have_numbers_of_their_own_and_are_seen_under_their_drivers() {
        let declared = ["ascend:2", "H100:2"].map(|text| text.parse().unwrap());
        let numbers: Vec<_> =
            discover(&declared).iter().map(|device| (device.vendor, device.index)).collect();
        let expected = [(Vendor::Ascend, 2), (Vendor::Ascend, 3), (Vendor::Nvidia, 0), (Vendor::Nvidia, 1)];
        assert_eq!(numbers, expected);
        let ascend = [("CUDA_VISIBLE_DEVICES", ""), ("ASCEND_RT_VISIBLE_DEVICES", "1")];
        assert_eq!(visible_of("ascend:2 H100:2", &[3]), pairs(&ascend));
    }

    #[test]
    fn a_task_without_devices_sees_none() {
        let none = [("CUDA_VISIBLE_DEVICES", ""), ("ASCEND_RT_VISIBLE_DEVICES", "")];
        assert_eq!(visible_of("H100:4", &[]), pairs(&none));
    }

    #[test]
    fn a_machine_without_accelerators_has_none() {
        // On one that has some, the names must at least be short ones.
        for device in discover(&[]) {
            assert!(!device.simulated && !device.model.contains(' '), "{device:?}");
        }
    }
}
