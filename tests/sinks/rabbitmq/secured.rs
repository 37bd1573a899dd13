//! RabbitMQ over TLS, with its own user and virtual host; and the errors when that fails.

use std::sync::Arc;
use std::time::Duration;

use punctual_sinks::{Fault, Outcome, Sink, SinkConfig, Tls};
use tokio::time::Instant;

use super::super::{PATIENCE, SOON, accepted, batch, publish, publish_until_accepted};
use crate::support::certificates::Certificates;
use crate::support::have;
use crate::support::rabbitmq::RabbitServer;
use crate::support::server::free_port;

fn sink(url: &str, certificates: Option<&Certificates>) -> Option<Arc<dyn Sink>> {
    let tls = certificates.map_or_else(Tls::default, |own| Tls::from_ca_file(&own.ca_file()).expect("a CA file"));
    let config = SinkConfig::parse(url).expect("a good URL").with_answer_timeout(PATIENCE).with_tls(tls);
    assert!(!format!("{config:?}").contains("hunter"), "{config:?}");
    config.build().ok()
}

/// Checks that the error blames the sink, contains these words, comes soon, and holds no secret.
async fn refused(sink: &Arc<dyn Sink>, expected: &[&str]) {
    let before = Instant::now();
    let reported = sink.check().await.expect_err("a refusal").to_string();
    for outcome in publish(sink, batch("a", 0..2)).await {
        let Outcome::Retry(trouble) = outcome else { panic!("{outcome:?}") };
        assert!(trouble.fault == Fault::Sink && trouble.definite, "{trouble:?}");
        for reported in [&reported, &trouble.detail] {
            assert!(expected.iter().all(|detail| reported.contains(detail)), "no {expected:?} in `{reported}`");
            assert!(!reported.contains("hunter"), "a secret in `{reported}`");
        }
    }
    assert!(before.elapsed() < SOON, "{:?}", before.elapsed());
}

/// Takes more than five seconds, because RabbitMQ takes that long to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rabbitmq_is_reached_over_tls_with_user_and_password() {
    punctual_sinks::tls::install_provider();
    if !have("rabbitmq-server") {
        return;
    }
    let (certificates, other, port) = (Certificates::new(), Certificates::new(), free_port());
    let config = format!(
        "listeners.ssl.default = 127.0.0.1:{port}\nssl_options.cacertfile = {}\nssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\nssl_options.verify = verify_none\n",
        certificates.ca_file().display(),
        certificates.certificate_file().display(),
        certificates.key_file().display()
    );
    let mut rabbit = RabbitServer::start(&config, &["own"], &[("punctual", "hunter2/:")]);
    rabbit.declare_queues("own", &["a"]);
    let url = |who: &str, vhost: &str| format!("amqps://{who}127.0.0.1:{port}/{vhost}");
    let who = "punctual:hunter2%2F%3A@";
    let good = sink(&url(who, "own"), Some(&certificates)).expect("a sink");
    good.check().await.expect("it is reached");
    assert_eq!(publish(&good, batch("a", 0..3000)).await, accepted(3000));
    assert_eq!(rabbit.queue("own", "a").len(), 3000);
    // Every connection uses TLS and logs in, not only the first.
    rabbit.server.kill();
    rabbit.server.restart();
    tokio::time::sleep(Duration::from_millis(300)).await;
    publish_until_accepted(&good, batch("a", 3000..3003)).await;

    let wrong = sink(&url("punctual:hunter3@", "own"), Some(&certificates)).expect("a sink");
    refused(&wrong, &["cannot log in to `amqps://127.0.0.1", "ACCESS_REFUSED"]).await;
    let elsewhere = sink(&url(who, "elsewhere"), Some(&certificates)).expect("a sink");
    refused(&elsewhere, &["vhost elsewhere not found"]).await;
    let distrustful = sink(&url(who, "own"), Some(&other)).expect("a sink");
    refused(&distrustful, &["invalid peer certificate", &other.ca_file().display().to_string()]).await;
    // A machine may have no certificate authorities at all.
    if let Some(systems) = sink(&url(who, "own"), None) {
        refused(&systems, &["invalid peer certificate", "set `tls.ca_file` to trust others"]).await;
    }
    let plain = sink(&format!("amqp://{who}127.0.0.1:{port}/own"), None).expect("a sink");
    plain.check().await.expect_err("it speaks TLS there");
    let not_tls = sink(&format!("amqps://{who}127.0.0.1:{}/own", rabbit.server.port), Some(&certificates));
    refused(&not_tls.expect("a sink"), &["TLS: "]).await;
}
