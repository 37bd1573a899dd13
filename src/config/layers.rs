//! The layers of the configuration, one over the other; every value remembers where it came from.
//!
//! The known options are those that stand in `default.toml`, and those of a sink and of a lane. Files and environment
//! are read by walking them, so that an unknown name is a fault with its place and not a value that nobody reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigFault;

/// The defaults and their documentation.
pub const DEFAULTS: &str = include_str!("default.toml");

/// What every environment variable of punctual's begins with.
pub(super) const PREFIX: &str = "PUNCTUAL__";

/// The sections that hold any number of sections of their own, named by the user, and the options of one of them.
const NAMED: [(&str, &[&str]); 3] = [
    ("sinks", &["url", "answer_timeout", "patience", "credentials_file", "sentinel_password"]),
    ("lanes", &["sink", "destination"]),
    ("tokens", &["sha256", "scope"]),
];

/// What [`Value::Other`] calls a number that no option could take.
pub(super) const TOO_LARGE: &str = "number that large";

/// The table of a `[sinks.NAME]` section whose names are the client library's own.
pub(super) const PROPERTIES: &str = "properties";

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `default.toml`.
    Default,
    /// A line of a file, from 1.
    File {
        /// The file's path as it was given.
        path: String,
        /// The line.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag.
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Environment(name) => f.write_str(name),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A value as it stands in its layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A string; everything from environment and flags is one.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// `true` or `false`.
    Flag(bool),
    /// Something that no option takes; the name of its type.
    Other(&'static str),
    /// An empty section.
    Section,
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) value: Value,
    pub(super) origin: Origin,
}

/// All values by path (`claim.lease`), the layers laid over each other.
pub(super) struct Layers {
    pub(super) values: BTreeMap<String, Entry>,
    known: Vec<String>,
    /// Sections that were written empty, and where.
    sections: BTreeMap<String, Origin>,
    pub(super) faults: Vec<ConfigFault>,
}

impl Layers {
    /// The defaults alone.
    pub(super) fn defaults() -> Layers {
        let mut layers =
            Layers { values: BTreeMap::new(), known: Vec::new(), sections: BTreeMap::new(), faults: Vec::new() };
        let mut root = layers.parse(DEFAULTS, &|_| Origin::Default);
        root.retain(|(_, entry)| entry.value != Value::Section);
        layers.known = root.iter().map(|(path, _)| path.clone()).collect();
        layers.values.extend(root);
        layers
    }

    /// Lays a file over what is there.
    pub(super) fn file(&mut self, path: &str, text: &str) {
        let place = |offset: usize| Origin::File { path: path.to_owned(), line: line_of(text, offset) };
        let before = self.faults.len();
        let leaves = self.parse(text, &place);
        // What is made of a line that is no TOML is not what was meant.
        let broken: Vec<_> = self.faults[before..].iter().map(|fault| fault.origin.clone()).collect();
        for (key, entry) in leaves.into_iter().filter(|(_, entry)| !broken.contains(&entry.origin)) {
            self.set(key, entry);
        }
    }

    /// Lays environment variables over what is there; those that are not punctual's are passed by.
    pub(super) fn environment(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        for (name, value) in variables {
            let Some(rest) = name.strip_prefix(PREFIX) else {
                self.look_at_foreign(&name);
                continue;
            };
            let path = self.path_of(rest);
            self.set(path, Entry { value: Value::Text(value), origin: Origin::Environment(name) });
        }
    }

    /// A variable that is not punctual's, and would be but for a letter or an underscore.
    fn look_at_foreign(&mut self, name: &str) {
        let plain = |name: &str| name.to_uppercase().replace("__", "_");
        let written = plain(name);
        if !written.starts_with("PUNC") {
            return;
        }
        let known = self.known.iter().map(|path| variable(path));
        let near = known.map(|known| (strsim::damerau_levenshtein(&written, &plain(&known)), known)).min();
        let meant = near.filter(|(far, _)| *far <= 1).map(|(_, known)| known).or_else(|| {
            let of = |section: &str, key: &str| {
                let (section, key) = (section.to_uppercase(), key.to_uppercase());
                let rest = written.strip_prefix(&format!("PUNCTUAL_{section}_"))?.strip_suffix(&format!("_{key}"))?;
                (!rest.is_empty()).then(|| format!("{PREFIX}{section}__{rest}__{key}"))
            };
            NAMED.iter().find_map(|(section, keys)| keys.iter().find_map(|key| of(section, key)))
        });
        if let Some(meant) = meant {
            let origin = Origin::Environment(name.to_owned());
            let words = "this variable sets nothing".to_owned();
            let hint = Some(format!("did you mean `{meant}`?"));
            self.faults.push(ConfigFault { path: String::new(), origin, words, hint });
        }
    }

    /// Lays one flag over what is there.
    pub(super) fn flag(&mut self, flag: &'static str, path: &str, value: String) {
        self.set(path.to_owned(), Entry { value: Value::Text(value), origin: Origin::Flag(flag) });
    }

