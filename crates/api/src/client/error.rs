//! What can go wrong between a client and its server.

use std::io;
use std::time::Duration;

use muster_link::tls;

use crate::problem::{Code, Problem};

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No connection could be made; nothing was sent.
    #[error("cannot reach the server at {endpoint}")]
    Unreachable {
        /// Where it should be.
        endpoint: String,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// It was reached, and not believed or not understood; nothing was sent.
    #[error("the server at {endpoint} cannot be used")]
    Tls {
        /// Where it is.
        endpoint: String,
        /// Why not.
        #[source]
        source: tls::Error,
    },
    /// The connection broke. The request may have been carried out all the same.
    #[error("the connection to the server broke")]
    Lost {
        /// What the connection said, where it said anything.
        #[source]
        source: Option<hyper::Error>,
    },
    /// A server that takes connections and answers nothing at all: it was stopped, or its machine hangs.
    #[error("the server at {endpoint} gave no answer for {} seconds", after.as_secs())]
    Stuck {
        /// Where it is.
        endpoint: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// No reply, or no sign of life on a stream, for too long.
    #[error("the server said nothing for {} seconds", after.as_secs())]
    Silent {
        /// How long it was waited for.
        after: Duration,
    },
    /// The server refused, and said why.
    #[error(transparent)]
    Problem(Box<Problem>),
    /// The reply is not what a muster server sends.
    #[error("the reply is not that of a muster server")]
    Protocol(#[from] Protocol),
}

/// How a reply is not what a muster server sends.
#[derive(Debug, thiserror::Error)]
pub enum Protocol {
    /// An error without a problem document, from a proxy for example.
    #[error("HTTP status {status}: {excerpt}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// How its body begins.
        excerpt: String,
    },
    /// A body that cannot be read.
    #[error("the reply to {request} cannot be read")]
    Body {
        /// The method and path.
        request: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A body beyond all measure.
    #[error("the reply to {request} is longer than {limit} bytes")]
    TooLong {
        /// The method and path.
        request: String,
        /// The bound.
        limit: usize,
    },
    /// An event of a stream that cannot be read.
    #[error("the event `{event}` cannot be read")]
    Event {
        /// Its name.
        event: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// A stream that breaks the rules of server-sent events.
    #[error("an event stream that cannot be read")]
    Stream(#[from] super::sse::ParseError),
    /// A piece of a log whose content cannot be read.
    #[error("a piece of the log is not base64")]
    Base64(#[from] base64::DecodeError),
    /// A request that cannot be put into HTTP.
    #[error("the request cannot be written as HTTP")]
    Request(#[from] hyper::http::Error),
}

impl Error {
    /// Whether the same request may work once the server is there again. True also where the request may have been
    /// carried out: repeat only what can be repeated.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Lost { .. } | Self::Silent { .. } => true,
            Self::Problem(problem) => matches!(problem.code, Code::ServerDiskFull | Code::Unavailable),
            // It was waited for long enough.
            Self::Protocol(_) | Self::Tls { .. } | Self::Stuck { .. } => false,
        }
    }

    /// The code of the problem the server replied with, if it did.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Problem(problem) => Some(problem.code),
            Self::Unreachable { .. }
            | Self::Tls { .. }
            | Self::Lost { .. }
            | Self::Stuck { .. }
            | Self::Silent { .. }
            | Self::Protocol(_) => None,
        }
    }
}
