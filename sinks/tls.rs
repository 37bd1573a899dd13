//! Whom to trust when a connection is made over TLS: one [`Tls`] for every sink, whatever its client library.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::SinkError;

/// Makes aws-lc-rs the one TLS provider of this process, unless it has one already. To be called once before the first
/// connection: client libraries panic where a program has two and none was chosen.
pub fn install_provider() {
    // An error means that somebody has chosen before.
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
}

/// Whom to trust: the authorities of a file, or without one those of the system.
#[derive(Clone, Default)]
pub struct Tls {
    ca: Option<Arc<Ca>>,
}

struct Ca {
    path: PathBuf,
    pem: Vec<u8>,
}

impl Tls {
    /// Trusts the certificates of a PEM file, of any number, and no others.
    ///
    /// # Errors
    /// [`SinkError::Config`] when it cannot be read, or holds no certificate.
    pub fn from_ca_file(path: &Path) -> Result<Tls, SinkError> {
        let shown = path.display();
        let pem = std::fs::read(path)
            .map_err(|error| SinkError::Config(format!("cannot read the certificates in `{shown}`: {error}")))?;
        let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
        match certificates {
            Ok(certificates) if certificates.is_empty() => {
                Err(SinkError::Config(format!("`{shown}` holds no certificate in PEM form")))
            }
            Ok(_) => Ok(Tls { ca: Some(Arc::new(Ca { path: path.to_owned(), pem })) }),
            Err(error) => Err(SinkError::Config(format!("`{shown}` holds a malformed certificate: {error}"))),
        }
    }

    /// The file, if there is one.
    pub fn ca_file(&self) -> Option<&Path> {
        self.ca.as_ref().map(|ca| ca.path.as_path())
    }

    /// What stood in the file when it was read: PEM.
    pub fn ca_pem(&self) -> Option<&[u8]> {
        self.ca.as_ref().map(|ca| ca.pem.as_slice())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tls").field("ca_file", &self.ca_file()).finish()
    }
}
