//! What nodes are labelled with, and jobs that choose among nodes by it or by name.

use std::collections::BTreeMap;

use muster_api::problem::Problem;
use muster_model::NodeId;
use muster_model::spec::{FieldCode, FieldError, JobSpec, is_label};
use muster_store::Change;

use super::Core;
use super::batch::{Answer, Batch};
use super::input::Reply;

/// Labels are for choosing among nodes, not for keeping data with them.
const MAX_LABELS: usize = 64;
const MAX_VALUE: usize = 256;

impl Core {
    pub(super) fn on_label(
        &mut self,
        text: &str,
        changes: BTreeMap<String, Option<String>>,
        reply: Reply<NodeId>,
        batch: &mut Batch,
    ) {
        let changed = self.find_node(text).and_then(|id| Ok((self.relabelled(&id, changes)?, id)));
        let (labels, id) = match changed {
            Ok(changed) => changed,
            Err(problem) => return drop(reply.send(Err(problem))),
        };
        if let Some(node) = self.nodes.get_mut(&id) {
            let before = std::mem::replace(&mut node.labels, labels.clone());
            batch.labels_before.push((id.clone(), before));
        }
        self.untold.nodes.insert(id.clone());
        self.dirty = true;
        batch.first.push(Change::Labels { node: id.clone(), labels });
        batch.answers.push(Answer::Node(reply, id));
    }

    fn relabelled(
        &self,
        id: &NodeId,
        changes: BTreeMap<String, Option<String>>,
    ) -> Result<BTreeMap<String, String>, Problem> {
        let mut labels = self.nodes.get(id).map(|node| node.labels.clone()).unwrap_or_default();
        let mut errors = Vec::new();
        for (key, value) in changes {
            let field = format!("labels.{key}");
            match value {
                _ if !is_label(&key) => {
                    let message = format!(
                        "`{key}` cannot be the name of a label: it is letters, digits, `-`, `_`, `.` or `/`"
                    );
                    errors.push(FieldError::new("labels", FieldCode::InvalidValue, message));
                }
                Some(value) if value.len() > MAX_VALUE || value.chars().any(char::is_control) => {
                    let message = format!("must be at most {MAX_VALUE} bytes, of one line");
                    errors.push(FieldError::new(field, FieldCode::InvalidValue, message));
                }
                Some(value) => drop(labels.insert(key, value)),
                None => drop(labels.remove(&key)),
            }
        }
        if labels.len() > MAX_LABELS {
            let message = format!("would be {} of them; a node has at most {MAX_LABELS}", labels.len());
            errors.push(FieldError::new("labels", FieldCode::OutOfRange, message));
        }
        if errors.is_empty() { Ok(labels) } else { Err(Problem::fields(errors)) }
    }

    /// The nodes that a job is not to have. One that is gone is none that it could have.
    pub(super) fn excluded(&self, spec: &JobSpec) -> Vec<NodeId> {
        let mut found: Vec<NodeId> =
            spec.exclude.iter().filter_map(|text| self.find_node(text).ok()).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// What is wrong with how a job chooses among nodes.
    pub(super) fn check_choice(&self, spec: &JobSpec) -> Vec<FieldError> {
        if self.is_delegated(&spec.on) {
            let chosen =
                [("node_labels", !spec.node_labels.is_empty()), ("exclude", !spec.exclude.is_empty())];
            let wrong = chosen.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| {
                let message = format!(
                    "{} chooses its nodes itself; say it in its own words (`k8s.node_selector`, options of sbatch)",
                    spec.on
                );
                FieldError::new(field, FieldCode::NotSupported, message)
            });
            return wrong.collect();
        }
        let unknown = (0..).zip(&spec.exclude).filter_map(|(index, text): (usize, _)| {
            let problem = self.find_node(text).err()?;
            let hint = problem.hint.unwrap_or_default();
            let message = format!("{}; {hint}", problem.detail);
            Some(FieldError::new(format!("exclude[{index}]"), FieldCode::InvalidValue, message))
        });
        unknown.collect()
    }
}
