//! The accelerators of this node: found through their makers' own tools, or declared in configuration.
//!
//! Declared devices are simulated: they are counted, assigned and shown as such, but nothing computes on them. When any
//! are declared, the real ones are not looked for, so that a test or a demonstration is the same on every machine.
//!
//! That a maker's library or tool is missing is the normal case and no error. One that is there and fails is told to
//! the log, and the node then has no devices of that maker.

mod ascend;
mod declared;
mod nvidia;

pub use declared::{Declared, ParseError};

use muster_model::node::{Device, Vendor};

/// The devices of this node, each vendor's numbered from 0. May take seconds where a driver is slow: call it from a
/// thread that may block.
pub fn discover(declared: &[Declared]) -> Vec<Device> {
    if !declared.is_empty() {
        return Declared::devices(declared);
    }
    let mut devices = nvidia::discover();
    devices.extend(ascend::discover());
    devices
}

/// The variables through which a task sees the devices it was given, and no others. All are always set, also for a task
/// without devices: an absent variable means every device, an empty one means none.
pub fn visible(devices: &[&Device]) -> Vec<(String, String)> {
    let list = |vendor| {
        let numbers =
            devices.iter().filter(|device| device.vendor == vendor).map(|device| device.index.to_string());
        numbers.collect::<Vec<_>>().join(",")
    };
    let mut variables = vec![
        ("CUDA_VISIBLE_DEVICES".to_owned(), list(Vendor::Nvidia)),
        ("ASCEND_RT_VISIBLE_DEVICES".to_owned(), list(Vendor::Ascend)),
    ];
    if devices.iter().any(|device| device.vendor == Vendor::Nvidia) {
        // CUDA otherwise counts the fastest first, and our numbers, which are NVML's, would name other devices.
        variables.push(("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned()));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visible_of(declared: &str, indices: &[usize]) -> Vec<(String, String)> {
        let devices = discover(&[declared.parse().unwrap()]);
        visible(&indices.iter().map(|index| &devices[*index]).collect::<Vec<_>>())
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
