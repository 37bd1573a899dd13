//! A change of many tasks at once is logged, even if its caller goes away.

use punctual::engine::steering::{TaskAction, TasksChange};
use punctual::timeline::memory::InjectedFault;
use punctual::timeline::{TaskFilter, Verb};

use super::*;
use crate::support::log::Log;

#[tokio::test(start_paused = true)]
async fn a_bulk_change_whose_caller_goes_away_is_logged() {
    let (log, _guard) = Log::begin();
    let bed = Bed::start();
    bed.put(["a", "b", "c"].map(|task| (task, after(seconds(60))))).await;
    bed.timeline.fail_next(Verb::Cancel, InjectedFault::Nothing);
    bed.timeline.fail_next(Verb::Cancel, InjectedFault::Nothing);
    bed.timeline.fail_next(Verb::Cancel, InjectedFault::CallLost);
    let filter = TaskFilter::default();
    let change = TasksChange { action: Some(&TaskAction::Cancel), filter: &filter, lane: None, by: Some("ops") };
    let request = bed.intake.change_tasks(change, |_| true, None, seconds(30));
    tokio::time::timeout(millis(100), request).await.unwrap_err();
    let line = log.text().lines().find(|line| line.contains("tasks changed")).unwrap_or_default().to_owned();
    assert!(line.contains("by=\"ops\"") && line.contains("done=2") && line.contains("the caller has gone"), "{line}");
    // Nothing is logged where nothing was changed.
    let none = bed.intake.change_tasks(TasksChange { action: None, ..change }, |_| true, None, seconds(30)).await;
    assert_eq!(none.unwrap().matched, 1);
    assert_eq!(log.text().matches("tasks changed").count(), 1);
}
