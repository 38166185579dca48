//! What admission refuses: rights, quotas, limits, Pod Security, policies. All of it is text; the texts are those of the API server
//! itself, which has had them for years.

use muster_model::spec::{FieldCode, FieldError};

use super::{Refusal, resource};

/// What a text of the API server's means.
pub(super) fn read(message: &str) -> Refusal {
    let said = message.split_once(" is forbidden: ").map_or(message, |(_, said)| said);
    let one =
        |field: &str, code, message: String| Refusal::Fields(vec![FieldError::new(field, code, message)]);
    if said.contains("\" cannot ") && said.contains(" resource \"") {
        return Refusal::Later(rights(said));
    }
    if said.contains("is being terminated") {
        return Refusal::Later(format!("{said}; create it again, or set k8s.namespace to another"));
    }
    if let Some(rest) = said.strip_prefix("exceeded quota: ") {
        return exceeded(rest);
    }
    if let Some(rest) = said.strip_prefix("failed quota: ") {
        return Refusal::Fields(unsaid(rest));
    }
    if let Some(rest) = said.strip_prefix("violates PodSecurity ") {
        return Refusal::Fields(insecure(rest));
    }
    if let Some((_, rest)) = said.split_once("no PriorityClass with name ") {
        let name = rest.split(' ').next().unwrap_or_default();
        let words = format!(
            "there is no PriorityClass `{name}` in this cluster; `kubectl get priorityclasses` lists them"
        );
        return one("k8s.priority_class", FieldCode::InvalidValue, words);
    }
    if let Some((_, rest)) = said.split_once("error looking up service account ") {
        let name = rest.split(':').next().unwrap_or_default();
        let words = format!(
            "there is no service account `{name}`; `kubectl get serviceaccounts` lists those of a namespace"
        );
        return one("k8s.service_account", FieldCode::InvalidValue, words);
    }
    let limits = limits(said);
    if !limits.is_empty() {
        return Refusal::Fields(limits);
    }
    let words = said.split_once(" denied the request: ").or_else(|| said.split_once(" denied request: "));
    match words {
        Some((who, words)) => one(
            "k8s",
            FieldCode::NotSupported,
            format!("a policy of the cluster refuses it: {words} ({who})"),
        ),
        None => one("k8s", FieldCode::NotSupported, said.to_owned()),
    }
}

