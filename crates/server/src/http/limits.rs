//! Which workspace a job is of, and what it may ask for there: where people share a server, before the core sees it.

use std::time::Duration;

use muster_api::problem::{Code, Problem};
use muster_api::view::CreateJob;
use muster_model::account::{Role, Workspace};
use muster_model::quantity::format_bytes;
use muster_model::spec::{DEFAULT_PRIORITY, FieldCode, FieldError, JobSpec, MAX_PRIORITY};

use crate::accounts::Caller;
use crate::state::Shared;

/// The longest spec as JSON, without the script of a batch job, which has a bound of its own.
const MAX_SPEC: usize = 1 << 20;
/// The longest environment of a submitter as JSON. One with many modules and shell functions takes a quarter of it.
const MAX_ENVIRONMENT: usize = 1 << 20;

/// Refuses specs and environments that are too long: the server keeps them in its database for as long as the job.
pub(super) fn check_lengths(request: &CreateJob, spec: &JobSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let script = spec.batch.as_ref().map_or(0, |batch| json_length(&batch.script));
    let length = json_length(spec).saturating_sub(script);
    if length > MAX_SPEC {
        let field = longest_field(spec).unwrap_or_else(|| "spec".to_owned());
        let message = format!("is the longest field of a spec of {}", too_long(length, MAX_SPEC));
        errors.push(FieldError::new(field, FieldCode::OutOfRange, message));
    }
    let length = request.environment.as_ref().map_or(0, json_length);
    if length > MAX_ENVIRONMENT {
        let message = format!("has {}", too_long(length, MAX_ENVIRONMENT));
        errors.push(FieldError::new("environment", FieldCode::OutOfRange, message));
    }
    errors
}

fn too_long(length: usize, most: usize) -> String {
    format!("{} as JSON; at most {} are allowed", format_bytes(length as u64), format_bytes(most as u64))
}

fn longest_field(spec: &JobSpec) -> Option<String> {
    let serde_json::Value::Object(fields) = serde_json::to_value(spec).ok()? else { return None };
    fields
        .into_iter()
        .filter(|(name, _)| name != "batch")
        .max_by_key(|(_, value)| json_length(value))
        .map(|(name, _)| name)
}

