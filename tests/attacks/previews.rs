//! Schedules that are hard to compute.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::{Form, REPORT, Stage};
use crate::support::say;

/// Number of connections that ask for previews all the time.
const CONNECTIONS: usize = 8;

/// Asks all the time when a schedule would be due: on the 29th of February, if it is a Monday, in a time zone whose
/// rules change every year.
pub(super) fn ask_for_previews(form: Form) {
    let Some(stage) = Stage::start("") else { return };
    let before = stage.watch("previews, before", &|| std::thread::sleep(Duration::from_secs(form.choose(1, 10))));
    let (ending, answered, busy) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let during = stage.watch("previews, meanwhile", &|| {
        std::thread::scope(|scope| {
            for caller in 0..CONNECTIONS {
                let (api, ending, answered, busy) = (stage.instance.api(), &ending, &answered, &busy);
                scope.spawn(move || {
                    for n in 0.. {
                        if ending.load(Ordering::Relaxed) {
                            return;
                        }
                        let (minute, hour) = ((n * CONNECTIONS + caller) % 60, n % 24);
                        let body = format!(
                            "{{\"schedule\":{{\"cron\":\"0 {minute} {hour} 29 2 +MON\",\"zone\":\"Africa/Casablanca\",\"spread\":\"1s\"}},\
                             \"id\":\"a\",\"count\":100}}"
                        );
                        let answer = api.send("POST", "/v1/preview", Some(&body)).expect("an answer");
                        let count = if answer.status == 503 { busy } else { answered };
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(Duration::from_secs(form.choose(3, 30)));
            ending.store(true, Ordering::Relaxed);
        });
    });
    let (answered, busy) = (answered.into_inner(), busy.into_inner());
    say(&format!("{REPORT} previews: {answered} answered, {busy} refused"));
    assert!(answered > 0, "some are answered");
    form.judge(&stage.instance, &before, &during);
}

whole_forms!(ask_for_previews);
