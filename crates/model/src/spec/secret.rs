//! Secrets that a job is given: by name, never by value.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::field::{FieldCode, FieldError, Fields, MAX_REPORTED, Wrong};
use super::parse::{clipped, text};

/// The most a secret may have in bytes: keys and tokens are small, and a value travels with every launch.
pub const MAX_SECRET: usize = 64 << 10;
const MAX_NAME: usize = 64;
const MAX_FILE: usize = 128;
/// More are a configuration, not secrets.
const MAX_SECRETS: usize = 64;

/// A secret of the job's workspace, and where its tasks find it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Secret {
    /// What it is called in the workspace.
    pub name: String,
    /// The variable that has its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The file that has its value, in the directory that `MUSTER_SECRETS_DIR` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl Secret {
    /// Why a text cannot be the name of a secret, if it cannot.
    pub fn check_name(name: &str) -> Result<(), String> {
        let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if starts_well && name.len() <= MAX_NAME && name.bytes().all(valid) {
            return Ok(());
        }
        Err(format!(
            "must be 1 to {MAX_NAME} letters, digits, `_` or `-`, starting with a letter or `_`, not `{}`",
            clipped(name)
        ))
    }

    /// `NAME`, `NAME=env:VARIABLE` or `NAME=file:FILE`, as fields.
    fn short(text: &str) -> Result<Value, String> {
        let Some((name, place)) = text.split_once('=') else { return Ok(Value::from_iter([("name", text)])) };
        match place.split_once(':') {
            Some((kind @ ("env" | "file"), place)) => Ok(Value::from_iter([("name", name), (kind, place)])),
            _ => Err(format!(
                "`{}` is not NAME, NAME=env:VARIABLE or NAME=file:FILE",
                // What is behind the sign may be the secret itself, which somebody has mistaken this for.
                clipped(name)
            )),
        }
    }
}

pub(super) fn secrets(value: Value, errors: &mut Vec<FieldError>) -> Vec<Secret> {
    let items = match value {
        Value::Array(items) => items,
        text @ Value::String(_) => vec![text],
        other => {
            let wrong = Wrong::kind("a list of secrets", &other);
            errors.push(FieldError::new("secrets", wrong.code, wrong.message));
            return Vec::new();
        }
    };
    if items.len() > MAX_SECRETS {
        let message = format!("has {} secrets; at most {MAX_SECRETS} are allowed", items.len());
        errors.push(FieldError::new("secrets", FieldCode::OutOfRange, message));
        return Vec::new();
    }
    let mut all: Vec<Secret> = Vec::new();
    let first = errors.len();
    for (i, item) in items.into_iter().enumerate() {
        if errors.len() - first >= MAX_REPORTED {
            break;
        }
        let Some(secret) = secret(item, &format!("secrets[{i}]"), errors) else { continue };
        let is_taken = |other: &Secret| (&other.env, &other.file) == (&secret.env, &secret.file);
        if let Some(other) = all.iter().find(|other| is_taken(other)) {
            let message = format!("`{}` is put where `{}` is already", secret.name, other.name);
            errors.push(FieldError::new(format!("secrets[{i}]"), FieldCode::InvalidValue, message));
            continue;
        }
        all.push(secret);
    }
    all
}

fn secret(item: Value, field: &str, errors: &mut Vec<FieldError>) -> Option<Secret> {
    let item = match item {
        Value::String(text) => match Secret::short(&text) {
            Ok(value) => value,
            Err(message) => {
                errors.push(FieldError::new(field, FieldCode::InvalidValue, message));
                return None;
            }
        },
        other => other,
    };
    let before = errors.len();
    let prefix = format!("{field}.");
    let mut fields = Fields::new(item, &prefix, errors);
    let name = fields.take("name", name);
    let env = fields.take("env", variable);
    let file = fields.take("file", file);
    if env.is_some() && file.is_some() {
        let message = "a secret goes to a variable or to a file; list it twice for both";
        fields.error("file", Wrong::value(message));
    }
    fields.finish();
    if errors.len() > before {
        return None;
    }
    let Some(name) = name else {
        let message = "is missing: `muster secret ls` lists the names";
        errors.push(FieldError::new(format!("{field}.name"), FieldCode::Required, message));
        return None;
    };
    // What no place is named for is a variable of the same name.
    if env.is_some() || file.is_some() {
        return Some(Secret { name, env, file });
    }
    match variable(Value::String(name.clone())) {
        Ok(variable) => Some(Secret { name, env: Some(variable), file: None }),
        Err(wrong) => {
            let message = format!("{}; say where: {name}=env:VARIABLE or {name}=file:FILE", wrong.message);
            errors.push(FieldError::new(format!("{field}.env"), wrong.code, message));
            None
        }
    }
}

