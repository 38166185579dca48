//! Which server a command talks to, and who says so: flags, the environment, the contexts that a user has, or nobody, and then
//! it is the private one.

use std::env;
use std::fmt;
use std::sync::{Once, OnceLock};

use clap::Args;
use muster_api::client::{self, Endpoint, TlsError};

use crate::contexts::{Contexts, LOCAL, Store};
use crate::error::{Code, Error};
use crate::home::Home;
use crate::terminal;

/// What every command takes. Told once, in the root's help, rather than in that of every command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub(crate) struct Choice {
    /// The server to talk to: https://HOST:PORT, http://HOST:PORT or unix:/PATH
    #[arg(long, global = true, hide = true, value_name = "URL", conflicts_with = "context")]
    server: Option<String>,
    /// The same by the name that `muster context` has for it
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    context: Option<String>,
    /// The certificate that the server must show: sha256:…
    #[arg(long, global = true, hide = true, value_name = "FINGERPRINT")]
    fingerprint: Option<String>,
}

/// What the flags of this process say. Every command asks for it, most of them deep inside.
static CHOICE: OnceLock<Choice> = OnceLock::new();

/// It is said once that a token is not shown.
static WITHHELD: Once = Once::new();

/// Remembers what the flags say; once, before any command begins.
pub(crate) fn choose(choice: Choice) {
    // Only a test that reads two lines comes here twice.
    let _ = CHOICE.set(choice);
}

/// `--fingerprint`, for the command that writes it down.
pub(crate) fn chosen_fingerprint() -> Option<&'static str> {
    CHOICE.get()?.fingerprint.as_deref()
}

/// Which server a command talks to.
pub(crate) enum Place {
    /// One that somebody runs.
    Named(Named),
    /// This user's own.
    Private(Home),
}

/// A server that is never started, and who has named it.
pub(crate) struct Named {
    pub endpoint: Endpoint,
    pub by: By,
}

/// Who has named a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum By {
    Flag,
    Variable,
    Context(String),
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("--server"),
            Self::Variable => f.write_str("MUSTER_SERVER"),
            Self::Context(name) => write!(f, "the context `{name}`"),
        }
    }
}

impl Place {
    /// As flags, variables and contexts say.
    pub fn from_environment() -> Result<Self, Error> {
        let choice = CHOICE.get().cloned().unwrap_or_default();
        match named(&choice, variable, || Store::from_environment()?.read())? {
            Some(named) => {
                if !named.endpoint.has_token() && variable("MUSTER_TOKEN")?.is_some() {
                    WITHHELD.call_once(|| named.withheld());
                }
                Ok(Self::Named(named))
            }
            None => Ok(Self::Private(Home::from_environment()?)),
        }
    }
}

fn variable(name: &str) -> Result<Option<String>, Error> {
    match env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => {
            let code = match name {
                "MUSTER_TOKEN" => Code::TokenInvalid,
                "MUSTER_FINGERPRINT" => Code::FingerprintInvalid,
                "MUSTER_CONTEXT" => Code::NoSuchContext,
                _ => Code::ServerAddressInvalid,
            };
            Err(Error::new(code, format!("{name} is not valid UTF-8")))
        }
    }
}

/// The server that is not the private one, if any is meant. What contexts there are is asked only where it matters.
fn named(
    choice: &Choice,
    variable: impl Fn(&str) -> Result<Option<String>, Error>,
    contexts: impl FnOnce() -> Result<Contexts, Error>,
) -> Result<Option<Named>, Error> {
    let meant = variable("MUSTER_SERVER")?;
    let (address, by) = match (&choice.server, &meant) {
        (Some(server), _) => (Some(server.clone()), By::Flag),
        (None, Some(server)) => (Some(server.clone()), By::Variable),
        (None, None) => (None, By::Variable),
    };
    let Some(address) = address else { return of_context(choice, variable, &contexts()?) };
    if let (By::Variable, Some(context)) = (&by, &choice.context) {
        // Either may be what was meant, and what goes to the wrong server may not be undone.
        return Err(Error::new(
            Code::Usage,
            format!("--context {context}: MUSTER_SERVER names {address} already"),
        )
        .hint("take one of them away: env -u MUSTER_SERVER muster …"));
    }
    let mut endpoint: Endpoint = address.parse().map_err(|error| Error::endpoint(&by.to_string(), error))?;
    if let Some(fingerprint) = choice.fingerprint.clone().or(variable("MUSTER_FINGERPRINT")?) {
        endpoint = pinned(endpoint, &fingerprint, choice, "MUSTER_FINGERPRINT")?;
    }
    // Where variables name another server than the flag does, the token is that one's.
    let is_elsewhere = match &meant {
        Some(server) => *server != address,
        None => variable("MUSTER_CONTEXT")?.is_some(),
    };
    if let Some(token) = variable("MUSTER_TOKEN")?.filter(|_| !is_elsewhere) {
        endpoint = shown(endpoint, &token, "MUSTER_TOKEN")?;
    }
    Ok(Some(Named { endpoint, by }))
}

