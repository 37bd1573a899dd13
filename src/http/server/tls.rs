//! TLS of the listener: certificate and key from PEM files, which are read again when they change.
//!
//! A connection keeps the certificate it started with. If changed files cannot be used, an error is logged and the
//! former certificate stays in use: an expired certificate says more than a closed port.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, ServerConfig};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;

/// How often the files are checked.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The certificate and key of the listener.
#[derive(Clone)]
pub struct ServerTls {
    certificate_file: PathBuf,
    key_file: PathBuf,
    loaded: Files,
    pair: watch::Sender<Arc<CertifiedKey>>,
    acceptor: TlsAcceptor,
}

/// A fault of one of the files; the text does not quote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// The file with the certificate and its chain.
    #[error("{0}")]
    Certificate(String),
    /// The file with the key.
    #[error("{0}")]
    Key(String),
}

/// The content of the two files.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Returns the current certificate at each handshake.
struct Latest(watch::Receiver<Arc<CertifiedKey>>);

impl ServerTls {
    /// Reads both files.
    ///
    /// # Errors
    /// What is wrong with either of them.
    pub fn load(certificate_file: &Path, key_file: &Path) -> Result<ServerTls, Vec<TlsFault>> {
        let loaded = Files::of(certificate_file, std::fs::read(certificate_file), key_file, std::fs::read(key_file))?;
        let (pair, latest) = watch::channel(Arc::new(loaded.pair(certificate_file, key_file)?));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| vec![TlsFault::Certificate(format!("TLS cannot be used: {error}"))])?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(Latest(latest)));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (certificate_file, key_file) = (certificate_file.to_owned(), key_file.to_owned());
        Ok(ServerTls { certificate_file, key_file, loaded, pair, acceptor })
    }

    pub(in crate::http) fn acceptor(&self) -> TlsAcceptor {
        self.acceptor.clone()
    }

    /// Checks the files for ever and uses changed ones.
    pub(in crate::http) async fn follow(self) {
        let mut served = self.loaded.clone();
        // The last content that could not be used, and whether that was logged. The files are not replaced at the same
        // time, so the first error may be a half-finished replacement.
        let mut doubted: Option<(Result<Files, Vec<TlsFault>>, bool)> = None;
        loop {
            sleep(FILE_CHECK_INTERVAL).await;
            let read = (tokio::fs::read(&self.certificate_file).await, tokio::fs::read(&self.key_file).await);
            let read = Files::of(&self.certificate_file, read.0, &self.key_file, read.1);
            if read.as_ref() == Ok(&served) {
                doubted = None;
                continue;
            }
            let pair = read.clone().and_then(|files| files.pair(&self.certificate_file, &self.key_file));
            match (pair, read) {
                (Ok(pair), Ok(files)) => {
                    self.pair.send_replace(Arc::new(pair));
                    (served, doubted) = (files, None);
                    tracing::info!(file = %self.certificate_file.display(), "the listener has a new certificate");
                }
                (Err(faults), read) => {
                    let again = doubted.filter(|(before, _)| *before == read);
                    if again.as_ref().is_some_and(|(_, logged)| !logged) {
                        let detail: Vec<_> = faults.iter().map(ToString::to_string).collect();
                        tracing::error!(
                            error = detail.join("; "),
                            "cannot use the new certificate or key of the listener; keeping the former ones"
                        );
                    }
                    doubted = Some((read, again.is_some()));
                }
                (Ok(_), Err(_)) => {}
            }
        }
    }
}

impl Files {
    fn of(
        certificate_file: &Path,
        certificate: std::io::Result<Vec<u8>>,
        key_file: &Path,
        key: std::io::Result<Vec<u8>>,
    ) -> Result<Files, Vec<TlsFault>> {
        let cannot = |what: &str, file: &Path, error| {
            format!("cannot read the {what} in `{}`: {}", file.display(), short(&error))
        };
        match (certificate, key) {
            (Ok(certificate), Ok(key)) => Ok(Files { certificate, key }),
            (certificate, key) => {
                let certificate = certificate.err().map(|error| cannot("certificates", certificate_file, error));
                let key = key.err().map(|error| cannot("key", key_file, error));
                Err(certificate.map(TlsFault::Certificate).into_iter().chain(key.map(TlsFault::Key)).collect())
            }
        }
    }

    /// The certificate with its chain, and its key.
    fn pair(&self, certificate_file: &Path, key_file: &Path) -> Result<CertifiedKey, Vec<TlsFault>> {
        let (certificates, key) = match (self.chain(certificate_file), self.private_key(key_file)) {
            (Ok(certificates), Ok(key)) => (certificates, key),
            (certificates, key) => return Err(certificates.err().into_iter().chain(key.err()).collect()),
        };
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        CertifiedKey::from_der(certificates, key, &provider).map_err(|error| {
            vec![match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsFault::Key(format!(
                    "the key in `{}` does not belong to the first certificate in `{}`",
                    key_file.display(),
                    certificate_file.display()
                )),
                rustls::Error::InvalidCertificate(_) => malformed_certificate(certificate_file, &error),
                _ => TlsFault::Key(format!("the key in `{}` cannot be used: {error}", key_file.display())),
            }]
        })
    }

    fn chain(&self, file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate).collect();
        let chain = chain.map_err(|error| malformed_certificate(file, &error))?;
        match chain.is_empty() {
            true => Err(TlsFault::Certificate(format!("`{}` holds no certificate in PEM form", file.display()))),
            false => Ok(chain),
        }
    }

    fn private_key(&self, file: &Path) -> Result<PrivateKeyDer<'static>, TlsFault> {
        let file = file.display();
        let encrypted = self.key.windows(9).any(|bytes| bytes == b"ENCRYPTED");
        PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| {
            TlsFault::Key(match error {
                _ if encrypted => format!("the key in `{file}` is encrypted; one without a password is expected"),
                PemError::NoItemsFound => format!("`{file}` holds no private key in PEM form"),
                // The error may quote a part of the key.
                _ => format!("`{file}` holds a malformed key"),
            })
        })
    }
}

fn malformed_certificate(file: &Path, error: &dyn fmt::Display) -> TlsFault {
    TlsFault::Certificate(format!("`{}` holds a malformed certificate: {error}", file.display()))
}

/// The text of a system error, without its number if that adds nothing.
fn short(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::NotFound => "there is no such file".to_owned(),
        _ => error.to_string(),
    }
}

impl ResolvesServerCert for Latest {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.borrow()))
    }
}

impl fmt::Debug for Latest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Latest")
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("certificate_file", &self.certificate_file)
            .field("key_file", &self.key_file)
            .finish_non_exhaustive()
    }
}
