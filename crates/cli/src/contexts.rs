//! The servers that this user knows by name: `contexts.json` beside the private server's data, for its owner's eyes only, since
//! it has the tokens.
//!
//! The private server is the context [`LOCAL`], which is always there and never in the file. Whoever changes the file holds a
//! lock and puts a whole new one in its place, so that readers need none.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use muster_api::client::Endpoint;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Code, Error};
use crate::home::Home;

/// Where they are, in the data directory.
pub(crate) const FILE: &str = "contexts.json";
/// What the private server is called.
pub(crate) const LOCAL: &str = "local";
/// It is held for as long as a small file takes to be written.
const LOCK_DEADLINE: Duration = Duration::from_secs(5);
const LOCK_POLL: Duration = Duration::from_millis(5);
const MAX_NAME: usize = 63;

/// A server, by its name.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Context {
    /// `https://HOST:PORT`, `http://HOST:PORT` or `unix:/PATH`.
    pub url: String,
    /// The certificate that it must show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// What it knows its user by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What a newer muster has written, which is kept.
    #[serde(flatten)]
    other: Map<String, Value>,
}

impl Context {
    /// One that nothing is known of but its address and its certificate; both are checked.
    pub fn new(url: &str, fingerprint: Option<&str>) -> Result<Self, Error> {
        let wrong = |error| Error::endpoint("URL", error);
        let mut endpoint: Endpoint = url.parse().map_err(wrong)?;
        if let Some(fingerprint) = fingerprint {
            endpoint = endpoint.with_fingerprint(fingerprint).map_err(wrong)?;
        }
        let fingerprint = endpoint.fingerprint().map(|pinned| pinned.to_string());
        Ok(Self { url: endpoint.to_string(), fingerprint, ..Self::default() })
    }

    /// What becomes of the context of a name when somebody says anew what it is. What is known of a server stays with its address: its
    /// token, and its pin, which is never replaced or dropped in passing.
    pub fn renewed(self, name: &str, known: Option<Self>, replace: bool) -> Result<Self, Error> {
        let Some(known) = known.filter(|known| known.url == self.url) else { return Ok(self) };
        let fingerprint = match (&known.fingerprint, self.fingerprint) {
            (_, new) if replace => new,
            (Some(pinned), Some(new)) if *pinned != new => {
                return Err(Error::new(
                    Code::CertificateChanged,
                    format!("the context `{name}` has another certificate pinned already"),
                )
                .detail(format!("pinned  {pinned}"))
                .detail(format!("given   {new}"))
                .hint(format!(
                    "ask whoever runs the server; if its certificate was replaced: muster context add {name} {} --fingerprint {new} \
                     --replace-fingerprint",
                    known.url
                )));
            }
            (pinned, new) => new.or_else(|| pinned.clone()),
        };
        Ok(Self { fingerprint, ..known })
    }
}

/// Those that there are.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Contexts {
    /// The one that commands use; the private server, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    pub contexts: BTreeMap<String, Context>,
    #[serde(flatten)]
    other: Map<String, Value>,
}

impl Contexts {
    /// The one that commands use.
    pub fn current(&self) -> &str {
        self.current.as_deref().unwrap_or(LOCAL)
    }

    /// One that must be there; none for the private server.
    pub fn find(&self, name: &str) -> Result<Option<&Context>, Error> {
        if name == LOCAL {
            return Ok(None);
        }
        let missing = || {
            let known =
                self.contexts.keys().map(String::as_str).chain([LOCAL]).collect::<Vec<_>>().join(", ");
            Error::new(Code::NoSuchContext, format!("there is no context `{name}`"))
                .hint(format!("there are: {known}; `muster context add {name} URL` adds it"))
        };
        self.contexts.get(name).map(Some).ok_or_else(missing)
    }
}

/// Where contexts are kept.
pub(crate) struct Store {
    home: Home,
}

impl Store {
    pub fn new(home: Home) -> Self {
        Self { home }
    }

    pub fn from_environment() -> Result<Self, Error> {
        Home::from_environment().map(Self::new)
    }

    fn path(&self) -> PathBuf {
        self.home.folder().join(FILE)
    }

