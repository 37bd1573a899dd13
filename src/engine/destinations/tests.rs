use super::*;
use crate::engine::destinations::new_destinations::MAX_NEW_FAILING;

const PATIENCE: Duration = Duration::from_secs(30);

const TRIAL: DestinationGate = DestinationGate::Trial { is_new: true };

const AT_FAULT: DestinationGate = DestinationGate::AtFault { is_new: true };

impl FailureContext {
    fn is_at_fault(self) -> bool {
        self.health >= Health::AtFault
    }

    fn is_given_up(self) -> bool {
        self.health == Health::GivenUp
    }
}

/// A message failed at `now` whose first failure was at `first`, and which was sent then too.
fn failed(
    all: &mut Destinations,
    destination: &str,
    first: Instant,
    now: Instant,
    fault: Fault,
    detail: &str,
) -> FailureContext {
    let trouble = Trouble { fault, definite: true, detail: detail.to_owned() };
    let (sent, first_failure) = (first, first);
    all.failed(FailedPublish { destination, trouble: &trouble, sent, first_failure, now, is_spared: false })
}

fn at(start: Instant, seconds: u64) -> Instant {
    start + Duration::from_secs(seconds)
}

#[test]
fn a_destination_at_fault_is_given_up_after_patience_then_tried_every_5_s() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    assert!(!failed(&mut all, "gone", start, start, Fault::Destination, "no such topic").is_given_up());
    assert!(!failed(&mut all, "gone", start, at(start, 15), Fault::Destination, "no such topic").is_given_up());
    assert_eq!(all.gate("gone", at(start, 29)), AT_FAULT, "not yet");
    assert!(failed(&mut all, "gone", start, at(start, 30), Fault::Destination, "no such topic").is_given_up());
    assert_eq!(all.gate_of_spared("gone", at(start, 31)), AT_FAULT, "one that is spared is no trial");
    assert_eq!(all.gate("gone", at(start, 31)), TRIAL, "the first trial");
    assert_eq!(all.gate("gone", at(start, 32)), DestinationGate::GivenUp("no such topic".into()));
    assert_eq!(all.gate("gone", at(start, 36)), TRIAL, "the next trial");
    assert_eq!(all.gate("other", at(start, 36)), DestinationGate::Open);
    let change = |recovered_after| Acceptance { is_change: true, recovered_after };
    assert_eq!(all.accepted("other", at(start, 36)), change(None), "its first one");
    let recovered = all.accepted("gone", at(start, 36));
    assert!(recovered.is_change && recovered.recovered_after.is_some());
    let no_news = Acceptance::default();
    assert_eq!([all.accepted("gone", at(start, 36)), all.accepted("other", at(start, 36))], [no_news; 2]);
    assert_eq!(all.gate("gone", at(start, 37)), DestinationGate::Open, "one was accepted: all is well");
}

#[test]
fn a_destination_is_news_when_it_turns_at_fault_and_when_it_is_given_up() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    let mut news =
        |second| failed(&mut all, "gone", start, at(start, second), Fault::Destination, "no such topic").news;
    let (at_fault, given_up) = (Some(Health::AtFault), Some(Health::GivenUp));
    assert_eq!([0, 1, 29, 30, 31].map(&mut news), [at_fault, None, None, given_up, None]);
    all.accepted("gone", at(start, 32));
    let again = |all: &mut Destinations, destination, fault| {
        failed(all, destination, at(start, 33), at(start, 33), fault, "again").news
    };
    assert_eq!(again(&mut all, "gone", Fault::Destination), at_fault);
    assert_eq!(again(&mut all, "busy", Fault::Unclear), None, "it is not its fault yet");
}

