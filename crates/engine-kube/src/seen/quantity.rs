//! Amounts as Kubernetes writes them: `100m`, `1.5Gi`, `2e3`. Pure.

/// How much that is, CPU in thousandths and all else in whole units, rounded up as the scheduler does. Nothing if it is no
/// amount.
pub(crate) fn amount(resource: &str, text: &str) -> Option<i64> {
    let split =
        text.find(|letter: char| !matches!(letter, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().ok()?;
    let factor = match unit {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => 1024.0,
        "Mi" => 1024_f64.powi(2),
        "Gi" => 1024_f64.powi(3),
        "Ti" => 1024_f64.powi(4),
        "Pi" => 1024_f64.powi(5),
        "Ei" => 1024_f64.powi(6),
        _ => 10_f64.powi(unit.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let scale = if resource == "cpu" { 1000.0 } else { 1.0 };
    // Thousandths are not exact in binary: what is closer to a whole number than any amount can be is that number.
    let value = number * factor * scale;
    let whole = if (value - value.round()).abs() < 1e-6 { value.round() } else { value.ceil() };
    #[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest number that there is")]
    Some(whole as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_kubernetes_writes_them() {
        for (resource, text, expected) in [
            ("cpu", "2", 2000),
            ("cpu", "100m", 100),
            ("cpu", "0.1", 100),
            ("cpu", "1500u", 2),
            ("memory", "32Mi", 32 << 20),
            ("memory", "1.5Gi", 3 << 29),
            ("memory", "128974848", 128_974_848),
            ("memory", "129e6", 129_000_000),
            ("memory", "129M", 129_000_000),
            ("memory", "24683700Ki", 24_683_700 << 10),
            ("memory", "100m", 1),
            ("nvidia.com/gpu", "8", 8),
            ("example.com/x", "1k", 1000),
            ("ephemeral-storage", "1Ti", 1 << 40),
        ] {
            assert_eq!(amount(resource, text), Some(expected), "{text}");
        }
        for text in ["", "many", "1Qi", "Gi", "1e"] {
            assert_eq!(amount("memory", text), None, "{text}");
        }
    }
}
