//! `create.cfg`: an INI file that says what machines are wanted. Both generations' names of its section are taken.

use std::path::Path;

use muster_api::model::spec::nearest;

use crate::error::{Code, Error, system_message};

/// What machines are wanted, from a file or from flags; what nobody said is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub name: Option<String>,
    pub machines: Option<u32>,
    pub instance_type: Option<String>,
    pub image_name: Option<String>,
    pub image_type: Option<String>,
    pub system_disk_size: Option<String>,
    pub data_disk_size: Option<String>,
    pub zone_id: Option<String>,
    pub vpc_name: Option<String>,
    pub spot: Option<bool>,
    pub skip_setup: Option<bool>,
    pub nas: Option<bool>,
    pub install_cuda: Option<bool>,
    pub install_script: Option<String>,
    /// Nothing here costs money, so nobody is asked.
    pub confirm_cost: Option<bool>,
}

pub(super) const KEYS: [&str; 16] = [
    "name",
    "machines",
    "instance_type",
    "image_name",
    "image_type",
    "system_disk_size",
    "data_disk_size",
    "zone_id",
    "vpc_name",
    "spot",
    "skip_setup",
    "disable_nas",
    "enable_nas",
    "install_cuda",
    "confirm_cost",
    "install_script",
];

impl Wanted {
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let message = format!("cannot read {}: {}", path.display(), system_message(&error));
            Error::new(Code::JobFileUnreadable, message)
        })?;
        Self::parse(&text).map_err(|wrong| {
            Error::new(Code::JobFileInvalid, format!("{}: {wrong}", path.display()))
                .hint("a line is KEY=VALUE, below [fastgpu] or [ncluster]; [cmd] has install_script")
        })
    }

    /// Every line is looked at; the first that is wrong is named.
    fn parse(text: &str) -> Result<Self, String> {
        let mut wanted = Self::default();
        let mut is_inside = false;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim().trim_start_matches('\u{feff}');
            if line.is_empty() || line.starts_with([';', '#']) {
                continue;
            }
            let wrong = |what: String| format!("line {number}: {what}");
            if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                if !matches!(section.trim(), "ncluster" | "fastgpu" | "cmd") {
                    return Err(wrong(format!("[{section}] is not [fastgpu], [ncluster] or [cmd]")));
                }
                is_inside = true;
                continue;
            }
            let Some((key, value)) = line.split_once(['=', ':']).filter(|_| is_inside) else {
                return Err(wrong(format!("`{line}` is not KEY=VALUE in a section")));
            };
            wanted.set(key.trim(), value.trim()).map_err(wrong)?;
        }
        Ok(wanted)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let text = || Some(value.to_owned()).filter(|value| !value.is_empty());
        let flag = || if value.is_empty() { Ok(None) } else { boolean(value).map(Some) };
        let named = |reason| format!("{key}: {reason}");
        match key {
            "name" => self.name = text(),
            "machines" => self.machines = text().map(|it| count(&it)).transpose().map_err(named)?,
            "instance_type" => self.instance_type = text(),
            "image_name" => self.image_name = text(),
            "image_type" => self.image_type = text(),
            "system_disk_size" => self.system_disk_size = text(),
            "data_disk_size" => self.data_disk_size = text(),
            "zone_id" => self.zone_id = text(),
            "vpc_name" => self.vpc_name = text(),
            "install_script" => self.install_script = text(),
            "spot" => self.spot = flag().map_err(named)?,
            "skip_setup" => self.skip_setup = flag().map_err(named)?,
            "disable_nas" => self.nas = flag().map_err(named)?.map(|off| !off),
            "enable_nas" => self.nas = flag().map_err(named)?,
            "install_cuda" => self.install_cuda = flag().map_err(named)?,
            "confirm_cost" => self.confirm_cost = flag().map_err(named)?,
            other => {
                let near = nearest(other, &KEYS).map(|near| format!("; did you mean `{near}`?"));
                return Err(format!("there is no `{other}`{}", near.unwrap_or_default()));
            }
        }
        Ok(())
    }

    /// These, and where they say nothing, those.
    pub fn or(self, other: Self) -> Self {
        Self {
            name: self.name.or(other.name),
            machines: self.machines.or(other.machines),
            instance_type: self.instance_type.or(other.instance_type),
            image_name: self.image_name.or(other.image_name),
            image_type: self.image_type.or(other.image_type),
            system_disk_size: self.system_disk_size.or(other.system_disk_size),
            data_disk_size: self.data_disk_size.or(other.data_disk_size),
            zone_id: self.zone_id.or(other.zone_id),
            vpc_name: self.vpc_name.or(other.vpc_name),
            spot: self.spot.or(other.spot),
            skip_setup: self.skip_setup.or(other.skip_setup),
            nas: self.nas.or(other.nas),
            install_cuda: self.install_cuda.or(other.install_cuda),
            install_script: self.install_script.or(other.install_script),
            confirm_cost: self.confirm_cost.or(other.confirm_cost),
        }
    }

    /// What is remembered of it with the machines: what only a cloud acts on, and what they are compared by.
    pub fn labels(&self) -> Vec<(String, String)> {
        let spot = self.spot.filter(|spot| *spot).map(|_| "True".to_owned());
        let all = [
            ("instance_type", &self.instance_type),
            ("image_name", &self.image_name),
            ("image_type", &self.image_type),
            ("spot", &spot),
            ("zone_id", &self.zone_id),
            ("system_disk_size", &self.system_disk_size),
            ("data_disk_size", &self.data_disk_size),
            ("vpc_name", &self.vpc_name),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect()
    }
}

