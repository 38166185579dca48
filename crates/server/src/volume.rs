//! Volumes: storage that every task of a user, or of a workspace, finds at the same path.
//!
//! A volume is a directory that nodes have, with a part in it for each user or workspace. Where tasks see their part is a pattern
//! with `{user}` or `{workspace}` in it; what comes before the first of them is, unless something else is said, also where
//! nodes have it.

use muster_link::message::GivenVolume;

/// A volume of this server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    name: String,
    /// Where tasks see what nodes have at `root`.
    seen: String,
    root: String,
    /// A part: the rest of the pattern.
    part: String,
}

impl Volume {
    /// A volume that tasks see at `path`, of the directory that nodes have at `source`.
    pub fn new(name: &str, path: &str, source: Option<&str>) -> Result<Self, String> {
        let plain = |what: &str, path: &str| {
            let parts = path.strip_prefix('/').unwrap_or_default().split('/');
            let is_plain = parts.clone().all(|part| !matches!(part, "" | "." | "..")) && !path.contains(':');
            if is_plain {
                Ok(())
            } else {
                Err(format!("{what}: must be an absolute path without `..`, not `{path}`"))
            }
        };
        plain("path", path)?;
        let rest = path.replace("{user}", "").replace("{workspace}", "");
        if rest.contains(['{', '}']) {
            return Err(format!(
                "path: {{user}} and {{workspace}} are what can be filled in, not more of `{path}`"
            ));
        }
        let at = path.find('{').and_then(|at| path[..at].rfind('/'));
        let at = at.ok_or_else(|| {
            format!("path: must have {{user}} or {{workspace}} in it, so that each has a part, not `{path}`")
        })?;
        if at == 0 {
            return Err(format!("path: must lie in a directory, as /mnt/user/{{user}} does, not `{path}`"));
        }
        let (seen, part) = (&path[..at], &path[at + 1..]);
        let root = source.unwrap_or(seen).trim_end_matches('/');
        plain("source", root)?;
        Ok(Self { name: name.into(), seen: seen.into(), root: root.into(), part: part.into() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As nodes are asked for it.
    pub(crate) fn asked(&self) -> muster_link::message::Volume {
        muster_link::message::Volume {
            name: self.name.clone(),
            root: self.root.clone(),
            is_elsewhere: self.is_elsewhere(),
        }
    }

    /// Whether tasks see it at another path than nodes have it at, so that it must be mounted for them.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.root != self.seen
    }

    /// Whether each user has a part of their own.
    pub(crate) fn is_personal(&self) -> bool {
        self.part.contains("{user}")
    }

    /// The part of a task.
    pub(crate) fn given(&self, user: &str, workspace: &str) -> GivenVolume {
        let below = self.part.replace("{user}", user).replace("{workspace}", workspace);
        GivenVolume {
            name: self.name.clone(),
            root: self.root.clone(),
            path: format!("{}/{below}", self.seen),
            below,
            is_private: self.is_personal(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_says_where_and_whose() {
        let user = Volume::new("user", "/mnt/user/{user}", None).unwrap();
        let given = user.given("ada", "nlp");
        assert_eq!((given.root.as_str(), given.below.as_str()), ("/mnt/user", "ada"));
        assert!(given.path == "/mnt/user/ada" && given.is_private && !user.is_elsewhere());
        let share = Volume::new("share", "/mnt/share/{workspace}/all", Some("/srv/nas/share/")).unwrap();
        let given = share.given("ada", "nlp");
        assert_eq!((given.root.as_str(), given.below.as_str()), ("/srv/nas/share", "nlp/all"));
        assert!(given.path == "/mnt/share/nlp/all" && !given.is_private && share.is_elsewhere());
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_the_field() {
        for (path, source, field) in [
            ("mnt/{user}", None, "path"),
            ("/mnt/../{user}", None, "path"),
            ("/mnt/user", None, "path"),
            ("/{user}", None, "path"),
            ("/mnt/{name}", None, "path"),
            ("/mnt/{user}", Some("nas"), "source"),
        ] {
            let wrong = Volume::new("v", path, source).unwrap_err();
            assert!(wrong.starts_with(&format!("{field}: ")), "{path}: {wrong}");
        }
    }
}