fn rights(said: &str) -> String {
    let who = said.split('"').nth(1).unwrap_or("it");
    let verb = said.split_once(" cannot ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or("use");
    let what = said.split('"').nth(3).unwrap_or("objects");
    let place = said.rsplit_once("in the namespace \"").map(|(_, rest)| rest.trim_end_matches('"'));
    let place = place.map(|place| format!(" in namespace `{place}`")).unwrap_or_default();
    format!(
        "muster, which is `{who}` in this cluster, may not {verb} {what}{place}; deploy/muster.yaml has the rights it needs"
    )
}

/// More than a quota leaves now, or than it will ever allow.
fn exceeded(rest: &str) -> Refusal {
    let quota = rest.split(',').next().unwrap_or_default();
    let part = |name: &str| {
        let after = rest.split_once(&format!("{name}: ")).map(|(_, after)| after).unwrap_or_default();
        let end =
            [", used: ", ", limited: "].iter().filter_map(|end| after.find(end)).min().unwrap_or(after.len());
        after[..end].to_owned()
    };
    let (requested, used, limited) = (part("requested"), part("used"), part("limited"));
    let of = |list: &str, name: &str| {
        let mut pairs = list.split(',').filter_map(|pair| pair.split_once('='));
        pairs.find(|(other, _)| *other == name).map(|(_, amount)| amount.to_owned())
    };
    let mut never: Vec<FieldError> = Vec::new();
    for (name, amount) in requested.split(',').filter_map(|pair| pair.split_once('=')) {
        let limit = of(&limited, name).unwrap_or_default();
        let is_more = quantity(amount).zip(quantity(&limit)).is_some_and(|(amount, limit)| amount > limit);
        let field = resource(name);
        if is_more && !never.iter().any(|error| error.field == field) {
            let words = format!(
                "{amount} is more than the quota `{quota}` of the namespace allows in all ({name}: {limit})"
            );
            never.push(FieldError::new(field, FieldCode::NotEnoughResources, words));
        }
    }
    if never.is_empty() {
        return Refusal::Later(format!("the quota `{quota}` is used up: {used} of {limited}"));
    }
    Refusal::Fields(never)
}

/// A quota counts something that the job does not speak of: `q: must specify limits.cpu for: muster,task; …`.
fn unsaid(rest: &str) -> Vec<FieldError> {
    let (quota, rest) = rest.split_once(": must specify ").unwrap_or((rest, ""));
    let mut errors: Vec<FieldError> = Vec::new();
    for name in rest.split("; ").filter_map(|part| part.split(' ').next()).filter(|name| !name.is_empty()) {
        let field = resource(name);
        if !errors.iter().any(|error| error.field == field) {
            let words = format!(
                "must be given here, because the quota `{quota}` of the namespace counts it ({name})"
            );
            errors.push(FieldError::new(field, FieldCode::Required, words));
        }
    }
    errors
}

/// A level of Pod Security, and all that is against it.
fn insecure(rest: &str) -> Vec<FieldError> {
    let (level, violations) = rest.split_once(": ").unwrap_or((rest, ""));
    let level = level.trim_matches('"').split(':').next().unwrap_or_default();
    let mut errors = Vec::new();
    if violations.contains("hostPath volumes") {
        let words = format!(
            "directories of nodes are not allowed in this namespace (Pod Security \"{level}\"); use a claim or NFS"
        );
        errors.push(FieldError::new("volumes", FieldCode::NotSupported, words));
    }
    // Whoever has a user gets all of these from us.
    let of_user = [
        "runAsNonRoot",
        "allowPrivilegeEscalation",
        "unrestricted capabilities",
        "seccompProfile",
        "runAsUser=0",
    ];
    if level == "restricted" && of_user.iter().any(|word| violations.contains(word)) {
        let words = "must be given, and not 0: this namespace takes only pods without root (Pod Security \"restricted\")";
        errors.push(FieldError::new("k8s.user", FieldCode::Required, words));
    }
    if errors.is_empty() {
        let words = format!("Pod Security \"{level}\" of this namespace does not allow it: {violations}");
        errors.push(FieldError::new("k8s.pod", FieldCode::NotSupported, words));
    }
    errors
}

/// `maximum cpu usage per Container is 4, but limit is 8`: what a LimitRange says, once for each amount.
fn limits(said: &str) -> Vec<FieldError> {
    let said = said.trim_start_matches('[').trim_end_matches(']');
    let mut errors: Vec<FieldError> = Vec::new();
    for (at, mark) in said.match_indices(" usage per ") {
        let Some((_, name)) = said[..at].rsplit_once(' ') else { continue };
        let least_or_most =
            if said[..at].ends_with(&format!("minimum {name}")) { "at least" } else { "at most" };
        let rest = &said[at + mark.len()..];
        let bound = rest.split_once(" is ").map(|(_, rest)| rest.split([',', '.']).next().unwrap_or(rest));
        let given = rest.split_once(" is ").and_then(|(_, rest)| rest.split_once(" is "));
        let given = given.map(|(_, rest)| rest.split(',').next().unwrap_or(rest)).unwrap_or_default();
        let words = format!(
            "{given} is not allowed in this namespace, which takes {least_or_most} {}",
            bound.unwrap_or_default()
        );
        let code = FieldCode::OutOfRange;
        let field = resource(name);
        if !errors.iter().any(|error| error.field == field) {
            errors.push(FieldError::new(field, code, words));
        }
    }
    errors
}

/// A number as Kubernetes writes it: `1500m`, `8`, `4Gi`, `2k`.
fn quantity(text: &str) -> Option<f64> {
    let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let number: f64 = text[..split].parse().ok()?;
    let power = |base: f64, power: i32| Some(base.powi(power));
    let factor = match &text[split..] {
        "" => Some(1.0),
        "m" => Some(0.001),
        "k" => power(1000.0, 1),
        "M" => power(1000.0, 2),
        "G" => power(1000.0, 3),
        "T" => power(1000.0, 4),
        "Ki" => power(1024.0, 1),
        "Mi" => power(1024.0, 2),
        "Gi" => power(1024.0, 3),
        "Ti" => power(1024.0, 4),
        _ => None,
    };
    Some(number * factor?)
}
