//! Suggests what a user meant who wrote an unknown option, section or variable.

use super::layers::{Layers, NAMED, PREFIX, PROPERTIES, named, variable};
use super::{ConfigFault, Origin};

impl Layers {
    /// Reports a variable whose name differs from one of punctual's by one letter or by underscores.
    pub(super) fn look_at_foreign(&mut self, name: &str) {
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
            let detail = "this variable sets nothing".to_owned();
            let hint = Some(format!("did you mean `{meant}`?"));
            self.faults.push(ConfigFault { path: String::new(), origin, detail, hint });
        }
    }

    /// The known path that is most similar.
    pub(super) fn nearest(&self, path: &str) -> Option<String> {
        // What other programs call it.
        if path == "log.level" {
            return Some("log.filter".to_owned());
        }
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

    /// The section that is most similar.
    pub(super) fn nearest_section(&self, path: &str) -> Option<String> {
        let known = self.known.iter().filter_map(|known| known.split_once('.')).map(|(section, _)| section);
        let named = NAMED.iter().map(|(section, _)| *section);
        nearest(path, known.chain(named).map(str::to_owned))
    }
}

/// The error for a value in place of a section, and what to write instead.
pub(super) fn section_expected(path: &str) -> (String, Option<String>) {
    let (section, option) = match path {
        _ if NAMED.iter().any(|(section, _)| *section == path) => (format!("{path}.NAME"), None),
        _ if path.ends_with(&format!(".{PROPERTIES}")) => (path.to_owned(), Some("`\"name\" = \"value\"`")),
        _ if path.starts_with("sinks.") => (path.to_owned(), Some("`url`")),
        _ => (path.to_owned(), None),
    };
    let inside = option.map(|option| format!(" with {option} in it")).unwrap_or_default();
    ("a section is expected here, not a value".to_owned(), Some(format!("`[{section}]`{inside}")))
}

/// The most similar candidate, if it is similar enough.
pub(super) fn nearest(written: &str, candidates: impl IntoIterator<Item = String>) -> Option<String> {
    let split = |path: &str| match path.rsplit_once('.') {
        Some((section, key)) => (section.to_owned(), key.to_owned()),
        None => (String::new(), path.to_owned()),
    };
    let (section, key) = split(written);
    let near = |candidate: &String| {
        let (_, option) = split(candidate);
        let far = strsim::damerau_levenshtein(written, candidate);
        // Without its section, or in a similar one, an option is recognised by its name.
        let known = option == key && (section.is_empty() || far <= 1 + section.len() / 3);
        known || (far <= 1 + key.len() / 4 && far < key.len())
    };
    let far = |candidate: &String| strsim::damerau_levenshtein(written, candidate);
    candidates.into_iter().filter(near).min_by_key(far)
}
