//! What the log and the state say of a sink or of destinations that fail.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use punctual_sinks::memory::Answer;
use punctual_sinks::{Fault, Trouble};

use super::*;
use crate::support::log::Log;

/// The number of this field of a log line.
fn number_in(line: &str, field: &str) -> Option<u64> {
    line.split(&format!("{field}=")).nth(1)?.split(' ').next()?.parse().ok()
}

/// If ours is the first publish, the broker has a message with this key from elsewhere, and drops ours. After a failed
/// publish, that is what deduplication is for.
#[tokio::test(start_paused = true)]
async fn a_duplicate_answer_is_counted_and_logged_if_it_was_the_first_publish() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    let tries = AtomicU32::new(0);
    bed.sink.answer_by(move |message| match message.task.as_str() {
        "again" if tries.fetch_add(1, Ordering::Relaxed) == 0 => unclear("nack"),
        "again" => Answer::Duplicate,
        _ => Answer::Accept,
    });
    let reported = || log.text().matches("dropped a message as a duplicate").count();
    bed.put([("again", after(millis(10)))]).await;
    bed.pass(seconds(5)).await;
    assert_eq!(reported(), 0, "{}", log.text());
    bed.sink.answer_by(|_| Answer::Duplicate);
    let due = bed.put([("first", after(millis(10))), ("second", after(millis(20)))]).await;
    bed.pass(seconds(5)).await;
    assert_eq!(reported(), 1, "once a minute: {}", log.text());
    assert!(log.text().contains(&format!("key={}", expected(["first"], &due[..1])[0])), "{}", log.text());
    assert_eq!(bed.shows("punctual_published_total{sink=\"sink\",outcome=\"duplicate\"}"), 3.0);
    assert!(bed.dead().is_empty());
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_answers_only_probes_is_logged_once_until_it_accepts_messages() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    bed.sink.answer_by(|_| Answer::Retry(Trouble::definite(Fault::Sink, "refused")));
    bed.put([("x", after(millis(10)))]).await;
    bed.pass(seconds(60)).await;
    assert_eq!(log.reported(), ["the sink is unavailable", "the sink answers a probe;"]);
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    assert_eq!(log.reported(), ["the sink is unavailable", "the sink answers a probe;", "the sink answers again"]);
    bed.assert_at_rest();
}

/// Twenty messages a second for a missing destination: what an operator sees in the log, and no more than that.
#[tokio::test(start_paused = true)]
async fn deaths_and_their_cause_are_logged_in_a_few_lines_with_counts() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    bed.sink.answer_by(|message| match message.destination.as_str() {
        "gone" => Answer::Retry(Trouble::definite(Fault::Destination, "unknown topic `gone`")),
        _ => Answer::Accept,
    });
    let ids: Vec<String> = (0..2000).map(|n| format!("t{n}")).collect();
    bed.put(ids.iter().enumerate().map(|(n, id)| (id.as_str(), to("gone", millis(n as u64 * 50))))).await;
    bed.pass(seconds(2)).await;
    let lines =
        |text: &str| log.text().lines().filter(|line| line.contains(text)).map(str::to_owned).collect::<Vec<_>>();
    let at_fault = lines("destination is at fault");
    assert_eq!(at_fault.len(), 1, "{}", log.text());
    assert!(at_fault[0].contains("unknown topic `gone`") && at_fault[0].contains("patience=30s"), "{at_fault:?}");
    bed.pass(seconds(178)).await;
    assert_eq!(lines("destination is given up").len(), 1, "{}", log.text());
    let deaths = lines("occurrences are dead");
    assert!((3..=4).contains(&deaths.len()), "{deaths:?}");
    let counted: u64 = deaths
        .iter()
        .map(|line| {
            line.split("deaths=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse::<u64>().unwrap()
        })
        .sum();
    assert_eq!((counted, bed.dead().len()), (2000, 2000), "{deaths:?}");
}

