//! What a door waits for, and what happens meanwhile: a task in flight, a timeline that is away, another reader.

use punctual::timeline::{ClaimRequest, DeadCap, RestOfClaim, Settle, Timeline, Token};

use super::*;
use crate::support::log::Log;

impl Bed {
    /// Claims what is due, as an instance does that publishes it.
    async fn claim(&self, token: &str) {
        let request = ClaimRequest {
            token: Token(token.to_owned()),
            max: 10,
            max_bytes: 1000,
            lease: Duration::from_secs(1000),
            not_after: self.clock.now().plus(Duration::from_secs(1)),
            newest_first: false,
            after: None,
        };
        let claimed = self.timeline.claim(Shard::FIRST, &"default".parse().unwrap(), request).await.unwrap();
        assert_eq!(claimed.occurrences.len(), 1);
    }

    /// Returns what was claimed to the lane.
    async fn end_claim(&self, token: &str) {
        let settle = Settle {
            token: Token(token.to_owned()),
            verdicts: Vec::new(),
            rest: RestOfClaim::Back,
            lease: Duration::from_secs(1000),
            dead_cap: DeadCap::of(10),
            quiet: false,
        };
        self.timeline.settle(Shard::FIRST, &"default".parse().unwrap(), settle).await.unwrap();
    }
}

/// The second message has the id and the due of the first, which is being published at a destination that does not answer.
#[tokio::test(start_paused = true)]
async fn a_door_waits_for_a_task_in_flight_but_not_without_end() {
    let bed = Bed::start();
    let due = format!("punctual-at: {}", bed.clock.now().as_millis() + 1000);
    let put =
        |name: &str, place: &str| bed.send(place, 0, &[&due, &format!("punctual-id: {name}"), &format!("x: {place}")]);
    put("a", "1-0");
    bed.pass(2000).await;
    bed.claim("i.1").await;
    put("a", "2-0");
    bed.pass(20_000).await;
    let (status, detail) = bed.status();
    assert!(status == DoorStatus::Waiting && detail.unwrap().contains("in flight"));
    assert_eq!(bed.source.acknowledged(), ["1-0"]);
    bed.end_claim("i.1").await;
    bed.pass(6000).await;
    assert_eq!((bed.source.acknowledged().len(), bed.results("replaced"), bed.status().0), (2, 1, DoorStatus::Up));

    // The destination stays silent for longer. `4-0` does not wait then, and a minute later `5-0` does.
    bed.claim("i.2").await;
    put("a", "3-0");
    bed.pass(40_000).await;
    let copy = bed.sink.published().pop().expect("a copy");
    assert_eq!((header(&copy, "punctual-rejected"), bed.status().0), (Some("in_flight"), DoorStatus::Up));
    put("a", "4-0");
    bed.pass(2000).await;
    assert_eq!((bed.source.acknowledged().len(), bed.results("rejected")), (4, 2));
    bed.pass(60_000).await;
    put("a", "5-0");
    bed.pass(20_000).await;
    assert_eq!((bed.source.acknowledged().len(), bed.status().0), (4, DoorStatus::Waiting));
}

/// The times of 400 days ago and of an hour ahead are those of producers; the others are off by less than five minutes.
#[tokio::test(start_paused = true)]
async fn a_time_that_is_far_off_is_logged_once() {
    const DAY_MS: i64 = 86_400_000;
    for (offset_ms, lines) in [(-299_000, 0), (299_000, 0), (-400 * DAY_MS, 1), (3_600_000, 1)] {
        let (log, _guard) = Log::begin();
        let bed = Bed::start();
        bed.send("1-0", offset_ms, &["punctual-in: 60s"]);
        bed.send("2-0", offset_ms, &["punctual-in: 60s"]);
        bed.pass(10).await;
        assert_eq!((bed.results("created"), bed.tasks().len()), (2, 2));
        let logged = log.text().lines().filter(|line| line.contains("far from now")).count();
        assert_eq!(logged, lines, "{offset_ms}: {}", log.text());
        let due = bed.tasks()["in.1-0"];
        assert_eq!(
            due,
            offset_ms + 60_000 - 10,
            "from the time of the message, even if that has passed; 10 ms went by"
        );
    }
}

/// The first message was handed over while the timeline was away: the other reader may have cancelled its task by now.
#[tokio::test(start_paused = true)]
async fn a_message_that_another_reader_has_is_left_to_it() {
    let bed = Bed::start();
    bed.timeline.set_link_down("no redis");
    bed.send("1-0", 0, &["punctual-in: 1h", "punctual-id: a"]);
    bed.send("2-0", 0, &["punctual-in: 1h", "punctual-id: b"]);
    bed.pass(10_000).await;
    bed.source.hand_over("1-0");
    bed.timeline.set_link_up();
    bed.pass(10_000).await;
    assert_eq!(bed.tasks().keys().map(String::as_str).collect::<Vec<_>>(), ["b"]);
    assert_eq!((bed.results("handed_over"), bed.results("created"), bed.status().0), (1, 1, DoorStatus::Up));
}

/// The timeline was away for longer than a door waits for a task in flight.
#[tokio::test(start_paused = true)]
async fn an_outage_of_the_timeline_takes_nothing_from_the_wait_for_a_task_in_flight() {
    let bed = Bed::start();
    let due = format!("punctual-at: {}", bed.clock.now().as_millis() + 1000);
    bed.send("1-0", 0, &[&due, "punctual-id: a"]);
    bed.pass(2000).await;
    bed.claim("i.1").await;
    bed.timeline.set_link_down("no redis");
    bed.send("2-0", 0, &[&due, "punctual-id: a", "x: 2"]);
    bed.pass(120_000).await;
    bed.timeline.set_link_up();
    bed.pass(10_000).await;
    assert_eq!((bed.source.acknowledged().len(), bed.status().0), (1, DoorStatus::Waiting));
    bed.end_claim("i.1").await;
    bed.pass(6000).await;
    assert_eq!((bed.source.acknowledged().len(), bed.results("replaced")), (2, 1));
}
