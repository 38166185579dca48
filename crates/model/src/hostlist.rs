//! Slurm's notation for many hosts: `n[1-4,7],login2,gpu[001-010]`.
//!
//! Both directions do what `scontrol show hostnames` and `scontrol show hostlist` do, which scripts rely on; the testkit has
//! them compared. Where those go wrong on nonsense (a bracket that is never closed, numbers past 64 bits), this refuses.
//! A list from elsewhere is bounded before it is expanded: a few characters can stand for billions of hosts.

use std::fmt::Write;

/// The most hosts that one list may stand for. Slurm has the same bound for one range.
pub const MAX_HOSTS: usize = 65_536;
/// The longest name that DNS allows.
const MAX_NAME: usize = 255;

/// Why a text is not a list of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A bracket without its other half, or one in another.
    #[error("'{0}' has a bracket without its other half")]
    Bracket(String),
    /// Something between brackets that is neither a number nor a range.
    #[error("'{0}' between brackets is neither a number nor a range of numbers as in 1-4")]
    Range(String),
    /// Something follows the last bracket, which Slurm does not have either.
    #[error("'{0}' goes on after its last bracket; write such hosts out, with commas between them")]
    Suffix(String),
    /// A name that no host can have.
    #[error("a host's name may have {MAX_NAME} characters, and one that begins with '{0}' is longer")]
    Name(String),
    /// More hosts than anybody has.
    #[error("the list stands for more than {MAX_HOSTS} hosts")]
    TooMany,
}

/// Part of a name: text, and then numbers to choose from.
struct Dimension<'a> {
    text: &'a str,
    ranges: Vec<Range>,
}

/// Numbers from one to another, written with at least so many digits.
#[derive(Clone, Copy)]
struct Range {
    first: u64,
    last: u64,
    width: usize,
}

impl Dimension<'_> {
    /// How much there is to choose from.
    fn len(&self) -> usize {
        let sum = self.ranges.iter().fold(0, |sum: usize, range| sum.saturating_add(range.len()));
        if self.ranges.is_empty() { 1 } else { sum }
    }
}

impl Range {
    fn len(self) -> usize {
        usize::try_from(self.last - self.first).unwrap_or(usize::MAX).saturating_add(1)
    }
}

/// The hosts of a list, in its order, repeated where it repeats them.
pub fn parse(list: &str) -> Result<Vec<String>, Error> {
    let mut hosts = Vec::new();
    for item in items(list)? {
        expand(item, &mut hosts)?;
    }
    Ok(hosts)
}

/// The shortest way to write hosts without changing their order. Names with commas, spaces or brackets are no names of hosts; they
/// are written as they are.
pub fn print<S: AsRef<str>>(hosts: &[S]) -> String {
    let mut list = String::new();
    let mut rest = hosts.iter().map(AsRef::as_ref).peekable();
    while let Some(host) = rest.next() {
        if !list.is_empty() {
            list.push(',');
        }
        let Some((prefix, first)) = numbered(host) else {
            list.push_str(host);
            continue;
        };
        let mut ranges = vec![first];
        while let Some((_, next)) =
            rest.peek().and_then(|host| numbered(host)).filter(|(other, _)| *other == prefix)
        {
            rest.next();
            append(&mut ranges, next);
        }
        list.push_str(prefix);
        write_ranges(&mut list, &ranges);
    }
    list
}

