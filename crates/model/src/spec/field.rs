//! Reading a map field by field, collecting every problem instead of stopping at the first.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One thing wrong with what a user gave, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// The field, as a path: `resources.gpus`.
    pub field: String,
    /// What is wrong with it, with the value and the remedy.
    pub message: String,
}

impl FieldError {
    /// A problem with a field.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// A map being read: each `take` removes a field; what is left at the end is unknown.
pub(super) struct Fields<'a> {
    map: Map<String, Value>,
    prefix: &'a str,
    known: Vec<&'static str>,
    errors: &'a mut Vec<FieldError>,
}

impl<'a> Fields<'a> {
    /// Starts reading; anything but a map is a problem of the whole.
    pub fn new(value: Value, prefix: &'a str, errors: &'a mut Vec<FieldError>) -> Self {
        let map = match value {
            Value::Object(map) => map,
            other => {
                let field = prefix.trim_end_matches('.');
                errors.push(FieldError::new(field, format!("must be a map of fields, not {}", kind(&other))));
                Map::new()
            }
        };
        Self { map, prefix, known: Vec::new(), errors }
    }

    /// Takes one field and reads it; an absent or null field is `None`, and so is one that cannot be read.
    pub fn take<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Value) -> Result<T, String>,
    ) -> Option<T> {
        self.known.push(name);
        let value = self.map.remove(name).filter(|value| !value.is_null())?;
        match read(value) {
            Ok(value) => Some(value),
            Err(message) => {
                self.error(name, message);
                None
            }
        }
    }

    /// Takes one field that is itself a map.
    pub fn nested<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Value, &mut Vec<FieldError>) -> T,
    ) -> Option<T> {
        self.known.push(name);
        let value = self.map.remove(name).filter(|value| !value.is_null())?;
        Some(read(value, self.errors))
    }

    /// Whether a problem with this field was reported already.
    pub fn said(&self, name: &str) -> bool {
        self.errors.iter().any(|error| error.field.strip_prefix(self.prefix) == Some(name))
    }

    /// Reports a problem with a field.
    pub fn error(&mut self, name: &str, message: impl Into<String>) {
        self.errors.push(FieldError::new(format!("{}{name}", self.prefix), message));
    }

    /// Reports every field nobody took.
    pub fn finish(self) {
        for name in self.map.keys() {
            let near = nearest(name, &self.known)
                .map(|known| format!("; did you mean `{known}`?"))
                .unwrap_or_default();
            let shown: String = name.chars().take(60).collect();
            let message = format!("there is no field `{shown}`{near}");
            self.errors.push(FieldError::new(format!("{}{shown}", self.prefix), message));
        }
    }
}

/// What a JSON value is, in a user's words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// The known word nearest to a mistyped one, if any is near enough to be meant.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let limit = 1 + word.chars().count() / 4;
    let near =
        known.iter().map(|candidate| (distance(word, candidate), *candidate)).min_by_key(|(d, _)| *d)?;
    (near.0 <= limit).then_some(near.1)
}

/// The number of single-letter changes between two words.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(100).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
