//! Which binary this is, so that a client can tell that the server it found runs another one.
//!
//! A version number is not enough: a developer builds the same version a hundred times a day.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The identity of the running executable. It stays the same when the file is renamed or replaced meanwhile, because
/// the link in `/proc` leads to the inode that was executed.
pub fn of_current_exe() -> io::Result<String> {
    of(Path::new("/proc/self/exe"))
}

/// The identity of an executable file: one made or copied anew has another inode, time or size.
pub fn of(path: &Path) -> io::Result<String> {
    let file = std::fs::metadata(path)?;
    let mtime_ns = i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec());
    Ok(format!("{}:{}:{mtime_ns}:{}", file.dev(), file.ino(), file.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_another_build() {
        let own = of_current_exe().unwrap();
        assert_eq!(own, of_current_exe().unwrap());
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("muster");
        std::fs::copy("/proc/self/exe", &copy).unwrap();
        assert_ne!(own, of(&copy).unwrap());
    }
}
