//! Who may do what: one rule for each operation of the API, here and nowhere else.
//!
//! The rules are compared with the document when the server starts: an operation without one, or a rule without an
//! operation, and it does not.

use std::collections::HashMap;

use axum::http::Method;
use muster_model::account::{Role, Scope};
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::PathItem;

/// What somebody must be to do something. What a token is good for comes on top of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Anybody, also who has not logged in.
    Anyone,
    /// Whoever is known. What they get is what they may see, and what they make is theirs.
    Known(Scope),
    /// Those who may run jobs: members of any workspace.
    Submit,
    /// Whoever is something in the workspace of the job.
    SeeJob,
    /// The same, unless its files are those of an account on a machine: then its owner.
    SeeFiles,
    /// The job's owner, while they are a member of its workspace, and its leads.
    ChangeJob,
    /// The job's owner alone: whoever is inside a task is its owner to the machine.
    EnterJob,
    /// Whoever is at least this in the workspace.
    Workspace(Role, Scope),
    /// The person whom it is about, and admins.
    Person(Scope),
    /// Admins.
    Admin(Scope),
}

use Rule::{Admin, Anyone, ChangeJob, EnterJob, Known, Person, SeeFiles, SeeJob, Submit, Workspace};

/// By the name of the operation.
pub(crate) const RULES: &[(&str, Rule)] = &[
    // Jobs.
    ("create_job", Known(Scope::Write)),
    ("list_jobs", Known(Scope::Read)),
    ("show_job", SeeJob),
    ("explain_job", SeeJob),
    ("follow_events", SeeJob),
    ("follow_all_events", Known(Scope::Read)),
    ("list_elements", SeeJob),
    ("follow_logs", SeeJob),
    ("download_logs", SeeJob),
    ("list_files", SeeFiles),
    ("get_file", SeeFiles),
    ("get_diff", SeeJob),
    ("show_job_metrics", SeeJob),
    ("stop_job", ChangeJob),
    ("suspend_job", ChangeJob),
    ("resume_job", ChangeJob),
    ("hold_job", ChangeJob),
    ("release_job", ChangeJob),
    ("rename_job", ChangeJob),
    ("change_job", ChangeJob),
    ("remove_job", ChangeJob),
    ("stop_task", ChangeJob),
    ("suspend_task", ChangeJob),
    ("resume_task", ChangeJob),
    ("rename_task", ChangeJob),
    // The queue, and who may have what.
    ("list_queue", Known(Scope::Read)),
    ("show_quota", Known(Scope::Read)),
    ("change_quota", Admin(Scope::Admin)),
    ("clear_quota", Admin(Scope::Admin)),
    ("change_user_quota", Admin(Scope::Admin)),
    ("clear_user_quota", Admin(Scope::Admin)),
    // Inside tasks.
    ("ssh", EnterJob),
    ("copy", EnterJob),
    ("list_sessions", SeeJob),
    ("get_session", SeeJob),
    ("list_commands", SeeJob),
    ("get_command", SeeJob),
    ("get_command_output", SeeJob),
    ("open_session", EnterJob),
    ("remove_session", EnterJob),
    ("run_command", EnterJob),
    ("signal_session", EnterJob),
    ("attach_session", EnterJob),
    // Code.
    ("put_bundle", Submit),
    ("put_chunks", Submit),
    ("missing_chunks", Submit),
    // Machines.
    ("list_nodes", Known(Scope::Read)),
    ("show_node_metrics", Known(Scope::Read)),
    ("list_clusters", Known(Scope::Read)),
    ("list_pools", Known(Scope::Read)),
    ("show_pool", Known(Scope::Read)),
    ("put_pool", Admin(Scope::Admin)),
    ("remove_pool", Admin(Scope::Admin)),
    ("add_hosts", Admin(Scope::Admin)),
    ("remove_node", Admin(Scope::Admin)),
    ("drain_node", Admin(Scope::Admin)),
    ("undrain_node", Admin(Scope::Admin)),
    ("label_node", Admin(Scope::Admin)),
    // The server.
    ("show_server", Known(Scope::Read)),
    ("check_server", Admin(Scope::Read)),
    ("collect_garbage", Admin(Scope::Admin)),
    ("stop_server", Admin(Scope::Admin)),
    ("reload_server", Admin(Scope::Admin)),
    ("back_up_server", Admin(Scope::Admin)),
    (METRICS.2, Admin(Scope::Read)),
    // People.
    ("login", Anyone),
    ("sign_up", Anyone),
    ("logout", Known(Scope::Read)),
    ("whoami", Known(Scope::Read)),
    ("list_users", Known(Scope::Read)),
    ("create_user", Admin(Scope::Admin)),
    ("show_user", Person(Scope::Read)),
    ("change_user", Admin(Scope::Admin)),
    ("set_display_name", Person(Scope::Admin)),
    ("set_password", Person(Scope::Admin)),
    ("list_tokens", Person(Scope::Read)),
    ("create_token", Person(Scope::Admin)),
    ("rotate_token", Person(Scope::Admin)),
    ("remove_token", Person(Scope::Admin)),
    // Workspaces.
    ("list_workspaces", Known(Scope::Read)),
    ("create_workspace", Admin(Scope::Admin)),
    ("show_workspace", Workspace(Role::Viewer, Scope::Read)),
    ("change_workspace", Workspace(Role::Lead, Scope::Admin)),
    ("remove_workspace", Admin(Scope::Admin)),
    ("put_member", Workspace(Role::Lead, Scope::Admin)),
    ("remove_member", Workspace(Role::Lead, Scope::Admin)),
    ("ask_to_join", Known(Scope::Write)),
    // Secrets. Viewers run no jobs, and so have nothing to refer to.
    ("list_secrets", Workspace(Role::Member, Scope::Read)),
    ("put_secret", Workspace(Role::Member, Scope::Write)),
    ("remove_secret", Workspace(Role::Member, Scope::Write)),
    ("list_audit", Admin(Scope::Read)),
    ("export_audit", Admin(Scope::Read)),
];

