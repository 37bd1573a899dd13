//! The model check of doors: a few messages, and everything that can happen to their readers.
//!
//! Each scenario runs a real door and a real engine on a timeline in memory. It combines what is sent (up to three
//! messages, for one id or without one), when the door begins, how much it reads at once, at which call its instance
//! dies, and what reads its messages after that.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use punctual::engine::{Engine, EngineConfig, EngineLane, EngineSink};

use super::*;
use crate::support::say;

/// What a message does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Puts the task `a`, due after so many ms.
    Put(i64),
    /// Cancels the task `a`.
    Cancel,
    /// Puts a task of its own, due after so many ms.
    Post(i64),
}

/// The call at which the door's instance dies. The call is lost, or an acknowledgement refused, and nothing follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// After so many puts.
    Put(usize),
    /// After so many cancels.
    Cancel(usize),
    /// After so many acknowledgements.
    Acknowledge(usize),
}

/// Who reads the messages that are not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// A new instance, so many ms after the death.
    Later(u64),
    /// Another instance at once, while the first one goes on after all.
    Beside,
}

#[derive(Clone, Debug)]
struct Scenario {
    messages: Vec<Kind>,
    /// From one message to the next, in ms.
    gap: u64,
    /// When the door begins to read, in ms after the first message.
    start: u64,
    /// How many messages the door reads at once.
    batch: usize,
    death: Option<(Death, Next)>,
}

/// A message that was published.
#[derive(Clone, Debug)]
struct Arrival {
    /// The number of the message that put the task.
    number: usize,
    key: String,
    due: i64,
    at: i64,
}

/// What happened.
struct Outcome {
    /// When each message was sent.
    sent: Vec<i64>,
    /// When the last reader began.
    last_start: i64,
    died: bool,
    published: Vec<Arrival>,
    acknowledged: usize,
    waiting: usize,
}

/// A message arrives, or a reader is looked after, every so many ms.
const STEP: u64 = 100;

/// Time for everything to end.
const END: u64 = 26_000;

impl Kind {
    fn delay(self) -> Option<i64> {
        match self {
            Kind::Put(delay) | Kind::Post(delay) => Some(delay),
            Kind::Cancel => None,
        }
    }

    fn headers(self) -> Vec<String> {
        match self {
            Kind::Put(delay) => vec!["punctual-id: a".to_owned(), format!("punctual-in: {delay}ms")],
            Kind::Cancel => vec!["punctual-id: a".to_owned(), "punctual-do: cancel".to_owned()],
            Kind::Post(delay) => vec![format!("punctual-in: {delay}ms")],
        }
    }
}

impl Scenario {
    async fn run(&self) -> Outcome {
        let mut bed = Bed::start_with(|door| door.batch = self.batch);
        // The first door begins later.
        bed.doors = None;
        let (_engine, published) = publish_from(&bed);
        let door = || {
            Doors::start(vec![Door { batch: self.batch, ..door(&bed.source) }], &intake(&bed.timeline), &bed.metrics)
        };
        let (mut doors, mut sent, mut stuck) = (Vec::new(), Vec::new(), 0);
        let (mut last_start, mut death) = (0, self.death);
        if let Some((death, _)) = death {
            death.prepare(&bed);
        }
        let end = self.start.max(self.gap * self.messages.len() as u64) + END;
        for now in (0..end).step_by(STEP as usize) {
            if let Some(kind) = self.messages.get(sent.len()).filter(|_| now >= sent.len() as u64 * self.gap) {
                let mut headers = kind.headers();
                headers.push(format!("x-number: {}", sent.len()));
                sent.push(bed.clock.now().as_millis());
                bed.send(&format!("{}-0", sent.len()), 0, &headers.iter().map(String::as_str).collect::<Vec<_>>());
            }
            if now == self.start {
                last_start = bed.clock.now().as_millis();
                doors.push(door());
            }
            bed.pass(STEP).await;
            let is_stuck = bed.source.acknowledged().len() + bed.source.unread() < sent.len();
            stuck = if is_stuck { stuck + 1 } else { 0 };
            if let Some((_, next)) = death.filter(|_| stuck > 2) {
                death = None;
                bed.source.accept_acknowledgements(None);
                if let Next::Later(ms) = next {
                    doors.clear();
                    bed.pass(ms).await;
                }
                bed.source.redeliver();
                last_start = bed.clock.now().as_millis();
                doors.push(door());
            }
        }
        let acknowledged = bed.source.acknowledged().into_iter().collect::<BTreeSet<_>>().len();
        let died = self.death.is_some() && death.is_none();
        let published = published.lock().clone();
        Outcome { sent, last_start, died, published, acknowledged, waiting: bed.tasks().len() }
    }