fn of_context(
    choice: &Choice,
    variable: impl Fn(&str) -> Result<Option<String>, Error>,
    contexts: &Contexts,
) -> Result<Option<Named>, Error> {
    let meant = variable("MUSTER_CONTEXT")?;
    let name = choice.context.clone().or_else(|| meant.clone());
    let name = name.unwrap_or_else(|| contexts.current().to_owned());
    let Some(context) = contexts.find(&name)? else {
        return match &choice.fingerprint {
            Some(_) => Err(Error::new(
                Code::Usage,
                format!(
                    "--fingerprint: the context `{LOCAL}` is the private server, which shows no certificate"
                ),
            )),
            None => Ok(None),
        };
    };
    // A token in the environment is for the server that the environment names, and for no other.
    let is_meant = meant.as_ref() == Some(&name);
    let by = By::Context(name);
    let mut endpoint: Endpoint =
        context.url.parse().map_err(|error| Error::endpoint(&by.to_string(), error))?;
    // What a pin is not for, it only refuses.
    let lacking = match &context.fingerprint {
        None if context.url.starts_with("https://") => variable("MUSTER_FINGERPRINT")?,
        known => known.clone(),
    };
    if let Some(fingerprint) = choice.fingerprint.clone().or(lacking) {
        endpoint = pinned(endpoint, &fingerprint, choice, &by.to_string())?;
    }
    let token = match &context.token {
        None => variable("MUSTER_TOKEN")?.filter(|_| is_meant),
        known => known.clone(),
    };
    if let Some(token) = token {
        endpoint = shown(endpoint, &token, &by.to_string())?;
    }
    Ok(Some(Named { endpoint, by }))
}

fn pinned(endpoint: Endpoint, fingerprint: &str, choice: &Choice, by: &str) -> Result<Endpoint, Error> {
    let by = if choice.fingerprint.is_some() { "--fingerprint" } else { by };
    endpoint.with_fingerprint(fingerprint).map_err(|error| Error::endpoint(by, error))
}

fn shown(endpoint: Endpoint, token: &str, by: &str) -> Result<Endpoint, Error> {
    endpoint.with_token(token).map_err(|error| Error::endpoint(by, error))
}

impl Named {
    /// Says that there is a token in the environment which is not for this server.
    fn withheld(&self) {
        terminal::note(&format!(
            "MUSTER_TOKEN is not shown to {}, which {} names: it goes with MUSTER_SERVER or MUSTER_CONTEXT",
            self.endpoint, self.by
        ));
    }

    /// What a client's failure to connect means, with what helps whoever has named the server so.
    pub fn failed(&self, error: client::Error) -> Error {
        match error {
            client::Error::Unreachable { .. } => Error::from(error).hint(match &self.by {
                By::Flag => "--server names it; without it a private server is used".to_owned(),
                By::Variable => "MUSTER_SERVER names it; unset it to use a private server".to_owned(),
                By::Context(name) => format!(
                    "the context `{name}` names it; `muster context ls` lists them, `muster context use local` goes back to the private server"
                ),
            }),
            client::Error::Tls { source: TlsError::Unknown { found, .. }, .. } => {
                let hint = format!(
                    "if `muster server status` says that fingerprint on the server's machine, pin it: {}",
                    self.pin(&found.to_string())
                );
                Error::from(error).hint(hint)
            }
            client::Error::Tls { source: TlsError::Changed { pinned, found }, .. } => {
                let message = format!("THE CERTIFICATE OF {} HAS CHANGED", self.endpoint);
                Error::new(Code::CertificateChanged, message)
                    .detail(format!("pinned  {pinned}"))
                    .detail(format!("shown   {found}"))
                    .detail("somebody may be between you and the server; nothing was sent, and no token was shown".to_owned())
                    .hint(format!(
                        "ask whoever runs the server; if it was replaced, pin the new one: {}",
                        self.pin(&found.to_string())
                    ))
            }
            error => error.into(),
        }
    }

