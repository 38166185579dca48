//! Unix sockets at paths of any length.
//!
//! The kernel takes 107 bytes for a socket's path, and a `MUSTER_HOME` in a test or on a shared disk is easily longer.
//! Through an open directory the same socket has a short name, `/proc/self/fd/N/server.sock`, which works for `bind`
//! and for `connect`; so the server and every client use this one function.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Paths up to here are used as they are: below the kernel's limit with room for its NUL.
const LONGEST_PLAIN: usize = 100;

/// The name of a socket that `bind` and `connect` accept. It is good for as long as this value lives.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    /// What `/proc/self/fd/N` refers to.
    _directory: Option<File>,
}

impl SocketPath {
    /// The name to give to `bind` or `connect`.
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}

/// A usable name for the socket at `path`; opens its directory when the path itself is too long.
pub fn socket_path(path: &Path) -> io::Result<SocketPath> {
    if path.as_os_str().len() <= LONGEST_PLAIN {
        return Ok(SocketPath { path: path.to_owned(), _directory: None });
    }
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "the path of a socket must end in its name");
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(invalid());
    };
    let directory = File::open(directory)?;
    let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    if path.as_os_str().as_bytes().len() > LONGEST_PLAIN {
        return Err(invalid());
    }
    Ok(SocketPath { path, _directory: Some(directory) })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_at_a_long_path_can_be_bound_and_reached() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("d".repeat(120)).join("e".repeat(120));
        std::fs::create_dir_all(&deep).unwrap();
        let socket = deep.join("server.sock");
        let _listener = UnixListener::bind(socket_path(&socket).unwrap().as_path()).unwrap();
        assert!(socket.exists());
        UnixStream::connect(socket_path(&socket).unwrap().as_path()).unwrap();
    }

    #[test]
    fn a_short_path_is_used_as_it_is() {
        let socket = Path::new("/run/user/0/muster/server.sock");
        assert_eq!(socket_path(socket).unwrap().as_path(), socket);
    }

    #[test]
    fn a_missing_directory_is_reported_as_missing() {
        let socket = Path::new("/nowhere").join("d".repeat(120)).join("server.sock");
        assert_eq!(socket_path(&socket).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