fn json_length(value: &impl serde::Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

/// Which workspace the job is of, whether the caller may run jobs there, and what it says of those that do not say it
/// themselves.
pub(super) fn enter(
    shared: &Shared,
    caller: &Caller,
    request: &CreateJob,
    spec: &mut JobSpec,
) -> Result<(), Problem> {
    let Some(accounts) = &shared.accounts else { return Ok(()) };
    let (workspace, role) = accounts.look(|directory| {
        let name = match &spec.workspace {
            Some(name) => name.clone(),
            None => directory.default_workspace(&caller.rights)?,
        };
        match directory.workspace(&name).cloned().zip(caller.rights.role(&name)) {
            Some(found) => Ok(found),
            None => {
                let message = format!("there is no workspace `{name}`; `muster workspace ls` lists yours");
                Err(wrong("workspace", FieldCode::InvalidValue, message))
            }
        }
    })?;
    if role < Role::Member {
        let what = format!("you are a viewer of {}, and viewers run no jobs", workspace.name);
        return Err(Problem::new(Code::Forbidden, what).hint("one of its leads can make you a member"));
    }
    let says_priority = request.spec.get("priority").is_some_and(|priority| !priority.is_null());
    keep_within(&workspace, role, says_priority, spec)?;
    spec.workspace = Some(workspace.name);
    if caller.rights.is_admin() {
        return Ok(());
    }
    let engine = shared.engines.get(spec.on.engine());
    let open = engine.map(|engine| engine.open_pull_secrets(spec.on.place())).unwrap_or_default();
    check_reach(spec, &open)
}

/// Whether the caller may give a job of a workspace this priority: no more than they could have asked for at first.
pub(super) fn check_priority(
    shared: &Shared,
    caller: &Caller,
    workspace: &str,
    priority: u32,
) -> Result<(), Problem> {
    let Some(accounts) = &shared.accounts else { return Ok(()) };
    let found = accounts.look(|directory| directory.require_workspace(workspace).cloned())?;
    let role = caller.rights.role(workspace).unwrap_or(Role::Viewer);
    within_priority(&found, role, priority)
}

/// The highest priority that the caller may give a job of a workspace; none for those who run no jobs there.
pub(super) fn highest_priority(shared: &Shared, caller: &Caller, workspace: &str) -> Result<u32, Problem> {
    let Some(accounts) = &shared.accounts else { return Ok(MAX_PRIORITY) };
    let found = accounts.look(|directory| directory.require_workspace(workspace).cloned())?;
    let role = caller.rights.role(workspace).filter(|role| *role >= Role::Member);
    Ok(role.map_or(0, |role| highest_for(&found, role)))
}

fn highest_for(workspace: &Workspace, role: Role) -> u32 {
    if role >= Role::Lead { MAX_PRIORITY } else { workspace.priority.unwrap_or(DEFAULT_PRIORITY) }
}

/// What a workspace gives to a job that does not say, and the most that it may say. A lead, who says what that is, may go beyond
/// the priority; the time is everybody's.
fn keep_within(
    workspace: &Workspace,
    role: Role,
    says_priority: bool,
    spec: &mut JobSpec,
) -> Result<(), Problem> {
    let Workspace { name, priority, max_run_time, .. } = workspace;
    if !says_priority {
        spec.priority = priority.unwrap_or(DEFAULT_PRIORITY);
    }
    within_priority(workspace, role, spec.priority)?;
    let Some(longest) = *max_run_time else { return Ok(()) };
    if let Some(asked) = spec.timeout.filter(|asked| *asked > longest) {
        let seconds = |span: Duration| span.as_secs_f64();
        let message =
            format!("{} s is more than jobs of {name} may run, {} s", seconds(asked), seconds(longest));
        return Err(wrong("timeout", FieldCode::OutOfRange, message));
    }
    spec.timeout.get_or_insert(longest);
    Ok(())
}

fn within_priority(workspace: &Workspace, role: Role, asked: u32) -> Result<(), Problem> {
    let highest = highest_for(workspace, role);
    if asked <= highest {
        return Ok(());
    }
    let message = format!(
        "{asked} is more than members of {} may ask for, {highest}; one of its leads may, or can raise it: `muster workspace set`",
        workspace.name
    );
    Err(wrong("priority", FieldCode::OutOfRange, message))
}

/// A pod can be made to hold anything that its namespace does, other people's storage and the tokens of other jobs included.
/// With a pull secret, it runs images of a private registry that another team pays for and keeps its code in.
fn check_reach(spec: &JobSpec, open_pull_secrets: &[String]) -> Result<(), Problem> {
    let Some(k8s) = &spec.k8s else { return Ok(()) };
    let beyond = [
        ("k8s.pod", k8s.pod.is_some()),
        ("k8s.secrets", !k8s.secrets.is_empty()),
        ("k8s.service_account", k8s.service_account.is_some()),
    ];
    let refused = |(field, _)| {
        let message = "only an admin sets it where people share a server, as it reaches beyond the job; an admin can set it for \
                       every job in [k8s] of config.toml";
        FieldError::new(field, FieldCode::NotSupported, message)
    };
    let mut errors: Vec<FieldError> = beyond.into_iter().filter(|(_, is_set)| *is_set).map(refused).collect();
    let closed = (0..).zip(&k8s.image_pull_secrets).filter(|(_, name)| !open_pull_secrets.contains(name));
    errors.extend(closed.map(|(index, name): (usize, _)| {
        let message = format!(
            "only an admin names `{name}` where people share a server; an admin can give it to every job with \
             k8s.image_pull_secrets, or let users name it with k8s.allowed_image_pull_secrets of config.toml"
        );
        FieldError::new(format!("k8s.image_pull_secrets[{index}]"), FieldCode::NotSupported, message)
    }));
    if errors.is_empty() { Ok(()) } else { Err(Problem::fields(errors)) }
}

fn wrong(field: &str, code: FieldCode, message: String) -> Problem {
    Problem::fields(vec![FieldError::new(field, code, message)])
}

#[cfg(test)]
mod tests {
    use muster_model::Timestamp;
    use serde_json::json;

    use super::*;

    fn spec(priority: u32, timeout: Option<&str>) -> JobSpec {
        JobSpec::from_value(json!({ "command": ["true"], "priority": priority, "timeout": timeout })).unwrap()
    }

    fn workspace(priority: Option<u32>, hours: Option<u64>) -> Workspace {
        let max_run_time = hours.map(|hours| Duration::from_secs(hours * 3600));
        Workspace {
            name: "nlp".into(),
            display_name: None,
            priority,
            max_run_time,
            created_at: Timestamp::UNIX_EPOCH,
        }
    }

    fn field(workspace: &Workspace, role: Role, mut spec: JobSpec) -> Option<String> {
        let refused = keep_within(workspace, role, true, &mut spec).err()?;
        Some(refused.errors[0].field.clone())
    }

    #[test]
    fn a_member_asks_for_no_more_than_the_workspace_gives() {
        for (given, highest) in [(Some(600), 600), (None, DEFAULT_PRIORITY), (Some(100), 100)] {
            let workspace = workspace(given, None);
            let asks = |role, priority| field(&workspace, role, spec(priority, None));
            assert_eq!(asks(Role::Member, highest), None);
            assert_eq!(highest_for(&workspace, Role::Member), highest, "no more is offered, either");
            assert_eq!(asks(Role::Member, 0), None, "less is anybody's to ask for");
            assert_eq!(asks(Role::Member, highest + 1).as_deref(), Some("priority"));
            assert_eq!(asks(Role::Lead, 1000), None);
            let mut silent = spec(DEFAULT_PRIORITY, None);
            keep_within(&workspace, Role::Member, false, &mut silent).unwrap();
            assert_eq!(silent.priority, highest);
        }
    }

    #[test]
    fn a_member_names_only_the_pull_secrets_that_the_operator_allows() {
        let spec = |names: &[&str]| {
            let k8s = json!({ "image_pull_secrets": names });
            JobSpec::from_value(json!({ "command": ["true"], "on": "k8s", "image": "a", "k8s": k8s }))
                .unwrap()
        };
        let open = ["team".to_owned()];
        assert!(check_reach(&spec(&["team"]), &open).is_ok() && check_reach(&spec(&[]), &[]).is_ok());
        let refused = check_reach(&spec(&["team", "prod"]), &open).unwrap_err();
        assert_eq!(refused.errors[0].field, "k8s.image_pull_secrets[1]");
        assert!(refused.errors[0].message.contains("`prod`"), "{refused:?}");
        assert_eq!(check_reach(&spec(&["team"]), &[]).unwrap_err().errors.len(), 1);
    }

    #[test]
    fn nobody_asks_for_more_time_than_the_workspace_gives() {
        let workspace = workspace(None, Some(1));
        for role in [Role::Member, Role::Lead] {
            assert_eq!(field(&workspace, role, spec(0, Some("3601s"))).as_deref(), Some("timeout"));
            assert_eq!(field(&workspace, role, spec(0, Some("1h"))), None);
        }
        let mut silent = spec(0, None);
        keep_within(&workspace, Role::Member, true, &mut silent).unwrap();
        assert_eq!(silent.timeout, Some(Duration::from_secs(3600)));
    }
}
