//! Times, sizes and numbers of GPUs as Slurm writes them.

use std::time::Duration;

/// A time limit: `90` (minutes), `90:30`, `2:00:00`, `1-12`, `1-12:30`, `1-12:30:15`; none for one without a limit.
pub fn time(text: &str) -> Result<Option<Duration>, String> {
    if ["0", "unlimited", "infinite", "-1"].contains(&text.to_ascii_lowercase().as_str()) {
        return Ok(None);
    }
    let wrong = || {
        format!(
            "`{text}` is not a time; write MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS[:MINUTES[:SECONDS]]"
        )
    };
    let number = |part: &str| part.parse::<u64>().ok().filter(|_| !part.starts_with('+'));
    let numbers = |part: &str| part.split(':').map(number).collect::<Option<Vec<_>>>();
    let seconds = match text.split_once('-') {
        Some((days, rest)) => match (number(days), numbers(rest).as_deref()) {
            (Some(days), Some([hours])) => of(days, *hours, 0, 0),
            (Some(days), Some([hours, minutes])) => of(days, *hours, *minutes, 0),
            (Some(days), Some([hours, minutes, seconds])) => of(days, *hours, *minutes, *seconds),
            _ => None,
        },
        None => match numbers(text).as_deref() {
            Some([minutes]) => of(0, 0, *minutes, 0),
            Some([minutes, seconds]) => of(0, 0, *minutes, *seconds),
            Some([hours, minutes, seconds]) => of(0, *hours, *minutes, *seconds),
            _ => None,
        },
    };
    seconds.filter(|seconds| *seconds > 0).map(|seconds| Some(Duration::from_secs(seconds))).ok_or_else(wrong)
}

fn of(days: u64, hours: u64, minutes: u64, seconds: u64) -> Option<u64> {
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?.checked_add(seconds)
}

/// An amount of memory in bytes: `4000` (MB), `16G`; none for all that a node has.
pub fn memory(text: &str) -> Result<Option<u64>, String> {
    let wrong =
        || format!("`{text}` is not an amount of memory; write a number and K, M, G or T, such as 16G");
    let lower = text.to_ascii_lowercase();
    let plain = lower.strip_suffix('b').unwrap_or(&lower);
    let (digits, shift) = match plain.chars().last() {
        Some('k') => (&plain[..plain.len() - 1], 10),
        Some('m') => (&plain[..plain.len() - 1], 20),
        Some('g') => (&plain[..plain.len() - 1], 30),
        Some('t') => (&plain[..plain.len() - 1], 40),
        _ => (plain, 20),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(1 << shift).ok_or_else(wrong)?;
    Ok((bytes > 0).then_some(bytes))
}

/// So many GPUs, perhaps of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpus {
    /// `a100`.
    pub kind: Option<String>,
    /// How many.
    pub count: u32,
}

impl Gpus {
    /// `4`, `a100:4`, `a100`.
    pub fn read(text: &str) -> Result<Gpus, String> {
        let wrong = || format!("`{text}` is not a number of GPUs; write 4 or a100:4");
        let parts: Vec<&str> = text.split(':').collect();
        let (kind, count) = match parts[..] {
            [one] => match one.parse() {
                Ok(count) => (None, count),
                Err(_) => (Some(one), 1),
            },
            [kind, count] => (Some(kind), count.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        };
        let is_word = |kind: &str| {
            !kind.is_empty() && kind.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c))
        };
        if !kind.is_none_or(is_word) {
            return Err(wrong());
        }
        Ok(Gpus { kind: kind.map(str::to_owned), count })
    }

    /// The GPUs in a list of generic resources, `gpu:a100:4,license:1`, and what else is in it.
    pub fn of_gres(text: &str) -> Result<(Option<Gpus>, Vec<String>), String> {
        let (mut gpus, mut others) = (None, Vec::new());
        for item in text.split(',').filter(|item| !item.is_empty() && *item != "none") {
            let plain = item.strip_prefix("gres:").unwrap_or(item);
            // The sockets that they are on: `gpu:2(S:0)` is what Slurm says, and not what people write.
            let plain = plain.split('(').next().unwrap_or(plain);
            match plain.split_once(':').unwrap_or((plain, "1")) {
                ("gpu", count) => gpus = Some(Gpus::read(count)?),
                _ => others.push(item.to_owned()),
            }
        }
        Ok((gpus, others))
    }
}

