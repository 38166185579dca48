//! A server that people share, and who is on it: `viewer`, `member`, `owner` and `lead` are that in the workspace `nlp`, `out` leads
//! `cv`, and `root` is an admin.

use std::collections::BTreeMap;

use muster_api::account::{CreateToken, CreateUser, CreateWorkspace, NewToken, PutMember, WorkspaceSettings};
use muster_api::client::{Client, Endpoint, Error, Method};
use muster_api::model::account::{Role, Scope};
use serde_json::{Value, json};

use crate::fixture::Server;

/// A server that people share, and some of them.
pub struct Team {
    pub server: Server,
    pub address: String,
    pub secrets: BTreeMap<&'static str, String>,
}

impl Team {
    pub async fn new() -> Self {
        Self::on(Server::with_accounts(tempfile::tempdir().unwrap()).await).await
    }

    pub async fn on(server: Server) -> Self {
        let address = std::fs::read_to_string(server.dir.path().join("server.address")).unwrap();
        let mut team = Self { server, address, secrets: BTreeMap::new() };
        for name in ["nlp", "cv"] {
            let request = CreateWorkspace { name: name.into(), settings: WorkspaceSettings::default() };
            team.operator(Method::POST, "/workspaces", &request).await;
        }
        let nlp = Some("nlp");
        for (name, workspace, role) in [
            ("out", Some("cv"), Role::Lead),
            ("viewer", nlp, Role::Viewer),
            ("member", nlp, Role::Member),
            ("owner", nlp, Role::Member),
            ("lead", nlp, Role::Lead),
            ("root", None, Role::Lead),
        ] {
            let request = CreateUser {
                name: name.into(),
                display_name: None,
                password: None,
                admin: name == "root",
                account: None,
            };
            team.operator(Method::POST, "/users", &request).await;
            if let Some(workspace) = workspace {
                let path = format!("/workspaces/{workspace}/members/{name}");
                team.operator(Method::PUT, &path, &PutMember { role }).await;
            }
            let secret = team.token(name, Scope::Admin).await;
            team.secrets.insert(name, secret);
        }
        team
    }

    pub async fn operator(&self, method: Method, path: &str, body: &impl serde::Serialize) -> Value {
        self.server.client.request(method, path, Some(body)).await.unwrap()
    }

    pub async fn token(&self, user: &str, scope: Scope) -> String {
        let request = CreateToken { name: "test".into(), scope, workspace: None, expires_in_s: None };
        let made: NewToken = self
            .server
            .client
            .request(Method::POST, &format!("/users/{user}/tokens"), Some(&request))
            .await
            .unwrap();
        made.secret
    }

    pub async fn client(&self, secret: Option<&str>) -> Client {
        let endpoint: Endpoint = format!("http://{}", self.address).parse().unwrap();
        let endpoint = secret.map_or(endpoint.clone(), |secret| endpoint.with_token(secret).unwrap());
        Client::connect(endpoint).await.unwrap()
    }

    pub async fn of(&self, name: &str) -> Client {
        self.client(self.secrets.get(name).map(String::as_str)).await
    }

    /// A job of the owner's in `nlp`.
    pub async fn job(&self) -> String {
        let spec = json!({ "spec": { "command": ["true"], "workspace": "nlp" } });
        let made: Value = self.of("owner").await.request(Method::POST, "/jobs", Some(&spec)).await.unwrap();
        made["id"].as_str().unwrap().to_owned()
    }
}

/// Whether it was let through; what a handler made of it does not matter here.
pub async fn is_allowed(client: &Client, method: Method, path: &str, body: Option<&Value>) -> bool {
    match client.request::<Value>(method, path, body).await {
        Err(Error::Problem(problem)) => {
            let turned_away =
                matches!(problem.code.entry().code, "unauthorized" | "forbidden" | "job_not_found");
            let hidden = problem.detail.contains("there is no workspace");
            assert!(problem.status < 500, "{path}: {problem:?}");
            !(turned_away || hidden)
        }
        // Replies without a body, or that are no JSON.
        Ok(_) | Err(Error::Protocol(_)) => true,
        Err(error) => panic!("{path}: {error}"),
    }
}
