//! Secrets on the wire: everything but their values.

use muster_model::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A secret of a workspace. Its value is given to tasks, and shown nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretView {
    /// Whose it is.
    pub workspace: String,
    /// What it is called there.
    pub name: String,
    /// How many bytes it has.
    pub size: u64,
    /// Who has put it.
    pub put_by: String,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub put_at: Timestamp,
}

/// The secrets of a workspace, by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    /// All of them.
    pub items: Vec<SecretView>,
}
