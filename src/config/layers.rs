//! The layers of the configuration, one over the other. Every value knows where it came from.
//!
//! The known options are those in `default.toml`, and those of sinks, lanes, doors and tokens. Unknown names in files and
//! variables are faults with their positions, so that no value is silently ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::ConfigFault;
use super::hints::section_expected;

/// The defaults and their documentation.
pub const DEFAULTS: &str = include_str!("default.toml");

/// The prefix of punctual's environment variables.
pub(super) const PREFIX: &str = "PUNCTUAL__";

/// The sections with any number of named subsections, and the options of one of them.
pub(super) const NAMED: [(&str, &[&str]); 4] = [
    (
        "sinks",
        &[
            "url",
            "answer_timeout",
            "patience",
            "destinations",
            "credentials_file",
            "password_file",
            "sentinel_password",
        ],
    ),
    ("lanes", &["sink", "destination", "dead_destination", "patience"]),
    (
        "doors",
        &[
            "sink",
            "from",
            "dialect",
            "rejected",
            "batch",
            "lane",
            "destination",
            "catch_up",
            "past",
            "group",
            "lanes",
            "prefix",
            "destinations",
            "delete",
            "exchanges",
            "to",
            "delay",
        ],
    ),
    ("tokens", &["sha256", "scope", "lanes", "prefix", "destinations", "pending_max", "puts"]),
];

/// Maximum number of syntax errors to report, because text that is not TOML has one per line.
const MAX_SYNTAX_FAULTS: usize = 10;

/// The name of a number that no option accepts, in [`Value::Other`].
pub(super) const TOO_LARGE: &str = "number that large";

/// The table of a `[sinks.NAME]` section with the names of the client library.
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

/// A value as it is written in its layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A string; all values from variables and flags are strings.
    Text(String),
    /// A whole number.
    Whole(i64),
    /// `true` or `false`.
    Flag(bool),
    /// An array of strings.
    List(Vec<String>),
    /// A value on a line that is not valid TOML. The error is reported, and the intended value is unknown.
    Unreadable,
    /// A value that no option accepts; the name of its type.
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

/// All values by path (`claim.lease`), from all layers.
pub(super) struct Layers {
    pub(super) values: BTreeMap<String, Entry>,
    pub(super) known: Vec<String>,
    /// Sections that are written but empty, and where.
    sections: BTreeMap<String, Origin>,
    pub(super) faults: Vec<ConfigFault>,
}

impl Layers {
    /// Only the defaults.
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

    /// Adds a file on top.
    pub(super) fn file(&mut self, path: &str, text: &str) {
        let lines = Lines::of(text);
        let place = |line| Origin::File { path: path.to_owned(), line };
        let (leaves, broken) = parse(text);
        let broken: Vec<_> = broken.into_iter().map(|(offset, detail)| (lines.line(offset), detail)).collect();
        for (at, (line, detail)) in broken.iter().enumerate().take(MAX_SYNTAX_FAULTS + 1) {
            let detail = match at {
                MAX_SYNTAX_FAULTS => format!("and {} more syntax errors", broken.len() - MAX_SYNTAX_FAULTS),
                _ => detail.clone(),
            };
            self.faults.push(ConfigFault { path: String::new(), origin: place(*line), detail, hint: None });
        }
        let broken: BTreeSet<_> = broken.into_iter().map(|(line, _)| line).collect();
        for Leaf { path, value, offset } in leaves {
            let line = lines.line(offset);
            let readable = !broken.contains(&line);
            // The value on an invalid line is unknown, but it is known that one was set.
            let value = if readable { value } else { Value::Unreadable };
            if readable || self.is_known(&path) {
                self.set(path, Entry { value, origin: place(line) });
            }
        }
    }

    /// Adds environment variables on top; ignores variables of other programs.
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

    /// Adds a flag on top.
    pub(super) fn flag(&mut self, flag: &'static str, path: &str, value: String) {
        self.set(path.to_owned(), Entry { value: Value::Text(value), origin: Origin::Flag(flag) });
    }

    /// The names of the subsections of one of [`NAMED`]: `sinks` for `[sinks.NAME]`.
    pub(super) fn names(&self, section: &str) -> BTreeSet<String> {
        let empty =
            self.sections.keys().filter_map(|path| path.strip_prefix(section)?.strip_prefix('.')?.split('.').next());
        let filled = self.values.keys().filter_map(|path| named(path, section)).map(|(name, _)| name);
        empty.chain(filled).map(str::to_owned).collect()
    }

