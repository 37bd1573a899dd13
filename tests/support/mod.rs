//! The harness: real servers on free ports with their own folders. They stop with the test process, however it ends.

pub(crate) mod certificates;
pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod consumer;
pub(crate) mod http;
pub(crate) mod jwt;
pub(crate) mod kafka;
pub(crate) mod ledger;
pub(crate) mod load;
pub(crate) mod log;
pub(crate) mod nats;
pub(crate) mod published;
pub(crate) mod punctual;
pub(crate) mod rabbitmq;
pub(crate) mod records;
pub(crate) mod redis;
pub(crate) mod scripted;
pub(crate) mod server;
pub(crate) mod stored_keys;

pub(crate) use punctual_lab::testing::{have, have_quietly, patient, say, skip};