    /// All of them.
    pub fn read(&self) -> Result<Contexts, Error> {
        let path = self.path();
        let text = match fs::read(&path) {
            // Where there can be no file there are no contexts; that no data can be there is said by whoever has some.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Contexts::default());
            }
            text => text.map_err(|error| self.failed("read", &error))?,
        };
        serde_json::from_slice(&text).map_err(|error| {
            Error::new(Code::ContextsUnusable, format!("{} cannot be read: {error}", path.display()))
        })
    }

    /// Which one commands use.
    pub fn current(&self) -> Result<String, Error> {
        Ok(self.read()?.current().to_owned())
    }

    /// One of them, if it is there.
    pub fn get(&self, name: &str) -> Result<Option<Context>, Error> {
        Ok(self.read()?.contexts.remove(name))
    }

    /// Adds one, or says anew what the one of this name is.
    pub fn put(&self, name: &str, context: Context) -> Result<(), Error> {
        self.put_with(name, context, false)
    }

    /// The same; `replace`: with another certificate than the one that is pinned, or with none.
    pub fn put_with(&self, name: &str, context: Context, replace: bool) -> Result<(), Error> {
        check_name(name)?;
        self.change(|all| {
            let given = context.token.clone();
            let mut context = context.renewed(name, all.contexts.remove(name), replace)?;
            context.token = given.or(context.token);
            all.contexts.insert(name.to_owned(), context);
            Ok(())
        })
    }

    /// Changes one that is there, such as its token, and nothing else that somebody may be changing.
    pub fn update(&self, name: &str, change: impl FnOnce(&mut Context)) -> Result<(), Error> {
        self.change(|all| {
            all.find(name)?;
            let Some(context) = all.contexts.get_mut(name) else { return Err(not_changed()) };
            change(context);
            Ok(())
        })
    }

    /// Takes one away. Commands that used it use the private server again.
    pub fn remove(&self, name: &str) -> Result<(), Error> {
        self.change(|all| {
            all.find(name)?;
            if all.contexts.remove(name).is_none() {
                return Err(not_changed());
            }
            if all.current() == name {
                all.current = None;
            }
            Ok(())
        })
    }

    /// Makes commands use it.
    pub fn choose(&self, name: &str) -> Result<(), Error> {
        self.change(|all| {
            all.find(name)?;
            all.current = (name != LOCAL).then(|| name.to_owned());
            Ok(())
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Contexts) -> Result<T, Error>) -> Result<T, Error> {
        self.home.create()?;
        let _lock = self.lock()?;
        let mut all = self.read()?;
        let changed = change(&mut all)?;
        self.write(&all).map_err(|error| self.failed("write", &error))?;
        Ok(changed)
    }

    fn write(&self, all: &Contexts) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(all)?;
        text.push(b'\n');
        let temporary = self.home.folder().join("contexts.json.new");
        // One that was left behind may be anybody's to read.
        drop(fs::remove_file(&temporary));
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(temporary, self.path())
    }

    fn lock(&self) -> Result<File, Error> {
        let path = self.home.folder().join("contexts.lock");
        let file = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|error| self.failed("lock", &error))?;
        let deadline = Instant::now() + LOCK_DEADLINE;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) if Instant::now() < deadline => {
                    sleep(LOCK_POLL);
                }
                Err(error) => return Err(self.failed("lock", &error.into())),
            }
        }
    }

    fn failed(&self, verb: &str, error: &io::Error) -> Error {
        Error::io(Code::ContextsUnusable, format!("{verb} {}", self.path().display()), error)
    }
}

fn not_changed() -> Error {
    let message = format!("`{LOCAL}` is the private server, which is always there and needs no settings");
    Error::new(Code::ContextInvalid, message)
}

