//! The modules and which others each may use: arrows point down only.
//!
//! Reads the sources as text: every path that leaves a module (`crate::<module>`, `super::` beyond it, the name of a
//! crate).

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says so by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module of `src/`, the modules it may use, and the crates that no other module may name unless it lists them too.
struct Module {
    name: &'static str,
    modules: &'static [&'static str],
    crates: &'static [&'static str],
}

const MODULES: &[Module] = &[
    Module { name: "clock", modules: &[], crates: &["tokio", "jiff"] },
    Module {
        name: "task",
        modules: &["clock"],
        crates: &["jiff", "croner", "rmp_serde", "serde_bytes", "strsim", "xxhash_rust"],
    },
    Module { name: "timeline", modules: &["task", "clock", "metrics"], crates: &["tokio"] },
    Module {
        name: "engine",
        modules: &["timeline", "task", "clock", "metrics"],
        crates: &["tokio", "tokio_util", "punctual_sinks", "rand"],
    },
    Module {
        name: "doors",
        modules: &["engine", "timeline", "task", "clock", "metrics"],
        crates: &["tokio", "tokio_util", "punctual_sinks", "aws_lc_rs", "uuid"],
    },
    Module {
        name: "http",
        modules: &["doors", "engine", "timeline", "task", "clock", "metrics"],
        crates: &[
            "tokio",
            "tokio_util",
            "axum",
            "hyper",
            "hyper_util",
            "aws_lc_rs",
            "rustls",
            "tokio_rustls",
            "utoipa",
            "utoipa_axum",
            "uuid",
        ],
    },
    Module {
        name: "config",
        modules: &["http", "doors", "engine", "timeline", "task", "clock", "telemetry"],
        crates: &["toml", "strsim", "secrecy"],
    },
    Module {
        name: "cli",
        modules: &["config", "http", "doors", "engine", "timeline", "task", "clock", "metrics", "telemetry"],
        crates: &[
            "tokio",
            "tokio_util",
            "punctual_sinks",
            "clap",
            "clap_complete",
            "clap_mangen",
            "hyper",
            "hyper_util",
            "indicatif",
            "rustls",
            "tokio_rustls",
            "anyhow",
            "rand",
        ],
    },
    // A macro that all modules may use.
    Module { name: "string_enum", modules: &[], crates: &[] },
    Module { name: "metrics", modules: &[], crates: &["prometheus_client"] },
    Module { name: "telemetry", modules: &[], crates: &["tracing_subscriber"] },
];

/// The same for `lab/src/`. `verify` attacks instances from outside and uses none of punctual's own code.
const LAB_MODULES: &[Module] = &[
    Module { name: "servers", modules: &[], crates: &["anyhow", "rand", "redis", "secrecy", "tokio"] },
    Module { name: "testing", modules: &["servers"], crates: &["tokio"] },
    Module {
        name: "verify",
        modules: &["servers"],
        crates: &["anyhow", "hyper", "hyper_util", "jiff", "rand", "redis", "secrecy", "tokio", "tokio_util"],
    },
    // Uses code of punctual to measure the limits of its parts: the sink alone, and Redis alone.
    Module {
        name: "bench",
        modules: &["servers"],
        crates: &[
            "anyhow",
            "hdrhistogram",
            "hyper",
            "hyper_util",
            "punctual",
            "punctual_sinks",
            "redis",
            "secrecy",
            "tokio",
            "tokio_util",
        ],
    },
    Module {
        name: "cli",
        modules: &["servers", "verify", "bench"],
        crates: &["anyhow", "clap", "indicatif", "punctual", "rand", "tokio", "tokio_util"],
    },
];

/// Part of the timeline, and the only code of `src/` that names the redis crate. It connects to its Redis with code of
/// the sinks' crate, which supports TLS and Sentinels.
const REDIS: Module = Module {
    name: "timeline",
    modules: &["task", "clock", "metrics"],
    crates: &["tokio", "tokio_util", "redis", "punctual_sinks", "secrecy", "rand"],
};

/// Crates that only modules that list them may name. All modules may name the others (serde, bytes, thiserror, ...).
const OWNED: &[&str] = &[
    "anyhow",
    "aws_lc_rs",
    "axum",
    "clap",
    "clap_complete",
    "clap_mangen",
    "croner",
    "hdrhistogram",
    "hyper",
    "hyper_util",
    "indicatif",
    "jiff",
    "prometheus_client",
    "punctual",
    "punctual_sinks",
    "rand",
    "redis",
    "rmp_serde",
    "rustls",
    "secrecy",
    "serde_bytes",
    "strsim",
    "tokio",
    "tokio_rustls",
    "tokio_util",
    "toml",
    "tracing_subscriber",
    "utoipa",
    "utoipa_axum",
    "uuid",
    "xxhash_rust",
];

#[test]
fn no_module_looks_up() {
    no_module_of_looks_up("src", MODULES);
}

