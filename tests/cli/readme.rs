//! The commands of the README and of each page in `docs/`, run as they stand there.
//!
//! The line before a block of shell says how it is run. `<!-- run: serve -->` starts an instance, which runs until the
//! end of the page. `<!-- run: tour -->` must succeed. `<!-- run: make -->` runs in the checkout itself. Of `<!-- dry:
//! ... -->` only the targets are checked: make must know them. The test replaces port 7171, and the addresses of
//! servers, by free ones. Blocks with one more word (`<!-- run: tour kafka -->`) are a story of their own, with their
//! own instance. Each block of configuration must be valid by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use punctual::config::{Config, Sources};
use punctual_sinks::SinkConfig;

use super::{PUNCTUAL, read, run, wait_for};
use crate::support;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::nats::NatsServer;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;
use crate::support::server::Server;

/// A block and its mark.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    mark: String,
    text: String,
}

/// The shell blocks of a document, in order.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        assert_ne!(line, "```sh", "a block of shell has no mark: {:?}", lines.next());
        let mark = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        let Some(mark) = mark.filter(|mark| mark.starts_with("run: ") || mark.starts_with("dry: ")) else { continue };
        assert_eq!(lines.next(), Some("```sh"), "a block of shell stands behind `{line}`");
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push(Block { mark: mark.strip_prefix("run: ").unwrap_or(mark).to_owned(), text: text.join("\n") });
    }
    blocks
}

#[test]
fn marked_blocks_are_found() {
    let text =
        "a\n<!-- note -->\n<!-- run: tour -->\n```sh\none\ntwo\n```\n<!-- dry: make -->\n```sh\nmake x\n```\nb\n";
    let block = |mark: &str, text: &str| Block { mark: mark.into(), text: text.into() };
    assert_eq!(blocks(text), [block("tour", "one\ntwo"), block("dry: make", "make x")]);
}

#[test]
#[should_panic(expected = "a block of shell has no mark")]
fn a_block_that_is_not_run_is_found() {
    blocks("a\n```sh\nnot run\n```\n");
}

/// The README, and the pages of `docs/` by their paths.
fn pages() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let docs = std::fs::read_dir(root.join("docs")).unwrap();
    let docs = docs.map(|page| format!("docs/{}", page.unwrap().file_name().to_str().unwrap()));
    let names = docs.chain(["README.md".to_owned()]);
    names.map(|name| (name.clone(), std::fs::read_to_string(root.join(name)).unwrap())).collect()
}

/// Does what a line of a page tells a program to do, and returns its output.
type Act<'a> = &'a dyn Fn(&str) -> String;

/// A story of a page, and what takes the place of the servers and programs that it names.
#[derive(Default)]
struct Story<'a> {
    page: &'a str,
    /// The word behind `serve` and `tour`.
    name: &'a str,
    /// Text of the page, such as an address, and its replacement.
    replaced: &'a [(&'a str, &'a str)],
    /// Programs that Debian does not have, by name.
    programs: &'a [(&'a str, Act<'a>)],
}

/// Runs the blocks of a story, as somebody with two terminals would, in a checkout where `make demo` has built the
/// program. Returns the log of the instance, and the output of the commands.
fn play(story: &Story) -> (String, String) {
    play_on(story, |_, _| {})
}