/// What is served for machines, and is not in the document.
pub(crate) const METRICS: (Method, &str, &str) = (Method::GET, "/metrics", "metrics");

/// An operation, and its rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ruled {
    pub operation: &'static str,
    pub rule: Rule,
}

/// By method and path.
pub(crate) type Rules = HashMap<(Method, String), Ruled>;

/// The rule of everything that the document has, or what is wrong with them.
pub(crate) fn of(document: &OpenApi) -> Result<Rules, String> {
    let known: HashMap<&str, Ruled> =
        RULES.iter().map(|(operation, rule)| (*operation, Ruled { operation, rule: *rule })).collect();
    let mut rules = Rules::new();
    let served = operations(document).chain([(METRICS.0, METRICS.1, METRICS.2)]);
    for (method, path, operation) in served {
        let rule =
            known.get(operation).ok_or_else(|| format!("{method} {path} ({operation}) has no rule"))?;
        rules.insert((method, path.to_owned()), *rule);
    }
    match RULES.iter().find(|(name, _)| rules.values().all(|ruled| ruled.operation != *name)) {
        Some((name, _)) => Err(format!("there is a rule for {name}, which is no operation")),
        None => Ok(rules),
    }
}

/// Everything in the document: method, path, name.
fn operations(document: &OpenApi) -> impl Iterator<Item = (Method, &str, &str)> {
    document.paths.paths.iter().flat_map(|(path, item)| {
        let PathItem { get, put, post, delete, patch, .. } = item;
        let each = [
            (Method::GET, get),
            (Method::PUT, put),
            (Method::POST, post),
            (Method::DELETE, delete),
            (Method::PATCH, patch),
        ];
        each.into_iter().filter_map(move |(method, operation)| {
            let name = operation.as_ref()?.operation_id.as_deref();
            Some((method, path.as_str(), name.unwrap_or_default()))
        })
    })
}
