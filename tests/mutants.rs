//! The patches of `tests/mutants`: each breaks a law in one line, and `make mutants` checks that a test notices. The
//! tests here only check that the patches still apply and that every law has one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::have;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn patches() -> Vec<PathBuf> {
    let mut patches: Vec<PathBuf> =
        std::fs::read_dir(root().join("tests/mutants")).unwrap().map(|file| file.unwrap().path()).collect();
    patches.sort();
    patches
}

/// The numbers of the laws in ARCHITECTURE.md.
fn laws() -> BTreeSet<u32> {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Laws\n")).expect("a section of laws");
    section.lines().filter_map(|line| line.split_once(". **")?.0.parse().ok()).collect()
}

/// The law that a patch breaks, and the command that notices: `# law 4: what is broken; check: cargo test ...`.
fn first_line(patch: &Path) -> (u32, String) {
    let text = std::fs::read_to_string(patch).unwrap();
    let line = text.lines().next().unwrap_or_default();
    let parts = line.strip_prefix("# law ").and_then(|rest| rest.split_once(": "));
    let (law, detail) = parts.unwrap_or_else(|| panic!("{}: `{line}`", patch.display()));
    let (_, check) = detail.split_once("; check: ").unwrap_or_else(|| panic!("{}: no check", patch.display()));
    (law.parse().unwrap_or_else(|_| panic!("{}: `{law}` is no law", patch.display())), check.to_owned())
}

#[test]
fn every_law_has_a_mutant_and_every_mutant_a_law() {
    let mut broken = BTreeSet::new();
    for patch in patches() {
        let (law, check) = first_line(&patch);
        let name = patch.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with(&format!("{law:02}-")) && name.ends_with(".patch"), "{name} breaks law {law}");
        assert!(check.starts_with("cargo test --locked ") && check.split(' ').count() > 4, "{name}: `{check}`");
        let text = std::fs::read_to_string(&patch).unwrap();
        for sign in ['-', '+'] {
            let own = |line: &&str| line.starts_with(sign) && !line.starts_with(&sign.to_string().repeat(3));
            assert_eq!(text.lines().filter(own).count(), 1, "{name} changes one line");
        }
        broken.insert(law);
    }
    assert_eq!(broken, laws());
}

#[test]
fn every_mutant_still_applies() {
    if !have("git") {
        return;
    }
    for patch in patches() {
        let applies = Command::new("git").args(["apply", "--check"]).arg(&patch).current_dir(root()).output().unwrap();
        let detail = String::from_utf8_lossy(&applies.stderr);
        assert!(applies.status.success(), "{}: make it anew\n{detail}", patch.display());
    }
}
