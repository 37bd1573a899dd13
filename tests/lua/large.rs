//! No call reads more than 4 MiB of records, not counting the first one. Redis makes several copies of each record that
//! a script reads, and serves no other client meanwhile.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use super::*;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// Output of MONITOR: what scripts do, as Redis sees it.
struct Monitor {
    lines: BufReader<TcpStream>,
    raw: ::redis::Connection,
}

impl Monitor {
    fn start(stage: &Stage) -> Monitor {
        let url = stage.server.url();
        let stream = TcpStream::connect(url.trim_start_matches("redis://")).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
        (&stream).write_all(b"MONITOR\r\n").expect("Redis takes it");
        let mut lines = BufReader::new(stream);
        let mut answer = String::new();
        lines.read_line(&mut answer).expect("an answer");
        assert_eq!(answer, "+OK\r\n");
        Monitor { lines, raw: stage.raw() }
    }

    /// All commands so far, split into words.
    fn commands(mut self) -> Vec<Vec<String>> {
        let _: String = ::redis::cmd("ECHO").arg("the end").query(&mut self.raw).unwrap();
        let mut commands = Vec::new();
        loop {
            let mut line = Vec::new();
            self.lines.read_until(b'\n', &mut line).expect("a line");
            let detail: Vec<String> =
                String::from_utf8_lossy(&line).split('"').skip(1).step_by(2).map(str::to_owned).collect();
            if detail.first().is_some_and(|word| word == "ECHO") {
                return commands;
            }
            commands.push(detail);
        }
    }

    /// Ids of the records that each script call has read so far.
    fn read(self) -> Vec<Vec<String>> {
        let mut calls: Vec<Vec<String>> = Vec::new();
        for detail in self.commands() {
            match detail.first().map(String::as_str) {
                Some("EVALSHA") => calls.push(Vec::new()),
                Some("HGET" | "HMGET") if detail[1].ends_with(":tasks") => {
                    calls.last_mut().expect("a script").extend_from_slice(&detail[2..]);
                }
                _ => {}
            }
        }
        calls
    }

    /// Number of times that scripts asked for a record's length.
    fn lengths(self) -> usize {
        self.commands().iter().filter(|detail| detail.first().is_some_and(|word| word == "HSTRLEN")).count()
    }
}

/// Checks that no call read more than 4 MiB after its first record. Returns the number of calls that read records.
fn assert_bounded(calls: &[Vec<String>], sizes: &BTreeMap<String, usize>) -> usize {
    let size = |id: &String| sizes.get(id).copied().unwrap_or_default();
    for call in calls {
        let behind: usize = call.iter().skip(1).map(size).sum();
        assert!(behind <= 4 * MIB, "{behind} bytes in {} records", call.len());
    }
    calls.iter().filter(|call| call.iter().any(|id| size(id) > 0)).count()
}

/// Puts tasks of these sizes, due in this order. Returns the sizes of their records.
async fn put_sizes(stage: &Stage, due: i64, sizes: impl IntoIterator<Item = usize>) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for (n, size) in sizes.into_iter().enumerate() {
        let task = put(&format!("t{n:04}"), due + i64::try_from(n).unwrap(), &"x".repeat(size));
        all.insert(task.id.to_string(), task.record.len());
        stage.put(&[task]).await;
    }
    all
}

#[tokio::test]
async fn small_puts_over_large_tasks_are_answered_a_few_at_a_time() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    let sizes = put_sizes(&stage, 90_000, [512 * KIB; 40]).await;
    let small: Vec<Put> = (0..1000).map(|n| put(&format!("t{n:04}"), 95_000, "small")).collect();
    let before = stage.state().len();
    for mode in [PutMode::Post, PutMode::Put] {
        let monitor = Monitor::start(&stage);
        let answers = stage.timeline.put(stage.shard, mode, small.clone(), NEVER).await.unwrap();
        let calls = assert_bounded(&monitor.read(), &sizes);
        assert!(calls >= 10, "20 MiB in {calls} calls");
        let first = if mode == PutMode::Post { PutResult::KeyReused } else { PutResult::Replaced };
        assert!(answers[..40].iter().all(|answer| answer.result == first), "{answers:?}");
        let others = if mode == PutMode::Post { PutResult::Created } else { PutResult::Unchanged };
        assert!(answers[40..].iter().all(|answer| answer.result == others), "{answers:?}");
    }
    assert_eq!(stage.state().len(), before + 2 * 960, "each of the others has a record and a score");
    let held = stage.get("t0000").await.unwrap();
    assert_eq!((sketch(&held.record), held.due), ("r2 c1000 default:small".to_owned(), at(95_000)), "written once");
}

