//! Rules that the keys of a shard obey after any sequence of steps.

use punctual::clock::Timestamp;
use punctual::task::{Lane, Member};
use punctual::timeline::memory::{Change, OccurrenceMark, Twin};
use punctual::timeline::{TaskPause, Token};

use super::rules::{due_of_score, lane};

/// Negative scores are exactly the occurrences in claims, every claim has a lease, and every other entry belongs to a
/// task.
pub(crate) fn check_structure(twin: &Twin) -> Result<(), String> {
    (0..2).try_for_each(|number| check_lane(twin, &lane(number)))?;
    let score = |member: &Member| twin.place(member).map(|(_, score)| score);
    let twice =
        |member: &&Member| member.requeued_key().is_some_and(|key| stands(twin, &Member::from(&key.task), key.due));
    if let Some(member) = twin.tasks.keys().find(twice) {
        return Err(format!("law 4: {member:?} was requeued, and its task has that very due"));
    }
    if let Some(member) = twin.changes.keys().find(|member| score(member).is_none_or(|score| score > 0)) {
        return Err(format!("law 4: {member:?} has a change, but is not in flight"));
    }
    let named = |(member, mark): (&Member, &OccurrenceMark)| {
        score(member).is_some_and(|score| due_of_score(score) == mark.due.as_millis())
    };
    if !twin.crashes.iter().all(named) {
        return Err("law 9: a mark names a due that its task does not have".into());
    }
    let rests =
        |member: &Member| twin.place(member).is_some_and(|(_, score)| score != due_of_score(score) && score > 0);
    let passes = |member: &Member, pause: &TaskPause| {
        twin.place(member).is_some_and(|(_, score)| pause.pass.map(Timestamp::as_millis) == Some(score) || score < 0)
    };
    let resting = twin.tasks.keys().filter(|member| rests(member)).count();
    let paused = twin.pauses.iter().filter(|(member, pause)| !passes(member, pause)).count();
    if resting != paused || twin.pauses.keys().any(|member| twin.place(member).is_none()) {
        return Err("law 13: the tasks with the score of a paused one are not those that are paused".into());
    }
    let waiting: usize = twin.due.values().map(|line| line.len()).sum();
    if waiting != twin.tasks.len() || !twin.tasks.keys().all(|member| score(member).is_some()) {
        return Err("law 10: a record without a due, or a due without a record".into());
    }
    Ok(())
}

/// Whether a member has this due, now or when its claim ends.
fn stands(twin: &Twin, member: &Member, due: Timestamp) -> bool {
    let comes = match twin.changes.get(member) {
        Some(Change::Due(next)) => *next == due,
        _ => false,
    };
    comes || twin.place(member).is_some_and(|(_, score)| due_of_score(score) == due.as_millis())
}

fn check_lane(twin: &Twin, lane: &Lane) -> Result<(), String> {
    let line = twin.due.get(lane);
    let claimed = line.into_iter().flat_map(|line| line.negative()).count();
    let claims = twin.claims.get(lane);
    let pairs = || claims.into_iter().flatten().flat_map(|(_, claim)| claim.pairs.iter());
    let flies = |(member, due): &(Member, Timestamp)| twin.score_in(lane, member) == Some(-due.as_millis());
    let twice = |n: usize, pair: &(Member, Timestamp)| pairs().skip(n + 1).any(|other| other.0 == pair.0);
    if pairs().count() != claimed || !pairs().all(flies) || pairs().enumerate().any(|(n, pair)| twice(n, pair)) {
        return Err(format!("law 4: what is claimed is not what the claims hold: {line:?}, {claims:?}"));
    }
    let leases = twin.leases.get(lane);
    let leased = |token: &Token| leases.is_some_and(|leases| leases.score(token).is_some());
    if leases.map_or(0, |leases| leases.len()) != claims.map_or(0, |claims| claims.len())
        || !claims.into_iter().flat_map(|claims| claims.keys()).all(leased)
    {
        return Err("law 4: claims and leases are not of the same tokens".into());
    }
    Ok(())
}
