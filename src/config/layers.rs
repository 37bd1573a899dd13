//! The layers of the configuration, one over the other; every value remembers where it came from.
//!
//! The known options are those that stand in `default.toml`, and those of a sink and of a lane. Files and environment
//! are read by walking them, so that an unknown name is a fault with its place and not a value that nobody reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigFault;
use super::hints::section_expected;

/// The defaults and their documentation.
pub const DEFAULTS: &str = include_str!("default.toml");

/// What every environment variable of punctual's begins with.
pub(super) const PREFIX: &str = "PUNCTUAL__";

/// The sections that hold any number of sections of their own, named by the user, and the options of one of them.
pub(super) const NAMED: [(&str, &[&str]); 3] = [
    ("sinks", &["url", "answer_timeout", "patience", "credentials_file", "sentinel_password"]),
    ("lanes", &["sink", "destination", "dead_destination"]),
    ("tokens", &["sha256", "scope"]),
];

/// How many faults of a text's form are told: what is no TOML at all has one a line.
const MOST_BROKEN: usize = 10;

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
    /// What stands in a line that is no TOML: its fault is told, and what was meant is not known.
    Unreadable,
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
    pub(super) known: Vec<String>,
    /// Sections that were written empty, and where.
    sections: BTreeMap<String, Origin>,
    pub(super) faults: Vec<ConfigFault>,
}

impl Layers {
    /// The defaults alone.
    pub(super) fn defaults() -> Layers {
        let mut layers =
            Layers { values: BTreeMap::new(), known: Vec::new(), sections: BTreeMap::new(), faults: Vec::new() };
        for Leaf { path, value, .. } in parse(DEFAULTS).0 {
            if value != Value::Section {
                layers.known.push(path.clone());
                layers.values.insert(path, Entry { value, origin: Origin::Default });
            }
        }
        layers
    }

    /// Lays a file over what is there.
    pub(super) fn file(&mut self, path: &str, text: &str) {
        let lines = Lines::of(text);
        let place = |line| Origin::File { path: path.to_owned(), line };
        let (leaves, broken) = parse(text);
        let broken: Vec<_> = broken.into_iter().map(|(offset, detail)| (lines.line(offset), detail)).collect();
        for (at, (line, detail)) in broken.iter().enumerate().take(MOST_BROKEN + 1) {
            let detail = match at {
                MOST_BROKEN => format!("and {} more that is no TOML", broken.len() - MOST_BROKEN),
                _ => detail.clone(),
            };
            self.faults.push(ConfigFault { path: String::new(), origin: place(*line), detail, hint: None });
        }
        let broken: BTreeSet<_> = broken.into_iter().map(|(line, _)| line).collect();
        for Leaf { path, value, offset } in leaves {
            let line = lines.line(offset);
            let readable = !broken.contains(&line);
            // What is made of a line that is no TOML is not what was meant, but that something was said is.
            let value = if readable { value } else { Value::Unreadable };
            if readable || self.is_known(&path) {
                self.set(path, Entry { value, origin: place(line) });
            }
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
        let (detail, hint) = match near {
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
        self.faults.push(ConfigFault { path, origin: entry.origin, detail, hint });
    }

    pub(super) fn is_known(&self, path: &str) -> bool {
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
}

/// A value as it stands in a text.
struct Leaf {
    path: String,
    value: Value,
    /// Where its key begins, in bytes.
    offset: usize,
}

/// All leaves of a TOML text, and what cannot be read: where, and why not.
fn parse(text: &str) -> (Vec<Leaf>, Vec<(usize, String)>) {
    let (root, errors) = DeTable::parse_recoverable(text);
    let broken = errors.iter().map(|error| (error.span().map_or(0, |span| span.start), error.message().to_owned()));
    let mut leaves = Vec::new();
    walk("", root.get_ref(), &mut leaves);
    (leaves, broken.collect())
}

/// Where the lines of a text begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        Lines(std::iter::once(0).chain(ends).collect())
    }

    /// The line, from 1, in which this byte stands.
    fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|begin| *begin <= offset)
    }
}

/// The name and the key of a path like `sinks.<name>.<key>`.
pub(super) fn named<'a>(path: &'a str, section: &str) -> Option<(&'a str, &'a str)> {
    path.strip_prefix(section)?.strip_prefix('.')?.split_once('.')
}

/// The sink's name and the property's of a path like `sinks.<name>.properties.<property>`.
fn property(path: &str) -> Option<(&str, &str)> {
    let (name, key) = named(path, "sinks")?;
    let property = key.strip_prefix(PROPERTIES)?.strip_prefix('.')?;
    (!property.is_empty()).then_some((name, property))
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
pub(super) fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").replace('-', "_").to_uppercase())
}

/// A file's text, or the first line that is none.
pub(super) fn text_of(bytes: Vec<u8>) -> Result<String, usize> {
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        error.as_bytes().iter().take(good).filter(|&&b| b == b'\n').count() + 1
    })
}

fn walk(prefix: &str, table: &DeTable<'_>, leaves: &mut Vec<Leaf>) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.get_ref().to_string() } else { format!("{prefix}.{}", key.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => walk(&path, inner, leaves),
            _ => leaves.push(Leaf { path, value: leaf(value), offset: key.span().start }),
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
