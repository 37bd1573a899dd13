//! Parses the replies of scripts.

use bytes::Bytes;
use redis::Value;

use crate::clock::Timestamp;
use crate::timeline::TimelineError;
use crate::timeline::scripts::Code;

/// The reply of a script: the server's time, a code, then values that are read one by one.
pub(super) struct Reply {
    /// The first word of the reply.
    pub(super) code: Code,
    /// The server's time in microseconds.
    pub(super) micros: i64,
    /// Whether the call was sent before and its reply was lost; it may have run then.
    pub(super) is_repeated: bool,
    rest: Fields,
}

impl Reply {
    pub(super) fn read(value: Value) -> Result<Reply, TimelineError> {
        let mut rest = Fields::of(value)?;
        let micros = rest.number()?;
        let word = rest.text()?;
        let code = Code::of(&word).ok_or_else(|| broken(&format!("an unknown code `{word}`")))?;
        Ok(Reply { code, micros, is_repeated: false, rest })
    }

    /// The values after the code.
    pub(super) fn fields(&mut self) -> &mut Fields {
        &mut self.rest
    }

    /// The error for a code that the verb does not expect.
    pub(super) fn unexpected(&self) -> TimelineError {
        broken(&format!("an unexpected code `{}`", self.code.as_str()))
    }
}

/// The values of an array, read one by one.
pub(super) struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn of(value: Value) -> Result<Fields, TimelineError> {
        match value {
            Value::Array(values) => Ok(Fields(values.into_iter())),
            other => Err(broken(&format!("{} where an array is expected", kind(&other)))),
        }
    }

    /// Number of unread values.
    pub(super) fn left(&self) -> usize {
        self.0.len()
    }

    fn next(&mut self) -> Result<Value, TimelineError> {
        self.0.next().ok_or_else(|| broken("too few values"))
    }

    /// A nested array.
    pub(super) fn list(&mut self) -> Result<Fields, TimelineError> {
        Fields::of(self.next()?)
    }

    /// Bytes, without a copy.
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

    /// Text; `None` if it is empty or nil.
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

    /// A count, not negative.
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

    /// A time in ms; `None` if it is empty or nil.
    pub(super) fn optional_time(&mut self) -> Result<Option<Timestamp>, TimelineError> {
        self.optional_text()?.map(|text| parse(&text).map(Timestamp::from_millis)).transpose()
    }

    /// A name, parsed by its type.
    pub(super) fn name<T>(&mut self) -> Result<T, TimelineError>
    where
        T: TryFrom<String, Error: std::fmt::Display>,
    {
        name(self.text()?)
    }
}

/// A name, parsed by its type.
pub(super) fn name<T, S>(text: S) -> Result<T, TimelineError>
where
    T: TryFrom<String, Error: std::fmt::Display>,
    S: Into<String>,
{
    T::try_from(text.into()).map_err(|error| broken(&error.to_string()))
}

/// Parses a whole number.
pub(super) fn parse(text: &str) -> Result<i64, TimelineError> {
    text.parse().map_err(|_| broken(&format!("`{text}` where a number is expected")))
}

/// The error for a reply that cannot be parsed.
pub(super) fn broken(what: &str) -> TimelineError {
    TimelineError::Broken(what.to_owned())
}

/// The type of a value. The error must not contain the value itself, which may be large and belongs to a user.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) | Value::Okay => "a string",
        Value::Array(_) => "an array",
        _ => "something else",
    }
}
