//! NATS and Redis Streams over TLS, with every way to log in. When that fails, the error names the cause and holds no
//! secret.

use std::path::Path;
use std::sync::Arc;

use async_nats::{ConnectOptions, jetstream};
use punctual_sinks::{Fault, Outcome, Sink, SinkConfig, SinkError, Tls};

use super::{PATIENCE, accepted, batch, publish, publish_until_accepted};
use crate::support::certificates::Certificates;
use crate::support::have;
use crate::support::jwt::Operator;
use crate::support::nats::NatsServer;
use crate::support::redis::SecureRedis;

const PASSWORD: &str = "hunter2";

/// Configuration of a sink that trusts this authority, or the system's.
fn config(url: &str, certificates: Option<&Certificates>) -> SinkConfig {
    let tls = certificates.map_or_else(Tls::default, |own| Tls::from_ca_file(&own.ca_file()).expect("a CA file"));
    SinkConfig::parse(url).expect("a good URL").with_answer_timeout(PATIENCE).with_tls(tls)
}

fn built(config: &SinkConfig) -> Arc<dyn Sink> {
    config.build().expect("a good configuration")
}

/// Checks that the error blames the sink, contains these words, and holds no secret.
async fn refused(sink: &Arc<dyn Sink>, detail: &[&str], secrets: &[&str]) {
    let reported = sink.check().await.expect_err("a refusal").to_string();
    for outcome in publish(sink, batch("a", 0..2)).await {
        let Outcome::Retry(trouble) = outcome else { panic!("{outcome:?}") };
        assert!(trouble.fault == Fault::Sink && trouble.definite, "{trouble:?}");
        for reported in [&reported, &trouble.detail] {
            assert!(detail.iter().all(|detail| reported.contains(detail)), "no {detail:?} in `{reported}`");
            assert!(!secrets.iter().any(|secret| reported.contains(secret)), "a secret in `{reported}`");
        }
    }
}

struct Nats {
    server: NatsServer,
    certificates: Certificates,
}

impl Nats {
    fn start(log_in: &str) -> Option<Nats> {
        punctual_sinks::tls::install_provider();
        if !have("nats-server") {
            return None;
        }
        let certificates = Certificates::new();
        let tls = format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\" }}\n{log_in}",
            certificates.certificate_file().display(),
            certificates.key_file().display()
        );
        Some(Nats { server: NatsServer::start(&tls), certificates })
    }

    /// With the scheme `nats` or `tls`; `who` is `user:password@`, `token@` or nothing.
    fn url(&self, scheme: &str, who: &str) -> String {
        format!("{scheme}://{who}127.0.0.1:{}", self.server.server.port)
    }

    /// JetStream through the official client.
    async fn jetstream(&self, options: ConnectOptions) -> jetstream::Context {
        let options = options.add_root_certificates(self.certificates.ca_file()).require_tls(true);
        jetstream::new(options.connect(self.url("tls", "")).await.expect("a connection"))
    }

    /// A stream with subject `a`.
    async fn stream(&self, options: ConnectOptions) -> jetstream::stream::Stream {
        let config =
            jetstream::stream::Config { name: "A".to_owned(), subjects: vec!["a".to_owned()], ..Default::default() };
        self.jetstream(options).await.get_or_create_stream(config).await.expect("a stream")
    }
}

