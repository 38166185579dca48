//! The devices that another scheduler has lent: those of the machine that its variables name, and no others.

use std::collections::BTreeMap;

use muster_model::node::{Device, Vendor};

use super::declared::{memory_of, model_of, vendor_of};
use super::discover;

/// In the order in which they are believed: what CUDA goes by, then what the scheduler says of the step, then of the job.
const VARIABLES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];
const ASCEND: &str = "ASCEND_RT_VISIBLE_DEVICES";
/// What the runtime of a container goes by: numbers, or names as `GPU-0a1b…`.
const CONTAINER: [&str; 2] = ["NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES"];

/// What was lent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lent {
    nvidia: Vec<u32>,
    ascend: Vec<u32>,
    /// In a container: how many, and what its runtime was told.
    container: Option<(u32, Vec<String>)>,
    /// What was asked for, by which simulated ones are called.
    model: Option<String>,
}

impl Lent {
    /// What the variables of a step say.
    pub fn of_variables(variables: &BTreeMap<String, String>, model: Option<String>) -> Lent {
        let list = |name: &str| variables.get(name).map(|text| numbers(text));
        let nvidia = VARIABLES.iter().find_map(|name| list(name)).unwrap_or_default();
        Lent { nvidia, ascend: list(ASCEND).unwrap_or_default(), container: None, model }
    }

    /// So many of those that a container sees, which may be all of the machine's.
    pub fn in_container(count: u32, variables: &BTreeMap<String, String>, model: Option<String>) -> Lent {
        let told = CONTAINER.iter().filter_map(|name| variables.get(*name));
        let told = told.flat_map(|text| text.split(',').map(|word| word.trim().to_owned())).collect();
        Lent { container: Some((count, told)), model, ..Lent::default() }
    }

    /// The devices. Where the machine has none of its own, they are simulated: a cluster to try things on may say that it
    /// has some.
    pub fn devices(&self) -> Vec<Device> {
        let is_none = self.nvidia.is_empty() && self.ascend.is_empty();
        if is_none && self.container.as_ref().is_none_or(|(count, _)| *count == 0) {
            return Vec::new();
        }
        self.among(discover(&[]))
    }

    fn among(&self, found: Vec<Device>) -> Vec<Device> {
        if found.is_empty() {
            return self.simulated();
        }
        if let Some((count, told)) = &self.container {
            return first_of(found, *count, told);
        }
        let first_ascend = super::first_ascend(&found);
        let is_lent = |device: &Device| match device.vendor {
            Vendor::Nvidia => self.nvidia.contains(&device.index),
            Vendor::Ascend => self.ascend.contains(&(device.index - first_ascend)),
        };
        found.into_iter().filter(is_lent).collect()
    }

    fn simulated(&self) -> Vec<Device> {
        let vendor = self.model.as_deref().map_or(Vendor::Nvidia, vendor_of);
        let model = self.model.clone().unwrap_or_else(|| model_of(vendor).to_owned());
        let counted = 0..self.container.as_ref().map_or(0, |(count, _)| *count);
        let numbers = self.nvidia.iter().chain(&self.ascend).copied().chain(counted);
        let device = |index: u32| Device {
            index,
            vendor,
            uuid: format!("simulated-{vendor}-{index}"),
            memory_bytes: memory_of(&model),
            model: model.clone(),
            simulated: true,
            ip: None,
        };
        numbers.map(device).collect()
    }
}

/// So many of them: if there are more, those that the runtime was told of.
fn first_of(mut found: Vec<Device>, count: u32, told: &[String]) -> Vec<Device> {
    let is_told =
        |device: &Device| told.iter().any(|word| *word == device.uuid || word.parse() == Ok(device.index));
    if found.len() > count as usize && found.iter().filter(|device| is_told(device)).count() >= count as usize
    {
        found.retain(is_told);
    }
    found.truncate(count as usize);
    found
}

/// `0,2` or `0-3,6`. Anything else, as `NoDevFiles`, names no device.
fn numbers(text: &str) -> Vec<u32> {
    let span = |part: &str| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some((first.parse::<u32>().ok()?, last.parse::<u32>().ok()?))
    };
    let spans = text.split(',').filter_map(span);
    spans.flat_map(|(first, last)| first..=last.min(first.saturating_add(1023))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lent(variables: &[(&str, &str)], model: Option<&str>) -> Lent {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Lent::of_variables(&variables, model.map(str::to_owned))
    }

    fn indices(devices: &[Device]) -> Vec<u32> {
        devices.iter().map(|device| device.index).collect()
    }

    #[test]
    fn only_what_the_step_may_use_is_offered() {
        let found = discover(&["H100:8".parse().unwrap()]);
        let of = |variables: &[(&str, &str)]| indices(&lent(variables, None).among(found.clone()));
        assert_eq!(of(&[("CUDA_VISIBLE_DEVICES", "2,3"), ("SLURM_JOB_GPUS", "0,1,2,3")]), [2, 3]);
        assert_eq!(of(&[("SLURM_STEP_GPUS", "0-2,5")]), [0, 1, 2, 5]);
        assert_eq!(of(&[("CUDA_VISIBLE_DEVICES", ""), ("SLURM_JOB_GPUS", "0")]), [0; 0]);
        assert_eq!(of(&[("CUDA_VISIBLE_DEVICES", "NoDevFiles")]), [0; 0]);
    }

    #[test]
    fn a_container_has_as_many_as_it_was_given_and_those_it_was_told_of() {
        let found = discover(&["H100:4".parse().unwrap()]);
        let third = found[2].uuid.clone();
        let of = |count, told: &str, found: &[Device]| {
            let variables = [(CONTAINER[0].to_owned(), told.to_owned())].into();
            indices(&Lent::in_container(count, &variables, None).among(found.to_vec()))
        };
        assert_eq!(of(4, "all", &found), [0, 1, 2, 3]);
        assert_eq!(of(2, "all", &found), [0, 1]);
        assert_eq!(of(2, "1,3", &found), [1, 3]);
        assert_eq!(of(1, &third, &found), [2]);
        assert_eq!(of(3, "all", &found[..2]), [0, 1]);
        assert_eq!(of(3, "all", &[]), [0, 1, 2]);
        assert!(Lent::in_container(0, &BTreeMap::new(), None).devices().is_empty());
    }

    #[test]
    fn a_machine_without_any_simulates_what_the_scheduler_says_it_lent() {
        let devices = lent(&[("SLURM_JOB_GPUS", "4,5")], Some("H100")).among(Vec::new());
        assert_eq!(indices(&devices), [4, 5]);
        assert!(devices.iter().all(|device| device.simulated && device.model == "H100"));
        assert!(lent(&[], Some("H100")).devices().is_empty());
    }
}
