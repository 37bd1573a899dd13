//! Parses JSON objects member by member, so that one fault does not hide the others.

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Fault;

/// Maximum number of reported faults, so that one broken document cannot cause an endless answer.
pub const MAX_FAULTS: usize = 100;

/// Maximum length of a member's name in a pointer, in bytes. Longer names are cut off; only headers can have them.
const MAX_SHOWN_BYTES: usize = 200;

/// The largest difference to a known name, in letters, for which there is a hint. Short names may differ less.
const MAX_HINT_DISTANCE: usize = 3;

/// The faults found so far.
#[derive(Default)]
struct Faults {
    list: Vec<Fault>,
    count: usize,
}

impl Faults {
    /// Whether the maximum is reached.
    fn is_full(&self) -> bool {
        self.list.len() >= MAX_FAULTS
    }

    fn add(&mut self, fault: impl FnOnce() -> Fault) {
        self.count += 1;
        if !self.is_full() {
            self.list.push(fault());
        }
    }
}

/// Parses a body that may be empty, which means `{}`.
///
/// # Errors
/// Every fault that was noted.
pub(super) fn read_body<T>(json: &[u8], read_it: impl FnOnce(Field<'_, '_>) -> Option<T>) -> Result<T, Vec<Fault>> {
    read(if json.is_empty() { b"{}" } else { json }, "body", read_it)
}

/// Parses a document; `what` names it in errors. Readers return what they could parse and note their faults.
///
/// # Errors
/// Every fault that was noted.
pub(super) fn read<T>(json: &[u8], what: &str, read: impl FnOnce(Field<'_, '_>) -> Option<T>) -> Result<T, Vec<Fault>> {
    let faults = RefCell::default();
    let path = Path { member: None, faults: &faults };
    let document = match serde_json::from_slice(json) {
        Ok(raw) => read(Field { raw, path }),
        Err(error) => path.fault("not_json", format!("the {what} is not JSON: {error}")),
    };
    let faults = faults.into_inner();
    document.filter(|_| faults.count == 0).ok_or(faults.list)
}

/// The position of a value, written as a JSON pointer, and the list for its faults. Costs nothing until it is written.
#[derive(Clone, Copy)]
pub(super) struct Path<'p> {
    member: Option<(&'p Path<'p>, &'p str)>,
    faults: &'p RefCell<Faults>,
}

impl<'p> Path<'p> {
    pub(super) fn member(&'p self, name: &'p str) -> Path<'p> {
        Path { member: Some((self, name)), faults: self.faults }
    }

    /// Notes a fault of this value. Returns `None`, so that readers can end with it.
    pub(super) fn fault<T>(&self, code: &'static str, detail: impl Into<String>) -> Option<T> {
        let fault = || Fault { pointer: self.to_string(), code, detail: detail.into() };
        self.faults.borrow_mut().add(fault);
        None
    }

    /// Notes a fault that was found elsewhere.
    pub(super) fn note(&self, fault: Fault) {
        self.faults.borrow_mut().add(|| fault);
    }

    /// Whether a fault at this position was noted.
    pub(super) fn names(&self, pointer: &str) -> bool {
        self.faults.borrow().list.iter().any(|fault| fault.pointer == pointer)
    }

    /// Number of faults so far, including those beyond the maximum.
    pub(super) fn count(&self) -> usize {
        self.faults.borrow().count
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.member {
            None => Ok(()),
            Some((above, name)) => {
                let (name, cut) = beginning(name, MAX_SHOWN_BYTES);
                write!(f, "{above}/{}{cut}", name.replace('~', "~0").replace('/', "~1"))
            }
        }
    }
}

/// A value of the document, and its position.
#[derive(Clone, Copy)]
pub(super) struct Field<'a, 'p> {
    pub(super) raw: &'a RawValue,
    pub(super) path: Path<'p>,
}

