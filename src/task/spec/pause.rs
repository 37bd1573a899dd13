//! The bodies of requests to pause: a lane `{"note"?, "until"?}`, a task `{"note"?}`.

use super::Fault;
use super::object::{self, Field};
use super::time::{self, Rounding};
use crate::clock::Timestamp;

/// Maximum length of a note, in characters.
const MAX_NOTE_CHARS: usize = 200;

/// A request to pause a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PauseBody {
    /// Why.
    pub note: String,
    /// When the pause ends by itself.
    pub until: Option<Timestamp>,
}

/// Parses the body of a pause that begins at `now`. An empty body is `{}`.
///
/// # Errors
/// Every fault of the document.
pub fn read_pause(json: &[u8], now: Timestamp) -> Result<PauseBody, Vec<Fault>> {
    object::read_body(json, |field| {
        let mut object = field.object()?;
        let note = object.optional("note", note).unwrap_or_default();
        let until = object.optional("until", |field| {
            let path = field.path;
            let until = time::read(field, Rounding::Up)?;
            if until <= now {
                return path.fault("out_of_range", format!("`until` is not in the future: it is {now}"));
            }
            Some(until)
        });
        object.end();
        Some(PauseBody { note, until })
    })
}

/// Parses the body of a request to pause a task. Returns the note.
///
/// # Errors
/// Every fault of the document.
pub fn read_note(json: &[u8]) -> Result<String, Vec<Fault>> {
    object::read_body(json, |field| {
        let mut object = field.object()?;
        let note = object.optional("note", note).unwrap_or_default();
        object.end();
        Some(note)
    })
}

fn note(field: Field<'_, '_>) -> Option<String> {
    let path = field.path;
    let text = field.text()?;
    if text.chars().count() > MAX_NOTE_CHARS {
        return path.fault("too_large", format!("at most {MAX_NOTE_CHARS} characters are expected"));
    }
    if text.chars().any(char::is_control) {
        return path.fault("bad_value", "control characters and line breaks are not expected in a note");
    }
    Some(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_has_a_short_note_and_ends_in_the_future() {
        let now = Timestamp::from_millis(1_795_262_400_000);
        let read = |json: &str| {
            let named = |faults: Vec<Fault>| {
                faults.into_iter().map(|fault| format!("{} {}", fault.pointer, fault.code)).collect::<Vec<_>>()
            };
            read_pause(json.as_bytes(), now).map_err(named)
        };
        assert_eq!(read(""), Ok(PauseBody::default()));
        assert_eq!(read("{}"), Ok(PauseBody::default()));
        let whole = read(r#"{"note":"broker moves – ü","until":"2026-11-21T12:00:00.001Z"}"#).unwrap();
        assert_eq!(
            whole,
            PauseBody { note: "broker moves – ü".into(), until: Some(Timestamp::from_millis(now.as_millis() + 1)) }
        );
        let long = format!(r#"{{"note":"{}"}}"#, "ü".repeat(201));
        assert_eq!(read(&long), Err(vec!["/note too_large".to_owned()]));
        assert!(read(&long.replacen('ü', "", 1)).is_ok());
        assert_eq!((read_note(b""), read_note(br#"{"note":"x"}"#)), (Ok(String::new()), Ok("x".to_owned())));
        assert_eq!(read_note(br#"{"until":"2026-11-21T12:00:01Z"}"#).unwrap_err()[0].code, "unknown_field");
        let wrong = read(r#"{"note":"a\nb","until":"2026-11-21T12:00:00Z","for":1}"#).unwrap_err();
        assert_eq!(wrong, ["/note bad_value", "/until out_of_range", "/for unknown_field"]);
    }
}
