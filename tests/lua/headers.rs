//! Checks the headers of the scripts against the declarations in `scripts.rs`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use punctual::timeline::scripts::{ALL, Code, Script};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

/// Text of a header's field, with its continuation lines.
fn field(source: &str, name: &str) -> String {
    let mut lines = source.lines().take_while(|line| line.starts_with("--"));
    let start = format!("-- {name:<5} ");
    let first = lines.find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {name} in\n{source}"));
    let more = lines.take_while(|line| line.starts_with("--       ")).map(|line| &line[8..]);
    [&first[start.len()..]]
        .into_iter()
        .chain(more.map(|line| line.trim_start_matches(' ')))
        .collect::<Vec<_>>()
        .join("  ")
}

/// Names in `1 now ms, ...  2 not_after ms  3.. lane: ...`; the numbers must ascend.
fn names(list: &str) -> Vec<String> {
    let items = list.split("  ").filter(|item| item.starts_with(|c: char| c.is_ascii_digit()));
    let items = items.enumerate().map(|(place, item)| {
        let (number, rest) = item.split_once(' ').unwrap();
        let name = rest.split([' ', ',', ':', '(']).find(|word| !word.is_empty()).unwrap();
        // Only names of these kinds contain a colon.
        let name = if rest.starts_with("dead:") || rest.starts_with("pauses:") {
            rest.split(' ').next().unwrap()
        } else {
            name
        };
        assert_eq!(number.trim_end_matches(".."), (place + 1).to_string(), "in `{list}`");
        if number.ends_with("..") { format!("{name}..") } else { name.to_owned() }
    });
    items.collect()
}

#[test]
fn every_script_header_lists_its_keys_and_arguments() {
    for Script { verb, own_source: source, keys, arguments, parts, .. } in ALL {
        let name = verb.as_str();
        assert!(source.starts_with(&format!("-- {name}: ")), "{name}");
        assert_eq!(field(source, "WITH"), parts.join(", "), "WITH of {name}");
        assert_eq!(names(&field(source, "KEYS")), *keys, "KEYS of {name}");
        assert_eq!(names(&field(source, "ARGV")), *arguments, "ARGV of {name}");
        assert!(field(source, "REPLY").starts_with("{ now, "), "REPLY of {name}");
        assert!(!field(source, "KEEPS").is_empty(), "KEEPS of {name}");
    }
}

/// Names of the Lua files in a folder.
fn files(folder: &Path) -> BTreeSet<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    files.filter_map(|name| name.strip_suffix(".lua").map(str::to_owned)).collect()
}

#[test]
fn every_file_is_declared() {
    let declared = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(files(&folder()), declared(ALL.iter().map(|script| script.verb.as_str()).collect()));
    let parts = ALL.iter().flat_map(|script| script.parts.iter().copied());
    assert_eq!(files(&folder().join("parts")), declared(parts.collect()));
    for part in files(&folder().join("parts")) {
        let text = std::fs::read_to_string(folder().join("parts").join(format!("{part}.lua"))).unwrap();
        assert!(text.starts_with(&format!("-- {part}: ")), "{part}");
    }
}

#[test]
fn every_reply_code_is_used_by_a_script_and_explained_in_the_readme() {
    let readme = std::fs::read_to_string(folder().join("README.md")).unwrap();
    for code in Code::ALL {
        let said = [format!("'{}'", code.as_str()), format!("'{} ", code.as_str())];
        assert!(ALL.iter().any(|script| said.iter().any(|text| script.own_source.contains(text))), "{code:?}");
        assert_eq!(Code::of(code.as_str()), Some(*code));
        // A verb with a single answer is named like its answer.
        let own =
            ["put", "claimed", "settled", "extended", "reaped", "glanced", "browsed", "scanned", "upcoming", "counted"]
                .contains(&code.as_str());
        assert!(own || readme.contains(&format!("`{}", code.as_str())), "{code:?} in lua/README.md");
    }
}
