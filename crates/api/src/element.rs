//! Elements of arrays, one by one.

use muster_model::array::ElementState;
use muster_model::{Reason, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// An element of an array.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ElementView {
    /// Its index.
    pub index: u32,
    /// How it is.
    pub state: ElementState,
    /// How often it has run, or runs.
    pub tries: u32,
    /// The attempt of the task that ran it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The rank of the task that ran it last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Why its last run failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Reason>,
    /// The failure in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When its last run started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When its last run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

/// A page of elements.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ElementPage {
    /// The elements, by index.
    pub items: Vec<ElementView>,
    /// Pass it as `after` for the next page; absent on the last.
    pub next_after: Option<u32>,
}

/// Which elements to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListElements {
    /// Only elements in this state: `waiting`, `running`, `succeeded` or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// At most so many, 1 to 1000; 100 if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only elements of a larger index: the `next_after` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u32>,
}