/// A number, perhaps with `k` for a thousand.
pub fn count(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number > 0 && !text.starts_with('+'));
    number.ok_or_else(|| format!("`{text}` is not a whole number from 1 on"))
}

/// The nodes that are asked for, at least and at most: `2`, `2-4`.
pub fn nodes(text: &str) -> Result<(u32, u32), String> {
    let wrong = |_| format!("`{text}` is not a number of nodes; write 2 or 2-4");
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let (least, most) = (count(least).map_err(wrong)?, count(most).map_err(wrong)?);
    if least > most { Err(wrong(String::new())) } else { Ok((least, most)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_every_format() {
        for (text, seconds) in [
            ("30", 1800),
            ("90:30", 5430),
            ("2:00:00", 7200),
            ("24:00:00", 86_400),
            ("1-12", 129_600),
            ("1-12:30", 131_400),
            ("7-00:00:00", 604_800),
            ("0:30", 30),
            ("00:01:00", 60),
        ] {
            assert_eq!(time(text), Ok(Some(Duration::from_secs(seconds))), "{text}");
        }
        for text in ["0", "UNLIMITED", "infinite"] {
            assert_eq!(time(text), Ok(None), "{text}");
        }
        for text in ["", "x", "1:2:3:4", "1-", "-5", "1h", "99999999999999999999", "0:0"] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_is_in_megabytes_unless_it_says_so() {
        for (text, bytes) in [
            ("4000", 4000 << 20),
            ("16G", 16 << 30),
            ("16gb", 16 << 30),
            ("512M", 512 << 20),
            ("1T", 1 << 40),
            ("2048K", 2 << 20),
        ] {
            assert_eq!(memory(text), Ok(Some(bytes)), "{text}");
        }
        assert_eq!(memory("0"), Ok(None));
        for text in ["", "G", "x", "1.5G", "-1", "99999999999T"] {
            assert!(memory(text).is_err(), "{text}");
        }
    }

    #[test]
    fn gpus_may_have_a_type() {
        let gpus = |kind: Option<&str>, count| Gpus { kind: kind.map(str::to_owned), count };
        assert_eq!(Gpus::read("4"), Ok(gpus(None, 4)));
        assert_eq!(Gpus::read("a100:4"), Ok(gpus(Some("a100"), 4)));
        assert_eq!(Gpus::read("a100"), Ok(gpus(Some("a100"), 1)));
        assert!(Gpus::read("a:b:c").is_err() && Gpus::read(":3").is_err() && Gpus::read("a:x").is_err());
        assert_eq!(Gpus::of_gres("gpu:4"), Ok((Some(gpus(None, 4)), vec![])));
        assert_eq!(Gpus::of_gres("gpu"), Ok((Some(gpus(None, 1)), vec![])));
        assert_eq!(
            Gpus::of_gres("gres:gpu:v100:2,nvme:1"),
            Ok((Some(gpus(Some("v100"), 2)), vec!["nvme:1".into()]))
        );
        assert_eq!(Gpus::of_gres("none"), Ok((None, vec![])));
    }

    #[test]
    fn nodes_may_be_a_range() {
        assert_eq!(nodes("2"), Ok((2, 2)));
        assert_eq!(nodes("2-4"), Ok((2, 4)));
        assert!(nodes("4-2").is_err() && nodes("0").is_err() && nodes("x").is_err());
    }
}
