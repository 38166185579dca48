//! Which elements an array has: `1-10,15,20-30:2%4`, as in Slurm.
//!
//! An element has an *index*, which people chose, and a *place* among the array's elements, counted from 0. What is kept
//! of elements is kept by place, so that an array of every third number needs as little room as one of all of them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::field::{FieldCode, Wrong};
use super::parse::{clipped, text};

/// The most elements of an array: each leaves a row behind, and a typing error is to be caught.
pub const MAX_ELEMENTS: u32 = 1_000_000;
/// The largest index of an element.
pub const MAX_INDEX: u32 = 999_999_999;
/// How many elements of an array run at once, at most; each needs a supervisor of its own.
pub const MAX_LANES: u32 = 1024;

/// The elements of an array, in order and each once, and how many of them may run at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Array {
    spans: Vec<Span>,
    count: u32,
    at_once: Option<u32>,
}

/// Indices that are equally far from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    first: u32,
    last: u32,
    step: u32,
    /// How many elements come before it.
    before: u32,
}

impl Span {
    fn count(&self) -> u32 {
        (self.last - self.first) / self.step + 1
    }
}

impl Array {
    /// An array of these indices, at least one and at most [`MAX_ELEMENTS`].
    pub fn new(mut indices: Vec<u32>, at_once: Option<u32>) -> Option<Self> {
        indices.sort_unstable();
        indices.dedup();
        let count = u32::try_from(indices.len()).ok().filter(|count| (1..=MAX_ELEMENTS).contains(count))?;
        let mut spans: Vec<Span> = Vec::new();
        let (mut rest, mut before) = (indices.as_slice(), 0);
        while let [first, more @ ..] = rest {
            let step = more.first().map_or(1, |second| second - first);
            let run = 1 + rest.windows(2).take_while(|pair| pair[1] - pair[0] == step).count();
            // Two numbers far from each other are no pattern, and the second may begin one.
            let run = if run == 2 && step > 1 { 1 } else { run };
            let step = if run == 1 { 1 } else { step };
            spans.push(Span { first: *first, last: rest[run - 1], step, before });
            before += run as u32;
            rest = &rest[run..];
        }
        Some(Self { spans, count, at_once })
    }

    /// How many elements it has.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many of them may run at once, where that was said.
    pub fn at_once(&self) -> Option<u32> {
        self.at_once
    }

    /// How many of them run at once, if there is room.
    pub fn lanes(&self) -> u32 {
        self.at_once.unwrap_or(MAX_LANES).min(MAX_LANES).min(self.count)
    }

    /// The smallest index.
    pub fn first(&self) -> u32 {
        self.spans.first().map_or(0, |span| span.first)
    }

    /// The largest index.
    pub fn last(&self) -> u32 {
        self.spans.last().map_or(0, |span| span.last)
    }

    /// The index of the element at a place.
    pub fn index(&self, place: u32) -> Option<u32> {
        if place >= self.count {
            return None;
        }
        let after = self.spans.partition_point(|span| span.before <= place);
        let span = self.spans.get(after.checked_sub(1)?)?;
        Some(span.first + (place - span.before) * span.step)
    }

    /// The place of the element with an index.
    pub fn place(&self, index: u32) -> Option<u32> {
        let after = self.spans.partition_point(|span| span.first <= index);
        let span = self.spans.get(after.checked_sub(1)?)?;
        let beyond = index - span.first;
        (index <= span.last && beyond.is_multiple_of(span.step)).then(|| span.before + beyond / span.step)
    }

    /// The place of the first element whose index is larger than this; of the first of all, for none.
    pub fn place_after(&self, index: Option<u32>) -> u32 {
        let Some(index) = index else { return 0 };
        let after = self.spans.partition_point(|span| span.first <= index);
        let Some(span) = after.checked_sub(1).and_then(|last| self.spans.get(last)) else { return 0 };
        span.before + ((index.min(span.last) - span.first) / span.step + 1).min(span.count())
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, span) in self.spans.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match (span.count(), span.step) {
                (1, _) => write!(f, "{comma}{}", span.first)?,
                (_, 1) => write!(f, "{comma}{}-{}", span.first, span.last)?,
                (_, step) => write!(f, "{comma}{}-{}:{step}", span.first, span.last)?,
            }
        }
        self.at_once.map_or(Ok(()), |at_once| write!(f, "%{at_once}"))
    }
}

/// What a person should have written.
const SHAPE: &str =
    "write indices such as 1-1000, 0-20:5 or 1,4,7-9, and %16 after them for how many may run at once";

impl FromStr for Array {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (elements, at_once) = match text.trim().split_once('%') {
            Some((elements, limit)) => (elements, Some(limit)),
            None => (text.trim(), None),
        };
        let at_once = at_once.map(|limit| {
            let number = limit.trim().parse::<u32>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| {
                format!("`%{}` does not say how many may run at once; {SHAPE}", clipped(limit))
            })
        });
        let at_once = at_once.transpose()?;
        let mut indices = Vec::new();
        for part in elements.split(',') {
            let (first, last, step) = part_of(part)?;
            let count = u64::from((last - first) / step) + 1;
            if indices.len() as u64 + count > u64::from(MAX_ELEMENTS) {
                return Err(format!(
                    "has more than {MAX_ELEMENTS} elements; submit several arrays, or give each element more to do"
                ));
            }
            indices.extend((first..=last).step_by(step as usize));
        }
        Self::new(indices, at_once).ok_or_else(|| format!("has no element; {SHAPE}"))
    }
}