/// What stands between commas or spaces outside of brackets.
fn items(list: &str) -> Result<Vec<&str>, Error> {
    let mut found = Vec::new();
    let (mut begin, mut is_inside) = (0, false);
    for (at, character) in list.char_indices() {
        match character {
            '[' if is_inside => return Err(Error::Bracket(shown(&list[begin..]))),
            '[' => is_inside = true,
            ']' if !is_inside => return Err(Error::Bracket(shown(&list[begin..]))),
            ']' => is_inside = false,
            ',' | ' ' | '\t' | '\n' | '\r' if !is_inside => {
                found.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if is_inside {
        return Err(Error::Bracket(shown(&list[begin..])));
    }
    found.push(&list[begin..]);
    Ok(found.into_iter().filter(|item| !item.is_empty()).collect())
}

/// Adds the hosts that one item stands for.
fn expand(item: &str, hosts: &mut Vec<String>) -> Result<(), Error> {
    let dimensions = dimensions(item)?;
    let longest: usize =
        dimensions.iter().map(|it| it.text.len() + it.ranges.iter().map(digits).max().unwrap_or(0)).sum();
    if longest > MAX_NAME {
        return Err(Error::Name(shown(item)));
    }
    let count = dimensions.iter().map(Dimension::len).fold(1, usize::saturating_mul);
    if count.saturating_add(hosts.len()) > MAX_HOSTS {
        return Err(Error::TooMany);
    }
    let written: Vec<Vec<String>> = dimensions.iter().map(write_all).collect();
    // As Slurm has it: the last numbers change fastest, and then the first, the second and so on.
    let order: Vec<usize> =
        written.len().checked_sub(1).into_iter().chain(0..written.len().saturating_sub(1)).collect();
    for number in 0..count {
        let (mut left, mut chosen) = (number, vec![0; written.len()]);
        for place in &order {
            chosen[*place] = left % written[*place].len();
            left /= written[*place].len();
        }
        hosts.push(written.iter().zip(chosen).map(|(texts, choice)| texts[choice].as_str()).collect());
    }
    Ok(())
}

/// The parts of an item; one without brackets has one, with nothing to choose.
fn dimensions(item: &str) -> Result<Vec<Dimension<'_>>, Error> {
    let mut found = Vec::new();
    let mut rest = item;
    while let Some((text, after)) = rest.split_once('[') {
        let (inside, after) = after.split_once(']').ok_or_else(|| Error::Bracket(shown(item)))?;
        found.push(Dimension { text, ranges: inside.split(',').map(range).collect::<Result<_, _>>()? });
        rest = after;
    }
    match (rest, found.is_empty()) {
        (_, true) => Ok(vec![Dimension { text: rest, ranges: Vec::new() }]),
        ("", false) => Ok(found),
        (_, false) => Err(Error::Suffix(shown(item))),
    }
}

fn range(text: &str) -> Result<Range, Error> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |part: &str| {
        let is_digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        is_digits.then(|| part.parse().ok()).flatten().ok_or_else(|| Error::Range(shown(text)))
    };
    let range = Range { first: number(first)?, last: number(last)?, width: first.len() };
    if range.first > range.last { Err(Error::Range(shown(text))) } else { Ok(range) }
}

fn digits(range: &Range) -> usize {
    range.width.max(range.last.checked_ilog10().map_or(1, |log| log as usize + 1))
}

/// Everything that a dimension may be.
fn write_all(dimension: &Dimension) -> Vec<String> {
    if dimension.ranges.is_empty() {
        return vec![dimension.text.to_owned()];
    }
    let numbers = dimension
        .ranges
        .iter()
        .flat_map(|range| (range.first..=range.last).map(|number| (number, range.width)));
    numbers.map(|(number, width)| format!("{}{number:0width$}", dimension.text)).collect()
}

/// A name as text and the number it ends with, if it does.
fn numbered(host: &str) -> Option<(&str, Range)> {
    let prefix = host.trim_end_matches(|character: char| character.is_ascii_digit());
    let digits = &host[prefix.len()..];
    let number = digits.parse().ok()?;
    Some((prefix, Range { first: number, last: number, width: digits.len() }))
}

/// Makes the last range longer if the next number follows it and is written alike, else adds another.
fn append(ranges: &mut Vec<Range>, next: Range) {
    if let Some(last) = ranges.last_mut() {
        let alike = next.width == digits(&Range { width: last.width, ..next });
        if alike && last.last.checked_add(1) == Some(next.first) {
            last.last = next.last;
            return;
        }
    }
    ranges.push(next);
}

fn write_ranges(list: &mut String, ranges: &[Range]) {
    let is_one = matches!(ranges, [only] if only.first == only.last);
    let texts = ranges.iter().map(|range| {
        let mut text = format!("{:0width$}", range.first, width = range.width);
        if range.last > range.first {
            let _ = write!(text, "-{:0width$}", range.last, width = range.width);
        }
        text
    });
    let inside = texts.collect::<Vec<_>>().join(",");
    let _ = if is_one { write!(list, "{inside}") } else { write!(list, "[{inside}]") };
}

/// The beginning of a text from elsewhere, for an error.
fn shown(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read_as_slurm_reads_them() {
        for (list, hosts) in [
            ("", ""),
            ("login", "login"),
            ("n[1-4,7],login2", "n1 n2 n3 n4 n7 login2"),
            ("gpu[008-010]", "gpu008 gpu009 gpu010"),
            ("n[8-11]", "n8 n9 n10 n11"),
            ("n[01-3]", "n01 n02 n03"),
            ("n[1-003]", "n1 n2 n3"),
            ("[1-3]", "1 2 3"),
            (",n1,,n2 n3\n", "n1 n2 n3"),
            ("n[2,1,2]", "n2 n1 n2"),
            ("a[1-2]b[3-4]", "a1b3 a1b4 a2b3 a2b4"),
            ("a[1,3][05-06]", "a105 a106 a305 a306"),
            ("a[1-2]b[1-2]c[1-2]", "a1b1c1 a1b1c2 a2b1c1 a2b1c2 a1b2c1 a1b2c2 a2b2c1 a2b2c2"),
        ] {
            assert_eq!(parse(list).map(|hosts| hosts.join(" ")), Ok(hosts.to_owned()), "{list}");
        }
    }

    #[test]
    fn nonsense_and_bombs_are_refused() {
        let of = |list: &str| parse(list).expect_err(list);
        for list in ["n[1-", "n[1", "n]", "n[[1-2]]", "n[1]]"] {
            assert!(matches!(of(list), Error::Bracket(_)), "{list}");
        }
        for list in [
            "n[]",
            "n[1,,2]",
            "n[3-1]",
            "n[a-c]",
            "n[-1]",
            "n[1-]",
            "n[1-2-3]",
            "n[+1]",
            "n[99999999999999999999]",
        ] {
            assert!(matches!(of(list), Error::Range(_)), "{list}");
        }
        for list in ["n[1-2]b", "foo-[1-2].bar.com", "n[1-2]3"] {
            assert!(matches!(of(list), Error::Suffix(_)), "{list}");
        }
        for list in
            ["n[1-999999999]", "n[0-18446744073709551615]", "a[1-2],n[1-65535]", &"x[1-10]".repeat(36)]
        {
            assert_eq!(of(list), Error::TooMany, "{list}");
        }
        assert!(matches!(of(&"n".repeat(256)), Error::Name(_)));
        assert!(matches!(of(&format!("n[{}-2]", "0".repeat(300))), Error::Name(_)));
        assert_eq!(parse("n[1-65536]").map(|hosts| hosts.len()), Ok(MAX_HOSTS));
    }

    #[test]
    fn hosts_are_written_as_slurm_writes_them() {
        for (hosts, list) in [
            ("n1 n2 n3 n10", "n[1-3,10]"),
            ("n01 n02 n3", "n[01-02,3]"),
            ("n3 n1 n2 n1", "n[3,1-2,1]"),
            ("n09 n10 n11", "n[09-11]"),
            ("n9 n10 n11", "n[9-11]"),
            ("n99 n0100", "n[99,0100]"),
            ("n1 n01 n001", "n[1,01,001]"),
            ("b2 a1 b1 a2", "b2,a1,b1,a2"),
            ("foo bar n1", "foo,bar,n1"),
            ("a1b1 a1b2 a2b1 1 2", "a1b[1-2],a2b1,[1-2]"),
            ("x1y x2y", "x1y,x2y"),
            ("n18446744073709551614 n18446744073709551615", "n[18446744073709551614-18446744073709551615]"),
            ("n99999999999999999999 n1", "n99999999999999999999,n1"),
            ("", ""),
        ] {
            assert_eq!(print(&hosts.split_whitespace().collect::<Vec<_>>()), list, "{hosts}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(hosts in prop::collection::vec("[a-c]{0,2}(0{0,2}[0-9]{1,2}|[a-c])", 0..40)) {
            prop_assert_eq!(parse(&print(&hosts)), Ok(hosts));
        }

        #[test]
        fn names_of_any_kind_survive(hosts in prop::collection::vec("[^\\s,\\[\\]]{1,30}", 0..10)) {
            prop_assert_eq!(parse(&print(&hosts)), Ok(hosts));
        }

        #[test]
        fn no_text_does_harm(list in "[n0-9,\\[\\] -]{0,40}|\\PC{0,40}") {
            if let Ok(hosts) = parse(&list) {
                prop_assert!(hosts.len() <= MAX_HOSTS);
                prop_assert_eq!(parse(&print(&hosts)), Ok(hosts));
            }
        }
    }
}
