//! Where a moment lies in a log, without reading the log.
//!
//! Records carry the time at which they were written, and a task's clock goes forward. So segments can be halved: each
//! try reads one header.

use super::segment::Headers;
use super::{Error, Header, SegmentDir};

impl SegmentDir {
    /// Where to begin reading to see everything from a moment on: the start of a segment, so that a reader also sees
    /// the records just before it.
    pub fn segment_at(&self, time_micros: u64) -> Result<u64, Error> {
        let starts = self.starts()?;
        let mut known = Ok(());
        let later = starts.partition_point(|start| match self.first_time(*start) {
            Ok(first) => first.is_some_and(|first| first < time_micros),
            Err(error) => {
                known = Err(error);
                false
            }
        });
        known?;
        Ok(later.checked_sub(1).or(Some(0)).and_then(|at| starts.get(at)).copied().unwrap_or(0))
    }

    /// Where the first record begins that is later than a moment; the end of the last whole record if none is.
    pub fn offset_after(&self, time_micros: u64) -> Result<u64, Error> {
        let start = self.segment_at(time_micros.saturating_add(1))?;
        let Some(mut headers) = self.headers(start, start)? else { return Ok(start) };
        while let Some((offset, header)) = headers.next_header()? {
            if header.time_micros > time_micros {
                return Ok(offset);
            }
        }
        Ok(headers.offset)
    }

    /// When a segment's first record was written; none while it has no whole one.
    fn first_time(&self, start: u64) -> Result<Option<u64>, Error> {
        let first = |mut headers: Headers| headers.next_header();
        let first = self.headers(start, start)?.map(first).transpose()?.flatten();
        Ok(first.map(|(_, header): (u64, Header)| header.time_micros))
    }
}
