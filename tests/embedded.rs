//! The example that schedules and receives in one process, run as it stands.

use std::process::Command;

use crate::support::consumer::built;

#[test]
fn the_embedded_example_receives_due_tasks_but_no_cancelled_task() {
    let output = Command::new(built("embedded")).output().expect("the example runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let received: Vec<&str> = text.lines().filter(|line| line.starts_with("received ")).collect();
    let [line] = received[..] else { panic!("one message is received: {text}") };
    assert!(
        line.starts_with("received order-1.unpaid:") && line.ends_with("at `orders`: {\"cancel\": true}"),
        "{line}"
    );
    assert!(text.contains("order-2.unpaid: Cancelled") && text.ends_with("a second message came: false\n"), "{text}");
}