    /// The names of the sections within one of [`NAMED`]: `sinks` for `[sinks.NAME]`.
    pub(super) fn names(&self, section: &str) -> BTreeSet<String> {
        let empty =
            self.sections.keys().filter_map(|path| path.strip_prefix(section)?.strip_prefix('.')?.split('.').next());
        let filled = self.values.keys().filter_map(|path| named(path, section)).map(|(name, _)| name);
        empty.chain(filled).map(str::to_owned).collect()
    }

    /// The names in a sink's table of properties.
    pub(super) fn properties(&self, sink: &str) -> Vec<String> {
        let inside = |path: &String| property(path).filter(|(of, _)| *of == sink).map(|(_, name)| name.to_owned());
        self.values.keys().filter_map(inside).collect()
    }

    /// Where a path was said: its value, or the first one inside of it; for an option that nobody said, where its section
    /// begins. `None` where all of it is the defaults'.
    pub(super) fn place(&self, path: &str) -> Option<Origin> {
        let line = |origin: &&Origin| match origin {
            Origin::File { line, .. } => *line,
            _ => usize::MAX,
        };
        let here =
            |known: &String| known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let values = self.values.iter().map(|(path, entry)| (path, &entry.origin));
        let said = values.chain(&self.sections).filter(|(known, origin)| here(known) && **origin != Origin::Default);
        let first = said.map(|(_, origin)| origin).min_by_key(line).cloned();
        // Only sections that somebody names: the others have defaults.
        first.or_else(|| {
            path.rsplit_once('.')
                .filter(|(section, _)| section.contains('.'))
                .and_then(|(section, _)| self.place(section))
        })
    }

    fn set(&mut self, path: String, entry: Entry) {
        let whole = entry.value == Value::Section;
        if whole && self.is_section(&path) {
            self.sections.insert(path, entry.origin);
            return;
        }
        if !whole && self.is_known(&path) {
            self.values.insert(path, entry);
            return;
        }
        let near = if whole { self.nearest_section(&path) } else { self.nearest(&path) };
        let beside = |near: &String| {
            near.rsplit_once('.').map(|(section, _)| section) == path.rsplit_once('.').map(|(section, _)| section)
        };
        let (words, hint) = match near {
            // A section's name with a value, unless it is rather a misspelt option beside it.
            near if !whole && self.is_section(&path) && !near.as_ref().is_some_and(beside) => section_expected(&path),
            near => (
                format!("there is no such {}", if whole { "section" } else { "option" }),
                near.map(|near| match &entry.origin {
                    _ if whole => format!("did you mean `[{near}]`?"),
                    Origin::Environment(_) => format!("did you mean `{}`?", variable(&near)),
                    _ => format!("did you mean `{near}`?"),
                }),
            ),
        };
        self.faults.push(ConfigFault { path, origin: entry.origin, words, hint });
    }

    fn is_known(&self, path: &str) -> bool {
        let of = |(section, keys): &(&str, &[&str])| named(path, section).is_some_and(|(_, key)| keys.contains(&key));
        property(path).is_some() || self.known.iter().any(|known| known == path) || NAMED.iter().any(of)
    }

    fn is_section(&self, path: &str) -> bool {
        let inside = |(section, _): &(&str, _)| path.rsplit_once('.').is_some_and(|(above, _)| above == *section);
        let holds = |(section, _): &(&str, _)| path == *section;
        let whole = |known: &String| known.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
        let properties = named(path, "sinks").is_some_and(|(_, key)| key == PROPERTIES);
        properties || self.known.iter().any(whole) || NAMED.iter().any(|named| holds(named) || inside(named))
    }

    /// The path that an environment variable means, without its prefix. An unknown one is taken by its look.
    fn path_of(&self, rest: &str) -> String {
        if let Some(known) = self.known.iter().find(|known| variable(known).strip_prefix(PREFIX) == Some(rest)) {
            return known.clone();
        }
        for (section, keys) in NAMED {
            let Some(rest) = rest.strip_prefix(&format!("{}__", section.to_uppercase())) else { continue };
            for key in keys {
                if let Some(name) = rest.strip_suffix(&format!("__{}", key.to_uppercase())) {
                    return format!("{section}.{}.{key}", name.to_lowercase().replace('_', "-"));
                }
            }
        }
        // The client library's names have dots where a variable can have none.
        if let Some((name, property)) = rest.strip_prefix("SINKS__").and_then(|rest| rest.split_once("__PROPERTIES__"))
        {
            let (name, property) = (name.replace('_', "-"), property.replace('_', "."));
            return format!("sinks.{name}.{PROPERTIES}.{property}").to_lowercase();
        }
        rest.to_lowercase().replace("__", ".")
    }

    /// The known path that looks most like this one.
    fn nearest(&self, path: &str) -> Option<String> {
        let mut candidates = self.known.clone();
        for (section, keys) in NAMED {
            if let Some((name, _)) = named(path, section) {
                candidates.extend(keys.iter().map(|key| format!("{section}.{name}.{key}")));
                candidates.extend((section == "sinks").then(|| format!("sinks.{name}.{PROPERTIES}")));
            }
            // `[sink.a]` for `[sinks.a]`.
            let meant = path.split_once('.').map(|(_, inside)| format!("{section}.{inside}"));
            candidates.extend(meant.filter(|meant| self.is_known(meant)));
        }
        candidates.retain(|candidate| candidate != path);
        nearest(path, candidates)
    }

