//! Where a reader left off: an attempt, and a mark in each log it has seen.

use std::collections::BTreeMap;

use muster_api::problem::Problem;
use muster_model::spec::{FieldCode, FieldError};

/// Where a reader left off.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    pub attempt: u32,
    pub marks: BTreeMap<u32, Mark>,
}

/// A place in one log, and how many bytes of each stream after it were dealt with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    pub offset: u64,
    pub skip: Option<[u64; 2]>,
}

impl Cursor {
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let parsed = text.split_once('@').and_then(|(attempt, marks)| {
            let marks = marks.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
                let (rank, mark) = pair.split_once(':')?;
                Some((rank.parse().ok()?, Mark::parse(mark)?))
            });
            Some(Self { attempt: attempt.parse().ok()?, marks: marks.collect::<Option<_>>()? })
        });
        let problem = || {
            let message =
                "must be ATTEMPT@RANK:NEXT,RANK:NEXT… as in the `next` (and `skip`) of `log` events";
            Problem::fields(vec![FieldError::new("cursor", FieldCode::InvalidValue, message)])
        };
        parsed.ok_or_else(problem)
    }
}

impl Mark {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(|number| number.parse::<u64>().ok());
        let offset = numbers.next()??;
        let skip = match (numbers.next(), numbers.next()) {
            (None, _) => None,
            (Some(stdout), Some(stderr)) => Some([stdout?, stderr?]),
            (Some(_), None) => return None,
        };
        numbers.next().is_none().then_some(Self { offset, skip })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_or_refused() {
        let cursor = Cursor::parse("2@0:7,3:25.1.40").unwrap();
        assert_eq!((cursor.attempt, cursor.marks.len()), (2, 2));
        assert_eq!(cursor.marks[&0], Mark { offset: 7, skip: None });
        assert_eq!(cursor.marks[&3], Mark { offset: 25, skip: Some([1, 40]) });
        assert_eq!(Cursor::parse("1@").unwrap(), Cursor { attempt: 1, marks: BTreeMap::new() });
        for wrong in ["", "1", "x@", "1@0", "1@0:", "1@0:1.2", "1@0:1.2.3.4", "1@0:-1", "1@a:1", "1@0:1.x.2"]
        {
            let problem = Cursor::parse(wrong).unwrap_err();
            assert_eq!(problem.errors[0].field, "cursor", "{wrong}");
        }
    }
}