/// As [`play`]; calls `act` at the end, with the port of the instance and its log.
fn play_on(story: &Story, act: impl FnOnce(u16, &Path)) -> (String, String) {
    let checkout = tempfile::tempdir().unwrap();
    std::fs::create_dir(checkout.path().join("target")).unwrap();
    let built = Path::new(PUNCTUAL).parent().unwrap();
    std::os::unix::fs::symlink(built, checkout.path().join("target/debug")).unwrap();
    let (mut serving, mut printed) = (None::<Server>, String::new());
    // The variables that a terminal has exported, also for another story.
    let mut exports: BTreeMap<String, String> = BTreeMap::new();
    for Block { mark, mut text } in blocks(&pages()[story.page]) {
        if mark == "make" || mark.starts_with("dry: ") {
            continue;
        }
        let (terminal, of) = mark.split_once(' ').unwrap_or((&mark, ""));
        let before = exports.entry(terminal.to_owned()).or_default();
        let script = format!("cd '{}'\n{before}{text}", checkout.path().display());
        before.extend(text.lines().filter(|line| line.starts_with("export ")).flat_map(|line| [line, "\n"]));
        if of != story.name {
            continue;
        }
        text = story.replaced.iter().fold(script, |script, (written, taken)| script.replace(written, taken));
        let mut acts = Vec::new();
        for (program, act) in story.programs {
            while let Some(line) = text.lines().find(|line| line.split(' ').next() == Some(program)).map(str::to_owned)
            {
                text = text.replace(&line, "");
                acts.push((act, line));
            }
        }
        let act_all = || acts.iter().map(|(act, line)| act(line)).collect::<String>();
        match terminal {
            "serve" => {
                printed += &act_all();
                // The shell is replaced by the program, which then ends with the test.
                let text = text.replace("\npunctual serve", "\nexec punctual serve");
                assert!(serving.is_none(), "a story has one instance");
                serving = Some(Server::start("bash", |port, _| {
                    vec!["-euc".to_owned(), text.replace("7171", &port.to_string())]
                }));
                // It listens before its Redis has answered; a person would type more slowly.
                let port = serving.as_ref().expect("it was started").port;
                let answers = |scheme: &&str| {
                    let url = format!("{scheme}://127.0.0.1:{port}/readyz");
                    let asked = Command::new("curl").args(["-fsk", "-o", "/dev/null", &url]).status();
                    asked.is_ok_and(|status| status.success())
                };
                let ready = support::patient(Duration::from_secs(10), || ["http", "https"].iter().any(answers));
                assert!(ready, "the instance of {} {} is not ready", story.page, story.name);
            }
            "tour" => {
                let port = serving.as_ref().map_or("7171".to_owned(), |serving| serving.port.to_string());
                let run = Command::new("bash")
                    .args(["-euo", "pipefail", "-c", &text.replace("7171", &port).replace("sleep 3", "sleep 8")])
                    .env("PUNCTUAL_URL", format!("http://127.0.0.1:{port}"))
                    .stdin(Stdio::null())
                    .output();
                let run = read(run.unwrap());
                assert_eq!(run.code, Some(0), "{text}\n{}{}", run.out, run.err);
                assert!(!run.out.contains("\"detail\""), "a problem: {text}\n{}", run.out);
                printed += &(run.out + &act_all());
            }
            other => panic!("`run: {other}` is not known: `serve`, `tour` or `make`"),
        }
    }
    let Some(serving) = serving else { return (String::new(), printed) };
    act(serving.port, &serving.log());
    (std::fs::read_to_string(serving.log()).unwrap(), printed)
}

/// Takes more than five seconds: the tasks of the README are due after some seconds.
#[test]
fn the_commands_of_the_readme_work() {
    if !support::have("curl") {
        return;
    }
    let (log, _) = play(&Story { page: "README.md", ..Story::default() });
    let published: Vec<_> = log.lines().filter(|line| line.starts_with("{\"key\":")).collect();
    assert_eq!(published.len(), 1, "the order that is not paid, once: {log}");
    assert!(published[0].contains("\"key\":\"order-123.unpaid:"), "{log}");
}

/// All pages except those with a test of their own.
#[test]
fn the_commands_of_each_page_work() {
    if !support::have("curl") {
        return;
    }
    for page in pages().keys().filter(|page| !["README.md", "docs/access.md", "docs/doors.md"].contains(&page.as_str()))
    {
        play(&Story { page, ..Story::default() });
    }
}

