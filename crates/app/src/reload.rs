//! What differs between the configuration as it was and as it is, and what of that can hold without a restart.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use muster_server::{Fresh, ReadAgain};
use toml::{Table, Value};

use crate::config::Config;

/// Settings by their table and name: `keep.logs`, `pools.gpu`.
type Settings = BTreeMap<String, Value>;

/// How the server reads its configuration anew. `text` is what it started with.
pub fn reader(home: PathBuf, text: &str) -> anyhow::Result<ReadAgain> {
    let started = settings(text)?;
    let last = Mutex::new(started.clone());
    Ok(Box::new(move || {
        let fresh = || {
            let (config, text) = Config::load_with_text(&home)?;
            let now = settings(&text)?;
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            let changed = different(&last, &now).into_iter().filter(|key| holds_at_once(key)).collect();
            let needs_restart =
                different(&started, &now).into_iter().filter(|key| !holds_at_once(key)).collect();
            let fresh = Fresh {
                keep: config.keep.read()?,
                limits: config.limits.read()?,
                pools: config.pools()?,
                changed,
                needs_restart,
            };
            *last = now;
            anyhow::Ok(fresh)
        };
        fresh().map_err(|error| format!("{error:#}").trim_end().to_owned())
    }))
}

/// Whether a setting is looked at again and again, and not only at the start. `[fastgpu]` is read by clients.
fn holds_at_once(key: &str) -> bool {
    let table = key.split('.').next().unwrap_or_default();
    matches!(table, "keep" | "limits" | "pools" | "fastgpu") && key != "keep.unused"
}

fn settings(text: &str) -> anyhow::Result<Settings> {
    let tables: Table = toml::from_str(text)?;
    let mut settings = Settings::new();
    for (table, content) in tables {
        match content {
            Value::Table(content) => {
                settings.extend(content.into_iter().map(|(name, value)| (format!("{table}.{name}"), value)));
            }
            value => drop(settings.insert(table, value)),
        }
    }
    Ok(settings)
}

fn different(before: &Settings, now: &Settings) -> Vec<String> {
    let mut keys: Vec<&String> = before.keys().chain(now.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    keys.into_iter().filter(|key| before.get(*key) != now.get(*key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_told_once_and_what_needs_a_restart_until_there_is_one() {
        let home = tempfile::tempdir().unwrap();
        let write = |text: &str| std::fs::write(home.path().join("config.toml"), text).unwrap();
        let read = reader(home.path().to_owned(), "[keep]\nlogs = '1GB'\n[local]\nslots = 2\n").unwrap();
        let told = || read().map(|fresh| (fresh.changed.join(" "), fresh.needs_restart.join(" ")));
        let pair = |changed: &str, restart: &str| Ok((changed.to_owned(), restart.to_owned()));

        write("[keep]\nlogs = '2GB'\nunused = '2d'\n[pools.gpu]\nhosts = ['a']\n");
        assert_eq!(told(), pair("keep.logs pools.gpu", "keep.unused local.slots"));
        assert_eq!(told(), pair("", "keep.unused local.slots"));
        write("[keep]\nlogs = 'much'\n");
        let wrong = told().unwrap_err();
        assert!(wrong.contains("keep.logs") && wrong.contains("much"), "{wrong}");
        write("[keep]\nlogs = '1GB'\n[local]\nslots = 2\n");
        assert_eq!(told(), pair("keep.logs pools.gpu", ""));
    }
}
