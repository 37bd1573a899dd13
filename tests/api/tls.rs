//! The listener with TLS: trusted certificates, slow clients, changed files, and its end.

use std::sync::Arc;
use std::time::Duration;

use punctual::http::server::tls::ServerTls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::client::Answer;
use super::{Stage, StageOptions};
use crate::support::certificates::Certificates;

/// How long something may take that happens by itself: a generous deadline, not an expectation.
const SOON: Duration = Duration::from_secs(30);

async fn stage(certificates: &Certificates, change: impl FnOnce(&mut StageOptions)) -> Stage {
    let tls = ServerTls::load(&certificates.certificate_file(), &certificates.key_file()).unwrap();
    Stage::start_with(|terms| {
        terms.tls = Some(tls);
        change(terms);
    })
    .await
}

/// A client that trusts this authority and offers these protocols.
async fn connect(stage: &Stage, trusted: &Certificates, offers: &[&str]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(trusted.ca_file()).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = offers.iter().map(|name| name.as_bytes().to_vec()).collect();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stage.client.connect().await).await
}

async fn get(stage: &Stage, trusted: &Certificates, path: &str) -> std::io::Result<Answer> {
    let mut stream = connect(stage, trusted, &["h2", "http/1.1"]).await?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut bytes = Vec::new();
    // Requires a proper close; a truncated stream would be an error.
    stream.read_to_end(&mut bytes).await?;
    Ok(Answer::read(&bytes))
}

#[tokio::test]
async fn the_api_is_served_over_tls_to_clients_that_trust_its_authority() {
    let (ours, other) = (Certificates::new(), Certificates::new());
    let stage = stage(&ours, |_| {}).await;
    assert_eq!(get(&stage, &ours, "/healthz").await.unwrap().status, 200);
    let refused = get(&stage, &other, "/healthz").await.unwrap_err();
    assert!(refused.to_string().contains("invalid peer certificate"), "{refused}");
    let stream = connect(&stage, &ours, &["h2", "http/1.1"]).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
    assert!(connect(&stage, &ours, &["h2"]).await.is_err(), "only http/1.1 is spoken");
    assert!(connect(&stage, &ours, &[]).await.is_ok(), "who offers nothing speaks it too");
    // Plain HTTP gets no answer that looks like one.
    let mut plain = stage.client.connect().await;
    plain.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    timeout(SOON, plain.read_to_end(&mut bytes)).await.expect("closed").ok();
    assert!(!bytes.starts_with(b"HTTP"), "{bytes:?}");
}

/// Takes more than five seconds: the handshake has six, so that a busy machine can answer the other request in time.
#[tokio::test]
async fn a_handshake_that_takes_too_long_is_ended_and_delays_no_other_client() {
    let ours = Certificates::new();
    let stage = stage(&ours, |terms| terms.server.header_timeout = Duration::from_secs(6)).await;
    let mut slow = Vec::new();
    for begun in [&b""[..], b"\x16\x03\x01\x02\x00\x01"] {
        let mut stream = stage.client.connect().await;
        stream.write_all(begun).await.unwrap();
        slow.push(stream);
    }
    assert_eq!(get(&stage, &ours, "/healthz").await.unwrap().status, 200);
    let probe = |stream: &TcpStream| stream.try_read(&mut [0; 64]).map_err(|error| error.kind());
    assert!(slow.iter().all(|stream| probe(stream) == Err(std::io::ErrorKind::WouldBlock)), "they still wait");
    for mut stream in slow {
        timeout(SOON, stream.read_to_end(&mut Vec::new())).await.expect("closed").ok();
    }
}

#[tokio::test]
async fn a_handshake_that_was_ended_gives_its_place_to_others() {
    let ours = Certificates::new();
    let stage = stage(&ours, |terms| {
        terms.server.connections = 1;
        terms.server.header_timeout = Duration::from_millis(300);
    })
    .await;
    let _stuck = stage.client.connect().await;
    // The same time limit applies to this handshake.
    until_trusted(&stage, &ours).await;
}