    /// The section that looks most like this one.
    fn nearest_section(&self, path: &str) -> Option<String> {
        let known = self.known.iter().filter_map(|known| known.split_once('.')).map(|(section, _)| section);
        let named = NAMED.iter().map(|(section, _)| *section);
        nearest(path, known.chain(named).map(str::to_owned))
    }

    /// All leaves of a TOML text; what cannot be read becomes faults.
    fn parse(&mut self, text: &str, place: &dyn Fn(usize) -> Origin) -> Vec<(String, Entry)> {
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let origin = place(error.span().map_or(0, |span| span.start));
            let words = error.message().to_owned();
            self.faults.push(ConfigFault { path: String::new(), origin, words, hint: None });
        }
        let mut leaves = Vec::new();
        walk("", root.get_ref(), place, &mut leaves);
        leaves
    }
}

/// The name and the key of a path like `sinks.<name>.<key>`.
fn named<'a>(path: &'a str, section: &str) -> Option<(&'a str, &'a str)> {
    path.strip_prefix(section)?.strip_prefix('.')?.split_once('.')
}

/// The sink's name and the property's of a path like `sinks.<name>.properties.<property>`.
fn property(path: &str) -> Option<(&str, &str)> {
    let (name, key) = named(path, "sinks")?;
    let property = key.strip_prefix(PROPERTIES)?.strip_prefix('.')?;
    (!property.is_empty()).then_some((name, property))
}

/// What is said of a value where a section belongs, and what to write instead.
fn section_expected(path: &str) -> (String, Option<String>) {
    let (section, option) = match path {
        _ if NAMED.iter().any(|(section, _)| *section == path) => (format!("{path}.NAME"), None),
        _ if path.ends_with(&format!(".{PROPERTIES}")) => (path.to_owned(), Some("`\"name\" = \"value\"`")),
        _ if path.starts_with("sinks.") => (path.to_owned(), Some("`url`")),
        _ => (path.to_owned(), None),
    };
    let inside = option.map(|option| format!(" with {option} in it")).unwrap_or_default();
    ("a section is expected here, not a value".to_owned(), Some(format!("`[{section}]`{inside}")))
}

/// Whether what stands at a path is a secret, or a value of a client library that may be one.
pub(super) fn holds_secret(path: &str) -> bool {
    ["password", "sha256"].iter().any(|end| path.ends_with(end)) || property(path).is_some()
}

/// Whether what stands at a path may be, or hold, a password when it is wrong: it is not quoted then. A file's contents
/// stand where its path belongs when somebody took the one for the other.
pub(super) fn is_secret(path: &str) -> bool {
    ["url", "_file"].iter().any(|end| path.ends_with(end)) || holds_secret(path)
}

/// The environment variable that sets a path.
fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").replace('-', "_").to_uppercase())
}

/// The candidate that is nearest to what was written, if one is near enough to have been meant.
pub(super) fn nearest(written: &str, candidates: impl IntoIterator<Item = String>) -> Option<String> {
    let split = |path: &str| match path.rsplit_once('.') {
        Some((section, key)) => (section.to_owned(), key.to_owned()),
        None => (String::new(), path.to_owned()),
    };
    let (section, key) = split(written);
    let near = |candidate: &String| {
        let (_, option) = split(candidate);
        let far = strsim::damerau_levenshtein(written, candidate);
        // Without its section, or in one that is nearly right, an option is known by its name.
        let known = option == key && (section.is_empty() || far <= 1 + section.len() / 3);
        known || (far <= 1 + key.len() / 4 && far < key.len())
    };
    let far = |candidate: &String| strsim::damerau_levenshtein(written, candidate);
    candidates.into_iter().filter(near).min_by_key(far)
}

/// A file's text, or the first line that is none.
pub(super) fn text_of(bytes: Vec<u8>) -> Result<String, usize> {
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        error.as_bytes().iter().take(good).filter(|&&b| b == b'\n').count() + 1
    })
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|&b| b == b'\n').count() + 1
}

fn walk(prefix: &str, table: &DeTable<'_>, place: &dyn Fn(usize) -> Origin, leaves: &mut Vec<(String, Entry)>) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => walk(&path, inner, place, leaves),
            _ => leaves.push((path, Entry { value: leaf(value), origin: place(key.span().start) })),
        }
    }
}

fn leaf(value: &Spanned<DeValue<'_>>) -> Value {
    match value.get_ref() {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            i64::from_str_radix(number.as_str(), number.radix()).map_or(Value::Other(TOO_LARGE), Value::Whole)
        }
        DeValue::Boolean(flag) => Value::Flag(*flag),
        DeValue::Table(_) => Value::Section,
        other => Value::Other(other.type_str()),
    }
}
