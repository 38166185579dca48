//! Amounts as tables show them.

use std::fmt::Display;

use muster_api::model::quantity::format_bytes;

/// Thousandths of CPUs to two digits: `0.98`, `12`.
pub(crate) fn thousandths(millis: u64) -> String {
    let text = format!("{:.2}", millis as f64 / 1000.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `2 MB/s`.
pub(crate) fn per_second(bytes: u64) -> String {
    format!("{}/s", format_bytes(bytes))
}

/// `60 GB/80 GB`.
pub(crate) fn quotient(used: u64, all: u64) -> String {
    format!("{}/{}", format_bytes(used), format_bytes(all))
}

/// `412 W`.
pub(crate) fn with_unit(amount: impl Display, unit: &str) -> String {
    format!("{amount} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_as_many_digits_as_say_something() {
        assert_eq!([0, 4, 983, 1500, 12_000].map(thousandths), ["0", "0", "0.98", "1.5", "12"]);
        assert_eq!(per_second(2 << 20), "2 MB/s");
        assert_eq!(quotient(60 << 30, 80 << 30), "60 GB/80 GB");
        assert_eq!(with_unit(412, "W"), "412 W");
    }
}
