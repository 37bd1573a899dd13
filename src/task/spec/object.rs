//! JSON objects read member by member, so that one fault does not hide the others.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Fault;

/// Faults that are named at most: one broken document can't make an endless answer.
pub const MAX_FAULTS: usize = 100;

/// Bytes of a member's name that a pointer shows at most; every name that means something is shorter.
const LONGEST_SHOWN: usize = 200;

/// A name this many letters away from a known one is meant for something else.
const FARTHEST: usize = 3;

/// The faults found so far.
#[derive(Default)]
pub(super) struct Faults {
    list: Vec<Fault>,
    count: usize,
}

impl Faults {
    /// Notes a fault; returns `None`, for readers that end with it.
    pub(super) fn add<T>(&mut self, place: &Place<'_>, code: &'static str, detail: impl Into<String>) -> Option<T> {
        self.count += 1;
        if !self.is_full() {
            self.list.push(Fault { pointer: place.to_string(), code, detail: detail.into() });
        }
        None
    }

    /// Whether there are so many that no other is named.
    fn is_full(&self) -> bool {
        self.list.len() >= MAX_FAULTS
    }

    /// Whether a fault of this place was named.
    pub(super) fn names(&self, pointer: &str) -> bool {
        self.list.iter().any(|fault| fault.pointer == pointer)
    }

    /// Notes a fault that was found elsewhere.
    pub(super) fn take(&mut self, fault: Fault) {
        self.count += 1;
        if !self.is_full() {
            self.list.push(fault);
        }
    }

    /// How many were found, named or not.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn into_list(self) -> Vec<Fault> {
        self.list
    }
}

/// Where a value stands; shown as JSON pointer. Costs nothing until it is shown.
#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    member: Option<(&'p Place<'p>, &'p str)>,
}

impl<'p> Place<'p> {
    /// The whole document.
    pub(super) const ROOT: Place<'static> = Place { member: None };

    pub(super) fn member(&'p self, name: &'p str) -> Place<'p> {
        Place { member: Some((self, name)) }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.member {
            None => Ok(()),
            Some((above, name)) => {
                let (name, cut) = beginning(name, LONGEST_SHOWN);
                write!(f, "{above}/{}{cut}", name.replace('~', "~0").replace('/', "~1"))
            }
        }
    }
}

/// The members of an object that were not taken yet, and the names that were asked for.
pub(super) struct Object<'a> {
    left: Vec<(Cow<'a, str>, &'a RawValue)>,
    known: Vec<&'static str>,
}

impl<'a> Object<'a> {
    /// Reads an object; `None` when the value is none. Members that stand twice are faults, the first is kept.
    pub(super) fn read(raw: &'a RawValue, place: &Place<'_>, faults: &mut Faults) -> Option<Object<'a>> {
        if kind(raw) != "an object" {
            return wrong_type(raw, "an object", place, faults);
        }
        let members: Members<'a> = match serde_json::from_str(raw.get()) {
            Ok(members) => members,
            Err(error) => return faults.add(place, "not_json", format!("a member's name cannot be read: {error}")),
        };
        let mut seen = std::collections::HashSet::with_capacity(members.0.len());
        let twice = |name: &Cow<'a, str>| !seen.insert(name.clone());
        let repeated: Vec<bool> = members.0.iter().map(|(name, _)| name).map(twice).collect();
        let mut left = Vec::with_capacity(members.0.len());
        for (member, repeated) in members.0.into_iter().zip(repeated) {
            if repeated {
                faults.add::<()>(&place.member(&member.0), "duplicate_field", "this member stands here more than once");
            } else {
                left.push(member);
            }
        }
        Some(Object { left, known: Vec::new() })
    }

    /// Takes the member that may be there and reads it.
    pub(super) fn may<T>(
        &mut self,
        name: &'static str,
        place: &Place<'_>,
        faults: &mut Faults,
        read: impl FnOnce(&'a RawValue, &Place<'_>, &mut Faults) -> Option<T>,
    ) -> Option<T> {
        self.known.push(name);
        let at = self.left.iter().position(|(member, _)| member == name)?;
        let (_, raw) = self.left.swap_remove(at);
        read(raw, &place.member(name), faults)
    }

    /// Takes the member that must be there and reads it.
    pub(super) fn need<T>(
        &mut self,
        name: &'static str,
        place: &Place<'_>,
        faults: &mut Faults,
        read: impl FnOnce(&'a RawValue, &Place<'_>, &mut Faults) -> Option<T>,
    ) -> Option<T> {
        if !self.has(name) {
            self.known.push(name);
            return faults.add(&place.member(name), "missing_field", format!("`{name}` is missing"));
        }
        self.may(name, place, faults, read)
    }

    /// Whether a member of that name is there and was not taken yet.
    pub(super) fn has(&self, name: &str) -> bool {
        self.left.iter().any(|(member, _)| member == name)
    }

    /// Forgets a member.
    pub(super) fn drop(&mut self, name: &str) {
        self.left.retain(|(member, _)| member != name);
    }

    /// All members, whatever their names.
    pub(super) fn into_members(self) -> Vec<(Cow<'a, str>, &'a RawValue)> {
        self.left
    }

    /// What was not asked for is unknown.
    pub(super) fn end(self, place: &Place<'_>, faults: &mut Faults) {
        for (name, _) in &self.left {
            if faults.is_full() {
                // Hints take time, and nobody would see these.
                faults.count += 1;
                continue;
            }
            let hint = hint(name, self.known.iter().copied());
            let known = self.known.join("`, `");
            let nothing = hint.is_empty() && !known.is_empty();
            let hint = if nothing { format!("; known are `{known}`") } else { hint };
            let detail = format!("`{}` is not known here{hint}", shown(name));
            faults.add::<()>(&place.member(name), "unknown_field", detail);
        }
    }
}

