//! Copies of dead messages for a dead-letter destination: their content, and what they never affect.

use punctual::timeline::RequeueAnswer;
use punctual::timeline::memory::OccurrenceMark;
use punctual_sinks::Message;
use punctual_sinks::memory::Answer;

use super::*;

/// The dead-letter destination.
const DEAD: &str = "news.dead";

fn bed() -> Bed {
    Bed::start_full(|_| {}, Some(DEAD.to_owned()))
}

/// The copies that were published.
fn copies(bed: &Bed) -> Vec<Message> {
    bed.sink.published().into_iter().filter(|message| message.destination == DEAD).collect()
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a str> {
    message.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Refuses messages for the lane's own destination and accepts everything else.
fn refuse(bed: &Bed) {
    bed.sink.answer_by(|message| match message.destination.as_str() {
        "news" => Answer::Reject("too large:\r\n2 MiB".to_owned()),
        _ => Answer::Accept,
    });
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_the_dead_carries_key_payload_and_why() {
    let bed = bed();
    refuse(&bed);
    let mut task = after(millis(10));
    task.message.headers.insert("tenant".into(), "acme".into());
    let due = bed.put([("x", task)]).await;
    bed.pass(millis(500)).await;
    let key = expected(["x"], &due).remove(0);
    let copies = copies(&bed);
    let [copy] = copies.as_slice() else { panic!("{copies:?}") };
    assert_eq!((copy.key.as_str(), copy.task.as_str(), &copy.payload[..]), (key.as_str(), "x", &b"{\"order\":1}"[..]));
    assert_eq!(header(copy, "tenant"), Some("acme"));
    assert_eq!(header(copy, "punctual-dead-reason"), Some("rejected"));
    assert_eq!(header(copy, "punctual-dead-detail"), Some("too large:  2 MiB"));
    assert!(copy.is_dead_copy());
    assert_eq!(bed.dead(), [(key, "rejected".to_owned(), "too large:\r\n2 MiB".to_owned())]);
    bed.assert_at_rest();
}

/// A copy counts neither as accepted nor as late, and the message itself may still be published.
#[tokio::test(start_paused = true)]
async fn a_dead_letter_copy_does_not_count_as_a_publish_of_its_occurrence() {
    let bed = bed();
    refuse(&bed);
    let first = bed.put([("tick", every(seconds(1), 2))]).await[0];
    bed.pass(seconds(5)).await;
    assert_eq!(copies(&bed).len(), 2);
    let text = bed.metrics.text();
    for line in [
        "punctual_dead_total{lane=\"default\",reason=\"rejected\"} 2",
        "punctual_dead_copies_total{lane=\"default\",result=\"accepted\"} 2",
        "punctual_published_total{sink=\"sink\",outcome=\"accepted\"} 0",
        "punctual_published_total{sink=\"sink\",outcome=\"rejected\"} 2",
        "punctual_lateness_seconds_count{lane=\"default\"} 0",
        "punctual_retries_total{sink=\"sink\"} 0",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    // After a requeue it is published with its key to its own destination.
    bed.sink.answer_by(|_| Answer::Accept);
    let key = punctual::task::Key { task: id("tick"), due: first };
    assert_eq!(bed.intake.requeue(&key, seconds(1)).await.unwrap(), RequeueAnswer::Requeued);
    bed.pass(seconds(1)).await;
    let news: Vec<_> = bed.sink.published().into_iter().filter(|message| message.destination == "news").collect();
    assert_eq!(news.iter().map(|message| message.key.clone()).collect::<Vec<_>>(), [key.to_string()]);
    assert!(!news[0].is_dead_copy());
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_refused_copy_delays_a_death_by_at_most_two_attempts() {
    for answer in [Answer::Hang, unclear("later"), Answer::Reject("no".to_owned())] {
        let bed = bed();
        let (tries, answered) = (Arc::new(std::sync::atomic::AtomicU32::new(0)), answer.clone());
        let counted = Arc::clone(&tries);
        bed.sink.answer_by(move |message| match message.destination.as_str() {
            DEAD => {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                answered.clone()
            }
            _ if message.task == "x" => Answer::Reject("no".to_owned()),
            _ => Answer::Accept,
        });
        bed.put([("x", after(millis(10))), ("good", after(millis(10)))]).await;
        bed.pass(millis(400)).await;
        assert_eq!(bed.keys().len(), 1);
        let twin = bed.timeline.twin(Shard::of(&id("any"), 1));
        assert!(!twin.tasks.contains_key(&"good".parse().unwrap()), "its neighbour is settled meanwhile");
        bed.pass(ANSWER * 2 + seconds(1)).await;
        assert_eq!(bed.dead().len(), 1, "{answer:?}");
        let definite = matches!(answer, Answer::Reject(_));
        assert_eq!(tries.load(std::sync::atomic::Ordering::Relaxed), if definite { 1 } else { 2 }, "{answer:?}");
        assert!(bed.metrics.text().contains("punctual_dead_copies_total{lane=\"default\",result=\"failed\"} 1"));
        // A failed copy says nothing about the sink.
        let state = bed.engine.as_ref().unwrap().state();
        assert!(state.sinks.iter().all(|sink| sink.breaker == punctual::engine::BreakerState::Closed), "{state:?}");
        bed.assert_at_rest();
    }
}

/// Otherwise each claim with a refused message would wait twice `answer_timeout` for its copy.
#[tokio::test(start_paused = true)]
async fn a_failed_copy_pauses_the_copies_of_its_lane_for_a_while() {
    let bed = bed();
    let tries = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let tried = || tries.load(std::sync::atomic::Ordering::Relaxed);
    let counted = Arc::clone(&tries);
    bed.sink.answer_by(move |message| match message.destination.as_str() {
        DEAD => {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Answer::Hang
        }
        _ => Answer::Reject("no".to_owned()),
    });
    bed.put([("a", after(millis(10))), ("b", after(millis(10)))]).await;
    bed.pass(ANSWER * 2 + seconds(1)).await;
    assert_eq!((bed.dead().len(), tried()), (2, 4));
    bed.put([("c", after(millis(10)))]).await;
    bed.pass(millis(200)).await;
    assert_eq!((bed.dead().len(), tried()), (3, 4), "dead at once");
    assert!(bed.metrics.text().contains("punctual_dead_copies_total{lane=\"default\",result=\"failed\"} 3"));
    // Copies of other lanes are tried, and those of this lane after a while.
    bed.put_into("side", [("d", after(millis(10)))]).await;
    bed.pass(millis(200)).await;
    assert_eq!((bed.dead().len(), tried()), (3, 5));
    bed.pass(seconds(10)).await;
    refuse(&bed);
    bed.put([("e", after(millis(10)))]).await;
    bed.pass(seconds(1)).await;
    assert_eq!(copies(&bed).iter().map(|copy| copy.task.as_str()).collect::<Vec<_>>(), ["e"]);
    assert_eq!(bed.dead().len(), 5);
    bed.assert_at_rest();
}

/// A copy may be too large for its destination; that says nothing about other copies.
#[tokio::test(start_paused = true)]
async fn a_refused_copy_does_not_prevent_other_copies() {
    let bed = bed();
    bed.sink.answer_by(|message| match message.destination.as_str() {
        DEAD if message.task == "a" => Answer::Reject("too large".to_owned()),
        DEAD => Answer::Accept,
        _ => Answer::Reject("no".to_owned()),
    });
    for task in ["a", "b"] {
        bed.put([(task, after(millis(10)))]).await;
        bed.pass(millis(200)).await;
    }
    assert_eq!((copies(&bed).len(), bed.dead().len()), (1, 2));
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_goes_away_does_not_delay_deaths() {
    let bed = bed();
    bed.sink.answer_by(|message| match message.destination.as_str() {
        DEAD => Answer::Hang,
        _ => Answer::Reject("no".to_owned()),
    });
    bed.put([("x", after(millis(10)))]).await;
    bed.pass(millis(100)).await;
    assert!(bed.dead().is_empty(), "its copy is under way");
    bed.sink.set_unavailable(true);
    bed.put([("y", after(millis(10)))]).await;
    bed.pass(millis(200)).await;
    assert_eq!(bed.dead().len(), 1);
    bed.assert_at_rest();
}

#[tokio::test(start_paused = true)]
async fn poison_and_lanes_without_a_dead_letter_destination_have_no_copies() {
    let (plain, with) = (Bed::start(), bed());
    for bed in [&plain, &with] {
        refuse(bed);
        let dues = bed.put([("poison", after(seconds(1)))]).await;
        bed.timeline.edit(Shard::of(&id("any"), 1), |twin| {
            twin.crashes.insert("poison".parse().unwrap(), OccurrenceMark::crashed(dues[0], 6));
        });
        bed.pass(seconds(5)).await;
        assert_eq!(bed.dead()[0].1, "poison");
    }
    plain.put([("x", after(millis(10)))]).await;
    plain.pass(seconds(1)).await;
    assert_eq!(plain.dead().len(), 2);
    assert!(plain.sink.published().is_empty() && with.sink.published().is_empty());
}