#[tokio::test]
async fn a_stop_finishes_requests_and_closes_idle_connections_and_handshakes() {
    let ours = Certificates::new();
    let stage = stage(&ours, |_| {}).await;
    let mut busy = connect(&stage, &ours, &[]).await.unwrap();
    let task = r#"{"schedule":{"in":"1s"},"message":{}}"#;
    let head =
        "PUT /v1/tasks/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n";
    busy.write_all(format!("{head}content-length: {}\r\n\r\n", task.len()).as_bytes()).await.unwrap();
    // `100 Continue` shows that the server waits for the body.
    busy.read_exact(&mut [0; 25]).await.unwrap();
    let (_idle, _shaking) = (connect(&stage, &ours, &[]).await.unwrap(), stage.client.connect().await);
    stage.stop.cancel();
    busy.write_all(task.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    busy.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Answer::read(&bytes).status, 201);
    assert!(timeout(SOON, stage.server).await.expect("ended").unwrap(), "nothing was cut off");
}

/// Repeats until a client that trusts this authority gets an answer.
async fn until_trusted(stage: &Stage, trusted: &Certificates) {
    let served = async {
        while get(stage, trusted, "/healthz").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, served).await.expect("an answer under a trusted certificate");
}

/// Takes more than five seconds: files are checked every two seconds, and an error counts only the second time.
#[tokio::test]
async fn changed_certificate_files_are_served_once_both_are_complete() {
    let (served, next, last) = (Certificates::new(), Certificates::new(), Certificates::new());
    let stage = stage(&served, |_| {}).await;
    let mut old = connect(&stage, &served, &[]).await.unwrap();
    std::fs::copy(next.certificate_file(), served.certificate_file()).unwrap();
    // One of the two files: it is checked twice, and the former pair stays in use.
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(get(&stage, &served, "/healthz").await.unwrap().status, 200);
    std::fs::copy(next.key_file(), served.key_file()).unwrap();
    until_trusted(&stage, &next).await;
    assert!(get(&stage, &served, "/healthz").await.is_err(), "the former authority");
    // Open connections stay open.
    old.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    old.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(Answer::read(&bytes).status, 200);
    // Once more, after the key file was missing.
    std::fs::remove_file(served.key_file()).unwrap();
    std::fs::copy(last.certificate_file(), served.certificate_file()).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(get(&stage, &next, "/healthz").await.unwrap().status, 200);
    std::fs::copy(last.key_file(), served.key_file()).unwrap();
    until_trusted(&stage, &last).await;
}

#[test]
fn faults_of_each_tls_file_are_reported_without_its_contents() {
    let (ours, other) = (Certificates::new(), Certificates::new());
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let key = std::fs::read_to_string(ours.key_file()).unwrap();
    let (certificate, key_file) = (ours.certificate_file(), ours.key_file());
    let gone = dir.path().join("gone");
    let cut: String = key.lines().take(2).collect::<Vec<_>>().join("\n");
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (certificate, key_file, detail) in [
        (&gone, &gone, &["cannot read the certificates in `", "cannot read the key in `"][..]),
        (&key_file, &certificate, &["holds no certificate in PEM form", "holds no private key in PEM form"]),
        (&certificate, &other.key_file(), &["does not belong to the first certificate in `"]),
        (&ours.ca_file(), &key_file, &["does not belong to the first certificate in `"]),
        (&certificate, &file("encrypted", &encrypted), &["is encrypted; one without a password is expected"]),
        (&certificate, &file("cut", &cut), &["holds a malformed key"]),
        (&file("broken", broken), &key_file, &["holds a malformed certificate"]),
    ] {
        let faults = ServerTls::load(certificate, key_file).expect_err("a fault");
        let reported: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(reported.len(), detail.len(), "{reported:?}");
        for (reported, detail) in reported.iter().zip(detail) {
            assert!(reported.contains(detail), "no `{detail}` in {reported}");
            let secret = key.lines().nth(1).unwrap();
            assert!(!reported.contains(secret), "{reported}");
        }
    }
    assert!(
        ServerTls::load(&ours.key_and_certificate_file(), &ours.key_and_certificate_file()).is_ok(),
        "one file for both"
    );
}
