//! Amounts as people write them: `16GB`, `0.5` CPUs, `90m`, `H100:8`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::Vendor;

/// A text that is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub String);

/// Bytes from `512MB`, `16Gi`, `16G`, `1.5TB` or a plain number of bytes. `K M G T` are powers of 1024, as in every
/// peer that sizes machines; so are their `…B` and `…iB` spellings, because `16GB` of memory means that to its users.
pub fn parse_bytes(text: &str) -> Result<u64, ParseError> {
    let wrong = || ParseError(format!("`{text}` is not a size; write for example 512MB or 16GB"));
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(trimmed.len());
    let number: f64 = trimmed[..split].trim().parse().map_err(|_| wrong())?;
    let unit = trimmed[split..].to_ascii_lowercase();
    let power = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return Err(wrong()),
    };
    let bytes = number * 1024f64.powi(power);
    if !bytes.is_finite() || bytes < 0.0 || bytes > i64::MAX as f64 {
        return Err(wrong());
    }
    Ok(bytes as u64)
}

/// Bytes as the largest unit that keeps them readable: `16 GB`, `512 MB`.
pub fn format_bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KB", "MB", "GB", "TB"] {
        if value < 1024.0 {
            let digits = if value.fract() < 0.05 || value >= 100.0 || unit == "B" { 0 } else { 1 };
            return format!("{value:.digits$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} PB")
}

/// A span from `90s`, `15m`, `2h`, `1d12h`, `250ms` or a plain number of seconds.
pub fn parse_duration(text: &str) -> Result<Duration, ParseError> {
    let wrong = || ParseError(format!("`{text}` is not a duration; write for example 90s, 15m, 2h or 1d12h"));
    let mut rest = text.trim();
    if let Ok(seconds) = rest.parse::<f64>() {
        return whole_millis(seconds).ok_or_else(wrong);
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let number: f64 = rest[..number_end].trim().parse().map_err(|_| wrong())?;
        rest = &rest[number_end..];
        let unit_end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        total += number
            * match &rest[..unit_end] {
                "ms" => 0.001,
                "s" | "sec" => 1.0,
                "m" | "min" => 60.0,
                "h" => 3600.0,
                "d" => 86_400.0,
                "w" => 604_800.0,
                _ => return Err(wrong()),
            };
        rest = &rest[unit_end..];
    }
    if text.trim().is_empty() {
        return Err(wrong());
    }
    whole_millis(total).ok_or_else(wrong)
}

/// Anything finer is noise of the decimal point, and would not survive being written as text.
fn whole_millis(seconds: f64) -> Option<Duration> {
    let span = Duration::try_from_secs_f64(seconds).ok()?;
    u64::try_from((span.as_nanos() + 500_000) / 1_000_000).ok().map(Duration::from_millis)
}

/// A span in its two largest units: `1d12h`, `2m5s`, `250ms`.
pub fn format_duration(span: Duration) -> String {
    if span.as_secs() == 0 {
        return if span.is_zero() { "0s".into() } else { format!("{}ms", span.as_millis().max(1)) };
    }
    let mut seconds = span.as_secs();
    let mut parts = Vec::new();
    for (unit, size) in [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)] {
        if seconds >= size {
            parts.push(format!("{}{unit}", seconds / size));
            seconds %= size;
        } else if !parts.is_empty() {
            break;
        }
        if parts.len() == 2 {
            break;
        }
    }
    parts.concat()
}

/// Accelerators asked for on each node: `8` of any kind, `H100:8` of a model, `ascend:8` of a vendor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceRequest {
    /// Only devices of this vendor.
    pub vendor: Option<Vendor>,
    /// Only devices of this model, compared without regard to case.
    pub model: Option<String>,
    /// How many on each node.
    pub count: u32,
}