fn name(value: Value) -> Result<String, Wrong> {
    let name = text(value)?;
    Secret::check_name(&name).map(|()| name).map_err(Wrong::value)
}

fn variable(value: Value) -> Result<String, Wrong> {
    let name = text(value)?;
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let starts_well = name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    if !starts_well || !name.bytes().all(valid) {
        return Err(Wrong::value(format!(
            "`{}` cannot be a variable: it is letters, digits and `_`, and starts with no digit",
            clipped(&name)
        )));
    }
    if name.starts_with("MUSTER_") {
        return Err(Wrong::value(format!("`{}` is muster's own; choose another variable", clipped(&name))));
    }
    Ok(name)
}

/// A name and no path, so that it cannot be outside of the directory, which goes when the task is over.
fn file(value: Value) -> Result<String, Wrong> {
    let file = text(value)?;
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if file.is_empty() || file.len() > MAX_FILE || file.starts_with('.') || !file.bytes().all(valid) {
        return Err(Wrong::value(format!(
            "must be the name of a file in $MUSTER_SECRETS_DIR: 1 to {MAX_FILE} letters, digits, `_`, `-` or `.`, \
             not starting with `.`; not `{}`",
            clipped(&file)
        )));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::spec::JobSpec;

    fn read(secrets: Value) -> Result<Vec<Secret>, Vec<(String, FieldCode)>> {
        let spec = JobSpec::from_value(json!({ "command": "true", "secrets": secrets }));
        let shown = |errors: Vec<FieldError>| errors.into_iter().map(|it| (it.field, it.code)).collect();
        spec.map(|spec| spec.secrets).map_err(shown)
    }

    fn env(name: &str, env: &str) -> Secret {
        Secret { name: name.into(), env: Some(env.into()), file: None }
    }

    #[test]
    fn short_and_long_forms_are_the_same() {
        let cert = Secret { name: "my-cert".into(), env: None, file: Some("cert.pem".into()) };
        let all = vec![env("TOKEN", "TOKEN"), env("TOKEN", "OTHER"), cert];
        assert_eq!(read(json!(["TOKEN", "TOKEN=env:OTHER", "my-cert=file:cert.pem"])).unwrap(), all);
        let long = json!([{"name": "TOKEN"}, {"name": "TOKEN", "env": "OTHER"}, {"name": "my-cert", "file": "cert.pem"}]);
        assert_eq!(read(long).unwrap(), all);
        assert_eq!(read(json!("TOKEN")).unwrap(), [env("TOKEN", "TOKEN")]);
        // What was read is read again.
        assert_eq!(read(serde_json::to_value(&all).unwrap()).unwrap(), all);
    }

    #[test]
    fn what_is_wrong_is_said_by_field() {
        use FieldCode::{InvalidValue, OutOfRange, Required, UnknownField, WrongType};
        let many: Vec<String> = (0..65).map(|i| format!("S{i}")).collect();
        for (value, field, code) in [
            (json!(["1st"]), "secrets[0].name", InvalidValue),
            (json!(["a".repeat(65)]), "secrets[0].name", InvalidValue),
            (json!(["TOKEN=value"]), "secrets[0]", InvalidValue),
            (json!(["my-cert"]), "secrets[0].env", InvalidValue),
            (json!(["A=env:MUSTER_RANK"]), "secrets[0].env", InvalidValue),
            (json!(["A=file:/etc/x"]), "secrets[0].file", InvalidValue),
            (json!(["A=file:..", "B"]), "secrets[0].file", InvalidValue),
            (json!(["A", "B=env:A"]), "secrets[1]", InvalidValue),
            (json!([{"name": "A", "env": "A", "file": "a"}]), "secrets[0].file", InvalidValue),
            (json!([{"env": "A"}]), "secrets[0].name", Required),
            (json!([{"name": "A", "value": "x"}]), "secrets[0].value", UnknownField),
            (json!({"A": "x"}), "secrets", WrongType),
            (json!([7]), "secrets[0]", WrongType),
            (json!(many), "secrets", OutOfRange),
        ] {
            assert_eq!(read(value.clone()), Err(vec![(field.to_owned(), code)]), "{value}");
        }
    }

    #[test]
    fn what_may_be_a_secret_is_not_repeated() {
        let errors =
            JobSpec::from_value(json!({ "command": "true", "secrets": ["TOKEN=hunter2"] })).unwrap_err();
        assert!(!errors[0].message.contains("hunter2"), "{}", errors[0].message);
    }
}