/// 100 000 messages for 300 destinations that are all missing: each is counted, and the log stays short.
#[tokio::test(start_paused = true)]
async fn deaths_at_many_destinations_are_logged_in_at_most_20_lines_a_minute() {
    const DEATHS: u64 = 100_000;
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    bed.sink.answer_by(|message| match message.destination.starts_with("gone") {
        true => Answer::Retry(Trouble::definite(Fault::Destination, "unknown topic")),
        false => Answer::Accept,
    });
    let ids: Vec<String> = (0..DEATHS).map(|n| format!("t{n}")).collect();
    let gone = |n: usize| to(&format!("gone-{}", n % 300), millis(n as u64 / 3));
    for (part, ids) in ids.chunks(5000).enumerate() {
        bed.put(ids.iter().enumerate().map(|(n, id)| (id.as_str(), gone(part * 5000 + n)))).await;
    }
    // Without messages that are accepted elsewhere, the sink could be the cause.
    let well: Vec<String> = (0..300).map(|n| format!("well{n}")).collect();
    bed.put(well.iter().enumerate().map(|(n, id)| (id.as_str(), to("well", seconds(n as u64))))).await;
    let (mut before, mut minutes) = (log.text().lines().count(), 0);
    let dead = |reason: &str| {
        let name = format!("punctual_dead_total{{lane=\"default\",reason=\"{reason}\"}} ");
        let text = bed.metrics.text();
        text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse::<u64>().unwrap())
    };
    while dead("destination") + dead("retries") < DEATHS {
        bed.pass(seconds(60)).await;
        let now = log.text().lines().count();
        assert!(now - before <= 20, "{} lines in a minute: {}", now - before, log.text());
        (before, minutes) = (now, minutes + 1);
        assert!(minutes < 60, "{} and {}", dead("destination"), dead("retries"));
    }
    bed.pass(seconds(120)).await;
    let counted = |text: &str, name: &str| -> u64 {
        let lines = log.text();
        let lines = lines.lines().filter(|line| line.contains(text));
        let number = |line: &str| line.split(name).nth(1)?.split(' ').next()?.parse::<u64>().ok();
        lines.map(|line| number(line).unwrap_or(0)).sum()
    };
    assert_eq!(counted("occurrences are dead", " deaths="), DEATHS, "{}", log.text());
    for text in ["destination is at fault", "destination is given up"] {
        let lines = log.text().matches(text).count() as u64;
        assert!(lines >= 5, "{text}: {lines}");
    }
    assert!(counted("more destinations are at fault", " others=") > 200, "{}", log.text());
    assert!(counted("more destinations are given up", " others=") > 200, "{}", log.text());
}

/// First nothing is accepted, and then only one destination refuses.
#[tokio::test(start_paused = true)]
async fn destinations_that_were_logged_as_failing_are_logged_again_once_they_are_at_fault() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    let well = Arc::new(AtomicBool::new(false));
    let accepts = Arc::clone(&well);
    bed.sink.answer_by(move |message| match message.destination == "well" && accepts.load(Ordering::Relaxed) {
        true => Answer::Accept,
        false => Answer::Retry(Trouble::definite(Fault::Unclear, "nack")),
    });
    let ids: Vec<String> = (0..6).map(|n| format!("t{n}")).collect();
    let destination = |n: usize| if n == 5 { "well".to_owned() } else { format!("full-{n}") };
    bed.put(ids.iter().enumerate().map(|(n, id)| (id.as_str(), to(&destination(n), millis(10))))).await;
    let lines = |text: &str| log.text().matches(text).count();
    bed.pass(seconds(5)).await;
    assert_eq!((lines("messages keep failing at a destination"), lines("destination is at fault")), (5, 0));
    well.store(true, Ordering::Relaxed);
    bed.pass(seconds(10)).await;
    assert_eq!(lines("destination is at fault"), 5, "{}", log.text());
}