#[test]
fn a_destination_that_alone_gets_messages_is_news_once_it_has_failed_for_two_seconds() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    let news = |all: &mut Destinations, second| {
        failed(all, "alone", start, at(start, second), Fault::Unclear, "queue length limit reached").news
    };
    let failing = Some(Health::Failing);
    assert_eq!([0, 1, 2, 3, 29].map(|second| news(&mut all, second)), [None, None, failing, None, None]);
    all.accepted("other", at(start, 30));
    assert_eq!(
        [30, 31].map(|second| news(&mut all, second)),
        [Some(Health::GivenUp), None],
        "now it is its fault alone"
    );
    assert!(all.accepted("alone", at(start, 32)).recovered_after.is_some());
    // Another time it recovers before that.
    assert_eq!([33, 34, 35].map(|second| news(&mut all, second)), [None, None, failing]);
    assert!(all.accepted("alone", at(start, 36)).recovered_after.is_some(), "the log tells it, too");
    assert_eq!(news(&mut all, 37), None);
    assert!(all.accepted("alone", at(start, 37)).recovered_after.is_none(), "the log said nothing of it");
}

/// A spared occurrence is not dead, but the destination is given up all the same.
#[test]
fn a_failure_of_a_spared_occurrence_is_news_of_the_true_health() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    failed(&mut all, "gone", start, start, Fault::Destination, "no such topic");
    failed(&mut all, "gone", start, at(start, 15), Fault::Destination, "no such topic");
    let trouble = Trouble { fault: Fault::Destination, definite: true, detail: "no such topic".to_owned() };
    let (sent, now) = (at(start, 30), at(start, 30));
    let found = all.failed(FailedPublish {
        destination: "gone",
        trouble: &trouble,
        sent,
        first_failure: start,
        now,
        is_spared: true,
    });
    assert_eq!((found.health, found.news), (Health::AtFault, Some(Health::GivenUp)));
}

#[test]
fn a_silent_destination_is_at_fault_only_while_the_sink_accepts_elsewhere() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    for seconds in [0, 20, 40, 60] {
        let found = failed(&mut all, "slow", start, at(start, seconds), Fault::Unclear, "no answer");
        assert!(!found.is_given_up(), "the sink accepts nobody");
        assert_eq!(found.sink_silent, seconds >= 30, "then it is the sink that is unavailable");
    }
    all.accepted("other", at(start, 61));
    let found = failed(&mut all, "slow", start, at(start, 62), Fault::Unclear, "no answer");
    assert!(found.is_given_up() && !found.sink_silent);
}

#[test]
fn a_destination_that_fails_for_under_two_seconds_is_not_at_fault() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    let after = |millis| start + Duration::from_millis(millis);
    assert!(!failed(&mut all, "busy", after(0), after(0), Fault::Unclear, "nack").is_at_fault());
    all.accepted("other", after(10));
    assert!(!failed(&mut all, "busy", after(0), after(1900), Fault::Unclear, "nack").is_at_fault(), "a moment only");
    assert_eq!(all.gate("busy", after(1900)), DestinationGate::Open);
    assert!(failed(&mut all, "busy", after(0), after(2000), Fault::Unclear, "nack").is_at_fault());
    assert_eq!(all.gate("busy", after(2000)), AT_FAULT);
}

#[test]
fn time_without_a_publish_does_not_count_as_failing_time() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    failed(&mut all, "quiet", start, start, Fault::Destination, "no responders");
    all.accepted("other", at(start, 40));
    assert_eq!(all.gate("quiet", at(start, 45)), DestinationGate::Open, "one failure, long ago");
    assert!(
        !failed(&mut all, "quiet", at(start, 50), at(start, 50), Fault::Destination, "no responders").is_given_up()
    );

    failed(&mut all, "busy", start, at(start, 51), Fault::Destination, "no responders");
    failed(&mut all, "busy", start, at(start, 71), Fault::Destination, "no responders");
    all.forgive_all();
    assert!(
        !failed(&mut all, "busy", start, at(start, 91), Fault::Destination, "no responders").is_given_up(),
        "the sink was unavailable"
    );
}

