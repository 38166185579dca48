//! Moments as people write them: how long ago, or when by their own clock.

use jiff::civil::{DateTime, Time};
use jiff::{Timestamp, Zoned};
use muster_api::model::quantity::parse_duration;

/// For clap: a moment, seen from now.
pub(crate) fn parse(text: &str) -> Result<Timestamp, String> {
    parse_at(text, &Zoned::now())
}

/// When something is expected, by the reader's own clock: `~14:20`, and the day where it is another.
pub(crate) fn expected(at: Timestamp) -> String {
    expected_at(at, &Zoned::now())
}

fn expected_at(at: Timestamp, now: &Zoned) -> String {
    let at = at.to_zoned(now.time_zone().clone());
    let form = if at.date() == now.date() { "~%H:%M" } else { "~%m-%d %H:%M" };
    at.strftime(form).to_string()
}

fn parse_at(text: &str, now: &Zoned) -> Result<Timestamp, String> {
    let text = text.trim();
    let wrong =
        || format!("`{text}` is not a time; write 10m or 2h30m for how long ago, 10:00, or 2026-11-15T10:00");
    let local =
        |moment: DateTime| moment.to_zoned(now.time_zone().clone()).ok().map(|moment| moment.timestamp());
    if let Ok(span) = parse_duration(text) {
        return now.timestamp().checked_sub(span).map_err(|_| wrong());
    }
    if let Ok(moment) = text.parse::<Timestamp>() {
        return Ok(moment);
    }
    let today = |time: Time| now.date().to_datetime(time);
    let moment = text.parse::<DateTime>().or_else(|_| text.parse::<Time>().map(today));
    moment.ok().and_then(local).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use jiff::tz::{TimeZone, offset};

    use super::*;

    #[test]
    fn what_is_expected_today_has_no_day() {
        let now = "2026-11-15T04:00:00Z".parse::<Timestamp>().unwrap().to_zoned(TimeZone::fixed(offset(8)));
        let at = |text: &str| expected_at(text.parse().unwrap(), &now);
        assert_eq!(at("2026-11-15T06:20:30Z"), "~14:20");
        assert_eq!(at("2026-11-15T16:20:00Z"), "~11-16 00:20");
    }

    #[test]
    fn moments_are_spans_back_clock_times_and_dates() {
        let zone = TimeZone::fixed(offset(8));
        let now = "2026-11-15T04:00:00Z".parse::<Timestamp>().unwrap().to_zoned(zone);
        for (text, expected) in [
            ("10m", "2026-11-15T03:50:00Z"),
            ("2h30m", "2026-11-15T01:30:00Z"),
            ("90", "2026-11-15T03:58:30Z"),
            ("2026-11-15T03:00:00Z", "2026-11-15T03:00:00Z"),
            ("2026-11-15T10:00:00.5+08:00", "2026-11-15T02:00:00.5Z"),
            ("2026-11-15T10:00", "2026-11-15T02:00:00Z"),
            ("2026-11-15 10:00:30", "2026-11-15T02:00:30Z"),
            ("2026-11-15", "2026-11-14T16:00:00Z"),
            ("10:00", "2026-11-15T02:00:00Z"),
            ("10:00:05", "2026-11-15T02:00:05Z"),
        ] {
            assert_eq!(parse_at(text, &now).as_ref().map(ToString::to_string), Ok(expected.into()), "{text}");
        }
        for text in ["", "yesterday", "25:00", "2026-13-01", "-5m", "10m ago"] {
            let error = parse_at(text, &now).unwrap_err();
            assert!(error.contains("2h30m"), "{text}: {error}");
        }
    }
}
