//! Which namespaces of which places have, or had, objects of ours. It is written down before the first is made in one, so that
//! whoever comes back looks everywhere, also where a job's own workspace decides and rights do not reach all namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use muster_engine::Error;

type Known = BTreeMap<String, BTreeSet<String>>;

/// The list, and its file.
#[derive(Debug)]
pub(crate) struct Namespaces {
    path: PathBuf,
    /// None until it has been read.
    known: Mutex<Option<Known>>,
}

impl Namespaces {
    /// The list in this file, which is read when it is first asked for.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, known: Mutex::default() }
    }

    /// Those of a place. A list that cannot be read is an error: who takes it for empty takes what runs there for gone.
    pub(crate) fn of(&self, place: &str) -> Result<Vec<String>, Error> {
        let mut kept = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.read(&mut kept).map_err(|error| self.error("read", error))?;
        Ok(known.get(place).into_iter().flatten().cloned().collect())
    }

    /// There may be something in this one from now on.
    pub(crate) fn add(&self, place: &str, namespace: &str) -> Result<(), Error> {
        let mut kept = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.read(&mut kept).map_err(|error| self.error("read", error))?;
        if known.get(place).is_some_and(|of_place| of_place.contains(namespace)) {
            return Ok(());
        }
        let mut next = known.clone();
        next.entry(place.to_owned()).or_default().insert(namespace.to_owned());
        self.write(&next).map_err(|error| self.error("write", error))?;
        *known = next;
        Ok(())
    }

    fn read<'a>(&self, kept: &'a mut Option<Known>) -> io::Result<&'a mut Known> {
        let read = match kept.take() {
            Some(known) => known,
            None => match std::fs::read(&self.path) {
                Ok(text) => serde_json::from_slice(&text)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => Known::new(),
                Err(error) => return Err(error),
            },
        };
        Ok(kept.insert(read))
    }

    fn write(&self, known: &Known) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let file = std::fs::File::create(&temporary)?;
        serde_json::to_writer(&file, known)?;
        file.sync_all()?;
        std::fs::rename(temporary, &self.path)?;
        self.path.parent().map_or(Ok(()), |dir| std::fs::File::open(dir)?.sync_all())
    }

    fn error(&self, verb: &str, error: io::Error) -> Error {
        Error::retryable(format!("{verb} which namespaces are in use, {}", self.path.display()), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_knows_where_to_look() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("namespaces.json");
        let first = Namespaces::new(path.clone());
        assert!(first.of("prod").unwrap().is_empty());
        first.add("prod", "ml").unwrap();
        first.add("prod", "vision").unwrap();
        first.add("", "default").unwrap();
        first.add("prod", "ml").unwrap();
        let next = Namespaces::new(path.clone());
        assert_eq!(next.of("prod").unwrap(), ["ml", "vision"]);
        assert_eq!(next.of("").unwrap(), ["default"]);
        assert!(next.of("lab").unwrap().is_empty());
        std::fs::write(&path, "{").unwrap();
        let broken = Namespaces::new(path.clone());
        broken.of("prod").expect_err("what cannot be read is not empty");
        broken.add("prod", "new").expect_err("what cannot be read is not written over");
        std::fs::write(&path, r#"{"prod":["ml"]}"#).unwrap();
        assert_eq!(broken.of("prod").unwrap(), ["ml"], "it is looked at again");
    }
}
