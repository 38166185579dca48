//! Between Rust values and columns: times, words, JSON, ids.

use std::error::Error as StdError;
use std::str::FromStr;

use muster_model::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Error, Result, Row};
use serde::de::{DeserializeOwned, IntoDeserializer, value};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A row read from left to right, in the order its query names the columns.
pub(crate) struct Columns<'a> {
    row: &'a Row<'a>,
    next: usize,
}

impl<'a> Columns<'a> {
    pub fn new(row: &'a Row<'a>) -> Self {
        Self { row, next: 0 }
    }

    /// A column of a type SQLite has.
    pub fn plain<T: rusqlite::types::FromSql>(&mut self) -> Result<T> {
        let value = self.row.get(self.next);
        self.next += 1;
        value
    }

    /// A count, or a number given out by SQLite; these are never negative.
    pub fn count(&mut self) -> Result<u64> {
        Ok(self.plain::<i64>()?.max(0).cast_unsigned())
    }

    /// A moment.
    pub fn time(&mut self) -> Result<Timestamp> {
        let micros = self.plain()?;
        self.checked(Timestamp::from_microsecond(micros))
    }

    /// A moment, if it has come.
    pub fn optional_time(&mut self) -> Result<Option<Timestamp>> {
        match self.plain()? {
            Some(micros) => self.checked(Timestamp::from_microsecond(micros)).map(Some),
            None => Ok(None),
        }
    }

    /// A value kept as JSON.
    pub fn json<T: DeserializeOwned>(&mut self) -> Result<T> {
        let text = self.text()?;
        self.checked(serde_json::from_str(text))
    }

    /// A value kept as JSON, if there is one.
    pub fn optional_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        match self.optional_text()? {
            Some(text) => self.checked(serde_json::from_str(text)).map(Some),
            None => Ok(None),
        }
    }

    /// An id, or anything else with a text form of its own.
    pub fn parsed<T: FromStr>(&mut self) -> Result<T>
    where
        T::Err: Into<Box<dyn StdError + Send + Sync>>,
    {
        let text = self.text()?;
        self.checked(text.parse())
    }

    /// The same, if there is one.
    pub fn optional_parsed<T: FromStr>(&mut self) -> Result<Option<T>>
    where
        T::Err: Into<Box<dyn StdError + Send + Sync>>,
    {
        match self.optional_text()? {
            Some(text) => self.checked(text.parse()).map(Some),
            None => Ok(None),
        }
    }

    /// A variant without data, spelled as in JSON.
    pub fn word<T: for<'de> Deserialize<'de>>(&mut self) -> Result<T> {
        let text = self.text()?;
        let read: std::result::Result<T, value::Error> = T::deserialize(text.into_deserializer());
        self.checked(read)
    }

    /// The same, if there is one.
    pub fn optional_word<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>> {
        let Some(text) = self.optional_text()? else { return Ok(None) };
        let read: std::result::Result<T, value::Error> = T::deserialize(text.into_deserializer());
        self.checked(read).map(Some)
    }

    fn text(&mut self) -> Result<&'a str> {
        let text = self.row.get_ref(self.next)?.as_str();
        self.next += 1;
        self.checked(text)
    }

    fn optional_text(&mut self) -> Result<Option<&'a str>> {
        let text = self.row.get_ref(self.next)?.as_str_or_null();
        self.next += 1;
        self.checked(text)
    }

    /// Names the column just read where it does not hold what this version writes.
    fn checked<T, E: Into<Box<dyn StdError + Send + Sync>>>(
        &self,
        read: std::result::Result<T, E>,
    ) -> Result<T> {
        read.map_err(|error| Error::FromSqlConversionFailure(self.next - 1, Type::Text, error.into()))
    }
}

/// A moment as it is stored. Anything finer than a microsecond is lost.
pub(crate) fn time(at: Timestamp) -> i64 {
    at.as_microsecond()
}

/// A count as it is stored; SQLite's integers have a sign, and no count comes near the limit.
pub(crate) fn count(count: u64) -> i64 {
    count.cast_signed()
}

/// A value as JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| Error::ToSqlConversionFailure(error.into()))
}

/// A value as JSON, if there is one.
pub(crate) fn optional_json<T: Serialize>(value: Option<&T>) -> Result<Option<String>> {
    value.map(json).transpose()
}

/// A variant without data, spelled as in JSON.
pub(crate) fn word<T: Serialize>(value: &T) -> Result<String> {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => Ok(word),
        Ok(other) => Err(Error::ToSqlConversionFailure(format!("`{other}` is not a word").into())),
        Err(error) => Err(Error::ToSqlConversionFailure(error.into())),
    }
}