impl<'a, 'p> Field<'a, 'p> {
    /// The members of an object. A repeated member is a fault; the first one counts.
    pub(super) fn object(self) -> Option<Object<'a, 'p>> {
        let Field { raw, path } = self;
        if kind(raw) != "an object" {
            return self.wrong_type("an object");
        }
        let members: Members<'a> = match serde_json::from_str(raw.get()) {
            Ok(members) => members,
            Err(error) => return path.fault("not_json", format!("a member's name cannot be read: {error}")),
        };
        let mut seen = std::collections::HashSet::with_capacity(members.0.len());
        let twice = |name: &Cow<'a, str>| !seen.insert(name.clone());
        let repeated: Vec<bool> = members.0.iter().map(|(name, _)| name).map(twice).collect();
        let mut left = Vec::with_capacity(members.0.len());
        for (member, repeated) in members.0.into_iter().zip(repeated) {
            if repeated {
                path.member(&member.0).fault::<()>("duplicate_field", "this member is repeated");
            } else {
                left.push(member);
            }
        }
        Some(Object { left, known: Vec::new(), path })
    }

    /// The text of a JSON string.
    pub(super) fn text(self) -> Option<Cow<'a, str>> {
        self.text_of("a text")
    }

    /// The text of a JSON string that means what is `expected`.
    pub(super) fn text_of(self, expected: &str) -> Option<Cow<'a, str>> {
        if kind(self.raw) != "a text" {
            return self.wrong_type(expected);
        }
        match serde_json::from_str::<Text<'a>>(self.raw.get()) {
            Ok(text) => Some(text.0),
            Err(error) => self.path.fault("not_json", format!("the text cannot be read: {error}")),
        }
    }

    /// `true` or `false`.
    pub(super) fn truth(self) -> Option<bool> {
        match self.raw.get() {
            "true" => Some(true),
            "false" => Some(false),
            _ => self.wrong_type("true or false"),
        }
    }

    /// A whole number from `low` to `high`.
    pub(super) fn number(self, low: u64, high: u64) -> Option<u64> {
        if kind(self.raw) != "a number" {
            return self.wrong_type("a whole number");
        }
        let number = self.raw.get().parse().ok().filter(|number| (low..=high).contains(number));
        number.or_else(|| {
            let detail = format!("{} is not a whole number from {low} to {high}", shown(self.raw.get()));
            self.path.fault("out_of_range", detail)
        })
    }

    /// A duration, which may be zero.
    pub(super) fn duration_or_zero(self) -> Option<Duration> {
        if kind(self.raw) != "a text" {
            return self.wrong_type("a text such as \"30s\" or \"1h30m\"");
        }
        match crate::task::duration::parse(&self.text()?) {
            Ok(span) => Some(span),
            Err(error) => self.path.fault("bad_duration", error.to_string()),
        }
    }

    /// A duration above zero.
    pub(super) fn duration(self) -> Option<Duration> {
        let span = self.duration_or_zero()?;
        if span.is_zero() { self.path.fault("bad_duration", "it must be longer than 0") } else { Some(span) }
    }

    fn wrong_type<T>(self, expected: &str) -> Option<T> {
        self.path.fault("wrong_type", format!("{expected} is expected, not {}", kind(self.raw)))
    }
}

/// The members of an object that were not taken yet, and the names that are known.
pub(super) struct Object<'a, 'p> {
    left: Vec<(Cow<'a, str>, &'a RawValue)>,
    known: Vec<&'static str>,
    pub(super) path: Path<'p>,
}