#[test]
fn other_messages_count_only_if_sent_after_the_first_failure() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    failed(&mut all, "busy", at(start, 10), at(start, 10), Fault::Unclear, "nack");
    all.accepted("busy", at(start, 9));
    assert!(!failed(&mut all, "busy", at(start, 10), at(start, 11), Fault::Unclear, "nack").others_accepted);
    all.accepted("busy", at(start, 12));
    assert!(failed(&mut all, "busy", at(start, 10), at(start, 13), Fault::Unclear, "nack").others_accepted);
}

#[test]
fn the_number_of_remembered_destinations_is_bounded() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    for n in 0..MAX_DESTINATIONS as u64 * 2 {
        failed(&mut all, &n.to_string(), start, start + Duration::from_millis(n), Fault::Unclear, "nack");
    }
    assert!(all.remembered.len() <= MAX_DESTINATIONS);
}

#[test]
fn destinations_that_never_accepted_anything_share_one_patience() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    for n in 0..=MAX_NEW_FAILING {
        assert_eq!(all.gate("other", start), DestinationGate::Open, "few fail");
        failed(&mut all, &format!("few-{n}"), start, start, Fault::Destination, "unknown");
    }
    for second in 0..30 {
        let found = failed(
            &mut all,
            &format!("nobody-{second}"),
            at(start, second),
            at(start, second),
            Fault::Destination,
            "unknown",
        );
        assert!(found.is_new && found.is_at_fault() && !found.is_given_up());
    }
    // From then on each has to fail for two seconds by itself.
    assert!(!failed(&mut all, "late", at(start, 31), at(start, 31), Fault::Destination, "unknown").is_given_up());
    assert!(!failed(&mut all, "late", at(start, 31), at(start, 32), Fault::Destination, "unknown").is_given_up());
    assert!(failed(&mut all, "late", at(start, 31), at(start, 33), Fault::Destination, "unknown").is_given_up());
    assert_eq!(all.gate("late", at(start, 33)), TRIAL);
    assert_eq!(all.gate("late", at(start, 34)), DestinationGate::GivenUp("unknown".into()));
    assert_eq!(all.gate_of_spared("late", at(start, 34)), AT_FAULT, "one that is spared");
    // Until new destinations accept a message, only few messages are sent to further new ones.
    assert_eq!(all.gate("made", at(start, 34)), DestinationGate::FirstTry);
    all.accepted("made", at(start, 34));
    assert_eq!(all.gate("made", at(start, 34)), DestinationGate::Open);
    // One that accepted a message has all its patience.
    assert!(!failed(&mut all, "made", at(start, 35), at(start, 35), Fault::Destination, "unknown").is_given_up());
    let found = failed(&mut all, "made", at(start, 35), at(start, 64), Fault::Destination, "unknown");
    assert!(found.is_at_fault() && !found.is_given_up() && !found.is_new);
    assert_eq!(all.gate("made", at(start, 64)), DestinationGate::AtFault { is_new: false });
    assert!(failed(&mut all, "made", at(start, 35), at(start, 65), Fault::Destination, "unknown").is_given_up());
    // Without failures for long, all is well for new ones.
    assert_eq!(all.gate("new", at(start, 96)), DestinationGate::Open);
}

#[test]
fn destinations_share_one_patience_even_if_most_names_are_forgotten() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    let name = |n: u64| format!("nobody-{n}");
    for n in 0..MAX_DESTINATIONS as u64 * 3 {
        let now = start + Duration::from_millis(n);
        assert!(!failed(&mut all, &name(n), now, now, Fault::Destination, "unknown").is_given_up());
    }
    let found = failed(&mut all, &name(0), at(start, 29), at(start, 31), Fault::Destination, "unknown");
    assert!(found.is_given_up(), "its own occurrence has failed for two seconds");
}

#[test]
fn a_trial_that_was_not_sent_is_available_again() {
    let start = Instant::now();
    let mut all = Destinations::new(PATIENCE, []);
    for second in [0, 15, 30] {
        failed(&mut all, "gone", start, at(start, second), Fault::Destination, "unknown");
    }
    assert_eq!(all.gate("gone", at(start, 31)), TRIAL);
    all.trial_unused("gone");
    assert_eq!(all.gate("gone", at(start, 32)), TRIAL);
}
