//! What of all jobs somebody may see.

use std::collections::BTreeSet;

use rusqlite::types::Value;

/// Which jobs are there at all, for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Sight {
    /// All of them.
    #[default]
    All,
    /// Those of these workspaces.
    Workspaces(BTreeSet<String>),
}

impl Sight {
    /// Whether it has the jobs of a workspace.
    pub fn has(&self, workspace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Workspaces(names) => names.contains(workspace),
        }
    }

    /// A condition on a column that holds a workspace, for a query that has these parameters already.
    pub(super) fn condition(&self, column: &str, parameters: &mut Vec<Value>) -> Option<String> {
        let Self::Workspaces(names) = self else { return None };
        let first = parameters.len() + 1;
        parameters.extend(names.iter().cloned().map(Value::from));
        let marks: Vec<String> = (first..=parameters.len()).map(|number| format!("?{number}")).collect();
        Some(format!("{column} IN ({})", marks.join(", ")))
    }
}
