//! The output: data to stdout, everything else to stderr.
//!
//! Control characters in text from outside (an instance, a file) are escaped, because a terminal interprets them. So are
//! the characters that change the direction of text: they can make a line look like another one.

use std::fmt::{self, Display, Write as _};
use std::io::{self, Write as _};

use anyhow::anyhow;
use serde::Deserialize;

use super::program::Failure;

/// Text from outside for use in a sentence, without control characters or line breaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(from = "String")]
pub(super) struct Printable(String);

impl Printable {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Printable {
    fn from(text: String) -> Printable {
        Printable(escaped(&text, is_interpreted))
    }
}

impl Display for Printable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints text for people to stdout.
///
/// # Errors
/// See [`write`].
pub fn say(text: &str) -> Result<(), Failure> {
    write(visible(text).as_bytes())
}

/// Prints a JSON value and a line break to stdout.
///
/// # Errors
/// See [`write`].
pub fn json(value: &str) -> Result<(), Failure> {
    json_lines(&format!("{}\n", value.trim_end()))
}

/// Prints lines of JSON to stdout. The escapes are those of JSON, so that a program reads the same values.
///
/// # Errors
/// See [`write`].
pub fn json_lines(lines: &str) -> Result<(), Failure> {
    // No JSON string holds these two unescaped, and an escape between values would break the JSON.
    write(visible(&lines.replace(['\r', '\t'], " ")).as_bytes())
}

/// Writes data to stdout unchanged. A closed pipe (`| head`) is no failure.
///
/// # Errors
/// If it cannot be written, for example to a full disk.
pub fn write(data: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(data).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(anyhow!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints to stderr.
pub fn tell(text: &str) {
    if io::stderr().lock().write_all(visible(text).as_bytes()).is_err() {
        tracing::debug!("stderr is closed");
    }
}

/// Text of several lines without characters that a terminal interprets.
fn visible(text: &str) -> String {
    escaped(text, |character| is_interpreted(character) && character != '\n')
}

/// Whether a terminal interprets the character: the controls C0 and C1, and those of bidirectional text.
fn is_interpreted(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Escapes like JSON, so that JSON stays valid.
fn escaped(text: &str, is_meant: impl Fn(char) -> bool) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, character| {
        if is_meant(character) {
            // Writing to a String does not fail.
            write!(escaped, "\\u{:04x}", u32::from(character)).ok();
        } else {
            escaped.push(character);
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_are_escaped() {
        assert_eq!(visible("a\n\u{1b}[31mb\r\u{9b}c\u{7f}ü"), "a\n\\u001b[31mb\\u000d\\u009bc\\u007fü");
        let detail: Printable = serde_json::from_str(r#""a\nline 9: \u001b]0;b\u0007""#).unwrap();
        assert_eq!(detail.as_str(), "a\\u000aline 9: \\u001b]0;b\\u0007");
        let turned: Printable = "\u{202e}txt\u{2069} \u{5d0}\u{200f}".to_owned().into();
        assert_eq!(turned.as_str(), "\\u202etxt\\u2069 \u{5d0}\\u200f");
    }
}
