//! Quotas as people write them: `16`, `16,borrow=4,lend=0`, `unlimited`.

use muster_api::model::quantity::parse_bytes;
use muster_api::model::quota::Quota;

/// How much of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    Quota(Quota),
    Unlimited,
}

pub(crate) fn gpus(text: &str) -> Result<Limit, String> {
    limit(text, &|text| {
        text.parse().map_err(|_| format!("`{text}` is not a number of devices; write for example 16"))
    })
}

pub(crate) fn memory(text: &str) -> Result<Limit, String> {
    limit(text, &|text| parse_bytes(text).map_err(|error| error.to_string()))
}

pub(crate) fn cpus(text: &str) -> Result<Limit, String> {
    limit(text, &|text| {
        let millis = text.parse::<f64>().ok().map(|cpus| (cpus * 1000.0).round());
        let is_good = |millis: &f64| (0.0..=1e15).contains(millis);
        let wrong = || format!("`{text}` is not a number of CPUs; write for example 200 or 0.5");
        millis.filter(is_good).map(|millis| millis as u64).ok_or_else(wrong)
    })
}

pub(crate) fn model(text: &str) -> Result<(String, Limit), String> {
    let wrong = || format!("`{text}` is not MODEL=AMOUNT; write for example H100=8 or H100=8,borrow=4");
    let (name, amount) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
    Ok((name.to_owned(), gpus(amount)?))
}

pub(crate) fn weight(text: &str) -> Result<f64, String> {
    let weight = text.parse::<f64>().ok().filter(|weight| weight.is_finite());
    weight.ok_or_else(|| format!("`{text}` is not a weight; write for example 2 or 0.5"))
}

fn limit(text: &str, amount: &dyn Fn(&str) -> Result<u64, String>) -> Result<Limit, String> {
    if text == "unlimited" {
        return Ok(Limit::Unlimited);
    }
    let mut parts = text.split(',');
    let mut quota = Quota::shared(amount(parts.next().unwrap_or_default())?);
    for part in parts {
        match part.split_once('=') {
            Some(("borrow", most)) => quota.borrow = Some(amount(most)?),
            Some(("lend", most)) => quota.lend = Some(amount(most)?),
            _ => return Err(format!("`{part}` is neither borrow=AMOUNT nor lend=AMOUNT")),
        }
    }
    Ok(Limit::Quota(quota))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(nominal: u64, borrow: Option<u64>, lend: Option<u64>) -> Result<Limit, String> {
        Ok(Limit::Quota(Quota { nominal, borrow, lend }))
    }

    #[test]
    fn an_amount_says_what_is_own_borrowed_and_lent() {
        assert_eq!(gpus("16"), quota(16, None, None));
        assert_eq!(gpus("8,borrow=4,lend=0"), quota(8, Some(4), Some(0)));
        assert_eq!(gpus("unlimited"), Ok(Limit::Unlimited));
        assert_eq!(cpus("0.5,lend=1"), quota(500, None, Some(1000)));
        assert_eq!(memory("2TB"), quota(2 << 40, None, None));
        assert_eq!(model("H100=8,lend=2").unwrap(), ("H100".into(), gpus("8,lend=2").unwrap()));
    }

    #[test]
    fn what_is_wrong_is_named_with_an_example() {
        for (wrong, word) in [("", "16"), ("-1", "16"), ("8,4", "borrow=AMOUNT"), ("8,borrow=x", "`x`")] {
            let error = gpus(wrong).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
        assert!(model("H100").unwrap_err().contains("MODEL=AMOUNT"));
        assert!(model("=8").is_err() && cpus("-1").is_err() && cpus("nan").is_err());
        assert!(weight("inf").is_err());
    }
}
