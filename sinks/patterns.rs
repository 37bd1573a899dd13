//! Patterns of destinations: which destinations a sink or a caller may use.

use std::fmt;

/// Patterns of which a destination must match one. `*` stands for any text, also for an empty one and for dots and
/// slashes; every other character for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DestinationPatterns(Vec<String>);

impl DestinationPatterns {
    /// Patterns, at least one.
    ///
    /// # Errors
    /// If there is none, or an empty one.
    pub fn new(patterns: Vec<String>) -> Result<DestinationPatterns, String> {
        if patterns.is_empty() || patterns.iter().any(String::is_empty) {
            return Err("patterns of destinations are expected, such as `orders.*`".to_owned());
        }
        Ok(DestinationPatterns(patterns))
    }

    /// Whether one of them matches the destination.
    #[must_use]
    pub fn allow(&self, destination: &str) -> bool {
        self.0.iter().any(|pattern| matches(pattern, destination))
    }

    /// Whether a pattern that begins with the same character as the destination matches it. So `*` does not allow the
    /// NATS server's own subjects, which begin with `$`, but `$KV.settings.*` allows some of them.
    #[must_use]
    pub fn allow_explicitly(&self, destination: &str) -> bool {
        let named = |pattern: &&String| pattern.chars().next() == destination.chars().next();
        self.0.iter().filter(named).any(|pattern| matches(pattern, destination))
    }
}

impl fmt::Display for DestinationPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0.join("`, `"))
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    // The first place of each part leaves most for the parts behind it.
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, matching, others) in [
            ("orders", &["orders"][..], &["", "order", "orders.a", "aorders"][..]),
            ("orders.*", &["orders.", "orders.a", "orders.a.b"], &["orders", "aorders.a", "Orders.a"]),
            ("*", &["", "a", "$JS.API.INFO"], &[]),
            ("*.due", &[".due", "a.due", "a.due.due"], &["due", "a.due.b"]),
            ("a*b*c", &["abc", "a-b-c", "abbcc", "abcbc"], &["ab", "ac", "acb", "aXc"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("ö*", &["ö", "ös"], &["o"]),
            ("shop/**", &["shop/", "shop/a/b"], &["shop"]),
        ] {
            let patterns = DestinationPatterns::new(vec!["never".to_owned(), pattern.to_owned()]).unwrap();
            for destination in matching {
                assert!(patterns.allow(destination), "{pattern} {destination}");
            }
            for destination in others {
                assert!(!patterns.allow(destination), "{pattern} {destination}");
            }
        }
    }

    #[test]
    fn a_pattern_explicitly_allows_only_destinations_that_begin_with_its_first_character() {
        let patterns = |pattern: &str| DestinationPatterns::new(vec![pattern.to_owned()]).unwrap();
        assert!(patterns("$KV.cfg.*").allow_explicitly("$KV.cfg.flag") && patterns("$*").allow_explicitly("$O.a"));
        assert!(!patterns("*").allow_explicitly("$KV.cfg.flag"));
        assert!(!patterns("$KV.cfg.*").allow_explicitly("$KV.other.flag"));
    }

    #[test]
    fn no_patterns_are_an_error() {
        for bad in [vec![], vec![String::new()], vec!["a".to_owned(), String::new()]] {
            assert!(DestinationPatterns::new(bad).is_err());
        }
    }
}
