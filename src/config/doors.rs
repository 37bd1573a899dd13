//! Reads `[doors.NAME]`: where each door reads, and what becomes of its messages.

use std::collections::BTreeMap;
use std::time::Duration;

use super::SinkSection;
use super::read::{ConfigReader, list};
use super::tokens::allowed;
use crate::doors::{Dialect, Door, SourceOptions};
use crate::engine::{AllowedTasks, EngineLane};
use crate::task::{CatchUp, Lane, Namespace};

/// Maximum of `delay`: what RabbitMQ allows for `x-message-ttl`.
const MAX_DELAY: Duration = Duration::from_millis(u32::MAX as u64);

/// `[doors.NAME]`
#[derive(Clone, Debug)]
pub struct DoorSection {
    /// The sink whose broker it reads from, with the same login.
    pub sink: String,
    /// What it reads there.
    pub source: SourceOptions,
    /// How its messages say what to do.
    pub dialect: Dialect,
    /// Where messages go that cannot be put; `None` drops them.
    pub rejected: Option<String>,
    /// The lane of tasks that name none.
    pub lane: Option<Lane>,
    /// The destination of messages that name none.
    pub destination: Option<String>,
    /// For each exchange that a message came by, the exchange that its task is published to; empty is the default one.
    pub exchanges: BTreeMap<String, String>,
    /// Where the messages of the dialect `expiration` go.
    pub to: Option<String>,
    /// The maximum delay of these messages: the `x-message-ttl` of the queue.
    pub delay: Option<Duration>,
    /// The catch-up of tasks that name none.
    pub catch_up: Option<CatchUp>,
    /// Whether tasks are acknowledged and not put that were due longer ago than `claim.grace`.
    pub drops_past: bool,
    /// The tasks that its messages may use.
    pub allowed: AllowedTasks,
}

/// `[doors.NAME]`. A door without a sink or a source is a fault and left out.
pub(super) fn doors(
    r: &mut ConfigReader,
    namespace: &Namespace,
    sinks: &BTreeMap<String, SinkSection>,
    lanes: &BTreeMap<Lane, EngineLane>,
) -> BTreeMap<String, DoorSection> {
    let mut doors = BTreeMap::new();
    for name in r.names("doors") {
        if let Err(bad) = name.parse::<Lane>() {
            r.fault(&format!("doors.{name}"), bad.to_string(), None);
        }
        if let Some(door) = door(r, namespace, &name, sinks, lanes) {
            doors.insert(name, door);
        }
    }
    doors
}

fn door(
    r: &mut ConfigReader,
    namespace: &Namespace,
    name: &str,
    sinks: &BTreeMap<String, SinkSection>,
    lanes: &BTreeMap<Lane, EngineLane>,
) -> Option<DoorSection> {
    let path = |key: &str| format!("doors.{name}.{key}");
    for (key, text) in [
        ("sink", "a door needs the `sink` whose broker it reads from"),
        ("from", "a door needs what it reads, such as `from = \"punctual.in/punctual\"`"),
        ("rejected", "a door needs the destination `rejected` for messages that cannot be put; `\"\"` drops them"),
    ] {
        if !r.has(&path(key)) {
            r.fault(&path(key), text.to_owned(), None);
        }
    }
    let text = |text: &str| Ok(text.to_owned());
    let there: Vec<String> = r.names("sinks");
    let sink = r.text(&path("sink"), text).filter(|sink| {
        let is_known = there.contains(sink);
        is_known || {
            r.unknown_name(&path("sink"), sink, &there);
            false
        }
    });
    let from = r.text(&path("from"), text);
    let rejected = r.text(&path("rejected"), text);
    let reads = from.as_deref().map(|from| from.rsplit_once('/').map_or(from, |(stream, _)| stream));
    if rejected.is_some() && rejected.as_deref() == reads {
        r.fault(&path("rejected"), "the door would read its own rejected messages again".to_owned(), None);
    }
    let dialect = dialect(r, &path("dialect"));
    let known: Vec<&str> = CatchUp::ALL.iter().map(|catch_up| catch_up.as_str()).collect();
    let catch_up = r.text(&path("catch_up"), |text| {
        CatchUp::of(text).ok_or_else(|| format!("one of {} is expected", list(&known)))
    });
    let lane = r.text(&path("lane"), |text| text.parse::<Lane>().map_err(|bad| bad.to_string()));
    if let Some(unknown) = lane.as_ref().filter(|lane| !lanes.contains_key(lane)) {
        let there: Vec<String> = lanes.keys().map(ToString::to_string).collect();
        r.unknown_name(&path("lane"), unknown.as_str(), &there);
    }
    let allowed = allowed(r, "doors", name, lanes);
    if let Some(lane) = lane.as_ref().filter(|lane| !allowed.has_lane(lane)) {
        r.fault(&path("lane"), format!("the lane `{lane}` is not one of the `lanes` of the door"), None);
    }
    let batch = path("batch");
    let batch =
        if r.has(&batch) { usize::try_from(r.whole(&batch, 1, 1000)).unwrap_or(Door::BATCH) } else { Door::BATCH };
    let delete = r.has(&path("delete")) && r.boolean(&path("delete"));
    let past = r.text(&path("past"), |text| match text {
        "put" => Ok(false),
        "drop" => Ok(true),
        _ => Err("`put` or `drop` is expected".to_owned()),
    });
    let drops_past = past.unwrap_or_default();
    let group = r.text(&path("group"), text).filter(|text| !text.is_empty());
    let group = group.unwrap_or_else(|| format!("punctual.{namespace}.{name}"));
    let destination = r.text(&path("destination"), text).filter(|text| !text.is_empty());
    if destination.is_some() && dialect.is_some_and(|dialect| !dialect.takes_destination()) {
        only_for(r, &path("destination"), "the dialects `own` and `etf1`");
    }
    let exchanges = exchanges(r, &path("exchanges"), dialect);
    let (to, delay) = waiting_queue(r, &path, dialect, from.as_deref());
    let sink = sink.filter(|sink| sinks.contains_key(sink))?;
    Some(DoorSection {
        sink,
        source: SourceOptions { from: from?, batch, group, delete },
        dialect: dialect.unwrap_or(Dialect::Own),
        rejected: rejected.filter(|text| !text.is_empty()),
        lane,
        destination,
        exchanges,
        to,
        delay,
        catch_up,
        drops_past,
        allowed,
    })
}

