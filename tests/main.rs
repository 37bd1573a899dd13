//! The tests that need more than one room, in one binary. Table of contents:
//!
//! - `api`         the HTTP API over the in-memory timeline: answers, bad input, the batch, limits
//! - `cli`         the program: exit codes, words, signals, the demo, the README's commands
//! - `embedded`    the example that embeds punctual, run as it stands
//! - `end_to_end`  three instances, one killed, one stopped: exactly what was asked for is published
//! - `engine`      the engine over the in-memory timeline and sinks
//! - `lua`         the scripts on a real Redis: whole state before and after, declared keys, dying connections
//! - `memory`      large payloads in bounded memory
//! - `outage`      everything around an instance fails, and what was promised is published all the same
//! - `rooms`       who may know whom in `src/`
//! - `sinks`       one suite for every sink: what it can do, and what it does in an outage
//! - `support`     starts servers and `punctual serve` processes, and ends them
//! - `timeline`    the laws of a timeline, run against every implementation; random runs side by side; the model check

#![expect(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod api;
mod cli;
mod embedded;
mod end_to_end;
mod engine;
mod lua;
mod memory;
mod outage;
mod rooms;
mod sinks;
mod support;
mod timeline;

#[test]
fn the_harness_starts_and_ends_servers() {
    if !support::have("redis-server") || !support::have("nats-server") {
        return;
    }
    let redis = support::redis::RedisServer::start_cluster();
    let nats = support::nats::NatsServer::start("");
    let answer: String = ::redis::cmd("PING").query(&mut redis.connect()).expect("an answer");
    assert_eq!(answer, "PONG");
    assert!(nats.url().starts_with("nats://"));
}