/// Before `answer_timeout`, a broker that hangs looks like a slow one. An operator must see already then why no
/// messages arrive.
#[tokio::test(start_paused = true)]
async fn a_sink_that_hangs_is_logged_and_shown_within_2_s() {
    let (log, _guard) = Log::begin();
    let mut bed = Bed::start();
    bed.engine = None;
    bed.sink = MemorySink::new(100, seconds(10));
    let mut config = EngineConfig::new("i1");
    config.lease = seconds(25);
    bed.engine = Some(bed.another(config));
    let hangs = Arc::new(AtomicBool::new(false));
    let decides = Arc::clone(&hangs);
    bed.sink.answer_by(move |_| if decides.load(Ordering::Relaxed) { Answer::Hang } else { Answer::Accept });
    let silences = || log.text().matches("the sink answers none of the messages under way").count();
    let shown = |bed: &Bed| bed.engine().state().sinks.iter().find_map(|sink| sink.unanswered_for);
    bed.put([("well", after(millis(10)))]).await;
    bed.pass(seconds(5)).await;
    assert_eq!((silences(), shown(&bed)), (0, None), "it answers all");
    hangs.store(true, Ordering::Relaxed);
    bed.put([("stuck", after(millis(10)))]).await;
    bed.pass(millis(1400)).await;
    assert_eq!((silences(), shown(&bed)), (0, None));
    bed.pass(millis(600)).await;
    assert!(silences() == 1 && shown(&bed) > Some(millis(1500)), "{} {:?}", log.text(), shown(&bed));
    bed.pass(seconds(6)).await;
    assert_eq!(silences(), 1, "once a minute");
    hangs.store(false, Ordering::Relaxed);
    bed.pass(seconds(20)).await;
    assert_eq!((bed.keys().len(), shown(&bed)), (2, None), "{}", log.text());
}

/// One message without an answer says nothing while the sink answers others.
#[tokio::test(start_paused = true)]
async fn a_sink_that_answers_other_messages_does_not_count_as_silent() {
    let mut bed = Bed::start();
    bed.engine = None;
    bed.sink = MemorySink::new(100, seconds(10));
    let mut config = EngineConfig::new("i1");
    config.lease = seconds(25);
    bed.engine = Some(bed.another(config));
    bed.sink.answer_by(|message| if message.task == "stuck" { Answer::Hang } else { Answer::Accept });
    let well: Vec<String> = (0..10).map(|n| format!("well{n}")).collect();
    bed.put([("stuck", after(millis(10)))]).await;
    bed.put(well.iter().zip(1..).map(|(id, n)| (id.as_str(), after(millis(n * 500))))).await;
    let shown = |bed: &Bed| bed.engine().state().sinks.iter().find_map(|sink| sink.unanswered_for);
    for _ in 0..5 {
        bed.pass(seconds(1)).await;
        assert_eq!(shown(&bed), None, "{:?}", bed.keys());
    }
    bed.pass(seconds(3)).await;
    assert!(shown(&bed) > Some(seconds(2)), "only the one is left");
}

/// An operator who looks at the end of the log sees that the outage lasts, and how late its tasks are.
#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_again_every_minute_with_its_length() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    bed.sink.set_unavailable(true);
    bed.put([("x", after(millis(10)))]).await;
    let repeats = || {
        log.text().lines().filter(|line| line.contains("is still unavailable")).map(str::to_owned).collect::<Vec<_>>()
    };
    bed.pass(seconds(50)).await;
    assert_eq!(repeats().len(), 0, "{}", log.text());
    bed.pass(seconds(140)).await;
    let lines = repeats();
    assert!((2..=3).contains(&lines.len()) && lines[0].contains("the sink is still unavailable"), "{lines:?}");
    assert!(lines.iter().all(|line| number_in(line, "oldest_due_s").is_some_and(|late| late > 50)), "{lines:?}");
    bed.sink.set_unavailable(false);
    bed.pass(seconds(130)).await;
    assert_eq!((repeats().len(), bed.keys().len()), (lines.len(), 1), "it ends with the outage");
    let text = log.text();
    let end = text.lines().find(|line| line.contains("the sink answers again")).expect("the end");
    assert!(number_in(end, "outage_s").is_some_and(|outage| (185..200).contains(&outage)), "{end}");
}

