//! The trace of a request, from the HTTP header to the message in a broker.

use crate::support::have;
use crate::support::patient;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

#[test]
fn a_message_carries_the_trace_of_its_put() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let url = redis.url();
    let instance = Punctual::start(&format!("[redis]\nurl = \"{url}\"\n[sinks.default]\nurl = \"{url}\"\n"));
    let task = r#"{"schedule":{"in":"50ms"},"message":{"destination":"traced","payload":{"order":1}}}"#;
    let put = ureq::put(format!("http://127.0.0.1:{}/v1/tasks/a", instance.port))
        .header("content-type", "application/json")
        .header("traceparent", TRACE)
        .send(task)
        .expect("an answer");
    assert_eq!(put.status(), 201);
    let mut connection = redis.connect();
    let mut read = || -> Vec<(String, Vec<(String, String)>)> {
        ::redis::cmd("XRANGE").arg("traced").arg("-").arg("+").query(&mut connection).expect("a stream")
    };
    assert!(patient(std::time::Duration::from_secs(30), || !read().is_empty()), "{}", instance.log());
    let (_, fields) = read().remove(0);
    let field = |name: &str| fields.iter().filter(|(field, _)| field == name).map(|(_, value)| &**value).collect();
    let (trace, payload): (Vec<&str>, Vec<&str>) = (field("traceparent"), field("payload"));
    assert_eq!((trace, payload), (vec![TRACE], vec![r#"{"order":1}"#]));
}