    /// The number of the next message for the same id.
    fn next_of(&self, number: usize) -> Option<usize> {
        let has_id = |kind: &Kind| !matches!(kind, Kind::Post(_));
        let (former, later) = (&self.messages[number], &self.messages[number + 1..]);
        later.iter().position(|kind| has_id(former) && has_id(kind)).map(|at| number + 1 + at)
    }

    fn has_one_message_with_the_id(&self) -> bool {
        self.messages.iter().filter(|kind| !matches!(kind, Kind::Post(_))).count() == 1
    }

    /// The broken rule, if there is one.
    fn judge(&self, outcome: &Outcome) -> Result<(), String> {
        let Outcome { sent, last_start, died, published, acknowledged, waiting } = outcome;
        let beside = *died && matches!(self.death, Some((_, Next::Beside)));
        if (*acknowledged, *waiting) != (self.messages.len(), 0) {
            return Err(format!("{acknowledged} messages are acknowledged, {waiting} tasks wait"));
        }
        // Then each reading sees all messages at once.
        let in_one_batch = self.start > self.gap * self.messages.len() as u64 && self.batch >= self.messages.len();
        for (number, kind) in self.messages.iter().enumerate() {
            let arrivals: Vec<&Arrival> = published.iter().filter(|arrival| arrival.number == number).collect();
            let Some(due) = kind.delay().map(|delay| sent[number] + delay) else {
                if !arrivals.is_empty() {
                    return Err(format!("message {number} has no task"));
                }
                continue;
            };
            let keys: BTreeSet<&str> = arrivals.iter().map(|arrival| arrival.key.as_str()).collect();
            if keys.len() > 1 || arrivals.iter().any(|arrival| arrival.due != due) {
                return Err(format!("message {number} has several keys: {arrivals:?}"));
            }
            if arrivals.iter().any(|arrival| arrival.at < due) {
                return Err(format!("message {number} came early"));
            }
            if !died && arrivals.len() > 1 {
                return Err(format!("message {number} came {} times", arrivals.len()));
            }
            // Two readers at once keep no order among messages for one id.
            let next = self.next_of(number).filter(|_| !beside || matches!(kind, Kind::Post(_)));
            let is_replaced_in_time = next.is_some_and(|next| sent[next] < due);
            if is_replaced_in_time && (*last_start < due || in_one_batch) && !arrivals.is_empty() {
                return Err(format!("message {number} was replaced or cancelled in time"));
            }
            let read_in_time = !died && self.start as i64 <= sent[number] - sent[0];
            let must_come = match next {
                None => !beside || matches!(kind, Kind::Post(_)) || self.has_one_message_with_the_id(),
                Some(_) => !is_replaced_in_time && read_in_time,
            };
            if must_come && arrivals.is_empty() {
                return Err(format!("message {number} did not come"));
            }
        }
        Ok(())
    }
}

impl Death {
    fn prepare(self, bed: &Bed) {
        let lose = |verb: Verb, calls: usize| {
            (0..calls).for_each(|_| bed.timeline.fail_next(verb, InjectedFault::Nothing));
            bed.timeline.fail_next(verb, InjectedFault::CallLost);
        };
        match self {
            Death::Put(calls) => lose(Verb::Put, calls),
            Death::Cancel(calls) => lose(Verb::Cancel, calls),
            Death::Acknowledge(calls) => bed.source.accept_acknowledgements(Some(calls)),
        }
    }
}