/// Every link leads to an existing page or heading.
#[test]
fn links_of_the_pages_lead_somewhere() {
    let heading = |line: &str| {
        let text = line.strip_prefix('#')?.trim_start_matches('#').trim();
        let kept = text.to_lowercase().replace(' ', "-");
        Some(kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect::<String>())
    };
    let pages = pages();
    for (page, text) in &pages {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let folder = folder.parent().unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
            let file = if file.is_empty() { Path::new(page).file_name().unwrap().to_str().unwrap() } else { file };
            let target = folder.join(file);
            assert!(target.exists(), "{page} links to `{link}`, which is not there");
            if let Some(anchor) = anchor {
                let text = std::fs::read_to_string(&target).unwrap();
                assert!(text.lines().filter_map(heading).any(|own| own == anchor), "{page}: no heading of `{link}`");
            }
        }
    }
    let readme = &pages["README.md"];
    assert!(readme.lines().count() <= 300, "the README has more than 300 lines");
    let lost: Vec<_> =
        pages.keys().filter(|page| *page != "README.md" && !readme.contains(&format!("({page}"))).collect();
    assert!(lost.is_empty(), "the README does not link {lost:?}");
}

#[test]
fn the_commands_for_access_work() {
    if !["curl", "openssl", "sha256sum"].into_iter().all(support::have) {
        return;
    }
    let (log, printed) = play(&Story { page: "docs/access.md", ..Story::default() });
    assert!(printed.contains("\"lanes\":"), "{printed}\n{log}");
    let created = "created order-126.unpaid, due ";
    // `curl` prints no final line break.
    assert!(["\n", "}"].iter().any(|end| printed.contains(&format!("{end}{created}"))), "{printed}\n{log}");
    assert!(log.contains("address=0.0.0.0:"), "{log}");
}

/// Takes more than five seconds: the message is due after two, and the page waits for it.
#[test]
fn the_commands_for_doors_work() {
    if !["curl", "redis-server", "redis-cli"].into_iter().all(support::have) {
        return;
    }
    let redis = RedisServer::start(&[]);
    let (address, cli) = (format!("127.0.0.1:{}", redis.server.port), format!("redis-cli -p {} ", redis.server.port));
    let replaced: &[(&str, &str)] = &[("127.0.0.1:6379", &address), ("redis-cli ", &cli)];
    let (log, printed) = play(&Story { page: "docs/doors.md", replaced, ..Story::default() });
    assert!(printed.contains("idempotency-key\norders-in.") && printed.contains("{\"order\":1}"), "{printed}\n{log}");
}

/// Takes more than five seconds because RabbitMQ needs as long to start.
#[test]
fn the_commands_for_a_move_work() {
    let servers = ["curl", "redis-server", "rabbitmq-server", "rabbitmqadmin"];
    if !servers.into_iter().all(support::have) {
        return;
    }
    let (redis, (rabbit, management)) = (RedisServer::start(&[]), RabbitServer::start_managed());
    let (timeline, address) = (format!("127.0.0.1:{}", redis.server.port), format!("127.0.0.1:{}", rabbit.server.port));
    let admin = format!("rabbitmqadmin --port {management} ");
    let replaced: &[(&str, &str)] =
        &[("127.0.0.1:6379", &timeline), ("127.0.0.1:5672", &address), ("rabbitmqadmin ", &admin)];
    let (log, printed) = play(&Story { page: "docs/migrate.md", name: "rabbitmq", replaced, ..Story::default() });
    let place = |order: &str| printed.find(order).unwrap_or_else(|| panic!("no {order} in {printed}\n{log}"));
    assert!(place("{\"order\":2}") < place("{\"order\":1}"), "{printed}");
}

/// Takes more than five seconds because Kafka needs as long to start.
#[test]
fn the_commands_of_the_readme_for_kafka_work() {
    if !have_kafka() {
        return;
    }
    let kafka = KafkaServer::start();
    let create = |line: &str| {
        assert!(line.contains(&format!("--bootstrap-server {} --create --topic ", kafka.address())), "{line}");
        kafka.create_topic(line.rsplit(' ').next().unwrap(), 1, &[]);
        String::new()
    };
    let (log, printed) = play(&Story {
        page: "README.md",
        name: "kafka",
        replaced: &[("127.0.0.1:9092", &kafka.address())],
        programs: &[("kafka-topics.sh", &create)],
    });
    let records: Vec<_> = printed.lines().filter(|line| line.contains("idempotency-key=order-125.unpaid:")).collect();
    assert!(records.len() == 1 && records[0].ends_with(" {\"order\": 125}"), "{printed}\n{log}");
    let (log, printed) = play(&Story {
        page: "README.md",
        name: "kafka-door",
        replaced: &[("127.0.0.1:9092", &kafka.address())],
        programs: &[("kafka-topics.sh", &create)],
    });
    let records: Vec<_> = printed.lines().filter(|line| line.contains("idempotency-key=in.")).collect();
    assert!(records.len() == 1 && records[0].ends_with(" {\"order\": 126}"), "{printed}\n{log}");
}

