//! The settings: can they be read, and does whoever reads them take them?

use muster_api::doctor::Check;

use crate::entry::Hooks;
use crate::error::Error;
use crate::home::Home;
use crate::place::{Named, Place};

pub(super) fn checks(place: Result<&Place, &Error>, hooks: &Hooks) -> Vec<Check> {
    let mut checks = vec![chosen_server(place)];
    if let Ok(home) = Home::from_environment() {
        let path = home.config().display().to_string();
        let text = match std::fs::read_to_string(home.config()) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        checks.push(file(&path, text, hooks.check_config));
    }
    checks
}

fn chosen_server(place: Result<&Place, &Error>) -> Check {
    match place {
        Ok(Place::Named(Named { endpoint, by })) => {
            Check::ok("server to use", format!("{endpoint}, from {by}"))
        }
        Ok(Place::Private(home)) => {
            Check::ok("server to use", format!("the private one, in {}", home.folder().display()))
        }
        Err(error) => {
            let (message, remedy) = error.in_words();
            Check::broken("server to use", message, remedy)
        }
    }
}

fn file(path: &str, text: Result<Option<String>, String>, check: fn(&str) -> Result<(), String>) -> Check {
    let name = "config.toml";
    match text {
        Ok(None) => Check::ok(name, "none; everything is as by default"),
        Ok(Some(text)) => match check(&text) {
            Ok(()) => Check::ok(name, path),
            Err(fault) => Check::broken(
                name,
                format!("{path}: {}", fault.split_whitespace().collect::<Vec<_>>().join(" ")),
                "correct it, or take the setting out with `muster config unset`: no server starts with it",
            ),
        },
        Err(error) => {
            Check::broken(name, format!("{path} cannot be read: {error}"), "make it a readable file of text")
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_api::doctor::Health;

    use super::*;
    use crate::error::Code;

    fn refuse(_: &str) -> Result<(), String> {
        Err("line 1\n  slots is wrong".into())
    }

    #[test]
    fn a_file_may_be_absent_but_not_wrong_or_unreadable() {
        assert_eq!(file("/c", Ok(None), refuse).status, Health::Ok);
        assert_eq!(file("/c", Ok(Some(String::new())), |_| Ok(())).status, Health::Ok);
        let wrong = file("/c", Ok(Some(String::new())), refuse);
        assert_eq!((wrong.status, wrong.detail.as_str()), (Health::Broken, "/c: line 1 slots is wrong"));
        assert_eq!(file("/c", Err("is a directory".into()), refuse).status, Health::Broken);
    }

    #[test]
    fn a_variable_that_cannot_be_used_is_broken() {
        let error = Error::new(Code::ServerAddressInvalid, "MUSTER_SERVER: `x` is not an address");
        assert_eq!(chosen_server(Err(&error)).status, Health::Broken);
        let home = Place::Private(Home::at("/data"));
        assert!(chosen_server(Ok(&home)).detail.contains("/data"));
    }
}
