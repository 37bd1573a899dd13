//! Requeues or discards all dead occurrences that match a filter, after asking back.

use hyper::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Act, ManyArguments};
use crate::cli::api_caller::{ApiCaller, members};
use crate::cli::confirm::confirm;
use crate::cli::{Failure, out, say, tell};

/// The result of a bulk request: requeued, discarded or only counted.
#[derive(Deserialize)]
struct BulkView {
    #[serde(alias = "requeued", alias = "discarded")]
    done: u64,
    #[serde(default)]
    matched: u64,
    #[serde(default)]
    in_flight: u64,
    #[serde(default)]
    unserved: u64,
    #[serde(default)]
    unreadable: u64,
    more: bool,
    next_cursor: Option<String>,
}

/// The sums of several requests.
#[derive(Default)]
struct Sums {
    done: u64,
    matched: u64,
    in_flight: u64,
    /// Not configured lanes, and records that cannot be read.
    others: u64,
}

/// Counts the matches, asks back, and changes them.
pub(super) async fn run(act: Act, caller: &ApiCaller<'_>, arguments: &ManyArguments) -> Result<(), Failure> {
    let body = body(arguments);
    if arguments.dry_run || !arguments.yes {
        let matched = all(act, caller, body.clone(), true).await?.matched;
        match arguments.dry_run {
            true if arguments.call.json => return out::json(&json!({ "matched": matched }).to_string()),
            true => return say(&format!("{matched} match; nothing was {}\n", act.done())),
            false if matched > 0 => confirm("dead occurrences", act.done(), matched)?,
            false => return show(act, arguments, &Sums::default()),
        }
    }
    let sums = all(act, caller, body, false).await?;
    show(act, arguments, &sums)
}

fn show(act: Act, arguments: &ManyArguments, sums: &Sums) -> Result<(), Failure> {
    if sums.others > 0 {
        tell(&format!("{} stay dead: their lanes are not configured, or they cannot be read\n", sums.others));
    }
    let Sums { done, in_flight, .. } = *sums;
    match act {
        Act::Requeue if arguments.call.json => {
            out::json(&json!({"requeued": done, "in_flight": in_flight}).to_string())
        }
        Act::Discard if arguments.call.json => out::json(&json!({ "discarded": done }).to_string()),
        _ if in_flight > 0 => {
            say(&format!("{} {done}; {in_flight} stay dead: their keys wait or are in flight\n", act.done()))
        }
        _ => say(&format!("{} {done}\n", act.done())),
    }
}

/// The filter as the API reads it.
fn body(arguments: &ManyArguments) -> Map<String, Value> {
    let mut body = members(arguments.filter.given());
    body.extend(arguments.all.then(|| ("all".to_owned(), Value::from(true))));
    body
}

/// Sends requests until the instance reports that none are left.
async fn all(act: Act, caller: &ApiCaller<'_>, mut body: Map<String, Value>, dry_run: bool) -> Result<Sums, Failure> {
    let (path, doing) = (format!("/v1/dead:{}", act.verb()), format!("cannot {} the dead", act.verb()));
    body.insert("dry_run".into(), dry_run.into());
    let mut sums = Sums::default();
    loop {
        let called = caller.call::<BulkView>(Method::POST, &path, Some(Value::from(body.clone()).to_string()), &doing);
        let view = match called.await {
            Ok((_, view)) => view,
            Err(failure) => {
                if sums.done > 0 {
                    tell(&format!("{} {} before this:\n", act.done(), sums.done));
                }
                return Err(failure);
            }
        };
        sums.done += view.done;
        sums.matched += view.matched;
        // They are behind the cursor, so later requests do not count them again.
        sums.in_flight += view.in_flight;
        sums.others += view.unserved + view.unreadable;
        match view.next_cursor.filter(|_| view.more) {
            Some(cursor) => body.insert("cursor".into(), Value::from(cursor)),
            None => return Ok(sums),
        };
    }
}