    /// What to type so that this certificate is believed.
    fn pin(&self, fingerprint: &str) -> String {
        match &self.by {
            By::Flag => format!("--fingerprint {fingerprint}"),
            By::Variable => format!("export MUSTER_FINGERPRINT={fingerprint}"),
            By::Context(name) => {
                let replace =
                    if self.endpoint.fingerprint().is_some() { " --replace-fingerprint" } else { "" };
                format!("muster context add {name} {} --fingerprint {fingerprint}{replace}", self.endpoint)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contexts::Context;

    const PIN: &str = "sha256:0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f";

    fn contexts(current: &str) -> Contexts {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(Home::at(folder.path()));
        for name in ["lab", "home"] {
            store.put(name, Context::new(&format!("https://{name}:1"), Some(PIN)).unwrap()).unwrap();
        }
        store.put("bare", Context::new("https://bare:1", None).unwrap()).unwrap();
        store.put("plain", Context::new("http://plain:1", None).unwrap()).unwrap();
        store.choose(current).unwrap();
        store.read().unwrap()
    }

    fn find(
        choice: &Choice,
        variables: &[(&str, &str)],
        current: &str,
    ) -> Result<Option<(String, By)>, Error> {
        let variable = |name: &str| {
            Ok(variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
        };
        let named = named(choice, variable, || Ok(contexts(current)))?;
        Ok(named.map(|named| (named.endpoint.to_string(), named.by)))
    }

    fn flag(server: Option<&str>, context: Option<&str>) -> Choice {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Choice { server: owned(server), context: owned(context), fingerprint: None }
    }

    #[test]
    fn who_speaks_louder_is_heard() {
        let variables = [("MUSTER_SERVER", "http://a:1"), ("MUSTER_CONTEXT", "home")];
        let none = Choice::default();
        let at = |url: &str, by: By| Some((url.to_owned(), by));
        let context = |name: &str| at(&format!("https://{name}:1"), By::Context(name.to_owned()));
        assert_eq!(
            find(&flag(Some("http://b:2"), None), &variables, "lab").unwrap(),
            at("http://b:2", By::Flag)
        );
        assert_eq!(find(&none, &variables, "lab").unwrap(), at("http://a:1", By::Variable));
        assert_eq!(find(&flag(None, Some("lab")), &variables[1..], "bare").unwrap(), context("lab"));
        assert_eq!(find(&none, &variables[1..], "lab").unwrap(), context("home"));
        assert_eq!(find(&none, &[], "lab").unwrap(), context("lab"));
        assert_eq!(find(&none, &[], LOCAL).unwrap(), None);
        assert_eq!(find(&flag(None, Some(LOCAL)), &variables[1..], "lab").unwrap(), None);
        // Which of the two was meant is anybody's guess.
        let both = find(&flag(None, Some("lab")), &variables, LOCAL).unwrap_err();
        assert!(both.to_string().contains("MUSTER_SERVER names http://a:1"), "{both}");
    }

    #[test]
    fn a_pin_is_never_left_out_without_a_word() {
        let none = Choice::default();
        let pin = [("MUSTER_SERVER", "https://a:1"), ("MUSTER_FINGERPRINT", PIN)];
        assert!(find(&none, &pin, LOCAL).is_ok());
        let plain = [("MUSTER_SERVER", "http://a:1"), pin[1]];
        assert!(find(&none, &plain, LOCAL).unwrap_err().to_string().contains("MUSTER_FINGERPRINT"));
        let wrong = [pin[0], ("MUSTER_FINGERPRINT", "sha256:1")];
        assert!(find(&none, &wrong, LOCAL).unwrap_err().to_string().contains("64 hexadecimal"));
        // A context has its own; the variable is another server's where the context cannot have one.
        assert!(find(&none, &pin[1..], "bare").is_ok());
        assert!(find(&none, &pin[1..], "plain").is_ok());
        let flag = Choice { fingerprint: Some(PIN.into()), ..Choice::default() };
        assert!(find(&flag, &[], "lab").is_ok());
        assert!(find(&flag, &[], "plain").unwrap_err().to_string().contains("--fingerprint"));
        assert!(find(&flag, &[], LOCAL).unwrap_err().to_string().contains("--fingerprint"));
    }

    #[test]
    fn a_token_is_shown_only_to_the_server_that_it_was_given_with() {
        let token = ("MUSTER_TOKEN", "t0ken");
        let (server, context) = (("MUSTER_SERVER", "http://a:1"), ("MUSTER_CONTEXT", "bare"));
        let shown = |choice: &Choice, variables: &[(&str, &str)], current: &str| {
            let variable = |name: &str| {
                Ok(variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned()))
            };
            let found = named(choice, variable, || Ok(contexts(current))).unwrap().unwrap();
            found.endpoint.has_token()
        };
        let none = Choice::default();
        assert!(shown(&none, &[server, token], "lab"));
        assert!(shown(&flag(Some("http://b:2"), None), &[token], "lab"));
        assert!(shown(&flag(Some("http://a:1"), None), &[server, token], "lab"));
        assert!(shown(&none, &[context, token], "lab"));
        assert!(shown(&flag(None, Some("bare")), &[context, token], "lab"));
        // To nobody whom it was not given with.
        assert!(!shown(&none, &[token], "bare"));
        assert!(!shown(&flag(None, Some("bare")), &[token], "lab"));
        assert!(!shown(&flag(None, Some("lab")), &[context, token], "bare"));
        assert!(!shown(&flag(Some("http://b:2"), None), &[server, token], "lab"));
        assert!(!shown(&flag(Some("http://b:2"), None), &[context, token], "lab"));
    }

    #[test]
    fn a_context_that_is_not_there_is_an_error_and_not_the_private_server() {
        for (choice, variables) in
            [(flag(None, Some("gone")), &[][..]), (Choice::default(), &[("MUSTER_CONTEXT", "gone")])]
        {
            let error = find(&choice, variables, LOCAL).unwrap_err();
            assert!(error.to_string().contains("no context `gone`"), "{error}");
        }
    }
}
