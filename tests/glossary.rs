//! Each thing has one name. `docs/glossary.md` has the words that stay; this test has those that went.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Words that no source and no page of `READ` uses any more, each with what to write instead.
const GONE: [(&str, &str); 30] = [
    ("bury", "record as dead"),
    ("buried", "dead, `died` for the time"),
    ("burial", "death"),
    ("grave", "dead occurrence, `cursor`"),
    ("graves", "dead records"),
    ("mourned", "awaiting its copy"),
    ("hub", "link state"),
    ("standings", "destinations, `health`"),
    ("standpoint", "failure context"),
    ("witness", "confirmations"),
    ("told", "notified, reported, answered, logged"),
    ("turn_back", "return_over_quota"),
    ("turned_back", "over_quota"),
    ("goes_back", "has_returns"),
    ("give_back", "return to the lane"),
    ("retry_room", "failure quota"),
    ("crew", "instances"),
    ("blow", "fault kind"),
    ("blows", "fault kinds"),
    ("shelf", "task namespace"),
    ("naked", "baseline"),
    ("haunted", "unresolved"),
    ("ghost", "a message after its cancel"),
    ("stranger", "an unknown id"),
    ("strangers", "unknown ids"),
    ("epitaph", "reason and detail"),
    ("tale", "scenario"),
    ("standpoints", "failure contexts"),
    ("look_anew", "look_from_oldest"),
    ("punctual-dead-words", "punctual-dead-detail"),
];

/// Folders that people read. The test also reads `README.md` and `ARCHITECTURE.md`.
const READ: [&str; 8] = ["src", "sinks", "lua", "lab/src", "lab/tests", "tests", "docs", "examples"];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            // The corpora are made-up input.
            if !path.ends_with("corpus") {
                files(&path, found);
            }
        } else if path.extension().is_some_and(|kind| ["rs", "lua", "md", "yml", "toml"].iter().any(|one| kind == *one))
            && !path.ends_with("tests/glossary.rs")
        {
            found.push(path);
        }
    }
}

/// The words of a text; `_` and `-` are parts of a word.
fn words(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-');
    words.map(str::to_ascii_lowercase).collect()
}

#[test]
fn no_file_has_a_word_that_went() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = vec![root.join("README.md"), root.join("ARCHITECTURE.md")];
    READ.iter().for_each(|folder| files(&root.join(folder), &mut all));
    assert!(all.len() > 300, "{} files", all.len());
    let mut found = Vec::new();
    for path in &all {
        let words = words(&std::fs::read_to_string(path).unwrap());
        for (gone, instead) in GONE.iter().filter(|(gone, _)| words.contains(*gone)) {
            found.push(format!("{}: `{gone}`: write {instead}", path.strip_prefix(root).unwrap().display()));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(words("let hub = 1;").contains("hub") && !words("github").contains("hub"));
}

#[test]
fn the_glossary_has_each_word_once_and_none_that_went() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/glossary.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" | "));
    let listed: Vec<&str> =
        rows.map(|(word, _)| word).filter(|word| *word != "word" && !word.starts_with("--")).collect();
    assert!(listed.len() > 30, "{listed:?}");
    let once: BTreeSet<&str> = listed.iter().copied().collect();
    assert_eq!(once.len(), listed.len(), "a word has two rows");
    assert!(GONE.iter().all(|(gone, _)| !once.contains(gone)));
}
