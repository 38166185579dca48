//! What holds now, and why: the environment, the file, or nobody said anything.

use std::ffi::OsString;
use std::path::Path;

use serde::Serialize;

use super::edit;
use crate::contexts::{FILE as CONTEXTS, LOCAL};
use crate::entry::Setting;
use crate::error::Error;
use crate::home::Home;

/// A setting as it holds.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Effective {
    pub key: String,
    pub value: String,
    source: Source,
    /// The variable or the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<String>,
    pub meaning: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Source {
    Default,
    Environment,
    File,
}

impl Effective {
    pub fn is_default(&self) -> bool {
        self.source == Source::Default
    }

    pub fn from(&self) -> &str {
        self.place.as_deref().unwrap_or("default")
    }
}

/// What variables say, and of contexts the file that has them, which names `current`.
pub(super) fn of_environment(
    home: &Home,
    current: &str,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Vec<Effective> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let one = |key: &str, name: &str, default: &str, meaning| {
        let value = set(name).map(|value| value.to_string_lossy().into_owned());
        let source = if value.is_some() { Source::Environment } else { Source::Default };
        let place = value.is_some().then(|| name.to_owned());
        Effective { key: key.into(), value: value.unwrap_or_else(|| default.into()), source, place, meaning }
    };
    let folder = home.folder().to_string_lossy();
    let mut home = one("home", "MUSTER_HOME", &folder, "the data of the private server");
    home.value = folder.into_owned();
    if home.is_default() && set("XDG_DATA_HOME").is_some_and(|data| Path::new(&data).is_absolute()) {
        (home.source, home.place) = (Source::Environment, Some("XDG_DATA_HOME".into()));
    }
    let mut token = one("token", "MUSTER_TOKEN", "-", "what the other server knows you by");
    if !token.is_default() {
        // It is a secret, and this is what people paste into bug reports.
        token.value = "(set)".into();
    }
    let mut context =
        one("context", "MUSTER_CONTEXT", LOCAL, "which of `muster context ls` commands talk to");
    if context.is_default() && current != LOCAL {
        context.value = current.to_owned();
        (context.source, context.place) = (Source::File, Some(CONTEXTS.into()));
    }
    let colours = match (set("NO_COLOR"), variable("TERM").filter(|term| term == "dumb")) {
        (Some(_), _) => Some("NO_COLOR"),
        (None, Some(_)) => Some("TERM"),
        (None, None) => None,
    };
    vec![
        home,
        context,
        one("server", "MUSTER_SERVER", "the context's", "the server that commands talk to"),
        one("fingerprint", "MUSTER_FINGERPRINT", "-", "the certificate that the other server must show"),
        token,
        Effective {
            key: "color".into(),
            value: if colours.is_some() { "never" } else { "auto" }.into(),
            source: if colours.is_some() { Source::Environment } else { Source::Default },
            place: colours.map(Into::into),
            meaning: "colours on a terminal; --color goes before it",
        },
        one("log", "MUSTER_LOG", "info", "how much the private server and its agent log"),
    ]
}

/// What the file may say.
pub(super) fn of_file(text: &str, path: &Path, settings: &[Setting]) -> Result<Vec<Effective>, Error> {
    let one = |setting: &Setting| {
        let value = edit::get(text, setting.key)?;
        Ok(Effective {
            key: setting.key.into(),
            source: if value.is_some() { Source::File } else { Source::Default },
            place: value.is_some().then(|| path.to_string_lossy().into_owned()),
            value: value.unwrap_or_else(|| setting.default.into()),
            meaning: setting.meaning,
        })
    };
    settings.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(variables: &[(&str, &str)]) -> Vec<(String, String, String)> {
        let variable = |name: &str| variables.iter().find(|it| it.0 == name).map(|it| OsString::from(it.1));
        of_environment(&Home::at("/data/muster"), LOCAL, variable)
            .into_iter()
            .map(|it| (it.key.clone(), it.value.clone(), it.from().to_owned()))
            .collect()
    }

    fn row(key: &str, value: &str, from: &str) -> (String, String, String) {
        (key.into(), value.into(), from.into())
    }

    #[test]
    fn without_variables_everything_is_as_nobody_said() {
        let expected = [
            row("home", "/data/muster", "default"),
            row("context", "local", "default"),
            row("server", "the context's", "default"),
            row("fingerprint", "-", "default"),
            row("token", "-", "default"),
            row("color", "auto", "default"),
            row("log", "info", "default"),
        ];
        assert_eq!(shown(&[]), expected);
    }

    #[test]
    fn a_variable_is_named_and_a_secret_is_not_shown() {
        let variables = [
            ("XDG_DATA_HOME", "/data"),
            ("MUSTER_SERVER", "http://a:1"),
            ("MUSTER_TOKEN", "s3cret"),
            ("NO_COLOR", "1"),
            ("MUSTER_LOG", "debug"),
        ];
        let expected = [
            row("home", "/data/muster", "XDG_DATA_HOME"),
            row("context", "local", "default"),
            row("server", "http://a:1", "MUSTER_SERVER"),
            row("fingerprint", "-", "default"),
            row("token", "(set)", "MUSTER_TOKEN"),
            row("color", "never", "NO_COLOR"),
            row("log", "debug", "MUSTER_LOG"),
        ];
        assert_eq!(shown(&variables), expected);
    }

    #[test]
    fn the_context_in_use_is_shown_with_its_file() {
        let home = Home::at("/data/muster");
        let all = of_environment(&home, "lab", |_| None);
        let context = all.iter().find(|it| it.key == "context").unwrap();
        assert_eq!((context.value.as_str(), context.from()), ("lab", "contexts.json"));
        let all = of_environment(&home, "lab", |name| (name == "MUSTER_CONTEXT").then(|| "home".into()));
        let context = all.iter().find(|it| it.key == "context").unwrap();
        assert_eq!((context.value.as_str(), context.from()), ("home", "MUSTER_CONTEXT"));
    }

    #[test]
    fn the_file_is_named_for_what_it_says() {
        let settings = [
            Setting { key: "local.slots", default: "many", meaning: "", example: "" },
            Setting { key: "local.cpus", default: "all", meaning: "", example: "" },
        ];
        let found = of_file("[local]\nslots = 3\n", Path::new("/c.toml"), &settings).unwrap();
        assert_eq!((found[0].value.as_str(), found[0].from()), ("3", "/c.toml"));
        assert_eq!((found[1].value.as_str(), found[1].from()), ("all", "default"));
    }
}