impl FromStr for DeviceRequest {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError(format!("`{text}` is not a device request; write 8, H100:8 or ascend:8"));
        let (kind, count) = match text.trim().rsplit_once(':') {
            Some((kind, count)) => (Some(kind.trim()), count),
            None if text.trim().parse::<u32>().is_ok() => (None, text),
            None => (Some(text.trim()), "1"),
        };
        let count = count.trim().parse().map_err(|_| wrong())?;
        let valid = |kind: &&str| {
            // A kind of digits alone is a count that is too large.
            !kind.is_empty()
                && !kind.bytes().all(|b| b.is_ascii_digit())
                && kind.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        };
        let kind = kind.map(|kind| Some(kind).filter(valid).ok_or_else(wrong)).transpose()?;
        let vendor = kind.and_then(|kind| kind.to_ascii_lowercase().parse().ok());
        let model = kind.filter(|_| vendor.is_none()).map(str::to_owned);
        Ok(Self { vendor, model, count })
    }
}

impl fmt::Display for DeviceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.model, self.vendor) {
            (Some(model), _) => write!(f, "{model}:{}", self.count),
            (None, Some(vendor)) => write!(f, "{vendor}:{}", self.count),
            (None, None) => write!(f, "{}", self.count),
        }
    }
}

impl TryFrom<String> for DeviceRequest {
    type Error = ParseError;

    fn try_from(text: String) -> Result<Self, ParseError> {
        text.parse()
    }
}

impl From<DeviceRequest> for String {
    fn from(request: DeviceRequest) -> String {
        request.to_string()
    }
}

/// Durations on the wire are the text people write.
pub mod duration_text {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the span exactly: whole seconds as `90s`, anything finer in milliseconds.
    pub fn serialize<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text(*span))
    }

    /// Reads any spelling [`super::parse_duration`] takes.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        super::parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }

    fn text(span: Duration) -> String {
        if span.subsec_millis() == 0 {
            format!("{}s", span.as_secs())
        } else {
            format!("{}ms", span.as_millis())
        }
    }

    /// The same for a span that may be absent.
    pub mod option {
        use super::{Deserialize, Deserializer, Duration, Serializer};

        /// Writes the span, or null.
        pub fn serialize<S: Serializer>(span: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
            match span {
                Some(span) => serializer.serialize_str(&super::text(*span)),
                None => serializer.serialize_none(),
            }
        }

        /// Reads the span, or null.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
            let text = Option::<String>::deserialize(deserializer)?;
            text.map(|text| super::super::parse_duration(&text).map_err(serde::de::Error::custom)).transpose()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("1k", 1024),
            ("16GB", 16 << 30),
            ("16Gi", 16 << 30),
            ("1.5 MiB", 3 << 19),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GB", "-1G", "16 parsecs", "1e400", "nan"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_read_and_written() {
        for (text, millis) in
            [("90", 90_000), ("90s", 90_000), ("1d12h", 129_600_000), ("250ms", 250), ("1.5h", 5_400_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for bad in ["", "h", "5 parsecs", "-5s", "5m3"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(format_duration(Duration::from_secs(129_600)), "1d12h");
        assert_eq!(format_duration(Duration::from_secs(3605)), "1h");
        assert_eq!(format_duration(Duration::from_millis(250)), "250ms");
    }

    #[test]
    fn device_requests_have_three_spellings() {
        let parse = |text: &str| text.parse::<DeviceRequest>().unwrap();
        assert_eq!(parse("8"), DeviceRequest { vendor: None, model: None, count: 8 });
        assert_eq!(parse("H100:8"), DeviceRequest { vendor: None, model: Some("H100".into()), count: 8 });
        assert_eq!(parse("ascend:8"), DeviceRequest { vendor: Some(Vendor::Ascend), model: None, count: 8 });
        assert_eq!(parse("A100"), DeviceRequest { vendor: None, model: Some("A100".into()), count: 1 });
        for text in ["8", "H100:8", "ascend:8"] {
            assert_eq!(parse(text).to_string(), text);
        }
        for bad in ["", ":", "H100:", ":8", "H100:-1", "H100:x", "a b:1", "4294967296", "8:8"] {
            assert!(bad.parse::<DeviceRequest>().is_err(), "{bad}");
        }
    }
}
