//! Certificates for one test: an authority, and a certificate for 127.0.0.1 and localhost that it signed.
//!
//! All are PEM files, with the key in PKCS#8. Kafka, RabbitMQ, NATS and Redis all read this format.

use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tempfile::TempDir;

/// An authority, and the files of a server that it signed. Each [`new`](Certificates::new) makes another authority, so
/// that a test gets a wrong `ca_file` from a second one.
pub(crate) struct Certificates {
    dir: TempDir,
}

impl Certificates {
    /// Makes an authority, and a server's key and certificate.
    pub(crate) fn new() -> Certificates {
        let dir = TempDir::with_prefix("punctual-test-").expect("a folder for the certificates");
        let mut params = named("punctual's test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate");

        let mut params = named("punctual's test server");
        params.subject_alt_names = ["127.0.0.1", "localhost"].map(alternative).to_vec();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().expect("a key");
        let server = params.signed_by(&key, &ca).expect("a certificate");

        let certificates = Certificates { dir };
        let (server, key) = (server.pem(), key.serialize_pem());
        for (path, pem) in [
            (certificates.ca_file(), ca.pem()),
            (certificates.key_and_certificate_file(), format!("{key}{server}")),
            (certificates.certificate_file(), server),
            (certificates.key_file(), key),
        ] {
            std::fs::write(path, pem).expect("a PEM file");
        }
        certificates
    }

    /// The authority's certificate, which a client trusts.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The server's certificate.
    pub(crate) fn certificate_file(&self) -> PathBuf {
        self.dir.path().join("server.pem")
    }

    /// The server's key: PKCS#8, not encrypted.
    pub(crate) fn key_file(&self) -> PathBuf {
        self.dir.path().join("server.key")
    }

    /// Key and certificate in one file, the format of Kafka's key store of type PEM.
    pub(crate) fn key_and_certificate_file(&self) -> PathBuf {
        self.dir.path().join("keystore.pem")
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    // Far from any machine's clock, and in years that every library reads.
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2049, 12, 31);
    params
}

fn alternative(name: &str) -> rcgen::SanType {
    let address = name.parse().map(rcgen::SanType::IpAddress);
    address.unwrap_or_else(|_| rcgen::SanType::DnsName(name.try_into().expect("a name")))
}

#[test]
fn a_server_certificate_is_trusted_only_by_its_own_authority() {
    if !super::have("openssl") {
        return;
    }
    let (ours, other) = (Certificates::new(), Certificates::new());
    let verify = |ca: &Certificates, file: PathBuf| {
        let verify = std::process::Command::new("openssl")
            .args(["verify", "-verify_ip", "127.0.0.1", "-CAfile"])
            .args([ca.ca_file(), file])
            .output();
        verify.expect("openssl runs").status.success()
    };
    assert!(verify(&ours, ours.certificate_file()) && verify(&ours, ours.key_and_certificate_file()));
    assert!(!verify(&other, ours.certificate_file()));
    let key = std::fs::read_to_string(ours.key_file()).expect("a key");
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----"), "PKCS#8");
}
