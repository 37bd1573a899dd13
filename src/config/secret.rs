//! A URL that may contain a password, which is never shown.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// A URL whose user, password and query do not appear in `Debug` and `Display`.
#[derive(Clone)]
pub struct SecretUrl(SecretString);

impl SecretUrl {
    /// Wraps a URL.
    #[must_use]
    pub fn new(url: String) -> SecretUrl {
        SecretUrl(url.into())
    }

    /// The whole URL, for connecting.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }

    /// The part before the first colon; empty if there is none.
    #[must_use]
    pub fn scheme(&self) -> &str {
        self.expose().split_once(':').map_or("", |(scheme, _)| scheme)
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked(self.expose()))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// The URL without user, password and query. A password may contain unescaped `/`, `?` or `#`, so everything between
/// `//` and the last `@` is removed.
fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.split_once(':').map_or_else(|| "***".to_owned(), |(scheme, _)| format!("{scheme}:"));
    };
    let (user, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => ("***@", rest),
        None => ("", rest),
    };
    let (place, query) = match rest.split_once(['?', '#']) {
        Some((place, _)) => (place, "?***"),
        None => (rest, ""),
    };
    format!("{scheme}://{user}{place}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("redis://user:pa/s?s@word@host:1/2", "redis://***@host:1/2"),
            ("nats://token@a:1,b:2", "nats://***@a:1,b:2"),
            ("nats://a:1?password=x", "nats://a:1?***"),
            ("stdout:", "stdout:"),
            ("hunter2", "***"),
        ] {
            let secret = SecretUrl::new(url.to_owned());
            assert_eq!(secret.to_string(), shown);
            assert_eq!(format!("{secret:?}"), format!("\"{shown}\""));
            assert_eq!(secret.expose(), url);
        }
    }
}
