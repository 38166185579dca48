//! Marks: records that are not output, but say whose output is around them.
//!
//! They are in the log so that they reach the server as it does: each once, in order, whoever dies meanwhile. Whoever
//! reads output never sees them.

use jiff::Timestamp;
use muster_model::array::{Mark, Marked};

use super::{Error, Header, SegmentDir, Stream};

impl Header {
    /// The header and the bytes of a mark.
    pub fn mark(mark: &Mark, time_micros: u64) -> Vec<u8> {
        let body = serde_json::to_vec(mark).unwrap_or_default();
        let length = u32::try_from(body.len()).unwrap_or(0);
        let header = Header { length, stream: Stream::Stdout, time_micros, is_mark: true, process: None };
        let mut record = header.encode().to_vec();
        record.extend(body);
        record
    }
}

impl SegmentDir {
    /// The marks from `from` on, where a record must begin: as many as these at most, and where to go on from. Output is
    /// jumped over. What is not understood is from a newer supervisor, and passed over.
    pub fn marks(&self, from: u64, most: usize) -> Result<(Vec<Marked>, u64), Error> {
        let (mut marks, mut offset) = (Vec::new(), from);
        while marks.len() < most {
            let Some(start) = self.start_for(offset)?.filter(|start| *start <= offset) else { break };
            let Some(mut headers) = self.headers(start, offset)? else { break };
            while marks.len() < most
                && let Some((at, header)) = headers.next_header()?
            {
                if header.is_mark {
                    let body = headers.bytes(at + Header::BYTES as u64, header.length as usize)?;
                    let time = i64::try_from(header.time_micros).unwrap_or(i64::MAX);
                    let time = Timestamp::from_microsecond(time).unwrap_or(Timestamp::MAX);
                    let mark = serde_json::from_slice::<Mark>(&body).ok();
                    marks.extend(mark.map(|mark| Marked { mark, at: time, offset: at, end: headers.offset }));
                }
            }
            // Another segment may follow, if this one was read to its end.
            let is_more = headers.offset > offset || self.start_for(headers.offset)? != Some(start);
            offset = headers.offset;
            if !is_more {
                break;
            }
        }
        Ok((marks, offset))
    }
}
