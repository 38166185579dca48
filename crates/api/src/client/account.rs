//! People, workspaces and tokens.

use serde::Serialize;

use super::operation::{percent_encoded as segment, with_query};
use super::{Body, Client, Download, Error, Method, encode};
use crate::account::{
    AuditLinesQuery, AuditPage, AuditQuery, ChangeUser, CreateToken, CreateUser, CreateWorkspace, Login,
    NewToken, PutMember, SetDisplayName, SetPassword, SignUp, TokenList, UserList, UserView, WhoAmI,
    WorkspaceList, WorkspaceSettings, WorkspaceView,
};

impl Client {
    /// A token for a password.
    pub async fn login(&self, login: &Login) -> Result<NewToken, Error> {
        self.request(Method::POST, "/login", Some(login)).await
    }

    /// Asks for an account.
    pub async fn sign_up(&self, request: &SignUp) -> Result<(), Error> {
        self.done(Method::POST, "/signup", Some(request)).await
    }

    /// The token of this client is good no longer.
    pub async fn logout(&self) -> Result<(), Error> {
        self.done(Method::POST, "/logout", None::<&()>).await
    }

    /// Who this client is to the server.
    pub async fn whoami(&self) -> Result<WhoAmI, Error> {
        self.get("/whoami").await
    }

    /// People.
    pub async fn users(&self) -> Result<UserList, Error> {
        self.get("/users").await
    }

    /// Somebody.
    pub async fn user(&self, name: &str) -> Result<UserView, Error> {
        self.get(&user(name, "")).await
    }

    /// Makes somebody an account.
    pub async fn create_user(&self, request: &CreateUser) -> Result<UserView, Error> {
        self.request(Method::POST, "/users", Some(request)).await
    }

    /// Changes what somebody may do.
    pub async fn change_user(&self, name: &str, request: &ChangeUser) -> Result<UserView, Error> {
        self.request(Method::PATCH, &user(name, ""), Some(request)).await
    }

    /// Sets the display name of a user; an empty text removes it.
    pub async fn set_display_name(&self, name: &str, display_name: &str) -> Result<UserView, Error> {
        let request = SetDisplayName { display_name: display_name.into() };
        self.request(Method::PUT, &user(name, "/display-name"), Some(&request)).await
    }

    /// Sets a password.
    pub async fn set_password(&self, name: &str, request: &SetPassword) -> Result<(), Error> {
        self.done(Method::PUT, &user(name, "/password"), Some(request)).await
    }

    /// Somebody's tokens.
    pub async fn tokens(&self, name: &str) -> Result<TokenList, Error> {
        self.get(&user(name, "/tokens")).await
    }

    /// Makes a token.
    pub async fn create_token(&self, name: &str, request: &CreateToken) -> Result<NewToken, Error> {
        self.request(Method::POST, &user(name, "/tokens"), Some(request)).await
    }

    /// Gives a token another secret.
    pub async fn rotate_token(&self, name: &str, token: &str) -> Result<NewToken, Error> {
        let path = user(name, &format!("/tokens/{}/rotate", segment(token)));
        self.request(Method::POST, &path, None::<&()>).await
    }

    /// Removes a token.
    pub async fn delete_token(&self, name: &str, token: &str) -> Result<(), Error> {
        self.done(Method::DELETE, &user(name, &format!("/tokens/{}", segment(token))), None::<&()>).await
    }

    /// The workspaces that this client may see.
    pub async fn workspaces(&self) -> Result<WorkspaceList, Error> {
        self.get("/workspaces").await
    }

    /// A workspace.
    pub async fn workspace(&self, name: &str) -> Result<WorkspaceView, Error> {
        self.get(&workspace(name, "")).await
    }

    /// Makes a workspace.
    pub async fn create_workspace(&self, request: &CreateWorkspace) -> Result<WorkspaceView, Error> {
        self.request(Method::POST, "/workspaces", Some(request)).await
    }

    /// Changes a workspace.
    pub async fn change_workspace(
        &self,
        name: &str,
        request: &WorkspaceSettings,
    ) -> Result<WorkspaceView, Error> {
        self.request(Method::PATCH, &workspace(name, ""), Some(request)).await
    }

    /// Removes a workspace.
    pub async fn delete_workspace(&self, name: &str) -> Result<(), Error> {
        self.done(Method::DELETE, &workspace(name, ""), None::<&()>).await
    }

    /// Makes somebody something in a workspace.
    pub async fn put_member(
        &self,
        name: &str,
        who: &str,
        request: &PutMember,
    ) -> Result<WorkspaceView, Error> {
        self.request(Method::PUT, &workspace(name, &format!("/members/{}", segment(who))), Some(request))
            .await
    }

    /// Takes somebody out of a workspace.
    pub async fn delete_member(&self, name: &str, who: &str) -> Result<(), Error> {
        let path = workspace(name, &format!("/members/{}", segment(who)));
        self.done(Method::DELETE, &path, None::<&()>).await
    }

    /// Asks to become a member.
    pub async fn ask_to_join(&self, name: &str) -> Result<(), Error> {
        self.done(Method::POST, &workspace(name, "/requests"), None::<&()>).await
    }

    /// The audit log as JSON lines, oldest first.
    pub async fn audit_lines(&self, query: &AuditLinesQuery) -> Result<Download, Error> {
        let pairs = [("after", query.after.map(|seq| seq.to_string()))];
        self.download(&with_query("/audit/lines", &pairs)).await
    }

    /// A page of the audit log, newest first.
    pub async fn audit(&self, query: &AuditQuery) -> Result<AuditPage, Error> {
        let pairs = [
            ("user", query.user.clone()),
            ("operation", query.operation.clone()),
            ("limit", query.limit.map(|limit| limit.to_string())),
            ("cursor", query.cursor.clone()),
        ];
        self.get(&with_query("/audit", &pairs)).await
    }

    /// A request whose reply says nothing more.
    async fn done(&self, method: Method, path: &str, body: Option<&impl Serialize>) -> Result<(), Error> {
        let json = body.map(|body| encode(path, body)).transpose()?;
        self.unary(method, path, json.as_deref().map_or(Body::None, Body::Json), &[]).await.map(drop)
    }
}

fn user(name: &str, rest: &str) -> String {
    format!("/users/{}{rest}", segment(name))
}

pub(super) fn workspace(name: &str, rest: &str) -> String {
    format!("/workspaces/{}{rest}", segment(name))
}