/// `dialect`; `None` if it is none, so that the options of the one that was meant are not called wrong.
fn dialect(r: &mut ConfigReader, path: &str) -> Option<Dialect> {
    if !r.has(path) {
        return Some(Dialect::Own);
    }
    let known: Vec<&str> = Dialect::ALL.iter().map(|dialect| dialect.as_str()).collect();
    r.text(path, |text| Dialect::of(text).ok_or_else(|| format!("one of {} is expected", list(&known))))
}

/// `exchanges`, each `FROM=TO`.
fn exchanges(r: &mut ConfigReader, path: &str, dialect: Option<Dialect>) -> BTreeMap<String, String> {
    let example = "such as `exchanges = [\"orders.delayed=orders\"]`; nothing after `=` is the default exchange";
    let read = r.texts(path, |texts| {
        let mut exchanges = BTreeMap::new();
        for text in texts {
            let (from, to) = text.split_once('=').ok_or_else(|| format!("`{text}` is not `FROM=TO`, {example}"))?;
            if to.contains('/') {
                return Err(format!("`{text}`: an exchange with `/` in its name cannot be a destination"));
            }
            if exchanges.insert(from.to_owned(), to.to_owned()).is_some() {
                return Err(format!("the exchange `{from}` is repeated"));
            }
        }
        match exchanges.values().find(|to| exchanges.contains_key(*to)) {
            Some(to) => Err(format!("the door would read what it publishes to the exchange `{to}`")),
            None => Ok(exchanges),
        }
    });
    match (dialect, read.as_ref().is_none_or(BTreeMap::is_empty)) {
        (Some(dialect), true) if dialect.needs_exchanges() && !r.has(path) => {
            r.fault(path, format!("the dialect `{}` needs `exchanges`, {example}", dialect.as_str()), None);
        }
        (Some(dialect), false) if !dialect.needs_exchanges() => {
            only_for(r, path, "the dialects `x-delay` and `celery`");
        }
        _ => {}
    }
    read.unwrap_or_default()
}

/// `to` and `delay` of the dialect `expiration`.
fn waiting_queue(
    r: &mut ConfigReader,
    path: &impl Fn(&str) -> String,
    dialect: Option<Dialect>,
    from: Option<&str>,
) -> (Option<String>, Option<Duration>) {
    let (to_path, delay_path) = (path("to"), path("delay"));
    if dialect != Some(Dialect::Expiration) {
        for path in [to_path, delay_path] {
            if r.has(&path) && dialect.is_some() {
                only_for(r, &path, "the dialect `expiration`");
            }
        }
        return (None, None);
    }
    let to = r.text(&to_path, |text| Ok(text.to_owned())).filter(|text| !text.is_empty());
    if to.is_none() {
        r.fault(&to_path, "where the queue dead-letters to is expected, such as `orders/cancel`".to_owned(), None);
    }
    if to.is_some() && to.as_deref().map(|to| to.trim_start_matches('/')) == from {
        r.fault(&to_path, "the door would read what it publishes".to_owned(), None);
    }
    let delay = r.has(&delay_path).then(|| r.duration(&delay_path, Duration::from_millis(1), MAX_DELAY));
    (to, delay)
}

fn only_for(r: &mut ConfigReader, path: &str, of: &str) {
    r.fault(path, format!("this is only for {of}"), None);
}
