//! One server of the timeline.

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::cluster::Server;
use super::session::Session;
use super::time::Time;

/// One server of the timeline.
pub(super) struct Node {
    /// Its number, from 0, never used twice.
    pub(super) number: u64,
    /// For logs and errors, without user and password.
    pub(super) address: String,
    /// Where it is, in a cluster; otherwise the URL says so.
    pub(super) server: Option<Server>,
    /// Its clock.
    pub(super) time: Time,
    /// Its connection for commands.
    pub(super) session: Mutex<Option<Session>>,
    /// Notified when a slot is assigned to it.
    pub(super) assigned: Notify,
    /// Notified when it should try to connect at once.
    pub(super) retry: Notify,
}

impl Node {
    /// A reason for a log or an error, with the address.
    pub(super) fn failure(&self, reason: &str) -> String {
        format!("redis at `{}`: {reason}", self.address)
    }
}