/// Starts an engine that publishes the tasks.
fn publish_from(bed: &Bed) -> (Engine, Arc<Mutex<Vec<Arrival>>>) {
    let (published, clock) = (Arc::<Mutex<Vec<Arrival>>>::default(), Arc::clone(&bed.clock));
    let arrivals = Arc::clone(&published);
    let sink = MemorySink::new(1000, Duration::from_secs(2));
    sink.answer_by(move |message| {
        let number = header(message, "x-number").and_then(|text| text.parse().ok()).expect("it was sent with a number");
        let at = clock.now().as_millis();
        arrivals.lock().push(Arrival { number, key: message.key.clone(), due: message.due_ms, at });
        Answer::Accept
    });
    let sinks = [("sink".to_owned(), EngineSink { sink: Arc::new(sink), patience: Duration::from_secs(30) })];
    let lane = EngineLane {
        sink: "sink".to_owned(),
        destination: Some("news".to_owned()),
        dead_destination: None,
        waits_forever: false,
    };
    let lanes = [("default".parse().unwrap(), lane)];
    let metrics = Arc::new(Metrics::new("0", "i1"));
    let engine = Engine::start(EngineConfig::new("i1"), bed.timeline.clone(), sinks.into(), lanes.into(), metrics);
    (engine.expect("it starts"), published)
}

/// All sequences of up to two messages, and of three for one id.
fn sequences() -> Vec<Vec<Kind>> {
    let all = [Kind::Put(5000), Kind::Put(20_000), Kind::Cancel, Kind::Post(5000)];
    let longer = |shorter: &[Vec<Kind>], kinds: &[Kind]| -> Vec<Vec<Kind>> {
        let with =
            |former: &Vec<Kind>| kinds.iter().map(|kind| [former.as_slice(), &[*kind]].concat()).collect::<Vec<_>>();
        shorter.iter().flat_map(with).collect()
    };
    let one = longer(&[Vec::new()], &all);
    let two = longer(&one, &all);
    let of_id: Vec<_> = two.iter().filter(|kinds| !kinds.contains(&all[3])).cloned().collect();
    let three = longer(&of_id, &all[..3]);
    [one, two, three].concat()
}

fn deaths() -> Vec<Option<(Death, Next)>> {
    let deaths = [
        Death::Put(0),
        Death::Put(1),
        Death::Put(2),
        Death::Cancel(0),
        Death::Acknowledge(0),
        Death::Acknowledge(1),
        Death::Acknowledge(2),
    ];
    let nexts = [Next::Later(0), Next::Later(10_000), Next::Beside];
    let all = deaths.into_iter().flat_map(|death| nexts.map(|next| Some((death, next))));
    [None].into_iter().chain(all).collect()
}

/// Runs all scenarios of a door that begins then and reads so many at once.
async fn holds(start: u64, batch: usize) {
    let (mut scenarios, mut died) = (0, 0);
    for messages in sequences() {
        for gap in [1000, 7000] {
            for death in deaths() {
                let scenario = Scenario { messages: messages.clone(), gap, start, batch, death };
                let outcome = scenario.run().await;
                (scenarios, died) = (scenarios + 1, died + usize::from(outcome.died));
                if let Err(broken) = scenario.judge(&outcome) {
                    panic!("{broken}: {scenario:?}: {:?} at {:?}", outcome.published, outcome.sent);
                }
            }
        }
    }
    say(&format!("{scenarios} scenarios, in {died} of them an instance died"));
    assert!(died * 4 > scenarios, "{died} of {scenarios}");
}

#[tokio::test(start_paused = true)]
async fn the_rules_hold_for_messages_that_are_read_at_once_one_by_one() {
    holds(0, 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_rules_hold_for_messages_that_are_read_at_once() {
    holds(0, 10).await;
}

#[tokio::test(start_paused = true)]
async fn the_rules_hold_for_a_door_that_is_late_one_by_one() {
    holds(30_000, 1).await;
}

#[tokio::test(start_paused = true)]
async fn the_rules_hold_for_a_door_that_is_late() {
    holds(30_000, 10).await;
}
