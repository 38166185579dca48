//! One kind of objects, listed and then watched, for as long as there is somebody to tell.
//!
//! A watch goes on from the version that was heard last; when the API server does not know that version any more, everything is
//! listed anew, and what is missing from the list is gone. A connection may be cut without either end being told: the server
//! is asked to end every watch after a while and to send a sign of life in between, and one that says nothing for longer than that
//! is given up. The loops of a cluster are all begun anew when it has been out of reach.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::StreamExt;
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, WatchEvent};
use muster_engine::Error;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::shelf::Change;
use crate::seen::{Event, Job, Machine, Pod, Tenant};

/// How long the server may take to answer.
pub(super) const CALL: Duration = Duration::from_secs(15);
/// After how long the server is to end a watch; the next one goes on from there.
const WATCH_SECONDS: u32 = 290;
/// The API server sends a bookmark about once a minute. A watch that is silent for longer than this has been cut.
const SILENCE: Duration = Duration::from_secs(90);
/// How many objects are asked for at once.
const PAGE: u32 = 500;
/// How soon it is tried again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Who may not see something is seldom allowed to a moment later.
const DENIED_PAUSE: Duration = Duration::from_secs(60);

/// How a cluster is reached.
#[async_trait]
pub(crate) trait Reach: Send + Sync + std::fmt::Debug {
    /// A client for the cluster of a place.
    async fn client(&self, place: &str) -> Result<Client, Error>;

    /// Its credentials were turned away: the next client is to have others.
    async fn renew(&self, place: &str);
}

/// An object that can be watched.
pub(super) trait Watched: DeserializeOwned + Clone + Send + 'static {
    fn version(&self) -> &str;
}

macro_rules! watched {
    ($($kind:ty),*) => {$(
        impl Watched for $kind {
            fn version(&self) -> &str {
                &self.version
            }
        }
    )*};
}

watched!(Event, Job, Machine, Pod, Tenant);

/// Which objects.
#[derive(Debug, Clone)]
pub(super) struct Source {
    /// Where the API has them: `/apis/batch/v1/namespaces/x/jobs`.
    pub path: String,
    pub labels: Option<String>,
    pub fields: Option<String>,
}

/// Whoever is told.
pub(super) trait Ear<K>: Send + Sync {
    /// Something is new.
    fn hear(&self, change: Change<K>);

    /// The server has said something, if only that it is there.
    fn alive(&self);

    /// It could not be reached, or refused.
    fn trouble(&self, trouble: &Trouble);

    /// Returns when what is watched is to be asked for anew.
    fn reset(&self) -> impl Future<Output = ()> + Send;
}

/// Why a list or a watch came to nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The version from which to go on is not known any more.
    Expired,
    /// We may not see this.
    Denied(String),
    /// Our credentials are not accepted.
    Unknown(String),
    /// Anything else, which may pass.
    Away(String),
}

impl Trouble {
    /// For people.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Expired => "the API server has forgotten what was watched".into(),
            Self::Denied(words) | Self::Unknown(words) | Self::Away(words) => words.clone(),
        }
    }
}