/// An operator who reads only the log must not look for a broken network while the password is wrong.
#[tokio::test(start_paused = true)]
async fn an_outage_is_logged_again_when_its_cause_changes() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    bed.sink.answer_by(|_| Answer::Retry(Trouble::definite(Fault::Sink, "the connection was lost")));
    bed.put([("x", after(millis(10)))]).await;
    bed.pass(millis(50)).await;
    bed.sink.set_unavailable(true);
    bed.pass(seconds(30)).await;
    let lines = |text: &str| log.text().lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines("the connection was lost"), 1, "{}", log.text());
    assert_eq!(lines("the sink is still unavailable"), 1, "{}", log.text());
    assert_eq!(lines("cannot reach the sink at `memory:`: unavailable"), 1, "{}", log.text());
}

/// The log has said that the destination fails, so it also says that it does not fail any more.
#[tokio::test(start_paused = true)]
async fn a_destination_that_accepts_messages_again_is_logged_once() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    let recovered = || log.text().lines().filter(|line| line.contains("destination accepts messages again")).count();
    for health in ["destination is at fault", "destination is given up"] {
        let refuse = |_: &_| Answer::Retry(Trouble::definite(Fault::Destination, "unknown topic"));
        bed.sink.answer_by(refuse);
        let before = recovered();
        bed.put([(health.rsplit(' ').next().unwrap(), to("gone", millis(10)))]).await;
        let long = if health.ends_with("up") { 40 } else { 5 };
        bed.pass(seconds(long)).await;
        assert!(log.text().contains(health), "{}", log.text());
        assert_eq!(recovered(), before);
        bed.sink.answer_by(|_| Answer::Accept);
        bed.put([("y", to("gone", seconds(6))), ("z", to("gone", seconds(12)))]).await;
        bed.pass(seconds(20)).await;
        assert_eq!(recovered(), before + 1, "{}", log.text());
        let text = log.text();
        let line = text.lines().rfind(|line| line.contains("destination accepts messages again")).unwrap();
        assert!(number_in(line, "outage_s").is_some_and(|outage| (long..long + 10).contains(&outage)), "{line}");
    }
}

/// Nobody sends messages there any more, so it leaves the list of failing destinations. The log says so; the next
/// failure is news.
#[tokio::test(start_paused = true)]
async fn a_failing_destination_without_messages_is_forgotten_and_logged() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    bed.sink.answer_by(|_| Answer::Retry(Trouble::definite(Fault::Destination, "unknown topic")));
    let lines = |text: &str| log.text().lines().filter(|line| line.contains(text)).count();
    for n in 1..=2 {
        bed.put([(format!("x{n}").as_str(), to("gone", millis(10)))]).await;
        bed.pass(seconds(50)).await;
        let forgotten = || lines("destination is not counted as failing any more");
        assert_eq!((lines("destination is given up"), forgotten()), (n, n - 1), "{}", log.text());
        bed.pass(seconds(40)).await;
        assert_eq!(forgotten(), n, "{}", log.text());
        assert!(
            log.text().contains("destination=\"gone\"") || log.text().contains("destination=gone"),
            "{}",
            log.text()
        );
    }
}

/// Dead occurrences beyond the cap and occurrences that are passed over are logged with their count.
#[tokio::test(start_paused = true)]
async fn dropped_and_passed_over_occurrences_are_logged_with_their_number() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start_with(|config| config.dead_cap.entries = 5);
    bed.sink.answer_by(|message| match message.task.as_str() {
        "often" => Answer::Accept,
        _ => Answer::Reject("too large".to_owned()),
    });
    let ids: Vec<String> = (0..50).map(|n| format!("t{n}")).collect();
    bed.put(ids.iter().map(|id| (id.as_str(), after(millis(10))))).await;
    bed.put([("often", every(seconds(5), 1000))]).await;
    bed.pass(seconds(10)).await;
    assert!(log.text().contains("the oldest dead occurrences were dropped; they are lost"), "{}", log.text());
    assert!(log.text().contains("occurrences=45"), "{}", log.text());
    bed.sink.set_unavailable(true);
    bed.pass(seconds(300)).await;
    bed.sink.set_unavailable(false);
    bed.pass(seconds(30)).await;
    assert!(log.text().contains("occurrences were passed over by their catch-up"), "{}", log.text());
}