/// As Python's configparser reads it.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("must be True or False, not `{text}`")),
    }
}

pub(super) fn count(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|count| *count > 0)
        .ok_or_else(|| format!("must be a number from 1 up, not `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = "; config.ini

[ncluster]
; The job name for current creation job.
name=ncluster-v100
machines=1
system_disk_size=300
data_disk_size=0
image_name=ubuntu_18_04_64_20G_alibase_20190624.vhd
instance_type=ecs.gn6v-c8g1.16xlarge
spot=False
confirm_cost=False
skip_setup=True
disable_nas=True
zone_id=cn-beijing-h
vpc_name=ncluster-vpc

[cmd]
install_script=pwd
";

    #[test]
    fn the_file_of_the_documentation_is_read_under_both_names_of_its_section() {
        let wanted = Wanted::parse(SEED).unwrap();
        assert_eq!((wanted.name.as_deref(), wanted.machines), (Some("ncluster-v100"), Some(1)));
        assert_eq!((wanted.skip_setup, wanted.nas, wanted.spot), (Some(true), Some(false), Some(false)));
        assert_eq!(wanted.install_script.as_deref(), Some("pwd"));
        let names: Vec<String> = wanted.labels().into_iter().map(|(name, _)| name).collect();
        let kept =
            ["instance_type", "image_name", "zone_id", "system_disk_size", "data_disk_size", "vpc_name"];
        assert_eq!(names, kept);
        assert_eq!(Wanted::parse(&SEED.replace("[ncluster]", "[fastgpu]")).unwrap(), wanted);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, word) in [
            ("name=a", "line 1: `name=a` is not KEY=VALUE in a section"),
            ("[fastgpu]\nnmae=a", "line 2: there is no `nmae`; did you mean `name`?"),
            ("[fastgpu]\nmachines=none", "line 2: machines: must be a number"),
            ("[cloud]", "line 1: [cloud] is not"),
            ("[fastgpu]\nspot=maybe", "line 2: spot: must be True or False"),
        ] {
            let wrong = Wanted::parse(text).unwrap_err();
            assert!(wrong.starts_with(word), "{wrong}");
        }
    }

    #[test]
    fn flags_go_before_the_file() {
        let flags = Wanted { machines: Some(4), spot: Some(true), ..Wanted::default() };
        let both = flags.or(Wanted::parse(SEED).unwrap());
        assert_eq!(
            (both.machines, both.spot, both.name.as_deref()),
            (Some(4), Some(true), Some("ncluster-v100"))
        );
    }
}
