//! Everybody, everything they share and are known by, and what follows from it. Pure.

use std::collections::{BTreeMap, HashMap};

use jiff::SignedDuration;
use muster_api::problem::{Code, Problem};
use muster_model::Timestamp;
use muster_model::account::{Membership, Role, Scope, Token, User, UserState, Workspace};
use muster_store::{AccountChange, Accounts, Sight};

use crate::core::DEFAULT_WORKSPACE;

/// How long somebody who has signed up waits for a lead; then it was for nothing.
const SIGN_UP_LASTS: SignedDuration = SignedDuration::from_hours(14 * 24);

/// What somebody may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rights {
    is_admin: bool,
    scope: Scope,
    roles: BTreeMap<String, Role>,
}

impl Rights {
    /// Everything.
    pub fn all() -> Self {
        Self { is_admin: true, scope: Scope::Admin, roles: BTreeMap::new() }
    }

    pub fn is_admin(&self) -> bool {
        self.is_admin
    }

    /// Whether a token was shown that is good for this.
    pub fn reaches(&self, scope: Scope) -> bool {
        self.scope >= scope
    }

    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// What they are in a workspace; admins are at home everywhere.
    pub fn role(&self, workspace: &str) -> Option<Role> {
        if self.is_admin { Some(Role::Lead) } else { self.roles.get(workspace).copied() }
    }

    /// Whether they may run jobs in any workspace.
    pub fn can_submit(&self) -> bool {
        self.is_admin || self.roles.values().any(|role| *role >= Role::Member)
    }

    /// Where they are something themselves.
    pub fn roles(&self) -> &BTreeMap<String, Role> {
        &self.roles
    }

    /// The jobs that are there for them.
    pub fn sight(&self) -> Sight {
        if self.is_admin { Sight::All } else { Sight::Workspaces(self.roles.keys().cloned().collect()) }
    }
}

/// Everybody.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    users: BTreeMap<String, User>,
    workspaces: BTreeMap<String, Workspace>,
    /// By person, then by workspace.
    memberships: BTreeMap<(String, String), Membership>,
    tokens: BTreeMap<String, Token>,
    by_digest: HashMap<[u8; 32], String>,
}

impl Directory {
    pub fn new(stored: Accounts) -> Self {
        let mut directory = Self::default();
        let users = stored.users.into_iter().map(AccountChange::User);
        let workspaces = stored.workspaces.into_iter().map(AccountChange::Workspace);
        let memberships = stored.memberships.into_iter().map(AccountChange::Membership);
        let tokens = stored.tokens.into_iter().map(AccountChange::Token);
        for change in users.chain(workspaces).chain(memberships).chain(tokens) {
            directory.apply(&change);
        }
        directory
    }

    /// Makes it so. Says by which tokens somebody may be in who may do less now, or other things.
    pub fn apply(&mut self, change: &AccountChange) -> Vec<String> {
        match change {
            AccountChange::User(user) => {
                let before = self.users.insert(user.name.clone(), user.clone());
                // A password says who somebody is, and nothing of what they may do.
                let may = |user: &User| (user.state, user.is_admin);
                let is_other = before.is_none_or(|before| may(&before) != may(user));
                if is_other { self.tokens_of(&user.name) } else { Vec::new() }
            }
            AccountChange::RemoveUser(name) => {
                self.users.remove(name);
                self.memberships.retain(|(user, _), _| user != name);
                self.remove_tokens(|token| token.user == *name)
            }
            AccountChange::Workspace(workspace) => {
                self.workspaces.insert(workspace.name.clone(), workspace.clone());
                Vec::new()
            }
            AccountChange::RemoveWorkspace(name) => {
                self.workspaces.remove(name);
                let members = self.memberships.keys().filter(|(_, workspace)| workspace == name);
                let mut touched: Vec<String> = members.flat_map(|(user, _)| self.tokens_of(user)).collect();
                self.memberships.retain(|(_, workspace), _| workspace != name);
                touched.extend(self.remove_tokens(|token| token.workspace.as_ref() == Some(name)));
                touched
            }
            AccountChange::Membership(membership) => {
                let key = (membership.user.clone(), membership.workspace.clone());
                let before = self.memberships.insert(key, membership.clone()).and_then(|before| before.role);
                // Who is more than before loses nothing.
                if membership.role < before { self.tokens_of(&membership.user) } else { Vec::new() }
            }
            AccountChange::RemoveMembership { workspace, user } => {
                self.memberships.remove(&(user.clone(), workspace.clone()));
                self.tokens_of(user)
            }
            AccountChange::Token(token) => {
                let before = self.tokens.insert(token.id.clone(), token.clone());
                before.iter().for_each(|before| drop(self.by_digest.remove(&before.digest)));
                self.by_digest.insert(token.digest, token.id.clone());
                before.into_iter().map(|before| before.id).collect()
            }
            AccountChange::RemoveToken(id) => self.remove_tokens(|token| token.id == *id),
        }
    }

