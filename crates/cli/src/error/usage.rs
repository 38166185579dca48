//! A command line that cannot be read: the parser's own words, under our code.

use super::{Code, Error, Format};
use crate::terminal;

/// Says what is wrong with a command line, or shows the help that it asks for.
pub(crate) fn report(error: &clap::Error, format: Format) {
    if !error.use_stderr() || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    {
        // Help goes to stdout, and whoever closes that has seen enough.
        let _ = error.print();
        return;
    }
    match format {
        Format::Json => from_words(&error.render().to_string()).report(format),
        Format::Text => {
            let rendered = error.render();
            let text = if terminal::stderr_has_colours() {
                rendered.ansi().to_string()
            } else {
                rendered.to_string()
            };
            let title = format!("error[{}]:", Code::Usage.entry().code);
            terminal::coloured_to_stderr(&text.replacen("error:", &title, 1));
        }
    }
}

/// The first paragraph is what is wrong; a tip, if there is one, is what helps.
fn from_words(text: &str) -> Error {
    let mut paragraphs = text.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ")
    });
    let first = paragraphs.next().unwrap_or_default();
    let error = Error::new(Code::Usage, first.strip_prefix("error: ").unwrap_or(&first));
    match paragraphs.find_map(|paragraph| paragraph.strip_prefix("tip: ").map(str::to_owned)) {
        Some(tip) => error.hint(tip),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parsers_words_become_a_message_and_a_hint() {
        let error =
            from_words("error: unexpected argument '--al' found\n\n  tip: it is '--all'\n\nUsage: x\n");
        assert_eq!(
            error.text(false),
            "error[usage]: unexpected argument '--al' found\nhint: it is '--all'\n"
        );
        let error = from_words("error: these are missing:\n  <JOB>\n\nUsage: x");
        assert!(error.text(false).starts_with("error[usage]: these are missing: <JOB>\nhint: `muster"));
    }
}