/// Takes more than five seconds because RabbitMQ needs as long to start.
#[test]
fn the_commands_of_the_readme_for_rabbitmq_work() {
    if !support::have("rabbitmq-server") || !support::have("rabbitmqadmin") {
        return;
    }
    let (rabbit, management) = RabbitServer::start_managed();
    let (address, port) = (format!("127.0.0.1:{}", rabbit.server.port), format!("--port {management}"));
    let replaced = &[("127.0.0.1:5672", address.as_str()), ("--port 15672", port.as_str())];
    let (log, printed) = play(&Story { page: "README.md", name: "rabbitmq", replaced, ..Story::default() });
    assert!(printed.contains("{\"order\": 125}"), "{printed}\n{log}");
}

#[test]
fn the_commands_of_the_readme_for_nats_work() {
    if !support::have("nats-server") {
        return;
    }
    let nats = NatsServer::start("");
    let act = |line: &str| {
        let detail: Vec<&str> = line.split(' ').collect();
        assert_eq!(&detail[..3], ["nats", "--server", nats.url().as_str()]);
        match detail[3..] {
            ["stream", "add", name, subjects, "--storage=file", "--dupe-window=2m", "--defaults"] => {
                let subject = subjects.strip_prefix("--subjects='").and_then(|rest| rest.strip_suffix('\''));
                nats.connect().create_stream(name, &[subject.expect(subjects)], &serde_json::json!({}));
                String::new()
            }
            ["stream", "get", name, number] => {
                let number: usize = number.parse().expect(number);
                let stored = nats.connect().stream_messages(name).swap_remove(number - 1);
                format!("{:?} {}\n", stored.headers, String::from_utf8_lossy(&stored.payload))
            }
            _ => panic!("{line}"),
        }
    };
    let address = format!("127.0.0.1:{}", nats.server.port);
    let (log, printed) = play(&Story {
        page: "README.md",
        name: "nats",
        replaced: &[("127.0.0.1:4222", &address)],
        programs: &[("nats", &act)],
    });
    assert!(printed.contains("order-125.unpaid:") && printed.contains(" {\"order\": 125}"), "{printed}\n{log}");
}

#[test]
fn the_commands_of_the_readme_for_redis_streams_work() {
    if !support::have("redis-server") || !support::have("redis-cli") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let address = format!("127.0.0.1:{}", redis.server.port);
    let replaced = &[("127.0.0.1:6379", address.as_str())];
    let (log, printed) = play(&Story { page: "README.md", name: "redis", replaced, ..Story::default() });
    assert!(printed.contains("order-125.unpaid:") && printed.contains("{\"order\": 125}"), "{printed}\n{log}");
}

/// Includes puts, claims and settles, where a missing permission would show.
#[test]
fn the_redis_user_of_the_operations_page_has_all_needed_permissions() {
    if !support::have("redis-server") || !support::have("redis-cli") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let address = format!("127.0.0.1:{}", redis.server.port);
    let replaced = &[("127.0.0.1:6379", address.as_str())];
    let story = Story { page: "docs/operations.md", name: "acl", replaced, ..Story::default() };
    let (log, _) = play_on(&story, |port, log| {
        let url = format!("http://127.0.0.1:{port}");
        for task in [&["put", "once", "--in", "100ms"][..], &["put", "often", "--every", "300ms"]] {
            let put = run(&[&["task"], task, &["--url", &url]].concat());
            assert_eq!(put.code, Some(0), "{}", put.err);
        }
        for key in ["once", "often"] {
            wait_for(log, &format!("\"key\":\"{key}:"));
        }
        let cancelled = run(&["task", "cancel", "often", "--url", &url]);
        assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    });
    assert!(!log.contains("NOPERM") && !log.contains(" ERROR "), "{log}");
}