fn check_name(name: &str) -> Result<(), Error> {
    if name == LOCAL {
        return Err(not_changed());
    }
    let is_valid = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let begins_well = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if begins_well && name.len() <= MAX_NAME && name.bytes().all(is_valid) {
        return Ok(());
    }
    let message = format!(
        "`{name}` cannot be the name of a context; it is letters, digits, `.`, `_` and `-`, at most {MAX_NAME}"
    );
    Err(Error::new(Code::ContextInvalid, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(Home::at(folder.path().join("home")));
        (folder, store)
    }

    fn lab() -> Context {
        Context::new("https://head:7717", Some(&format!("sha256:{}", "AB".repeat(32)))).unwrap()
    }

    #[test]
    fn a_context_is_kept_for_its_owner_alone_and_its_token_is_changed_by_itself() {
        let (_folder, store) = store();
        assert_eq!(store.current().unwrap(), LOCAL);
        store.put("lab", lab()).unwrap();
        store.choose("lab").unwrap();
        store.update("lab", |context| context.token = Some("s3cret".into())).unwrap();
        let kept = store.get("lab").unwrap().unwrap();
        assert_eq!((kept.url.as_str(), kept.token.as_deref()), ("https://head:7717", Some("s3cret")));
        assert_eq!(kept.fingerprint, Some(format!("sha256:{}", "ab".repeat(32))));
        assert_eq!(store.current().unwrap(), "lab");
        assert_eq!(fs::metadata(store.path()).unwrap().permissions().mode() & 0o777, 0o600);
        store.remove("lab").unwrap();
        assert_eq!((store.current().unwrap().as_str(), store.get("lab").unwrap().is_none()), (LOCAL, true));
    }

    #[test]
    fn a_pin_is_kept_until_somebody_says_otherwise() {
        let (_folder, store) = store();
        store.put("lab", lab()).unwrap();
        store.update("lab", |context| context.token = Some("s3cret".into())).unwrap();
        let pin = |first: &str| format!("sha256:{}", first.repeat(32));
        let at = |url: &str, pin: Option<&str>| Context::new(url, pin).unwrap();
        let kept = || store.get("lab").unwrap().map(|kept| (kept.fingerprint, kept.token)).unwrap();
        // The same address again, without a word about the certificate.
        store.put("lab", at("https://head:7717", None)).unwrap();
        assert_eq!(kept(), (Some(pin("ab")), Some("s3cret".into())));
        store.put("lab", at("https://head:7717", Some(&pin("ab")))).unwrap();
        // Another one is not taken without a word, and both are named.
        let other = || at("https://head:7717", Some(&pin("cd")));
        let (message, hint) = store.put("lab", other()).unwrap_err().in_words();
        assert!(message.contains(&pin("ab")) && message.contains(&pin("cd")), "{message}");
        assert!(hint.contains("--replace-fingerprint"), "{hint}");
        assert_eq!(kept(), (Some(pin("ab")), Some("s3cret".into())));
        store.put_with("lab", other(), true).unwrap();
        assert_eq!(kept(), (Some(pin("cd")), Some("s3cret".into())));
        store.put_with("lab", at("https://head:7717", None), true).unwrap();
        assert_eq!(kept(), (None, Some("s3cret".into())));
        // Another address is another server: nothing of the first is for it.
        store.put("lab", at("https://other:7717", None)).unwrap();
        assert_eq!(kept(), (None, None));
    }

    #[test]
    fn what_is_not_there_or_cannot_be_is_refused_and_changes_nothing() {
        let (_folder, store) = store();
        store.put("lab", lab()).unwrap();
        let before = fs::read(store.path()).unwrap();
        for refused in [
            store.choose("nowhere").unwrap_err(),
            store.remove("nowhere").unwrap_err(),
            store.remove(LOCAL).unwrap_err(),
            store.put(LOCAL, lab()).unwrap_err(),
            store.put("-x", lab()).unwrap_err(),
            store.put("a b", lab()).unwrap_err(),
            store.update(LOCAL, |context| context.token = None).unwrap_err(),
        ] {
            assert!(!refused.to_string().is_empty());
        }
        assert_eq!(fs::read(store.path()).unwrap(), before);
        assert!(store.choose("nowhere").unwrap_err().in_words().1.contains("lab, local"));
        fs::write(store.path(), "{").unwrap();
        assert!(store.read().err().unwrap().to_string().contains("contexts.json"));
    }

    #[test]
    fn what_a_newer_muster_has_written_is_kept() {
        let (_folder, store) = store();
        store.put("lab", lab()).unwrap();
        let text = r#"{"contexts": {"lab": {"url": "http://a:1", "user": "ada"}}, "version": 2}"#;
        fs::write(store.path(), text).unwrap();
        store.choose("lab").unwrap();
        let now: Value = serde_json::from_slice(&fs::read(store.path()).unwrap()).unwrap();
        assert_eq!(
            (&now["contexts"]["lab"]["user"], &now["version"]),
            (&Value::from("ada"), &Value::from(2))
        );
    }

    #[test]
    fn many_who_write_at_once_lose_nothing() {
        let (_folder, store) = store();
        std::thread::scope(|scope| {
            for i in 0..16 {
                let store = &store;
                scope.spawn(move || store.put(&format!("c{i}"), lab()).unwrap());
            }
        });
        assert_eq!(store.read().unwrap().contexts.len(), 16);
    }
}