    /// The names in the property table of a sink.
    pub(super) fn properties(&self, sink: &str) -> Vec<String> {
        let inside = |path: &String| property(path).filter(|(of, _)| *of == sink).map(|(_, name)| name.to_owned());
        self.values.keys().filter_map(inside).collect()
    }

    /// Where a path was set: its value, or the first one below it. For an option that was not set: where its section
    /// begins. `None` if only the defaults set it.
    pub(super) fn place(&self, path: &str) -> Option<Origin> {
        let line = |origin: &&Origin| match origin {
            Origin::File { line, .. } => *line,
            _ => usize::MAX,
        };
        let here =
            |known: &String| known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let values = self.values.iter().map(|(path, entry)| (path, &entry.origin));
        let set = values.chain(&self.sections).filter(|(known, origin)| here(known) && **origin != Origin::Default);
        let first = set.map(|(_, origin)| origin).min_by_key(line).cloned();
        // Only named subsections; the others have defaults.
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
            // The name of a section with a value, unless it is more similar to an option.
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

    /// The path of an environment variable without its prefix; an unknown one is converted by its form.
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
        // The client library's names have dots, which variables cannot have.
        if let Some((name, property)) = rest.strip_prefix("SINKS__").and_then(|rest| rest.split_once("__PROPERTIES__"))
        {
            let (name, property) = (name.replace('_', "-"), property.replace('_', "."));
            return format!("sinks.{name}.{PROPERTIES}.{property}").to_lowercase();
        }
        rest.to_lowercase().replace("__", ".")
    }
}

/// A value in a text.
struct Leaf {
    path: String,
    value: Value,
    /// The offset of its key, in bytes.
    offset: usize,
}

/// All values of a TOML text, and its syntax errors with their offsets.
fn parse(text: &str) -> (Vec<Leaf>, Vec<(usize, String)>) {
    let (root, errors) = DeTable::parse_recoverable(text);
    let broken = errors.iter().map(|error| (error.span().map_or(0, |span| span.start), error.message().to_owned()));
    let mut leaves = Vec::new();
    walk("", root.get_ref(), &mut leaves);
    (leaves, broken.collect())
}

/// The offsets of the lines of a text.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Lines {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        Lines(std::iter::once(0).chain(ends).collect())
    }

    /// The line of a byte, from 1.
    fn line(&self, offset: usize) -> usize {
        self.0.partition_point(|begin| *begin <= offset)
    }
}

/// Name and key of a path like `sinks.<name>.<key>`.
pub(super) fn named<'a>(path: &'a str, section: &str) -> Option<(&'a str, &'a str)> {
    path.strip_prefix(section)?.strip_prefix('.')?.split_once('.')
}

/// Sink and property of a path like `sinks.<name>.properties.<property>`.
fn property(path: &str) -> Option<(&str, &str)> {
    let (name, key) = named(path, "sinks")?;
    let property = key.strip_prefix(PROPERTIES)?.strip_prefix('.')?;
    (!property.is_empty()).then_some((name, property))
}

/// Whether the value of a path is a secret, or a property of a client library, which may be one.
pub(super) fn holds_secret(path: &str) -> bool {
    ["password", "sha256"].iter().any(|end| path.ends_with(end)) || property(path).is_some()
}

/// Whether a wrong value of a path may be or contain a password; it is then not quoted. Users sometimes give the
/// content of a file instead of its path.
pub(super) fn is_secret(path: &str) -> bool {
    ["url", "_file"].iter().any(|end| path.ends_with(end)) || holds_secret(path)
}

/// The environment variable for a path.
pub(super) fn variable(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").replace('-', "_").to_uppercase())
}

/// The text of a file, or the first line that is not text.
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
        DeValue::Array(elements) => {
            let text = |element: &Spanned<DeValue<'_>>| element.get_ref().as_str().map(str::to_owned);
            elements
                .iter()
                .map(text)
                .collect::<Option<_>>()
                .map_or(Value::Other(value.get_ref().type_str()), Value::List)
        }
        other => Value::Other(other.type_str()),
    }
}
