//! Every error a user may see, of all layers, in one list: what `muster explain` and `docs/reference/errors.md` show.

use std::fmt::Write;

use muster_api::model::Reason;
use muster_api::model::catalogue::Entry;
use muster_api::model::spec::FieldCode;
use serde::Serialize;

use crate::error::{Code, Kind};

/// Where an error arises; each has its section of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Area {
    Command,
    Server,
    Field,
    Job,
}

/// An entry with what follows from where it arises.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Explained {
    #[serde(flatten)]
    pub entry: Entry,
    pub area: Area,
    /// What a command exits with; none where it depends on the case.
    pub exit_code: Option<i32>,
    /// What a server replies with, where it is a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_status: Option<u16>,
    /// Whether a job with retries left, which does not say which reasons it retries, is tried again after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retried: Option<bool>,
}

/// All of them: by area, and by code within it.
pub(crate) fn all() -> Vec<Explained> {
    let plain =
        |area, entry, exit_code| Explained { entry, area, exit_code, http_status: None, retried: None };
    let commands = Code::ALL
        .iter()
        .map(|code| plain(Area::Command, code.entry(), Some(i32::from(code.kind().exit_code()))));
    let replies = muster_api::Code::ALL.iter().map(|code| Explained {
        http_status: (*code != muster_api::Code::Unknown).then(|| code.status()),
        ..plain(Area::Server, code.entry(), Some(i32::from(Kind::of_problem(*code).exit_code())))
    });
    let invalid = muster_api::Code::InvalidFields.status();
    let fields = FieldCode::ALL.iter().map(|code| Explained {
        http_status: Some(invalid),
        ..plain(Area::Field, code.entry(), Some(i32::from(Kind::Input.exit_code())))
    });
    let reasons = Reason::examples();
    let reasons = reasons.iter().map(|reason| Explained {
        retried: Some(reason.retry()),
        ..plain(Area::Job, reason.entry(), fixed_exit_code(reason))
    });
    let mut all: Vec<Explained> = commands.chain(replies).chain(fields).chain(reasons).collect();
    all.sort_by_key(|explained| (explained.area as u8, explained.entry.code));
    all
}

/// The exit code of a reason, where it is the same in every case.
fn fixed_exit_code(reason: &Reason) -> Option<i32> {
    match reason {
        Reason::ExitCode { .. } | Reason::SetupFailed { .. } | Reason::Signal { .. } => None,
        other => Some(other.exit_code()),
    }
}

impl Explained {
    /// The exit code in words, also where it depends on the case.
    pub fn exit_words(&self) -> String {
        match (self.exit_code, self.entry.code) {
            (Some(code), _) => code.to_string(),
            (None, "signal") => "128 + the signal's number".into(),
            (None, _) => "the program's own".into(),
        }
    }
}

/// `docs/reference/errors.md`.
pub(crate) fn page() -> String {
    let all = all();
    let mut text = String::from(
        "\
<!-- Made by `muster explain --markdown`; the texts are in the sources. Do not edit. -->

# Errors

Every error has a code that does not change, and a remedy. Commands print it as `error[CODE]: message`, with a line
`hint:` below; asked for `--json`, as one line on stderr with `code`, `message`, `hint`, `errors` (the fields that are
wrong, each with `field`, `code` and `message`) and `details`. A server replies with a problem document (RFC 9457) that
has the same names. `muster explain CODE` says what is written here.

Scripts should compare codes and exit codes, never messages: those may become clearer at any time.

",
    );
    for (area, title, about) in [
        (
            Area::Command,
            "From a command",
            "What goes wrong before a server is asked, or on the way to it and back.",
        ),
        (
            Area::Server,
            "From a server",
            "What a server refuses. The code is in the problem document, and commands print it.",
        ),
        (
            Area::Field,
            "About a field",
            "What is wrong with a field of a job, in a file, a flag or a request. If one field is wrong, a command's \
             error has its code; if several are, it is `invalid_fields`, and each is listed. Nothing was done.",
        ),
        (
            Area::Job,
            "Why a job ended",
            "`muster show`, `muster why` and `muster ps` name the reason of a job that is over; `retries.on` takes \
             these codes. \"Retried\" says whether `retries: N` alone starts the job again after it.",
        ),
    ] {
        section(&mut text, &all, area, title, about);
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn section(text: &mut String, all: &[Explained], area: Area, title: &str, about: &str) {
    let (head, cell): (_, fn(&Explained) -> String) = match area {
        Area::Command => ("", |_| String::new()),
        Area::Server | Area::Field => {
            (" HTTP |", |it| format!(" {} |", it.http_status.map_or("-".into(), |status| status.to_string())))
        }
        Area::Job => {
            (" Retried |", |it| format!(" {} |", if it.retried == Some(true) { "yes" } else { "no" }))
        }
    };
    let rule = if head.is_empty() { "" } else { " --- |" };
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "## {title}\n\n{about}\n\n| Code | Meaning | What to do | Exit code |{head}\n| --- | --- | --- | --- |{rule}\n"
    );
    for it in all.iter().filter(|it| it.area == area) {
        let Entry { code, meaning, remedy } = it.entry;
        let _ = writeln!(text, "| `{code}` | {meaning} | {remedy} | {} |{}", it.exit_words(), cell(it));
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_in_snake_case() {
        let mut seen = HashSet::new();
        for Explained { entry, .. } in all() {
            assert!(seen.insert(entry.code), "`{}` is there twice", entry.code);
            let plain = entry.code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            let framed =
                entry.code.starts_with('_') || entry.code.ends_with('_') || entry.code.contains("__");
            assert!(plain && !framed && !entry.code.is_empty(), "`{}` is not snake_case", entry.code);
        }
    }

    #[test]
    fn every_entry_has_a_meaning_and_a_remedy_in_a_sentence() {
        for Explained { entry, .. } in all() {
            for words in [entry.meaning, entry.remedy] {
                let is_sentence = words.len() > 10 && words.ends_with('.') && words.trim() == words;
                assert!(is_sentence, "`{}`: {words:?} is not a sentence", entry.code);
                assert!(!words.contains(['|', '\n']), "`{}`: {words:?} would break a table", entry.code);
            }
        }
    }

    #[test]
    fn every_code_is_on_the_page() {
        let page = page();
        for Explained { entry, .. } in all() {
            assert!(page.contains(&format!("\n| `{}` | {}", entry.code, entry.meaning)), "{}", entry.code);
        }
    }

    /// The same test as that of `make check`, for whoever runs only the tests.
    #[test]
    fn the_page_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == page(),
            "docs/reference/errors.md is out of date; write it anew:\n  \
             cargo run -q -p muster-app -- explain --markdown > docs/reference/errors.md"
        );
    }

    #[test]
    fn field_codes_and_reasons_are_spelled_alike_in_json() {
        for code in FieldCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), code.entry().code);
        }
    }
}