/// `7`, `1-10` or `0-20:5`.
fn part_of(part: &str) -> Result<(u32, u32, u32), String> {
    let wrong = |what: &str| format!("`{}` {what}; {SHAPE}", clipped(part));
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse::<u32>().ok().filter(|number| *number <= MAX_INDEX));
        number
            .ok_or_else(|| wrong("is no index"))?
            .ok_or_else(|| wrong(&format!("is beyond {MAX_INDEX}, the largest index")))
    };
    let (range, step) = match part.trim().split_once(':') {
        Some((range, step)) => (range, number(step.trim())?),
        None => (part.trim(), 1),
    };
    let (first, last) = match range.split_once('-') {
        Some((first, last)) => (number(first.trim())?, number(last.trim())?),
        None => (number(range)?, number(range)?),
    };
    match () {
        () if step == 0 => Err(wrong("has a step of nothing")),
        () if last < first => Err(wrong("ends before it begins")),
        () => Ok((first, last, step)),
    }
}

impl TryFrom<String> for Array {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Array> for String {
    fn from(array: Array) -> Self {
        array.to_string()
    }
}

pub(super) fn array(value: Value) -> Result<Array, Wrong> {
    text(value)?.parse().map_err(Wrong::value)
}

/// What an array cannot be: more than one node, a machine, or handed to another scheduler.
pub(super) fn refuse(spec: &super::JobSpec) -> Vec<(&'static str, Wrong)> {
    if spec.array.is_none() {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    let mut not = |field, message: String| wrong.push((field, Wrong::new(FieldCode::NotSupported, message)));
    if spec.nodes > 1 {
        not(
            "nodes",
            format!(
                "must be 1 in an array, whose elements run on one node each, not {}; leave out `array`, or `nodes`",
                spec.nodes
            ),
        );
    }
    if spec.kind == super::Kind::Machine {
        not(
            "array",
            "machines run nothing, so they have no elements; leave it out, or `kind: machine`".into(),
        );
    }
    if matches!(spec.on, super::Target::Slurm(_) | super::Target::Kubernetes(_)) {
        not(
            "array",
            format!(
                "elements are started by muster's own scheduler, and {} has another; run it on local or ssh, or submit a job for each",
                spec.on
            ),
        );
    }
    wrong
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn indices(array: &Array) -> Vec<u32> {
        (0..array.count()).map(|place| array.index(place).unwrap()).collect()
    }

    #[test]
    fn the_usual_ways_to_write_an_array_are_read() {
        for (text, count, at_once, canonical) in [
            ("7", 1, None, "7"),
            ("1-1000%16", 1000, Some(16), "1-1000%16"),
            ("0-20:5", 5, None, "0-20:5"),
            ("1-10,15,20-30:2%4", 17, Some(4), "1-10,15,20-30:2%4"),
            (" 3, 1 ,2 % 2", 3, Some(2), "1-3%2"),
            ("5-9,1-5", 9, None, "1-9"),
        ] {
            let array: Array = text.parse().unwrap();
            assert_eq!(
                (array.count(), array.at_once(), array.to_string().as_str()),
                (count, at_once, canonical),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_array_is_refused_with_what_is_wrong() {
        for (text, says) in [
            ("", "is no index"),
            ("1-", "is no index"),
            ("a-b", "`a-b` is no index"),
            ("-1", "is no index"),
            ("9-1", "ends before it begins"),
            ("1-9:0", "a step of nothing"),
            ("1-5%0", "how many may run at once"),
            ("1-5%", "how many may run at once"),
            ("1-1000001", "more than 1000000 elements"),
            ("5000000000", "the largest index"),
            ("1,,2", "is no index"),
        ] {
            let error = text.parse::<Array>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn an_array_has_its_indices_in_order_and_finds_them_again(
            wanted in prop::collection::btree_set(0u32..5000, 1..300),
            at_once in prop::option::of(1u32..100),
        ) {
            let array = Array::new(wanted.iter().copied().collect(), at_once).unwrap();
            let found = indices(&array);
            prop_assert_eq!(&found, &wanted.iter().copied().collect::<Vec<_>>());
            for (place, index) in (0..).zip(&found) {
                prop_assert_eq!(array.place(*index), Some(place));
                prop_assert_eq!(array.place_after(Some(*index)), place + 1);
            }
            for index in 0..5000 {
                prop_assert_eq!(array.place(index).is_some(), wanted.contains(&index));
                let smaller = wanted.range(..=index).count() as u32;
                prop_assert_eq!(array.place_after(Some(index)), smaller);
            }
            prop_assert_eq!(array.to_string().parse::<Array>().unwrap(), array);
        }

        #[test]
        fn no_text_makes_it_panic(text in "[0-9,%: a-]{0,24}") {
            if let Ok(array) = text.parse::<Array>() {
                let all: BTreeSet<u32> = indices(&array).into_iter().collect();
                prop_assert_eq!(all.len() as u32, array.count());
            }
        }
    }
}