    fn remove_tokens(&mut self, is_one: impl Fn(&Token) -> bool) -> Vec<String> {
        let removed: Vec<String> =
            self.tokens.values().filter(|token| is_one(token)).map(|token| token.id.clone()).collect();
        for token in removed.iter().filter_map(|id| self.tokens.remove(id)) {
            self.by_digest.remove(&token.digest);
        }
        removed
    }

    fn tokens_of(&self, user: &str) -> Vec<String> {
        self.tokens.values().filter(|token| token.user == user).map(|token| token.id.clone()).collect()
    }

    /// Whose secret has this digest, and what it lets them do now.
    pub fn admit(&self, digest: &[u8; 32], now: Timestamp) -> Option<(&Token, Rights)> {
        let token = self.tokens.get(self.by_digest.get(digest)?)?;
        let user = self.users.get(&token.user)?;
        let is_good = user.state == UserState::Active && !token.has_expired(now);
        is_good.then(|| (token, self.rights(user, token)))
    }

    fn rights(&self, user: &User, token: &Token) -> Rights {
        let is_within = |workspace: &str| token.workspace.as_deref().is_none_or(|only| only == workspace);
        let roles = self
            .memberships_of(&user.name)
            .filter(|membership| is_within(&membership.workspace))
            .filter_map(|membership| Some((membership.workspace.clone(), membership.role?)))
            .collect();
        // What is good in one workspace is good for nothing else.
        Rights { is_admin: user.is_admin && token.workspace.is_none(), scope: token.scope, roles }
    }