#[test]
fn no_module_of_the_laboratory_looks_up_and_verify_knows_nothing_of_punctual() {
    no_module_of_looks_up("lab/src", LAB_MODULES);
}

fn no_module_of_looks_up(folder: &str, table: &[Module]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut faults = Vec::new();
    let mut modules = BTreeSet::new();
    for file in sources(&root) {
        let path = module_path(file.strip_prefix(&root).unwrap());
        let Some(module) = path.first() else { continue };
        modules.insert(module.clone());
        let text = std::fs::read_to_string(&file).unwrap();
        let place = file.strip_prefix(&root).unwrap().display().to_string();
        faults.extend(faults_of(table, &path, &text).into_iter().map(|fault| format!("{folder}/{place}: {fault}")));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let known: BTreeSet<_> = table.iter().map(|module| module.name.to_owned()).collect();
    assert_eq!(modules, known, "the modules that are there, and those of the table");
}

#[test]
fn the_architecture_page_lists_few_and_existing_files_from_put_to_settle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let way = page.split("### From a put to its settle\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let files: Vec<&str> = way.split('`').skip(1).step_by(2).collect();
    assert!((15..=20).contains(&files.len()), "{files:?}");
    for file in files {
        assert!(root.join(file).is_file(), "there is no `{file}`");
    }
}

#[test]
fn main_is_short_and_knows_the_command_line_alone() {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/main.rs")).unwrap();
    assert!(text.lines().count() <= 40, "main.rs has {} lines", text.lines().count());
    let named: Vec<_> = after(&code(&text), "punctual::");
    assert!(!named.is_empty() && named.iter().all(|name| name == "cli"), "{named:?}");
}

#[test]
fn the_sinks_crate_does_not_depend_on_punctual() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sinks");
    for file in sources(&root) {
        let code = code(&std::fs::read_to_string(&file).unwrap());
        assert!(after(&code, "punctual::").is_empty(), "{} names punctual", file.display());
    }
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    assert!(!manifest.lines().any(|line| line.starts_with("punctual ") || line.starts_with("punctual=")));
}

#[test]
fn a_look_up_is_found() {
    let path = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
    for (module, text, fault) in [
        ("engine/judge", "use crate::http::Api;", Some("http")),
        ("engine/judge", "use crate::{task::Task, http, timeline::Put};", Some("http")),
        ("engine/judge", "use crate::{\n    cli::{self, run},\n    task::{Key, Lane},\n};", Some("cli")),
        ("engine/judge", "use super::super::config::Config;", Some("config")),
        ("engine/judge", "fn f() { crate::config::Config::load() }", Some("config")),
        ("engine/judge", "use super::context::Context; use crate::timeline::Put;", None),
        (
            "engine/judge",
            "// crate::http\n/* crate::cli */ const A: &str = \"crate::http\"; const B: char = '\"';",
            None,
        ),
        ("engine/judge", "const A: &str = r#\"crate::http \"\"#; use crate::cli;", Some("cli")),
        ("clock", "use super::task::Key;", Some("task")),
        ("clock", "use crate::task::Key;", Some("task")),
        ("metrics", "use crate::task::Lane;", Some("task")),
        ("config", "use crate::cli::run;", Some("cli")),
        ("engine/judge", "use redis::Value;", Some("redis")),
        ("engine/judge", "fn f() { ::redis::cmd(\"A\"); }", Some("redis")),
        ("cli/serve", "use crate::timeline::redis::RedisTimeline;", None),
        ("timeline/memory", "use redis::Value;", Some("redis")),
        ("timeline/redis/call", "use redis::Value;", None),
        ("task/record", "use tokio::time::sleep;", Some("tokio")),
        ("timeline/memory", "use punctual_sinks::Sink;", Some("punctual_sinks")),
        ("http/tasks", "let router: axum::Router;", None),
        ("engine/judge", "let router: axum::Router;", Some("axum")),
        ("verify", "use punctual::task::Task;", Some("punctual")),
        ("verify", "use crate::bench::Bench;", Some("bench")),
        ("bench", "use punctual::task::Task;", None),
    ] {
        let table = if ["verify", "bench"].contains(&module) { LAB_MODULES } else { MODULES };
        let found = faults_of(table, &path(module), text);
        match fault {
            Some(fault) => assert!(found.len() == 1 && found[0].contains(fault), "{module}: {text}: {found:?}"),
            None => assert!(found.is_empty(), "{module}: {text}: {found:?}"),
        }
    }
}

