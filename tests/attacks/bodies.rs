//! Large bodies that never end.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use super::{Form, REPORT, Stage};
use crate::support::say;

/// The size of the body of a put, less one byte.
const BODY: usize = (1 << 20) - 1;

pub(super) fn send_bodies_that_do_not_end(form: Form) {
    let Some(stage) = Stage::start("") else { return };
    let before = stage.watch("bodies, before", &|| std::thread::sleep(Duration::from_secs(form.choose(1, 10))));
    let body = vec![b' '; BODY];
    let during = stage.watch("bodies, meanwhile", &|| {
        let mut held: Vec<TcpStream> = Vec::new();
        let mut refused = 0;
        for n in 0..form.choose(150, 600) {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, stage.instance.port)).expect("a connection");
            stream.set_write_timeout(Some(Duration::from_secs(5))).expect("a timeout");
            stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
            let head = format!(
                "PUT /v1/tasks/body-{n} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                BODY + 1
            );
            // The instance may answer and close before it has all.
            let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
            let mut answer = [0; 12];
            let read = stream.read(&mut answer).unwrap_or(0);
            if sent.is_err() || answer[..read].starts_with(b"HTTP/1.1 503") {
                refused += 1;
            }
            held.push(stream);
        }
        say(&format!("{REPORT} bodies: {} under way, {refused} refused", held.len() - refused));
        assert!(refused > 0, "none was refused: {} bodies of a MiB are under way", held.len());
        std::thread::sleep(Duration::from_secs(form.choose(1, 10)));
    });
    form.judge(&stage.instance, &before, &during);
}

whole_forms!(send_bodies_that_do_not_end);
