//! Takes all connections that the API allows, while the instance loses its connections to Redis.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use super::{Form, REPORT, Stage};
use crate::support::http::Api;
use crate::support::server::free_port;
use crate::support::{patient, say};

/// Holds more connections than there are places, each of which was used once.
pub(super) fn hold_all_connections(form: Form) {
    let probe_port = free_port();
    let places = form.choose(64, 400);
    let config = format!("connections = {places}\nprobe_listen = \"127.0.0.1:{probe_port}\"");
    let Some(stage) = Stage::start(&config) else { return };
    let before = stage.watch("connections, before", &|| std::thread::sleep(Duration::from_secs(form.choose(1, 10))));
    let during = stage.watch("connections, meanwhile", &|| {
        let held: Vec<TcpStream> = (0..places * 2).map(|_| hold(stage.instance.port)).collect();
        let mut redis = stage.redis.connect();
        // The subscription first: without its connection for commands an instance closes it by itself, and there would be
        // none to kill.
        for kind in ["pubsub", "normal"] {
            let killed: redis::RedisResult<i64> =
                redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg(kind).arg("SKIPME").arg("yes").query(&mut redis);
            assert!(killed.expect("an answer") > 0, "no connection of kind {kind}");
        }
        for port in [stage.instance.port, probe_port] {
            let ready = || Api::new(port).ready().is_some_and(|answer| answer.status == 200);
            assert!(
                patient(Duration::from_secs(10), ready),
                "the instance is not ready on port {port}\n{}",
                stage.instance.log()
            );
        }
        std::thread::sleep(Duration::from_secs(form.choose(1, 10)));
        say(&format!("{REPORT} connections: {} held, of {places} places", held.len()));
    });
    form.judge(&stage.instance, &before, &during);
}

/// Opens a connection, and uses it once.
fn hold(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sent");
    assert!(stream.read(&mut [0; 512]).is_ok_and(|read| read > 0), "no answer to a new connection");
    stream
}

whole_forms!(hold_all_connections);
