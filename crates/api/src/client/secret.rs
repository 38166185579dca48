//! Secrets.

use bytes::Bytes;

use super::account::workspace;
use super::operation::percent_encoded as segment;
use super::{Body, Client, Error, Method};
use crate::secret::{SecretList, SecretView};

impl Client {
    /// The secrets of a workspace, by name.
    pub async fn secrets(&self, of: &str) -> Result<SecretList, Error> {
        self.get(&workspace(of, "/secrets")).await
    }

    /// Puts a secret.
    pub async fn put_secret(&self, of: &str, name: &str, value: Vec<u8>) -> Result<SecretView, Error> {
        self.json(Method::PUT, &path(of, name), Body::Raw(vec![Bytes::from(value)]), &[]).await
    }

    /// Removes a secret.
    pub async fn remove_secret(&self, of: &str, name: &str) -> Result<(), Error> {
        self.unary(Method::DELETE, &path(of, name), Body::None, &[]).await.map(drop)
    }
}

fn path(of: &str, name: &str) -> String {
    workspace(of, &format!("/secrets/{}", segment(name)))
}