/// A document that is JSON; `what` it is meant to be.
pub(super) fn whole<'a>(json: &'a [u8], what: &str, faults: &mut Faults) -> Option<&'a RawValue> {
    match serde_json::from_slice(json) {
        Ok(whole) => Some(whole),
        Err(error) => faults.add(&Place::ROOT, "not_json", format!("the {what} is not JSON: {error}")),
    }
}

/// The text of a JSON string.
pub(super) fn text<'a>(raw: &'a RawValue, place: &Place<'_>, faults: &mut Faults) -> Option<Cow<'a, str>> {
    if kind(raw) != "a text" {
        return wrong_type(raw, "a text", place, faults);
    }
    match serde_json::from_str::<Text<'a>>(raw.get()) {
        Ok(text) => Some(text.0),
        Err(error) => faults.add(place, "not_json", format!("the text cannot be read: {error}")),
    }
}

/// A whole number from `low` to `high`.
pub(super) fn number(raw: &RawValue, low: u64, high: u64, place: &Place<'_>, faults: &mut Faults) -> Option<u64> {
    if kind(raw) != "a number" {
        return wrong_type(raw, "a whole number", place, faults);
    }
    let number = raw.get().parse().ok().filter(|number| (low..=high).contains(number));
    number.or_else(|| {
        let detail = format!("{} is not a whole number from {low} to {high}", shown(raw.get()));
        faults.add(place, "out_of_range", detail)
    })
}

/// A duration longer than nothing, or also nothing where `zero` may be.
pub(super) fn duration(
    raw: &RawValue,
    zero: bool,
    place: &Place<'_>,
    faults: &mut Faults,
) -> Option<std::time::Duration> {
    if kind(raw) != "a text" {
        return wrong_type(raw, "a text such as \"30s\" or \"1h30m\"", place, faults);
    }
    let text = text(raw, place, faults)?;
    match crate::task::duration::parse(&text) {
        Ok(span) if span.is_zero() && !zero => faults.add(place, "bad_duration", "it must be longer than nothing"),
        Ok(span) => Some(span),
        Err(error) => faults.add(place, "bad_duration", error.to_string()),
    }
}

/// A text from outside, cut to a length that suits a message.
pub(super) fn shown(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
    }
}

/// What stands in the first `bytes` bytes of a text, and `...` where that is not all of it.
pub(in crate::task) fn beginning(text: &str, bytes: usize) -> (&str, &'static str) {
    match text.len() <= bytes {
        true => (text, ""),
        false => (&text[..text.floor_char_boundary(bytes)], "..."),
    }
}

/// `; did you mean ...?` where one of the known names is near, else nothing.
pub(super) fn hint<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> String {
    if name.len() > 64 {
        return String::new();
    }
    let name = name.to_lowercase();
    let distance = |known: &str| strsim::damerau_levenshtein(&name, &known.to_lowercase());
    let near = known.filter(|known| known.len().abs_diff(name.len()) <= FARTHEST);
    let nearest = near.map(|known| (distance(known), known)).min();
    match nearest.filter(|(distance, known)| *distance <= known.len().div_ceil(3).min(FARTHEST)) {
        Some((_, known)) => format!("; did you mean `{known}`?"),
        None => String::new(),
    }
}

fn wrong_type<T>(raw: &RawValue, expected: &str, place: &Place<'_>, faults: &mut Faults) -> Option<T> {
    faults.add(place, "wrong_type", format!("{expected} is expected, not {}", kind(raw)))
}

/// What kind of JSON value it is; a whole one, so that its first byte tells.
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

/// A text borrowed from the document where it holds no escapes.
#[derive(serde::Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Members in the order of the document, repeated names included.
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
