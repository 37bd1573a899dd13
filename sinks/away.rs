//! Why a connection could not be made. It tells users whether to check the address, the password or the certificate.

use std::error::Error;
use std::fmt;

use crate::{Fault, SinkError, Trouble};

/// A failed attempt to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// The kind of failure.
    pub cause: Cause,
    /// The error text; never a secret.
    pub detail: String,
}

/// Where an attempt to connect failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// No server answers at the address, or a server of another kind.
    Unreachable,
    /// The user, the password or the credentials are refused.
    LogIn,
    /// The certificate is not signed by a trusted authority, or is for another name.
    Untrusted,
    /// The server answers and accepts the login, but takes no messages.
    Refused,
}

impl Cause {
    /// All causes.
    pub const ALL: [Cause; 4] = [Cause::Unreachable, Cause::LogIn, Cause::Untrusted, Cause::Refused];

    /// How the error text begins; the address follows.
    #[must_use]
    pub fn beginning(self) -> &'static str {
        match self {
            Cause::Unreachable => "cannot reach ",
            Cause::LogIn => "cannot log in to ",
            Cause::Untrusted => "cannot trust ",
            Cause::Refused => "cannot publish to ",
        }
    }
}

impl Away {
    /// A failure of this kind.
    pub fn new(cause: Cause, detail: impl Into<String>) -> Away {
        Away { cause, detail: detail.into() }
    }

    /// The same failure with a prefix to its text.
    #[must_use]
    pub fn with_prefix(self, detail: impl fmt::Display) -> Away {
        Away { detail: format!("{detail}{}", self.detail), ..self }
    }

    /// Joins several failed attempts: all texts, and the first cause other than `Unreachable`.
    #[must_use]
    pub fn of_all(all: Vec<Away>) -> Away {
        let cause = all.iter().map(|away| away.cause).find(|cause| *cause != Cause::Unreachable);
        let detail: Vec<_> = all.into_iter().map(|away| away.detail).collect();
        Away { cause: cause.unwrap_or(Cause::Unreachable), detail: detail.join("; ") }
    }

    /// The error of a sink at this address.
    pub(crate) fn of_sink(self, address: &str) -> SinkError {
        SinkError::Away { address: address.to_owned(), away: self }
    }
}

impl fmt::Display for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

/// A plain text says nothing about the cause.
impl From<String> for Away {
    fn from(detail: String) -> Away {
        Away::new(Cause::Unreachable, detail)
    }
}

/// Without a connection no message was sent.
impl From<Away> for Trouble {
    fn from(away: Away) -> Trouble {
        Trouble::definite(Fault::Sink, away.detail)
    }
}

/// Whether an error was caused by a certificate that is not trusted.
pub(crate) fn of_certificate(error: &(dyn Error + 'static)) -> bool {
    if let Some(tls) = error.downcast_ref::<rustls::Error>() {
        return matches!(tls, rustls::Error::InvalidCertificate(_));
    }
    // `io::Error::source` skips the inner error and returns the source of that error.
    let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    match inner {
        Some(inner) => of_certificate(inner),
        None => error.source().is_some_and(of_certificate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_attempt_that_got_farthest_gives_the_cause() {
        let away = |cause, detail: &str| Away::new(cause, detail);
        let all = vec![away(Cause::Unreachable, "refused"), away(Cause::LogIn, "wrong password")];
        assert_eq!(Away::of_all(all), away(Cause::LogIn, "refused; wrong password"));
        assert_eq!(Away::of_all(vec![away(Cause::Unreachable, "a")]), away(Cause::Unreachable, "a"));
    }

    #[test]
    fn a_certificate_error_is_found_inside_other_errors() {
        let tls = || rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        assert!(of_certificate(&tls()));
        assert!(of_certificate(&std::io::Error::new(std::io::ErrorKind::InvalidData, tls())));
        assert!(!of_certificate(&rustls::Error::DecryptError));
        assert!(!of_certificate(&std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
    }
}
