//! A file of a task, as people see it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What a task's output directory (`MUSTER_OUTPUT_DIR`) is called among its files. A word that needs no quoting in a shell.
pub const OUTPUT: &str = "@output";

/// Something in a task's directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileEntry {
    /// Below the working directory, or with `@output/` in front below the output directory. Bytes that are not UTF-8 are
    /// shown as the replacement character.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Its length, of a file.
    pub bytes: u64,
    /// The nine bits of its rights.
    pub mode: u32,
    /// When it was last written.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub modified_at: Timestamp,
    /// Where it leads, of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What something in a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A symbolic link.
    Link,
    /// A socket, a pipe or a device.
    Other,
}