/// Names in a file of this module path that its module must not use.
fn faults_of(table: &[Module], path: &[String], text: &str) -> Vec<String> {
    let module = match path {
        [timeline, redis, ..] if timeline == "timeline" && redis == "redis" => &REDIS,
        [name, ..] => table.iter().find(|module| module.name == name).unwrap_or_else(|| panic!("no module `{name}`")),
        [] => return Vec::new(),
    };
    let code = code(text);
    let mut named: Vec<String> = after(&code, "crate::");
    named.extend(after(&code, &"super::".repeat(path.len())));
    let mut faults: Vec<String> = named
        .into_iter()
        .filter(|name| table.iter().any(|module| module.name == name))
        .filter(|name| name != module.name && !module.modules.contains(&name.as_str()))
        .map(|name| format!("`{}` looks into `{name}`", module.name))
        .collect();
    for owned in OWNED.iter().filter(|owned| !module.crates.contains(*owned)) {
        if names_crate(&code, owned) {
            faults.push(format!("`{}` names the crate `{owned}`", module.name));
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

/// Names that follow directly after `prefix`, in `use` trees too.
fn after(code: &str, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices(prefix) {
        let inside = code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':');
        if inside {
            continue;
        }
        let rest = code[at + prefix.len()..].trim_start();
        match rest.strip_prefix('{') {
            Some(tree) => names.extend(heads(tree)),
            None => names.push(word(rest)),
        }
    }
    names
}

/// First names of the branches of a `use` tree, which starts after its opening brace.
fn heads(tree: &str) -> Vec<String> {
    let (mut depth, mut branch, mut names) = (0, String::new(), Vec::new());
    for c in tree.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => names.push(word(std::mem::take(&mut branch).trim_start())),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                branch.push(c);
            }
        }
    }
    names.push(word(branch.trim_start()));
    names.retain(|name| !name.is_empty());
    names
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Whether a path begins with this crate's name.
fn names_crate(code: &str, name: &str) -> bool {
    let path = format!("{name}::");
    let begins = code.match_indices(&path).any(|(at, _)| {
        let before = code[..at].trim_end_matches(' ');
        let global = before
            .strip_suffix("::")
            .is_some_and(|before| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '>'));
        global || !before.ends_with("::") && !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
    });
    begins
        || [format!("use {name};"), format!("use {name} as"), format!("extern crate {name}")]
            .iter()
            .any(|line| code.contains(line))
}

/// The text without comments and without the contents of literals.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let raw = rest.strip_prefix('r').map(|rest| (rest, rest.bytes().take_while(|b| *b == b'#').count()));
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some((_, hashes)) = raw.filter(|(rest, hashes)| rest[*hashes..].starts_with('"')) {
            let end = format!("\"{}", "#".repeat(hashes));
            rest[hashes + 2..].find(&end).map_or(rest.len(), |at| hashes + 2 + at + end.len())
        } else if c == '"' {
            literal_end(rest)
        } else if rest.starts_with("'\\") || (c == '\'' && rest.chars().nth(2) == Some('\'')) {
            1 + rest[1..].char_indices().skip(1).find(|(_, c)| *c == '\'').map_or(rest.len() - 1, |(at, _)| at + 1)
        } else {
            0
        };
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.push(' ');
            rest = &rest[skipped..];
        }
    }
    code
}

/// Index after the string literal that `text` begins with.
fn literal_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '"' if !escaped => return at + 1,
            '\\' if !escaped => escaped = true,
            _ => escaped = false,
        }
    }
    text.len()
}

/// `engine/judge.rs` is `engine::judge`, `engine/mod.rs` is `engine`; `lib.rs` and `main.rs` belong to no module.
fn module_path(file: &Path) -> Vec<String> {
    let mut path: Vec<String> =
        file.with_extension("").components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
    if matches!(path.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        path.pop();
    }
    path
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Names that two public types share, because each name is the plain word for both types:
/// - `Fault`: a fault of a document, and who is at fault for a failed publish;
/// - `Message`: the message of a task, and the message that a sink publishes.
const SAME_NAMES: [&str; 2] = ["Fault", "Message"];

/// Types that a file declares for other files.
fn types(text: &str) -> Vec<&str> {
    let product = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let declared = product.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("pub")?;
        let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
        let rest = rest.strip_prefix(' ')?;
        let kinds = ["struct ", "enum ", "trait ", "type "];
        let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
        // Skip placeholders of a macro, such as `$name`.
        name.split(|c: char| !c.is_alphanumeric()).next().filter(|name| !name.is_empty())
    });
    declared.collect()
}

/// A reader who meets a type's name knows which type it is.
#[test]
fn no_two_types_share_a_name() {
    assert_eq!(types("pub struct A;\n    pub(in crate::x) enum B {\npub fn c() {}\nstruct D;\n"), ["A", "B"]);
    let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in ["src", "sinks"] {
        for file in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) {
            let text = std::fs::read_to_string(&file).unwrap();
            if file.to_str().unwrap().ends_with("tests.rs") {
                continue;
            }
            for name in types(&text) {
                seen.entry(name.to_owned()).or_default().push(file.display().to_string());
            }
        }
    }
    seen.retain(|_, files| files.len() > 1);
    let shared: BTreeSet<&str> = seen.keys().map(String::as_str).collect();
    assert_eq!(shared, BTreeSet::from(SAME_NAMES), "{seen:?}");
}
