//! The topics of the cluster, by the lists of its brokers. Messages for other topics are not handed to librdkafka, because
//! it never forgets a topic and asks for each one by itself: names that a caller makes up would fill its memory and
//! delay all other messages.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout};

use super::producer::Producer;

/// A list is used for this long before a missing topic causes a new request. It delays the use of a new topic.
const MAX_LIST_AGE: Duration = Duration::from_secs(1);

/// A list is used for at least this many times the duration of its request, which is long in a large cluster.
const AGE_TO_DURATION: u32 = 20;

/// The known topics.
#[derive(Default)]
pub(super) struct Topics {
    listed: Mutex<ListedTopics>,
    /// Held by the publish that asks for a list.
    asking: AsyncMutex<()>,
}

#[derive(Default)]
struct ListedTopics {
    /// The topics of all lists so far. None is removed: librdkafka reports deleted topics, and the list of a broker
    /// that has just started may be incomplete.
    names: HashSet<String>,
    last: Option<LastList>,
}

/// The last answer of the brokers, or that there was none.
#[derive(Clone, Copy)]
struct LastList {
    /// When it came.
    at: Instant,
    took: Duration,
    answered: bool,
}

impl LastList {
    fn is_new(&self) -> bool {
        self.at.elapsed() < MAX_LIST_AGE.max(self.took * AGE_TO_DURATION)
    }
}

impl Topics {
    /// Whether a list contained a topic.
    pub(super) fn contain(&self, topic: &str) -> bool {
        self.listed.lock().names.contains(topic)
    }

    /// Requests a list within `limit`, unless the last one is new enough. Returns whether there is one. Without it, a
    /// topic that no earlier list contained may still exist.
    pub(super) async fn renew(&self, producer: &Producer, limit: Duration) -> bool {
        let asked = timeout(limit, async {
            let _asking = self.asking.lock().await;
            let last = self.listed.lock().last.filter(LastList::is_new);
            match last {
                Some(last) => last.answered,
                None => self.ask(producer, limit).await,
            }
        });
        asked.await.unwrap_or(false)
    }

    async fn ask(&self, producer: &Producer, limit: Duration) -> bool {
        let begun = Instant::now();
        let names = producer.topics(limit).await.unwrap_or_default();
        // A broker that has just started may know no topic yet.
        let answered = !names.is_empty();
        let mut listed = self.listed.lock();
        listed.names.extend(names);
        listed.last = Some(LastList { at: Instant::now(), took: begun.elapsed(), answered });
        answered
    }
}
