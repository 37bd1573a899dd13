//! The trusted certificates for TLS: one [`Tls`] for every sink, whatever its client library.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::SinkError;
use crate::away::{self, Away, Cause};

/// Makes aws-lc-rs the TLS provider of this process, unless there is one already. Must be called once before the first
/// connection: client libraries panic if a program contains two providers and none was chosen.
pub fn install_provider() {
    // An error means that a provider was chosen before.
    rustls::crypto::aws_lc_rs::default_provider().install_default().ok();
}

/// The trusted authorities: those of a file, or those of the system.
#[derive(Clone, Default)]
pub struct Tls {
    ca: Option<Arc<Ca>>,
}

struct Ca {
    path: PathBuf,
    pem: Vec<u8>,
    roots: RootCertStore,
}

impl Tls {
    /// Trusts only the certificates of a PEM file.
    ///
    /// # Errors
    /// [`SinkError::Config`] if the file cannot be read, contains no certificate, or contains a malformed one.
    pub fn from_ca_file(path: &Path) -> Result<Tls, SinkError> {
        let shown = path.display();
        let pem = std::fs::read(path)
            .map_err(|error| SinkError::url(format!("cannot read the certificates in `{shown}`: {error}")))?;
        let malformed =
            |error: &dyn fmt::Display| SinkError::url(format!("`{shown}` holds a malformed certificate: {error}"));
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            roots.add(certificate.map_err(|error| malformed(&error))?).map_err(|error| malformed(&error))?;
        }
        if roots.is_empty() {
            return Err(SinkError::url(format!("`{shown}` holds no certificate in PEM form")));
        }
        Ok(Tls { ca: Some(Arc::new(Ca { path: path.to_owned(), pem, roots })) })
    }

    /// Trusts no certificate. Stands in for a file that cannot be used, so that the rest of a configuration can still be
    /// checked.
    #[must_use]
    pub fn trusting_none(path: &Path) -> Tls {
        Tls { ca: Some(Arc::new(Ca { path: path.to_owned(), pem: Vec::new(), roots: RootCertStore::empty() })) }
    }

    /// The file, if there is one.
    pub fn ca_file(&self) -> Option<&Path> {
        self.ca.as_ref().map(|ca| ca.path.as_path())
    }

    /// The content of the file when it was read: PEM, never empty.
    pub fn ca_pem(&self) -> Option<&[u8]> {
        self.ca.as_ref().map(|ca| ca.pem.as_slice()).filter(|pem| !pem.is_empty())
    }

    /// The settings for rustls: the trusted authorities, and no client certificate.
    ///
    /// # Errors
    /// [`SinkError::Config`] if the system has no trusted certificates.
    pub fn client_config(&self) -> Result<ClientConfig, SinkError> {
        let roots = self.ca.as_ref().map_or_else(system_roots, |ca| Ok(ca.roots.clone()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| SinkError::url(format!("TLS cannot be used: {error}")))?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }

    /// The failure of a handshake.
    pub(crate) fn away(&self, error: &std::io::Error) -> Away {
        let cause = if away::of_certificate(error) { Cause::Untrusted } else { Cause::Unreachable };
        Away::new(cause, self.explain(format!("TLS: {error}")))
    }

    /// The error of a handshake, with a hint for the user.
    pub(crate) fn explain(&self, detail: String) -> String {
        match self.ca_file() {
            _ if !detail.contains("peer certificate") => detail,
            Some(file) => format!("{detail} (trusted are the authorities in `{}` alone)", file.display()),
            None => format!("{detail} (trusted are the authorities of the system; set `tls.ca_file` to trust others)"),
        }
    }
}

fn system_roots() -> Result<RootCertStore, SinkError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let detail = "the system has no certificates of authorities to trust; set `tls.ca_file` to a PEM file that contains some";
        return Err(SinkError::url(detail.to_owned()));
    }
    Ok(roots)
}

impl fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tls").field("ca_file", &self.ca_file()).finish()
    }
}