/// Tells whoever listens, until it is dropped.
pub(super) async fn follow<K: Watched>(place: &str, reach: &dyn Reach, source: &Source, ear: &impl Ear<K>) {
    let mut version = None;
    let mut pause = FIRST_PAUSE;
    loop {
        let round = round(place, reach, source, ear, &mut version);
        let result = tokio::select! {
            result = round => result,
            () = ear.reset() => Ok(()),
        };
        match result {
            // The server has ended the watch as it was asked to.
            Ok(()) => {
                pause = FIRST_PAUSE;
                continue;
            }
            Err(Trouble::Expired) => {
                tracing::debug!(place, path = source.path, "listed anew");
                version = None;
            }
            Err(trouble) => {
                tracing::debug!(place, path = source.path, ?trouble, "not watched; it is tried again");
                ear.trouble(&trouble);
                if matches!(trouble, Trouble::Unknown(_)) {
                    reach.renew(place).await;
                }
                if matches!(trouble, Trouble::Denied(_)) {
                    pause = DENIED_PAUSE;
                }
            }
        }
        // Whoever is told that the way is open again does not wait.
        drop(timeout(pause, ear.reset()).await);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn round<K: Watched>(
    place: &str,
    reach: &dyn Reach,
    source: &Source,
    ear: &impl Ear<K>,
    version: &mut Option<String>,
) -> Result<(), Trouble> {
    let client = reach.client(place).await.map_err(|error| Trouble::Away(words(&error)))?;
    let from = match version {
        Some(version) => version.clone(),
        None => {
            let asked_at = Instant::now();
            let (objects, at) = list(&client, source).await?;
            ear.hear(Change::All(objects, asked_at));
            version.insert(at).clone()
        }
    };
    watch(&client, source, ear, from, version).await
}

#[derive(Deserialize)]
struct Page<K> {
    metadata: PageMetadata,
    #[serde(default = "Vec::new")]
    items: Vec<K>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct PageMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// All objects that there are, and the version as of which that is so.
async fn list<K: Watched>(client: &Client, source: &Source) -> Result<(Vec<K>, String), Trouble> {
    let mut parameters = ListParams {
        label_selector: source.labels.clone(),
        field_selector: source.fields.clone(),
        limit: Some(PAGE),
        ..ListParams::default()
    };
    let mut objects = Vec::new();
    loop {
        let request = Request::new(source.path.clone()).list(&parameters).map_err(|error| unbuilt(&error))?;
        let page: Page<K> = call(client.request(request)).await?;
        objects.extend(page.items);
        match page.metadata.next.filter(|next| !next.is_empty()) {
            Some(next) => parameters.continue_token = Some(next),
            None => return Ok((objects, page.metadata.resource_version)),
        }
    }
}

/// Tells changes until the server ends the watch.
async fn watch<K: Watched>(
    client: &Client,
    source: &Source,
    ear: &impl Ear<K>,
    from: String,
    version: &mut Option<String>,
) -> Result<(), Trouble> {
    let parameters = WatchParams {
        label_selector: source.labels.clone(),
        field_selector: source.fields.clone(),
        timeout: Some(WATCH_SECONDS),
        bookmarks: true,
        send_initial_events: false,
    };
    let request =
        Request::new(source.path.clone()).watch(&parameters, &from).map_err(|error| unbuilt(&error))?;
    let stream = call(client.request_events::<K>(request)).await?;
    ear.alive();
    let mut stream = std::pin::pin!(stream);
    loop {
        let Ok(next) = timeout(SILENCE, stream.next()).await else {
            return Err(Trouble::Away(format!("nothing was heard for {} s", SILENCE.as_secs())));
        };
        let Some(event) = next else { return Ok(()) };
        ear.alive();
        match event.map_err(|error| trouble(&error))? {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                *version = Some(object.version().to_owned());
                ear.hear(Change::Now(object));
            }
            WatchEvent::Deleted(object) => {
                *version = Some(object.version().to_owned());
                ear.hear(Change::Gone(object));
            }
            WatchEvent::Bookmark(bookmark) => *version = Some(bookmark.metadata.resource_version),
            WatchEvent::Error(status) => return Err(trouble(&kube::Error::Api(status))),
        }
    }
}

/// Within the time that an answer may take.
pub(super) async fn call<T>(answer: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Trouble> {
    match timeout(CALL, answer).await {
        Ok(result) => result.map_err(|error| trouble(&error)),
        Err(_) => Err(Trouble::Away(format!("there was no answer within {} s", CALL.as_secs()))),
    }
}

fn trouble(error: &kube::Error) -> Trouble {
    match error {
        kube::Error::Api(status) => match status.code {
            410 => Trouble::Expired,
            // A server that is older than the version, or that was put back to an earlier state.
            504 | 400 if status.message.contains("resource version") => Trouble::Expired,
            403 => Trouble::Denied(status.message.clone()),
            401 => Trouble::Unknown("the API server does not accept the credentials".into()),
            code => Trouble::Away(format!("the API server answers with {code}: {}", status.message)),
        },
        // What cannot be read is listed anew: it may have been cut in the middle.
        kube::Error::SerdeError(error) => {
            tracing::warn!(%error, "an object of the API server's cannot be read");
            Trouble::Expired
        }
        error => Trouble::Away(chain(error)),
    }
}

fn unbuilt(error: &kube::core::request::Error) -> Trouble {
    Trouble::Away(error.to_string())
}

fn words(error: &Error) -> String {
    match &error.source {
        Some(source) => format!("{}: {source}", error.what),
        None => error.what.clone(),
    }
}

/// An error with all its reasons: the last is mostly the one that says something.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        source = error.source();
    }
    words
}
