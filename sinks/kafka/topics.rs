//! The topics of the cluster, by the brokers' last list. Messages for other topics are not handed to librdkafka, because
//! it never forgets a topic and asks for each one by itself: names that a caller makes up would fill its memory and
//! delay all other messages.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Mutex as ListTurn;
use tokio::time::Instant;

use super::producer::Producer;
/// How old a list may be that does not contain a topic: one that was just created is found after this time.
const LIST_AGE: Duration = Duration::from_secs(1);

/// The known topics.
#[derive(Default)]
pub(super) struct Topics {
    listed: Mutex<TopicList>,
    /// Held by the publish that asks for a new list.
    turn: ListTurn<()>,
}

#[derive(Default)]
struct TopicList {
    names: HashSet<String>,
    /// When the brokers were last asked, and whether one answered.
    asked: Option<(Instant, bool)>,
}

impl Topics {
    /// Whether the last list contains a topic.
    pub(super) fn contain(&self, topic: &str) -> bool {
        self.listed.lock().names.contains(topic)
    }

    /// Gets a new list within `limit`, unless the last one is new enough. Returns whether there is one: without an answer
    /// of the brokers nothing is known of a topic that is not in the last list.
    pub(super) async fn renew(&self, producer: &Producer, limit: Duration) -> bool {
        let _turn = self.turn.lock().await;
        if let Some((at, answered)) = self.listed.lock().asked
            && at.elapsed() < LIST_AGE
        {
            return answered;
        }
        let asked = Instant::now();
        let topics = producer.topics(limit).await;
        let mut listed = self.listed.lock();
        listed.asked = Some((asked, topics.is_ok()));
        topics.map(|names| listed.names = names.into_iter().collect()).is_ok()
    }
}
