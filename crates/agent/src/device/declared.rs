//! Devices that exist in configuration only: `H100:8`, `ascend:8`, `nvidia:4`.

use std::str::FromStr;

use muster_model::node::{Device, Vendor};
use muster_model::quantity::DeviceRequest;

/// Some devices of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared {
    vendor: Vendor,
    model: String,
    count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` declares no devices; write for example H100:8, ascend:8 or nvidia:4")]
pub struct ParseError(String);

/// More than any machine has: a slip of the keyboard should not make a million devices.
const MOST: u32 = 1024;

impl FromStr for Declared {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Declared, ParseError> {
        let wrong = || ParseError(text.to_owned());
        let request: DeviceRequest = text.parse().map_err(|_| wrong())?;
        if request.count == 0 || request.count > MOST {
            return Err(wrong());
        }
        let (vendor, model) = match (request.vendor, request.model) {
            (Some(vendor), _) => (vendor, model_of(vendor).to_owned()),
            (None, Some(model)) => (vendor_of(&model), model),
            (None, None) => return Err(wrong()),
        };
        Ok(Declared { vendor, model, count: request.count })
    }
}

impl Declared {
    /// All that were declared, each vendor's numbered from 0.
    pub(super) fn devices(declared: &[Declared]) -> Vec<Device> {
        let mut next = [0, 0];
        let mut devices = Vec::new();
        for Declared { vendor, model, count } in declared {
            let next = &mut next[usize::from(*vendor == Vendor::Ascend)];
            for index in (*next..).take(*count as usize) {
                devices.push(Device {
                    index,
                    vendor: *vendor,
                    model: model.clone(),
                    uuid: format!("simulated-{vendor}-{index}"),
                    memory_bytes: memory_of(model),
                    simulated: true,
                    ip: None,
                });
            }
            *next += count;
        }
        devices
    }
}

/// What `nvidia:4` stands for: something people ask for by name.
pub(super) fn model_of(vendor: Vendor) -> &'static str {
    match vendor {
        Vendor::Ascend => "910B",
        Vendor::Nvidia => "A100",
    }
}

/// Ascend chips have numbers for names; NVIDIA's begin with a letter, or are sold as `4090`.
pub(super) fn vendor_of(model: &str) -> Vendor {
    if model.starts_with("910") || model.starts_with("310") { Vendor::Ascend } else { Vendor::Nvidia }
}

pub(super) fn memory_of(model: &str) -> u64 {
    let gigabytes = match model.to_ascii_uppercase().as_str() {
        "T4" => 16,
        "A10" | "L4" | "3090" | "4090" => 24,
        "V100" | "910" | "910A" => 32,
        "A40" | "L20" | "L40" | "L40S" => 48,
        "910B" => 64,
        "A100" | "A800" | "H100" | "H800" => 80,
        "H20" => 96,
        "H200" => 141,
        "B200" => 180,
        // Not known, and nothing depends on it.
        _ => 0,
    };
    gigabytes << 30
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_declared_by_model_or_vendor() {
        for (text, vendor, model, count) in [
            ("H100:8", Vendor::Nvidia, "H100", 8),
            ("nvidia:4", Vendor::Nvidia, "A100", 4),
            ("ascend:8", Vendor::Ascend, "910B", 8),
            ("910B3:2", Vendor::Ascend, "910B3", 2),
            ("A100", Vendor::Nvidia, "A100", 1),
        ] {
            let expected = Declared { vendor, model: model.to_owned(), count };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for wrong in ["", "8", "H100:0", "H100:x", "H100:99999", ":"] {
            assert_eq!(wrong.parse::<Declared>(), Err(ParseError(wrong.to_owned())));
        }
    }

    #[test]
    fn each_vendors_devices_are_numbered_on_their_own() {
        let declared = ["H100:2", "ascend:1", "A100:1"].map(|text| text.parse().unwrap());
        let devices = Declared::devices(&declared);
        let seen: Vec<_> = devices.iter().map(|device| (device.model.as_str(), device.index)).collect();
        assert_eq!(seen, [("H100", 0), ("H100", 1), ("910B", 0), ("A100", 2)]);
        assert!(devices.iter().all(|device| device.simulated));
        assert_eq!(devices[0].memory_bytes, 80 << 30);
    }
}
