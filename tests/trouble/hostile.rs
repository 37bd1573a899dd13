//! Hostile servers: a Redis, or another server at its address, sends endless replies. They do not fill the memory of an
//! instance.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::SOON;
use crate::support::patient;
use crate::support::punctual::Punctual;

/// Far less than the endless replies, and more than an instance needs with the largest reply that it takes.
const MAX_RESIDENT_BYTES: u64 = 300 << 20;

/// A server that sends `begin` to each client, and then `more` for ever. Returns its port.
fn endless(begin: &'static [u8], more: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            std::thread::spawn(move || {
                let block = more.repeat((64 << 10) / more.len());
                if client.read(&mut [0; 4096]).is_ok() && client.write_all(begin).is_ok() {
                    while client.write_all(&block).is_ok() {}
                }
            });
        }
    });
    port
}

#[test]
fn a_redis_that_sends_replies_without_end_fills_no_memory() {
    for (begin, more) in [
        (&b"$2000000000\r\n"[..], &b"a"[..]),
        (b"$9223372036854775807\r\n", b"a"),
        (b"*2147483647\r\n", b"+OK\r\n"),
        (b"+", b"a"),
    ] {
        let port = endless(begin, more);
        let timeline = format!("[redis]\nurl = \"redis://127.0.0.1:{port}\"\n[sinks.default]\nurl = \"stdout:\"\n");
        let sink = format!("[redis]\nurl = \"memory:\"\n[sinks.default]\nurl = \"redis://127.0.0.1:{port}\"\n");
        let instances = [timeline, sink].map(|config| Punctual::start_unready(&config));
        let task = r#"{"schedule":{"in":"1ms"},"message":{"destination":"out"}}"#;
        assert_eq!(instances[1].api().put("a", task).unwrap().status, 201);
        let begun = String::from_utf8_lossy(begin);
        for (instance, name) in instances.iter().zip(["timeline", "sink"]) {
            let reported = patient(SOON, || instance.log().contains("it sent a reply of more than 64 MiB"));
            assert!(reported, "{name}, {begun}\n{}", instance.log());
            assert_eq!(instance.api().send("GET", "/healthz", None).unwrap().status, 200);
            let peak = instance.memory("VmHWM");
            assert!(peak < MAX_RESIDENT_BYTES, "{name}, {begun}: {} MiB", peak >> 20);
        }
    }
}
