//! How people name machines: `NAME` and `{NAME}` are a group, `task0.NAME` is one of it.

use std::fmt;
use std::str::FromStr;

use crate::target::Target;

/// A group of machines, or one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub group: String,
    /// Which of the group; none if all of it is meant.
    pub rank: Option<u32>,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let braced = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
        let named = match (braced, Target::from_host(text)) {
            (Some(group), _) => Self { group: group.to_owned(), rank: None },
            (None, Ok(target)) => Self { group: target.job, rank: target.task },
            (None, Err(_)) => Self { group: text.to_owned(), rank: None },
        };
        if named.group.trim().is_empty() {
            return Err("a machine is named task0.NAME, and all of its group NAME or {NAME}".into());
        }
        Ok(named)
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "task{rank}.{}", self.group),
            None => f.write_str(&self.group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_braces_or_not_and_a_machine_has_its_number() {
        let named = |text: &str| text.parse::<Named>().map(|it| (it.group, it.rank));
        assert_eq!(named("v100"), Ok(("v100".into(), None)));
        assert_eq!(named("{ncluster-v100}"), Ok(("ncluster-v100".into(), None)));
        assert_eq!(named("task3.v100.b"), Ok(("v100.b".into(), Some(3))));
        assert_eq!(named("task.v100"), Ok(("task.v100".into(), None)));
        assert!(named("{}").is_err() && named(" ").is_err());
    }
}