    /// Why somebody may not run jobs in a workspace now; `None` if they may.
    pub fn run_obstacle(&self, name: &str, workspace: &str) -> Option<String> {
        let Some(user) = self.users.get(name) else {
            return Some(format!("there is no account `{name}`"));
        };
        match user.state {
            UserState::Disabled => return Some(format!("the account `{name}` is disabled")),
            UserState::Pending => return Some(format!("the account `{name}` is not approved")),
            UserState::Active if user.is_admin => return None,
            UserState::Active => {}
        }
        match self.membership(name, workspace).and_then(|membership| membership.role) {
            Some(role) if role >= Role::Member => None,
            Some(_) => {
                Some(format!("`{name}` is a viewer of the workspace `{workspace}`, and viewers run no jobs"))
            }
            None => Some(format!("`{name}` is not a member of the workspace `{workspace}`")),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    pub fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    pub fn users(&self) -> impl Iterator<Item = &User> {
        self.users.values()
    }

    pub fn workspace(&self, name: &str) -> Option<&Workspace> {
        self.workspaces.get(name)
    }

    pub fn workspaces(&self) -> impl Iterator<Item = &Workspace> {
        self.workspaces.values()
    }

    pub fn membership(&self, user: &str, workspace: &str) -> Option<&Membership> {
        self.memberships.get(&(user.to_owned(), workspace.to_owned()))
    }

    pub fn memberships_of<'a>(&'a self, user: &'a str) -> impl Iterator<Item = &'a Membership> {
        let first = (user.to_owned(), String::new());
        self.memberships.range(first..).take_while(move |((of, _), _)| of == user).map(|(_, one)| one)
    }

    pub fn members<'a>(&'a self, workspace: &'a str) -> impl Iterator<Item = &'a Membership> {
        self.memberships.values().filter(move |membership| membership.workspace == workspace)
    }

    pub fn tokens<'a>(&'a self, user: &'a str) -> impl Iterator<Item = &'a Token> {
        self.tokens.values().filter(move |token| token.user == user)
    }

    pub fn token(&self, user: &str, id: &str) -> Result<&Token, Problem> {
        let token = self.tokens.get(id).filter(|token| token.user == user);
        token.ok_or_else(|| {
            Problem::new(Code::NotFound, format!("{user} has no token `{}`", shown(id)))
                .hint("`muster token ls` lists them")
        })
    }

    /// Tokens that are good no longer, of everybody.
    pub fn expired_tokens(&self, now: Timestamp) -> impl Iterator<Item = &Token> {
        self.tokens.values().filter(move |token| token.has_expired(now))
    }

    /// Those who have signed up, and whom nobody has let in for too long.
    pub fn expired_sign_ups(&self, now: Timestamp) -> impl Iterator<Item = &User> {
        let is_late = move |since: Timestamp| now.duration_since(since) > SIGN_UP_LASTS;
        self.users.values().filter(move |user| user.state == UserState::Pending && is_late(user.created_at))
    }

    /// A person who must be there.
    pub fn require_user(&self, name: &str) -> Result<&User, Problem> {
        self.users.get(name).ok_or_else(|| {
            Problem::new(Code::NotFound, format!("there is no user `{}`", shown(name)))
                .hint("`muster user ls` lists them")
        })
    }

    /// A workspace that must be there.
    pub fn require_workspace(&self, name: &str) -> Result<&Workspace, Problem> {
        self.workspaces.get(name).ok_or_else(|| no_workspace(name))
    }

    /// That somebody is left who may do everything, were this so.
    pub fn require_admin_without(&self, name: &str) -> Result<(), Problem> {
        let is_other = |user: &User| user.is_admin && user.state == UserState::Active && user.name != name;
        if self.users.values().any(is_other) {
            return Ok(());
        }
        Err(Problem::new(Code::InvalidState, format!("{name} is the only admin, and one must be left"))
            .hint("make somebody else an admin first: `muster user set NAME --admin`"))
    }

    /// The workspace of a job that names none.
    pub fn default_workspace(&self, rights: &Rights) -> Result<String, Problem> {
        // Nobody draws the jobs of admins to them by making them members.
        if rights.is_admin() {
            return Ok(DEFAULT_WORKSPACE.to_owned());
        }
        let mut able = rights.roles().iter().filter(|(_, role)| **role >= Role::Member).map(|(name, _)| name);
        match (able.next(), able.next()) {
            (Some(only), None) => Ok(only.clone()),
            (None, _) => Err(Problem::new(
                Code::Forbidden,
                "you are a member of no workspace in which you may run jobs",
            )
            .hint("a lead can make you one: `muster workspace add-member WORKSPACE YOU`")),
            (Some(one), Some(other)) => {
                if rights.roles().get(DEFAULT_WORKSPACE).is_some_and(|role| *role >= Role::Member) {
                    return Ok(DEFAULT_WORKSPACE.to_owned());
                }
                let what =
                    format!("you are in several workspaces ({one}, {other}, …): which one is the job's?");
                Err(Problem::fields(vec![muster_model::spec::FieldError::new(
                    "workspace",
                    muster_model::spec::FieldCode::Required,
                    format!("{what} Name one with --workspace"),
                )]))
            }
        }
    }
}

/// What is said of a workspace that is not there, and of one that is none of the caller's.
pub(crate) fn no_workspace(name: &str) -> Problem {
    Problem::new(Code::NotFound, format!("there is no workspace `{}`", shown(name)))
        .hint("`muster workspace ls` lists yours")
}

fn shown(name: &str) -> String {
    name.chars().take(60).collect()
}
