//! The muster binary as it is sent to machines: its name there, and which file suits which machine.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::{AgentBinary, Error};

/// What binaries for other machines are called, before their architecture.
const PREFIX: &str = "muster-";

/// The binary that agents run.
#[derive(Debug, Clone)]
pub(crate) struct Binary {
    /// Of the content of all files: machines of every kind have the same build under the same name.
    hash: String,
    exe: PathBuf,
    others: PathBuf,
}

impl Binary {
    /// Reads the files once. A file that changes later is not sent under the old name: its length is checked, and a server
    /// that is replaced by a newer one looks again.
    pub(crate) fn read(exe: &Path, others: &Path) -> io::Result<Self> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(exe)?)?;
        for other in found(others) {
            hasher.update(other.as_os_str().as_encoded_bytes());
            hasher.update_reader(File::open(&other)?)?;
        }
        let hash = hasher.finalize().to_hex()[..16].to_owned();
        Ok(Self { hash, exe: exe.to_owned(), others: others.to_owned() })
    }

    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The file for a machine, by what its `uname` says.
    pub(crate) fn suiting(&self, destination: &str, system: &str, machine: &str) -> Result<PathBuf, Error> {
        let architecture = architecture(machine);
        if system != "Linux" {
            return Err(Error::terminal(format!("{destination} runs {system}, and agents need Linux")));
        }
        if architecture == std::env::consts::ARCH {
            return Ok(self.exe.clone());
        }
        let other = self.others.join(format!("{PREFIX}{architecture}"));
        if other.is_file() {
            return Ok(other);
        }
        let (own, path) = (std::env::consts::ARCH, other.display());
        Err(Error::terminal(format!(
            "{destination} is {architecture} and this muster is for {own}; put a muster of the same version for \
             {architecture} at {path} and restart the server"
        )))
    }

    pub(crate) fn agent(&self) -> AgentBinary {
        AgentBinary { path: format!("bin/{PREFIX}{}", self.hash), build: self.hash.clone() }
    }
}

/// Binaries for other machines, in an order that does not change.
fn found(dir: &Path) -> Vec<PathBuf> {
    let known = ["aarch64", "x86_64", "loongarch64", "riscv64", "powerpc64le"];
    let file = |architecture: &str| dir.join(format!("{PREFIX}{architecture}"));
    known
        .iter()
        .map(|it| file(it))
        .filter(|path| fs::metadata(path).is_ok_and(|file| file.is_file()))
        .collect()
}

/// As Rust calls it.
fn architecture(machine: &str) -> &str {
    match machine {
        "arm64" => "aarch64",
        "amd64" => "x86_64",
        "ppc64le" => "powerpc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_gets_the_file_that_suits_it_and_all_have_one_name() {
        let folder = tempfile::tempdir().unwrap();
        let exe = folder.path().join("muster");
        fs::write(&exe, "ours").unwrap();
        let alone = Binary::read(&exe, folder.path()).unwrap();
        assert_eq!(alone.suiting("h", "Linux", std::env::consts::ARCH).unwrap(), exe);
        let foreign = if std::env::consts::ARCH == "x86_64" { "arm64" } else { "x86_64" };
        let refused = alone.suiting("h", "Linux", foreign).unwrap_err().to_string();
        assert!(refused.contains(&format!("muster-{}", architecture(foreign))), "{refused}");
        assert!(alone.suiting("h", "Darwin", "arm64").is_err());
        let other = folder.path().join(format!("muster-{}", architecture(foreign)));
        fs::write(&other, "theirs").unwrap();
        let both = Binary::read(&exe, folder.path()).unwrap();
        assert_eq!(both.suiting("h", "Linux", foreign).unwrap(), other);
        assert_ne!(both.hash(), alone.hash());
        assert_eq!(both.agent().path, format!("bin/muster-{}", both.hash()));
    }
}