/// A put in several calls that exceeds `not_after` on the way returns an error. What it wrote before stays, as with
/// every put that is cut off.
#[tokio::test]
async fn a_put_in_several_calls_ends_at_its_not_after() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    put_sizes(&stage, 90_000, [512 * KIB; 40]).await;
    let small: Vec<Put> = (0..40).map(|n| put(&format!("t{n:04}"), 95_000, "small")).collect();
    let put = stage.timeline.put(stage.shard, PutMode::Put, small, at(1000));
    // Advances the clock once the first tasks are written.
    let passes = async {
        while !stage.state().iter().any(|line| line.ends_with("default:small")) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stage.now(1001);
    };
    let (answers, ()) = tokio::join!(put, passes);
    match answers {
        Err(TimelineError::Unconfirmed(_) | TimelineError::Unknown(_) | TimelineError::Late) => {}
        // All tasks were written before the clock advanced.
        Ok(answers) => assert!(answers.iter().all(|answer| answer.result == PutResult::Replaced)),
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn a_claim_reads_no_more_than_may_fit() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    let sizes = put_sizes(&stage, 100, [100; 84].into_iter().chain([512 * KIB; 20])).await;
    for (newest_first, taken) in [(false, 84 + 7), (true, 7), (false, 6)] {
        let monitor = Monitor::start(&stage);
        let request = ClaimRequest { newest_first, ..claim_of(&format!("i.{newest_first}{taken}"), 1000) };
        let claimed = stage.timeline.claim(stage.shard, &Lane::default(), request).await.unwrap();
        assert_eq!(claimed.occurrences.len(), taken);
        assert_eq!(assert_bounded(&monitor.read(), &sizes), 1);
    }
}

#[tokio::test]
async fn a_record_larger_than_the_byte_limit_is_claimed_alone() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    let sizes = put_sizes(&stage, 100, [6 * MIB, 100, 6 * MIB]).await;
    for (token, taken) in [("i.1", 1), ("i.2", 1), ("i.3", 1)] {
        let monitor = Monitor::start(&stage);
        assert_eq!(stage.claim(token, 1000).await.occurrences.len(), taken);
        assert_eq!(assert_bounded(&monitor.read(), &sizes), 1);
    }
}

#[tokio::test]
async fn a_claim_reads_only_as_many_suspect_or_unreadable_records_as_fit() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    let sizes = put_sizes(&stage, 100, [512 * KIB; 30]).await;
    let mut raw = stage.raw();
    for (unreadable, mark) in [(false, "2"), (true, "unreadable")] {
        for (n, id) in sizes.keys().enumerate() {
            let value = format!("{}:{mark}", 100 + n);
            let _: () = ::redis::cmd("HSET").arg(stage.key("crashes")).arg(id).arg(value).query(&mut raw).unwrap();
        }
        let monitor = Monitor::start(&stage);
        let token = format!("i.{unreadable}");
        let ClaimRequest { token, max_bytes, lease, not_after, .. } = claim_of(&token, 64);
        let request = SuspectsRequest { token, max: 64, max_bytes, lease, not_after, unreadable, after: None };
        let claimed = stage.timeline.claim_suspects(stage.shard, &Lane::default(), request).await.unwrap();
        assert_eq!(claimed.occurrences.len(), 7);
        assert_eq!(assert_bounded(&monitor.read(), &sizes), 1);
    }
}

/// The script learns the existing task's lane from the set that has its score.
#[tokio::test]
async fn a_requeue_does_not_read_the_record_of_the_waiting_task() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    stage.put_one("a", 900, "x").await;
    stage.claim("i.1", 1).await;
    stage.settle("i.1", RestOfClaim::Keep, vec![settlement("a", 900, Verdict::Dead(dead_record("x")))]).await;
    stage.put_one("a", 90_000, &"x".repeat(MIB)).await;
    let monitor = Monitor::start(&stage);
    assert_eq!(stage.requeue("a:900").await, RequeueAnswer::Requeued);
    let calls = monitor.read();
    assert!(!calls.is_empty() && calls.iter().all(Vec::is_empty), "{calls:?}");
}

/// The scripts know the size of the largest record. In a shard of small records they ask for no length.
#[tokio::test]
async fn scripts_ask_for_record_lengths_only_if_the_shard_may_hold_large_ones() {
    let Some(server) = own_server(&[]) else { return };
    let stage = Stage::on(Arc::new(server)).await;
    let small = || (0..200).map(|n| put(&format!("s{n}"), 900, "x")).collect::<Vec<_>>();
    let lengths = async |token: &str| {
        let monitor = Monitor::start(&stage);
        stage.put(&small()).await;
        let claimed = stage.claim(token, 1000).await;
        assert!(claimed.occurrences.len() >= 200);
        let lengths = monitor.lengths();
        let ended =
            |one: &Occurrence| Settlement { member: one.member.clone(), due: one.due, verdict: Verdict::Finished };
        stage.settle(token, RestOfClaim::Keep, claimed.occurrences.iter().map(ended).collect()).await;
        lengths
    };
    assert_eq!(lengths("i.1").await, 0);
    stage.put_one("large", 900, &"x".repeat(2 * MIB)).await;
    assert!(lengths("i.2").await >= 200);
    assert_eq!(lengths("i.3").await, 0, "nothing stood there any more");
    // A requeued record counts, too.
    stage.put_one("large", 900, &"x".repeat(2 * MIB)).await;
    stage.claim("i.4", 1).await;
    let dead = DeadRecord { record: record(0, "default", 1000, "x".repeat(2 * MIB)), ..dead_record("x") };
    stage.settle("i.4", RestOfClaim::Keep, vec![settlement("large", 900, Verdict::Dead(dead))]).await;
    assert_eq!(lengths("i.5").await, 0);
    stage.put_one("small", 90_000, "x").await;
    stage.requeue("large:900").await;
    assert!(lengths("i.6").await >= 200);
    // Where an older version wrote the records, the largest size is unknown.
    let _: () = ::redis::cmd("DEL").arg(stage.key("largest")).query(&mut stage.raw()).unwrap();
    assert!(lengths("i.7").await >= 200);
}
