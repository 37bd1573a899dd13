//! Reads what scripts reply.

use bytes::Bytes;
use redis::Value;

use crate::clock::Timestamp;
use crate::timeline::TimelineError;
use crate::timeline::scripts::Code;

/// What a script replied, after the server's time: a code, then values that are read one by one.
pub(super) struct Reply {
    /// The word that says what was done.
    pub(super) code: Code,
    /// The server's time, in micros.
    pub(super) micros: i64,
    rest: Fields,
}

impl Reply {
    pub(super) fn read(value: Value) -> Result<Reply, TimelineError> {
        let mut rest = Fields::of(value)?;
        let micros = rest.number()?;
        let word = rest.text()?;
        let code = Code::of(&word).ok_or_else(|| broken(&format!("an unknown code `{word}`")))?;
        Ok(Reply { code, micros, rest })
    }

    /// The values after the code.
    pub(super) fn fields(&mut self) -> &mut Fields {
        &mut self.rest
    }

    /// The error of a code that this verb does not know.
    pub(super) fn unexpected(&self) -> TimelineError {
        broken(&format!("an unexpected code `{}`", self.code.as_str()))
    }
}

/// Values of an array, read one by one.
pub(super) struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn of(value: Value) -> Result<Fields, TimelineError> {
        match value {
            Value::Array(values) => Ok(Fields(values.into_iter())),
            other => Err(broken(&format!("{} where an array is expected", kind(&other)))),
        }
    }

    /// How many values are left.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    fn next(&mut self) -> Result<Value, TimelineError> {
        self.0.next().ok_or_else(|| broken("too few values"))
    }

    /// An array inside.
    pub(super) fn list(&mut self) -> Result<Fields, TimelineError> {
        Fields::of(self.next()?)
    }

    /// Bytes as they came, not copied.
    pub(super) fn bytes(&mut self) -> Result<Bytes, TimelineError> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes.into()),
            other => Err(broken(&format!("{} where a string is expected", kind(&other)))),
        }
    }

    /// Text.
    pub(super) fn text(&mut self) -> Result<String, TimelineError> {
        match self.next()? {
            Value::BulkString(bytes) => String::from_utf8(bytes).map_err(|_| broken("text that is not UTF-8")),
            Value::SimpleString(text) => Ok(text),
            other => Err(broken(&format!("{} where text is expected", kind(&other)))),
        }
    }

    /// Text, if there is any.
    pub(super) fn optional_text(&mut self) -> Result<Option<String>, TimelineError> {
        match self.next()? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) if bytes.is_empty() => Ok(None),
            Value::BulkString(bytes) => {
                String::from_utf8(bytes).map(Some).map_err(|_| broken("text that is not UTF-8"))
            }
            other => Err(broken(&format!("{} where text is expected", kind(&other)))),
        }
    }

    /// A whole number.
    pub(super) fn number(&mut self) -> Result<i64, TimelineError> {
        match self.next()? {
            Value::Int(number) => Ok(number),
            Value::BulkString(bytes) => parse(&String::from_utf8_lossy(&bytes)),
            other => Err(broken(&format!("{} where a number is expected", kind(&other)))),
        }
    }

    /// A number of things.
    pub(super) fn count(&mut self) -> Result<u64, TimelineError> {
        u64::try_from(self.number()?).map_err(|_| broken("a negative count"))
    }

    /// 0 or 1.
    pub(super) fn flag(&mut self) -> Result<bool, TimelineError> {
        Ok(self.number()? != 0)
    }

    /// A time in ms.
    pub(super) fn time(&mut self) -> Result<Timestamp, TimelineError> {
        self.number().map(Timestamp::from_millis)
    }

    /// A time in ms, or nothing.
    pub(super) fn optional_time(&mut self) -> Result<Option<Timestamp>, TimelineError> {
        self.optional_text()?.map(|text| parse(&text).map(Timestamp::from_millis)).transpose()
    }

    /// A name, as its type reads it.
    pub(super) fn name<T>(&mut self) -> Result<T, TimelineError>
    where
        T: TryFrom<String, Error: std::fmt::Display>,
    {
        name(self.text()?)
    }
}

/// A name, as its type reads it.
pub(super) fn name<T, S>(text: S) -> Result<T, TimelineError>
where
    T: TryFrom<String, Error: std::fmt::Display>,
    S: Into<String>,
{
    T::try_from(text.into()).map_err(|error| broken(&error.to_string()))
}

/// Reads a whole number.
pub(super) fn parse(text: &str) -> Result<i64, TimelineError> {
    text.parse().map_err(|_| broken(&format!("`{text}` where a number is expected")))
}

/// An answer that makes no sense.
pub(super) fn broken(what: &str) -> TimelineError {
    TimelineError::Broken(what.to_owned())
}

/// What a value is, without its content: that may be large, and a user's.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a string",
        Value::Array(_) => "an array",
        _ => "something else",
    }
}
