//! 10 000 messages while instances with a door are killed 50 times.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::support::published::Published;
use crate::support::punctual::Punctual;
use crate::support::{patient, say};

/// Metric lines that count the messages that these instances have read so far.
fn read(instances: &[Punctual; 2]) -> Vec<String> {
    let of = |instance: &Punctual| {
        let metrics = instance.api().send("GET", "/metrics", None).map(|answer| answer.text).unwrap_or_default();
        metrics.lines().filter(|line| line.starts_with("punctual_door_messages_total")).map(str::to_owned).collect()
    };
    instances.iter().flat_map(|instance| -> Vec<String> { of(instance) }).collect()
}

/// What an instance shows of its lanes and its doors.
fn status(instance: &Punctual) -> String {
    instance.api().send("GET", "/v1/stats", None).map_or_else(|error| format!("{error:?}"), |answer| answer.text)
}

pub(super) const MESSAGES: usize = 10_000;
pub(super) const KILLS: usize = 50;

/// Time limit for publishing all messages.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Kills two instances in turn while messages are sent. The payload of each message is its number. Then all must have been
/// published, each under one key. Returns two running instances.
pub(super) fn run(
    broker: &str,
    config: &str,
    mut send: impl FnMut(Range<usize>),
    published: impl Fn() -> Vec<Published>,
) -> [Punctual; 2] {
    let mut instances = [Punctual::start(config), Punctual::start(config)];
    let mut ended = 0;
    for kill in 0..KILLS {
        let each = MESSAGES / KILLS;
        send(kill * each..(kill + 1) * each);
        let victim = &mut instances[kill % 2];
        ended += usize::from(victim.api().send("GET", "/healthz", None).is_err());
        victim.kill();
        *victim = match kill % 3 {
            // It ends by itself once it has put a batch, before it acknowledges it.
            0 if cfg!(feature = "fault-points") => {
                Punctual::start_unready_in(&["PUNCTUAL_FAULT_POINT=before_acknowledge:2".to_owned()], config)
            }
            _ => Punctual::start_unready(config),
        };
        // Something is read between two kills, unless the broker takes longer to notice a death.
        let before = read(&instances);
        patient(Duration::from_secs(3), || read(&instances) != before);
    }
    instances.iter_mut().for_each(Punctual::kill);
    instances = [Punctual::start(config), Punctual::start(config)];
    let numbers = || published().iter().map(|one| one.payload.clone()).collect::<BTreeSet<_>>().len();
    let all = patient(TIME_LIMIT, || numbers() == MESSAGES);
    assert!(
        all,
        "{} of {MESSAGES} were published: {:?}, {}",
        numbers(),
        instances.each_ref().map(status),
        instances[0].log()
    );
    assert!(ended > 0 || cfg!(not(feature = "fault-points")), "no instance ended between put and acknowledgement");
    // Copies may still come.
    std::thread::sleep(Duration::from_secs(1));
    let (mut keys, mut messages) = (BTreeMap::new(), 0);
    for Published { key, payload, .. } in published() {
        messages += 1;
        let first = keys.entry(payload.clone()).or_insert_with(|| key.clone());
        assert_eq!(*first, key, "one key for {payload}");
    }
    let different: BTreeSet<&String> = keys.values().collect();
    assert_eq!(different.len(), MESSAGES, "a key for each message");
    say(&format!(
        "door, {broker}: {MESSAGES} messages and {KILLS} kills, {ended} of them between put and acknowledgement, gave \
         {messages} messages under {MESSAGES} keys"
    ));
    instances
}
