//! Reading a map field by field, collecting every problem instead of stopping at the first.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

crate::catalogue! {
    /// How a field is wrong.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
    pub enum FieldCode {
        /// Another job that is not over has this name.
        NameInUse = "name_in_use" => "Choose another name, or stop the job that has it.",
        /// No node, or no group of nodes, could ever give what the job asks for.
        NotEnoughResources = "not_enough_resources" => "Ask for at most what the message says is there; `muster nodes` shows all of it.",
        /// The value is known, but the place where the job would run does not have it.
        NotSupported = "not_supported" => "Leave the field out, or run the job elsewhere with --on.",
        /// The value is not valid UTF-8, and a job is stored as text.
        NotUtf8 = "not_utf8" => "Rename what it names, or put it into a script of yours and run that.",
        /// The number, size or time is too small or too large.
        OutOfRange = "out_of_range" => "Choose a value within the bounds that the message names.",
        /// The field is needed and absent.
        Required = "required" => "Add the field; docs/reference/job-file.md lists all of them.",
        /// What an absent field means is found from the code, and the code speaks for more than one thing.
        SeveralFound = "several_found" => "Set the field to one of those that the message names.",
        /// There is no field of this name.
        UnknownField = "unknown_field" => "Correct its spelling; docs/reference/job-file.md lists all fields.",
        /// A variable is to be passed on that is not set in this shell.
        VariableNotSet = "variable_not_set" => "Set and export it first, or give its value: --env NAME=VALUE.",
        /// The code directory does not exist.
        WorkdirMissing = "workdir_missing" => "Correct the path; in a job file it is relative to the folder of the file.",
        /// The code directory is there, but cannot be used as one.
        WorkdirUnusable = "workdir_unusable" => "Name a directory that you may read and whose name is valid UTF-8.",
        /// The value is of another type than the field takes: a list for a number, a text for a map.
        WrongType = "wrong_type" => "Write it as the message says; docs/reference/job-file.md has the type of every field.",
        /// The value is of the right type, but is not one that the field takes.
        #[serde(other)]
        InvalidValue = "invalid_value" => "Write one of the values that the message names.",
    }
}

/// What a server of before these codes says.
impl Default for FieldCode {
    fn default() -> Self {
        Self::InvalidValue
    }
}

/// One thing wrong with what a user gave, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FieldError {
    /// The field, as a path: `resources.gpus`.
    pub field: String,
    /// How it is wrong, for programs.
    #[serde(default)]
    pub code: FieldCode,
    /// What is wrong with it, with the value and the remedy.
    pub message: String,
}

impl FieldError {
    /// A problem with a field.
    pub fn new(field: impl Into<String>, code: FieldCode, message: impl Into<String>) -> Self {
        Self { field: field.into(), code, message: message.into() }
    }
}

/// What is wrong with a value, before anyone knows which field it is of.
#[derive(Debug)]
pub(super) struct Wrong {
    pub code: FieldCode,
    pub message: String,
}

impl Wrong {
    pub fn new(code: FieldCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// A value that is none of those the field takes.
    pub fn value(message: impl std::fmt::Display) -> Self {
        Self::new(FieldCode::InvalidValue, message.to_string())
    }

    /// A value of another type: `must be a list, not a number`.
    pub fn kind(wanted: &str, value: &Value) -> Self {
        Self::new(FieldCode::WrongType, format!("must be {wanted}, not {}", kind(value)))
    }
}

/// How many mistakes of one kind are named one by one.
pub(super) const MAX_REPORTED: usize = 20;

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
                let wrong = Wrong::kind("a map of fields", &other);
                errors.push(FieldError::new(field, wrong.code, wrong.message));
                Map::new()
            }
        };
        Self { map, prefix, known: Vec::new(), errors }
    }

    /// Takes one field and reads it; an absent or null field is `None`, and so is one that cannot be read.
    pub fn take<T>(&mut self, name: &'static str, read: impl FnOnce(Value) -> Result<T, Wrong>) -> Option<T> {
        self.known.push(name);
        let value = self.map.remove(name).filter(|value| !value.is_null())?;
        match read(value) {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.error(name, wrong);
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

    /// Whether the field says something: a default that a client filled in does not.
    pub fn is_given(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| match value {
            Value::Null => false,
            Value::Bool(value) => *value,
            Value::Array(items) => !items.is_empty(),
            Value::Number(_) | Value::String(_) | Value::Object(_) => true,
        })
    }

    /// Whether a problem with this field was reported already.
    pub fn said(&self, name: &str) -> bool {
        self.errors.iter().any(|error| error.field.strip_prefix(self.prefix) == Some(name))
    }

    /// Reports a problem with a field.
    pub fn error(&mut self, name: &str, wrong: Wrong) {
        self.errors.push(FieldError::new(format!("{}{name}", self.prefix), wrong.code, wrong.message));
    }

    /// Reports the fields nobody took. Of very many only the first are named: a reply must not be a multiple of what
    /// it answers.
    pub fn finish(self) {
        let more = self.map.len().saturating_sub(MAX_REPORTED);
        for name in self.map.keys().take(MAX_REPORTED) {
            let near = nearest(name, &self.known)
                .map(|known| format!("; did you mean `{known}`?"))
                .unwrap_or_default();
            let shown: String = name.chars().take(60).collect();
            let message = format!("there is no field `{shown}`{near}");
            let field = format!("{}{shown}", self.prefix);
            self.errors.push(FieldError::new(field, FieldCode::UnknownField, message));
        }
        if more > 0 {
            let message = format!("there are {more} more fields that do not exist");
            self.errors.push(FieldError::new(
                self.prefix.trim_end_matches('.'),
                FieldCode::UnknownField,
                message,
            ));
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
