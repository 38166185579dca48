//! Sessions of tasks, as methods.

use muster_model::session::{Session, SessionCommand};

use super::operation::{job_path, percent_encoded, with_query};
use super::{Body, Client, Download, Error, Line, Method, encode};
use crate::view::{
    AttachQuery, CommandList, CommandQuery, OpenSession, OutputQuery, RunCommand, SendSignal, SessionList,
    SessionsQuery,
};

impl Client {
    /// The sessions of a task.
    pub async fn sessions(&self, selector: &str, query: &SessionsQuery) -> Result<SessionList, Error> {
        let path = with_query(&job_path(selector, "/sessions"), &task(query.task));
        self.json(Method::GET, &path, Body::None, &[]).await
    }

    /// One of them.
    pub async fn session(&self, selector: &str, name: &str, query: &SessionsQuery) -> Result<Session, Error> {
        let path = with_query(&session_path(selector, name, ""), &task(query.task));
        self.json(Method::GET, &path, Body::None, &[]).await
    }

    /// Opens a session, unless it is open.
    pub async fn open_session(
        &self,
        selector: &str,
        name: &str,
        query: &SessionsQuery,
        how: &OpenSession,
    ) -> Result<Session, Error> {
        let path = with_query(&session_path(selector, name, ""), &task(query.task));
        self.request(Method::PUT, &path, Some(how)).await
    }

    /// Ends a session's shell, and removes its files.
    pub async fn remove_session(
        &self,
        selector: &str,
        name: &str,
        query: &SessionsQuery,
    ) -> Result<(), Error> {
        let path = with_query(&session_path(selector, name, ""), &task(query.task));
        self.unary(Method::DELETE, &path, Body::None, &[]).await.map(drop)
    }

    /// Gives a session a command. The same key gives it once, however often it is sent.
    pub async fn run_command(
        &self,
        selector: &str,
        name: &str,
        query: &SessionsQuery,
        run: &RunCommand,
        idempotency_key: &str,
    ) -> Result<SessionCommand, Error> {
        let path = with_query(&session_path(selector, name, "/commands"), &task(query.task));
        let headers = [("idempotency-key", idempotency_key)];
        self.json(Method::POST, &path, Body::Json(&encode(&path, run)?), &headers).await
    }

    /// The last commands of a session.
    pub async fn commands(
        &self,
        selector: &str,
        name: &str,
        query: &SessionsQuery,
    ) -> Result<CommandList, Error> {
        let path = with_query(&session_path(selector, name, "/commands"), &task(query.task));
        self.json(Method::GET, &path, Body::None, &[]).await
    }

    /// How a command is, or is once it is over.
    pub async fn command(
        &self,
        selector: &str,
        name: &str,
        number: u32,
        query: &CommandQuery,
    ) -> Result<SessionCommand, Error> {
        let path = session_path(selector, name, &format!("/commands/{number}"));
        let pairs = [
            ("task", query.task.map(|task| task.to_string())),
            ("wait", query.wait.map(|seconds| seconds.to_string())),
        ];
        self.json(Method::GET, &with_query(&path, &pairs), Body::None, &[]).await
    }

    /// What a command has written. One that is followed may be silent for longer than a download may; then it is to be
    /// asked for again, from where it was.
    pub async fn command_output(
        &self,
        selector: &str,
        name: &str,
        number: u32,
        query: &OutputQuery,
    ) -> Result<Download, Error> {
        let path = session_path(selector, name, &format!("/commands/{number}/output"));
        let pairs = [
            ("task", query.task.map(|task| task.to_string())),
            ("offset", (query.offset > 0).then(|| query.offset.to_string())),
            ("follow", query.follow.then(|| "true".to_owned())),
        ];
        self.download(&with_query(&path, &pairs)).await
    }

    /// Sends a signal to what runs in a session.
    pub async fn signal_session(
        &self,
        selector: &str,
        name: &str,
        query: &SessionsQuery,
        signal: &SendSignal,
    ) -> Result<(), Error> {
        let path = with_query(&session_path(selector, name, "/signal"), &task(query.task));
        let body = encode(&path, signal)?;
        self.unary(Method::POST, &path, Body::Json(&body), &[]).await.map(drop)
    }

    /// Sits down at a session's terminal. What comes are its bytes; what goes are the records of
    /// `muster_link::message::SessionAsk::Attach`.
    pub async fn attach_session(
        &self,
        selector: &str,
        name: &str,
        query: &AttachQuery,
    ) -> Result<Line, Error> {
        let pairs = [
            ("task", query.task.map(|task| task.to_string())),
            ("columns", Some(query.columns.to_string())),
            ("rows", Some(query.rows.to_string())),
        ];
        self.upgrade(&with_query(&session_path(selector, name, "/attach"), &pairs)).await
    }
}

fn session_path(selector: &str, name: &str, rest: &str) -> String {
    job_path(selector, &format!("/sessions/{}{rest}", percent_encoded(name)))
}

fn task(rank: Option<u32>) -> [(&'static str, Option<String>); 1] {
    [("task", rank.map(|rank| rank.to_string()))]
}
