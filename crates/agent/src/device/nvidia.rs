//! NVIDIA GPUs, through NVML. The library comes with the driver and is opened only if it is there.

use muster_model::metrics::DeviceUse;
use muster_model::node::{Device, Vendor};
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError;

pub(super) fn discover() -> Vec<Device> {
    let nvml = match Nvml::init() {
        Ok(nvml) => nvml,
        Err(NvmlError::LibloadingError(_)) => return Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "NVML is installed but does not work: this node has no NVIDIA devices");
            return Vec::new();
        }
    };
    let count = nvml.device_count().unwrap_or_else(|error| {
        tracing::warn!(%error, "NVML does not count its devices: this node has no NVIDIA devices");
        0
    });
    (0..count).filter_map(|index| read(&nvml, index)).collect()
}

/// One GPU. One that has fallen off its bus does not hide the others.
fn read(nvml: &Nvml, index: u32) -> Option<Device> {
    let read = || {
        let device = nvml.device_by_index(index)?;
        Ok::<_, NvmlError>(Device {
            index,
            vendor: Vendor::Nvidia,
            model: short_name(&device.name()?),
            uuid: device.uuid()?,
            memory_bytes: device.memory_info()?.total,
            simulated: false,
            ip: None,
        })
    };
    read()
        .inspect_err(
            |error| tracing::warn!(index, %error, "an NVIDIA device does not answer and is left out"),
        )
        .ok()
}

/// What can be read from the GPUs. The library is opened once: that takes long where the driver is not kept loaded.
#[derive(Debug)]
pub(super) struct Gauge {
    nvml: Nvml,
}

impl Gauge {
    pub(super) fn open() -> Option<Gauge> {
        let opened = Nvml::init().inspect_err(|error| {
            tracing::warn!(%error, "NVML cannot be opened again: the use of NVIDIA devices is not measured");
        });
        opened.ok().map(|nvml| Gauge { nvml })
    }

    /// How a device is; none if it does not answer. A board may lack any of the sensors.
    pub(super) fn read(&self, index: u32) -> Option<DeviceUse> {
        let device = self.nvml.device_by_index(index).ok()?;
        let memory = device.memory_info().ok();
        let errors = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
        Some(DeviceUse {
            index,
            utilisation_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
            memory_bytes: memory.as_ref().map(|memory| memory.used),
            memory_total_bytes: memory.map(|memory| memory.total),
            power_watts: device.power_usage().ok().map(|milliwatts| (milliwatts + 500) / 1000),
            temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
            ecc_corrected: errors(MemoryError::Corrected),
            ecc_uncorrected: errors(MemoryError::Uncorrected),
        })
    }
}

/// What people call it: `H100` for `NVIDIA H100 80GB HBM3`, `A100` for `NVIDIA A100-SXM4-40GB`, `RTX-4090` for
/// `NVIDIA GeForce RTX 4090`.
fn short_name(name: &str) -> String {
    let mut words = name
        .split_ascii_whitespace()
        .skip_while(|word| matches!(*word, "NVIDIA" | "Tesla" | "GeForce" | "Quadro"));
    let Some(first) = words.next() else { return name.to_owned() };
    // Consumer and workstation boards carry their number in the words after the line's name.
    if matches!(first, "RTX" | "GTX" | "TITAN") {
        let rest: Vec<&str> =
            words.take_while(|word| !word.ends_with("GB") && *word != "Generation").collect();
        return std::iter::once(first).chain(rest).collect::<Vec<_>>().join("-");
    }
    first.split('-').next().unwrap_or(first).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_becomes_the_one_people_say() {
        for (name, short) in [
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA H100 PCIe", "H100"),
            ("NVIDIA A100-SXM4-40GB", "A100"),
            ("NVIDIA A100 80GB PCIe", "A100"),
            ("A100-SXM4-80GB", "A100"),
            ("NVIDIA H200", "H200"),
            ("NVIDIA H200 NVL", "H200"),
            ("NVIDIA H20", "H20"),
            ("NVIDIA B200", "B200"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA A10", "A10"),
            ("NVIDIA A10G", "A10G"),
            ("Tesla V100-SXM2-32GB", "V100"),
            ("Tesla T4", "T4"),
            ("NVIDIA GeForce RTX 4090", "RTX-4090"),
            ("NVIDIA GeForce RTX 3080 Ti", "RTX-3080-Ti"),
            ("NVIDIA RTX A6000", "RTX-A6000"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
            ("NVIDIA TITAN V", "TITAN-V"),
            ("NVIDIA", "NVIDIA"),
            ("", ""),
        ] {
            assert_eq!(short_name(name), short);
        }
    }
}
