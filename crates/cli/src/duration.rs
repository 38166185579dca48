//! Spans of time as the commands show and take them.

use std::time::Duration;

use muster_api::model::Timestamp;
use muster_api::model::quantity::{format_duration, parse_duration};

/// From one moment to another; nothing if the clock went backwards.
pub(crate) fn between(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

/// `12.3s` where tenths say something, `2m5s` beyond.
pub(crate) fn shown(span: Duration) -> String {
    if span < Duration::from_secs(60) && span >= Duration::from_secs(1) {
        return format!("{:.1}s", span.as_secs_f64());
    }
    format_duration(span)
}

/// How long ago, in its largest unit: `5m`, `3d`.
pub(crate) fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = between(then, now).as_secs();
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// For clap: a span as people write it.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shown_with_as_much_as_matters() {
        for (millis, text) in [(0, "0s"), (250, "250ms"), (1234, "1.2s"), (125_000, "2m5s")] {
            assert_eq!(shown(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn ages_have_one_unit_and_are_never_negative() {
        let then = Timestamp::UNIX_EPOCH;
        for (seconds, text) in [(5, "5s"), (300, "5m"), (7300, "2h"), (200_000, "2d")] {
            assert_eq!(age(then, then + Duration::from_secs(seconds)), text);
        }
        assert_eq!(age(then + Duration::from_secs(9), then), "0s");
    }
}