async fn length(stream: &mut jetstream::stream::Stream) -> u64 {
    stream.info().await.expect("a stream").state.messages
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_is_reached_over_tls_with_user_and_password() {
    let log_in = format!("authorization {{ user: punctual, password: \"{PASSWORD}\" }}");
    let Some(mut nats) = Nats::start(&log_in) else { return };
    let user = || ConnectOptions::with_user_and_password("punctual".to_owned(), PASSWORD.to_owned());
    let mut stream = nats.stream(user()).await;
    let who = format!("punctual:{PASSWORD}@");
    // The scheme asks for TLS, or the server does.
    let sinks = ["tls", "nats"].map(|scheme| built(&config(&nats.url(scheme, &who), Some(&nats.certificates))));
    for (round, sink) in sinks.iter().enumerate() {
        sink.check().await.expect("it is reached");
        assert_eq!(publish(sink, batch("a", round * 10..round * 10 + 3)).await, accepted(3));
    }
    assert_eq!(length(&mut stream).await, 6);
    // Every connection logs in, not only the first.
    nats.server.server.kill();
    nats.server.server.restart();
    publish_until_accepted(&sinks[0], batch("a", 30..33)).await;
    assert_eq!(length(&mut nats.stream(user()).await).await, 9);

    let wrong = built(&config(&nats.url("tls", "punctual:hunter3@"), Some(&nats.certificates)));
    refused(&wrong, &["cannot log in to `tls://127.0.0.1", "authorization violation"], &["hunter3"]).await;
    let nobody = built(&config(&nats.url("tls", ""), Some(&nats.certificates)));
    refused(&nobody, &["authorization violation"], &[]).await;
    let other = Certificates::new();
    let file = other.ca_file().display().to_string();
    let distrustful = built(&config(&nats.url("tls", &who), Some(&other)));
    refused(&distrustful, &["invalid peer certificate", &file], &[PASSWORD]).await;
    if let Ok(systems) = config(&nats.url("nats", &who), None).build() {
        refused(&systems, &["invalid peer certificate", "set `tls.ca_file` to trust others"], &[PASSWORD]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_is_reached_over_tls_with_a_token() {
    let Some(nats) = Nats::start(&format!("authorization {{ token: \"{PASSWORD}\" }}")) else { return };
    let mut stream = nats.stream(ConnectOptions::with_token(PASSWORD.to_owned())).await;
    let sink = built(&config(&nats.url("tls", &format!("{PASSWORD}@")), Some(&nats.certificates)));
    assert_eq!(publish(&sink, batch("a", 0..3)).await, accepted(3));
    assert_eq!(length(&mut stream).await, 3);
    let wrong = built(&config(&nats.url("tls", "hunter3@"), Some(&nats.certificates)));
    refused(&wrong, &["authorization violation"], &["hunter3"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nats_is_reached_over_tls_with_a_credentials_file() {
    let operator = Operator::new();
    let Some(mut nats) = Nats::start(&operator.config) else { return };
    let credentials = operator.credentials();
    let options = || ConnectOptions::with_credentials(&credentials).expect("credentials");
    let mut stream = nats.stream(options()).await;
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("user.creds");
    let write = |text: &str| std::fs::write(&file, text).expect("a file");
    write(&credentials);
    let with = |file: &Path| config(&nats.url("tls", ""), Some(&nats.certificates)).with_credentials_file(file);
    let sink = built(&with(&file));
    sink.check().await.expect("it is reached");
    assert_eq!(publish(&sink, batch("a", 0..3)).await, accepted(3));
    assert_eq!(length(&mut stream).await, 3);

    // The sink reads the file again for each connection.
    let later = built(&with(&file));
    write(&operator.foreign_credentials());
    let seed = |text: &str| text.lines().find(|line| line.starts_with("SU")).expect("a seed").to_owned();
    refused(&later, &["authorization violation"], &[&seed(&operator.foreign_credentials())]).await;
    std::fs::remove_file(&file).expect("a file");
    refused(&later, &["cannot read the credentials", &file.display().to_string()], &[]).await;
    for config in [with(&file), with(&dir.path().join("nowhere"))] {
        assert!(
            matches!(config.build(), Err(SinkError::Config { detail, .. }) if detail.contains("cannot read the credentials"))
        );
    }
    write(&operator.credentials());
    assert_eq!(publish(&later, batch("a", 10..13)).await, accepted(3));
    let both = config(&nats.url("tls", "me:hunter3@"), Some(&nats.certificates)).with_credentials_file(&file);
    assert!(matches!(both.build(), Err(SinkError::Config { detail, .. }) if detail.contains("not both")));
    // A lost connection is given up here, too, and the next one signs another nonce.
    nats.server.server.kill();
    nats.server.server.restart();
    publish_until_accepted(&sink, batch("a", 20..23)).await;
    assert_eq!(length(&mut nats.stream(options()).await).await, 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_streams_is_reached_over_tls_as_a_user() {
    if !have("redis-server") {
        return;
    }
    let certificates = Arc::new(Certificates::new());
    let mut redis = SecureRedis::start(&certificates, PASSWORD);
    let sink = built(&config(&redis.url(), Some(&certificates)));
    sink.check().await.expect("it is reached");
    assert_eq!(publish(&sink, batch("a", 0..1500)).await, accepted(1500));
    let length: u64 = ::redis::cmd("XLEN").arg("a").query(&mut redis.connect()).expect("a length");
    assert_eq!(length, 1500);

    let wrong = built(&config(&redis.url_with("hunter3"), Some(&certificates)));
    refused(&wrong, &["cannot log in to `rediss://127.0.0.1", "user or password are wrong"], &["hunter3"]).await;
    let other = Certificates::new();
    let file = other.ca_file().display().to_string();
    let distrustful = built(&config(&redis.url(), Some(&other)));
    refused(&distrustful, &["invalid peer certificate", &file], &[PASSWORD]).await;
    redis.server.kill();
    sink.check().await.expect_err("nobody is there");
    redis.server.restart();
    publish_until_accepted(&sink, batch("a", 0..10)).await;
}

/// Takes more than five seconds: a server without TLS says nothing, so the timeout must expire.
#[tokio::test]
async fn a_redis_without_tls_is_reported_as_such() {
    if !have("redis-server") {
        return;
    }
    let (plain, certificates) = (crate::support::redis::RedisServer::start(&[]), Certificates::new());
    let url = format!("rediss://:{PASSWORD}@127.0.0.1:{}", plain.server.port);
    refused(&built(&config(&url, Some(&certificates))), &["no answer", "if it speaks TLS there at all"], &[PASSWORD])
        .await;
}