/// Tables without their second row, or with rows of other lengths, are shown as plain text.
#[test]
fn the_tables_of_the_pages_are_tables() {
    let cells = |row: &str| row.replace("\\|", "").matches('|').count();
    let is_rule = |row: &str| {
        row.split('|').filter(|cell| !cell.is_empty()).all(|cell| cell.trim_matches([':', '-', ' ']).is_empty())
    };
    let mut tables = 0;
    for (page, text) in pages() {
        let mut fenced = false;
        let mut rows: Vec<&str> = Vec::new();
        for line in text.lines().chain([""]) {
            fenced ^= line.starts_with("```");
            if line.starts_with('|') && !fenced {
                rows.push(line);
                continue;
            }
            let table = std::mem::take(&mut rows);
            let Some(first) = table.first() else { continue };
            assert!(table.get(1).is_some_and(|second| is_rule(second)), "{page}: no rule under `{first}`");
            for row in &table {
                assert_eq!(cells(row), cells(first), "{page}: `{row}`");
            }
            tables += 1;
        }
    }
    assert!(tables > 20, "{tables}");
}

#[test]
fn the_targets_of_the_pages_are_made() {
    // Building the program for the demo would take minutes; the program of these tests is used instead.
    let programs = tempfile::tempdir().unwrap();
    let cargo = programs.path().join("cargo");
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2 $3 $4\" = 'run --quiet --locked --' ] || exit 9\nshift 4\nexec '{PUNCTUAL}' \"$@\"\n"
    );
    std::fs::write(&cargo, script).unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let make = |text: &str, dry: bool| {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", text]).current_dir(env!("CARGO_MANIFEST_DIR"));
        command.env("ARGS", "--seconds 1").env("PATH", &path);
        command.env("MAKEFLAGS", if dry { "-n" } else { "" }).stdin(Stdio::null());
        let run = read(command.output().unwrap());
        assert_eq!(run.code, Some(0), "{text}\n{}{}", run.out, run.err);
        run.out
    };
    let mut made = 0;
    for Block { mark, text } in pages().values().flat_map(|page| blocks(page)) {
        match mark.as_str() {
            "make" => made += usize::from(make(&text, false).contains("\nlateness max")),
            dry if dry.starts_with("dry: ") => assert!(make(&text, true).contains(".ci/"), "{text}"),
            _ => {}
        }
    }
    assert_eq!(made, 1, "the demo");
}

/// The configuration blocks of a document.
fn configurations(document: &str) -> Vec<String> {
    let parts = document.split("```toml\n").skip(1);
    parts.map(|part| part.split_once("```").expect("a block ends").0.to_owned()).collect()
}

#[tokio::test]
async fn the_configurations_of_the_pages_are_valid() {
    punctual_sinks::tls::install_provider();
    let blocks: Vec<String> = pages().values().flat_map(|page| configurations(page)).collect();
    let mut kinds = BTreeSet::new();
    for block in &blocks {
        let lacks_sink = !block.contains("[sinks.");
        let flags = lacks_sink.then(|| ("--sink", "sinks.default.url", "stdout:".to_owned()));
        let file = Some(("README.md".to_owned(), block.clone()));
        let sources = Sources { file, flags: flags.into_iter().collect(), ..Sources::default() };
        let config = Config::load(sources).unwrap_or_else(|error| panic!("{error}\n{block}"));
        assert!(config.warnings.is_empty(), "{:?}\n{block}", config.warnings);
        for sink in config.sinks.values() {
            let parsed =
                SinkConfig::parse(sink.url.expose()).map(|parsed| parsed.with_properties(sink.properties.clone()));
            let parsed = parsed.unwrap_or_else(|error| panic!("{error}\n{block}"));
            parsed.build().unwrap_or_else(|error| panic!("{error}\n{block}"));
            kinds.insert(parsed.kind());
        }
    }
    assert!(kinds.is_superset(&BTreeSet::from(["kafka", "nats", "rabbitmq", "redis"])), "{kinds:?} of {blocks:?}");
}