impl<'a> Object<'a, '_> {
    /// Takes an optional member and parses it.
    pub(super) fn optional<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Field<'a, '_>) -> Option<T>,
    ) -> Option<T> {
        self.known.push(name);
        let at = self.left.iter().position(|(member, _)| member == name)?;
        let (_, raw) = self.left.swap_remove(at);
        read(Field { raw, path: self.path.member(name) })
    }

    /// Takes a required member and parses it.
    pub(super) fn required<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(Field<'a, '_>) -> Option<T>,
    ) -> Option<T> {
        if !self.has(name) {
            self.known.push(name);
            return self.path.member(name).fault("missing_field", format!("`{name}` is missing"));
        }
        self.optional(name, read)
    }

    /// Whether there is a member of this name that was not taken yet.
    pub(super) fn has(&self, name: &str) -> bool {
        self.left.iter().any(|(member, _)| member == name)
    }

    /// Removes a member.
    pub(super) fn drop(&mut self, name: &str) {
        self.left.retain(|(member, _)| member != name);
    }

    /// All members, whatever their names.
    pub(super) fn into_members(self) -> Vec<(Cow<'a, str>, &'a RawValue)> {
        self.left
    }

    /// Reports the remaining members as unknown.
    pub(super) fn end(self) {
        for (name, _) in &self.left {
            let faults = &mut *self.path.faults.borrow_mut();
            // Hints take time, so none are made beyond the maximum.
            faults.add(|| {
                let hint = synonym_hint(name, &self.known).unwrap_or_else(|| hint(name, self.known.iter().copied()));
                let known = self.known.join("`, `");
                let nothing = hint.is_empty() && !known.is_empty();
                let hint = if nothing { format!("; known are `{known}`") } else { hint };
                let detail = format!("`{}` is not known here{hint}", shown(name));
                Fault { pointer: self.path.member(name).to_string(), code: "unknown_field", detail }
            });
        }
    }
}

/// A text from outside, truncated for use in an error.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
    }
}

/// The first `bytes` bytes of a text, and `...` if it is longer.
pub(in crate::task) fn beginning(text: &str, bytes: usize) -> (&str, &'static str) {
    match text.len() <= bytes {
        true => (text, ""),
        false => (&text[..text.floor_char_boundary(bytes)], "..."),
    }
}

/// `; did you mean ...?` if a known name is similar, else empty.
pub(super) fn hint<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    if name.len() > 64 {
        return String::new();
    }
    let name = name.to_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&name, &known.to_lowercase());
    let near = known.filter(|known| known.len().abs_diff(name.len()) <= MAX_HINT_DISTANCE);
    let nearest = near.map(|known| (distance(known), known)).min();
    match nearest.filter(|(distance, known)| *distance <= known.len().div_ceil(3).min(MAX_HINT_DISTANCE)) {
        Some((_, known)) => format!("; did you mean `{known}`?"),
        None => String::new(),
    }
}

/// Names that people use in place of a member's, and the member.
const SYNONYMS: [(&str, &str, &str); 12] = [
    ("timezone", "schedule", "zone"),
    ("time_zone", "schedule", "zone"),
    ("tz", "schedule", "zone"),
    ("delay", "schedule", "in"),
    ("after", "schedule", "in"),
    ("interval", "schedule", "every"),
    ("topic", "message", "destination"),
    ("queue", "message", "destination"),
    ("subject", "message", "destination"),
    ("stream", "message", "destination"),
    ("body", "message", "payload"),
    ("data", "message", "payload"),
];

/// `; did you mean ...?` for a name that means a known member of this object, or of an object in it.
fn synonym_hint(name: &str, known: &[&'static str]) -> Option<String> {
    let (_, object, member) = SYNONYMS.iter().find(|(synonym, ..)| name.eq_ignore_ascii_case(synonym))?;
    match (known.contains(member), known.contains(object)) {
        (true, _) => Some(format!("; did you mean `{member}`?")),
        (false, true) => Some(format!("; did you mean `{member}` in `{object}`?")),
        (false, false) => None,
    }
}

/// The type of a JSON value. It is valid JSON, so the first byte tells.
fn kind(raw: &RawValue) -> &'static str {
    match raw.get().as_bytes().first() {
        Some(b'"') => "a text",
        Some(b'{') => "an object",
        Some(b'[') => "a list",
        Some(b't' | b'f') => "a truth value",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// A text, borrowed from the document if it has no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Members in the order of the document, including repeated names.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((Text(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}
