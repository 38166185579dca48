//! Names of files with `%j` and the like in them.

use std::path::PathBuf;

/// What stands for the letters.
#[derive(Debug, Clone, Default)]
pub(super) struct Place {
    pub job: String,
    pub step: Option<u32>,
    pub task: u32,
    pub node: String,
    pub node_number: usize,
}

impl Place {
    /// That of the script itself.
    pub fn of_script() -> Place {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        Place { job: variable("SLURM_JOB_ID"), node: variable("SLURMD_NODENAME"), ..Place::default() }
    }

    /// The name that a pattern means here. `%5t` has at least five digits, and a backslash takes all letters as they are.
    pub fn name(&self, pattern: &str) -> PathBuf {
        if pattern.contains('\\') {
            return pattern.replace('\\', "").into();
        }
        let mut name = String::new();
        let mut rest = pattern;
        while let Some((before, after)) = rest.split_once('%') {
            name.push_str(before);
            let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let width = after[..digits].parse::<usize>().unwrap_or(0).min(10);
            let Some(letter) = after[digits..].chars().next() else {
                name.push('%');
                rest = after;
                continue;
            };
            match self.value(letter) {
                Some(value) if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                    name.push_str(&format!("{value:0>width$}"));
                }
                Some(value) => name.push_str(&value),
                None => name.push_str(&format!("%{}{letter}", &after[..digits])),
            }
            rest = &after[digits + letter.len_utf8()..];
        }
        (name + rest).into()
    }

    fn value(&self, letter: char) -> Option<String> {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        Some(match letter {
            '%' => "%".into(),
            'j' | 'A' => self.job.clone(),
            'J' => match self.step {
                Some(step) => format!("{}.{step}", self.job),
                None => self.job.clone(),
            },
            's' => self.step.map_or_else(|| "batch".into(), |step| step.to_string()),
            't' => self.task.to_string(),
            'n' => self.node_number.to_string(),
            'N' => self.node.split('.').next().unwrap_or_default().to_owned(),
            'u' => variable("SLURM_JOB_USER"),
            'x' => variable("SLURM_JOB_NAME"),
            'a' => "4294967294".into(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_stand_for_what_slurm_has_for_them() {
        let place =
            Place { job: "42".into(), step: Some(3), task: 7, node: "n1.example".into(), node_number: 1 };
        for (pattern, name) in [
            ("out-%j.log", "out-42.log"),
            ("%J-%s-%4t", "42.3-3-0007"),
            ("%N/%n", "n1/1"),
            ("100%%", "100%"),
            ("%z%", "%z%"),
            ("a\\%j", "a%j"),
        ] {
            assert_eq!(place.name(pattern), PathBuf::from(name), "{pattern}");
        }
    }
}
