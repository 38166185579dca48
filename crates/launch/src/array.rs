//! What every element of an array finds in its environment, and what scripts made for Slurm look for.
//!
//! The index itself is set by whoever runs the element: one task runs many.

use std::collections::BTreeMap;

use muster_model::JobSpec;

/// The variables that all elements have in common.
pub fn variables(spec: &JobSpec, env: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let Some(array) = &spec.array else { return Vec::new() };
    let (count, first, last) = (array.count(), array.first(), array.last());
    let mut variables = vec![
        ("MUSTER_ARRAY_COUNT".to_owned(), count.to_string()),
        ("MUSTER_ARRAY_MIN".to_owned(), first.to_string()),
        ("MUSTER_ARRAY_MAX".to_owned(), last.to_string()),
    ];
    // Only a batch script is in Slurm's world.
    if spec.batch.is_some()
        && let Some(job) = env.get("SLURM_JOB_ID")
    {
        variables.extend([
            ("SLURM_ARRAY_JOB_ID".to_owned(), job.clone()),
            ("SLURM_ARRAY_TASK_COUNT".to_owned(), count.to_string()),
            ("SLURM_ARRAY_TASK_MIN".to_owned(), first.to_string()),
            ("SLURM_ARRAY_TASK_MAX".to_owned(), last.to_string()),
        ]);
    }
    variables
}
