//! Prometheus' text format, version 0.0.4.
//!
//! The crates for it keep registries of long-lived counters; here everything is read anew for each page, and what is left of
//! the format is these lines. All lines of a name stand together under its help and type, as the format demands.

use std::fmt::{self, Write};

/// The content type that goes with it.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a family of series is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A page that is being written.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

/// All series of one name.
pub(super) struct Family<'a> {
    page: &'a mut Page,
    name: &'static str,
    kind: Kind,
    help: &'static str,
    is_begun: bool,
}

impl Page {
    /// A family of series. One without any leaves no trace.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> Family<'_> {
        Family { page: self, name, kind, help, is_begun: false }
    }

    pub fn finish(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// One value. Labels must be those of no other value of this family.
    pub fn value(&mut self, labels: &[(&str, &str)], value: impl fmt::Display) -> &mut Self {
        self.line("", labels, value)
    }

    /// The same, if it is known.
    pub fn known(&mut self, labels: &[(&str, &str)], value: Option<impl fmt::Display>) -> &mut Self {
        if let Some(value) = value {
            self.value(labels, value);
        }
        self
    }

    /// A value of a histogram: of its buckets, its sum or its count.
    pub fn part(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl fmt::Display) -> &mut Self {
        self.line(suffix, labels, value)
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl fmt::Display) -> &mut Self {
        if !self.is_begun {
            self.is_begun = true;
            let kind = match self.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let (name, help) = (self.name, escaped(self.help, false));
            let _ = write!(self.page.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        let text = &mut self.page.text;
        let _ = write!(text, "{}{suffix}", self.name);
        for (i, (label, value)) in labels.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            let _ = write!(text, "{before}{label}=\"{}\"", escaped(value, true));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(text, "{after} {value}");
        self
    }
}

/// A label's value, or a help text, in which quotes mean nothing.
fn escaped(text: &str, is_label: bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '\n' => escaped.push_str("\\n"),
            '"' if is_label => escaped.push_str("\\\""),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_a_head_and_labels_are_escaped() {
        let mut page = Page::default();
        page.family("a_total", Kind::Counter, "A \\ \"thing\"\nof two lines.").value(&[], 3);
        page.family("nothing", Kind::Gauge, "Not there.").known(&[], None::<u64>);
        page.family("b", Kind::Gauge, "B.")
            .value(&[("x", "a\"b\\c\nd"), ("y", "训练")], 0.5)
            .known(&[("x", "")], Some(7));
        page.family("h", Kind::Histogram, "H.").part("_bucket", &[("le", "+Inf")], 2).part("_sum", &[], 0.25);
        assert_eq!(
            page.finish(),
            "# HELP a_total A \\\\ \"thing\"\\nof two lines.\n# TYPE a_total counter\na_total 3\n\
             # HELP b B.\n# TYPE b gauge\nb{x=\"a\\\"b\\\\c\\nd\",y=\"训练\"} 0.5\nb{x=\"\"} 7\n\
             # HELP h H.\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 0.25\n"
        );
    }
}
