//! Help, completions, the manual page; and which `punctual` the lab starts.

use std::os::unix::fs::PermissionsExt;

use super::lab;

/// Exit code, stdout and stderr.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = lab(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_help_of_every_command_matches_its_snapshot() {
    let benches = [
        "throughput",
        "lateness",
        "herd",
        "instances",
        "pending",
        "put",
        "idle",
        "fleet",
        "death",
        "cluster",
        "silence",
        "door",
    ];
    let mut commands = vec![vec![], vec!["verify"], vec!["bench"], vec!["completions"], vec!["man"]];
    commands.extend(benches.iter().map(|bench| vec!["bench", *bench]));
    for command in commands {
        let (code, out, err) = run(&[&command[..], &["--help"]].concat());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{command:?}");
        let name = [&["help-punctual-lab"], &command[..]].concat().join("-");
        insta::assert_snapshot!(name, out);
    }
}

#[test]
fn shells_complete_commands_and_the_manual_page_has_each() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let (code, out, err) = run(&["completions", shell]);
        assert!(code == Some(0) && out.contains("verify") && out.contains("throughput"), "{shell}: {err}");
    }
    let (code, page, err) = run(&["man"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(page.contains("\n.TH punctual-lab 1"), "{}", &page[..200]);
    for command in ["verify", "bench throughput", "bench idle", "completions", "man"] {
        assert!(page.contains(&format!(".SS \"punctual-lab {command}\"\n")), "{command}: {page}");
    }
}

#[test]
fn a_missing_punctual_or_one_of_another_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("other");
    std::fs::write(&file, "#!/bin/sh\necho punctual 99.0.0\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (named, detail) in [
        (file.display().to_string(), "is `punctual 99.0.0`, and this program is for `punctual "),
        ("/nowhere/punctual".to_owned(), "cannot run `/nowhere/punctual`: "),
        ("/bin/true".to_owned(), "and this program is for `punctual "),
    ] {
        for command in [&["verify"][..], &["bench", "idle"]] {
            let (code, _, err) = run(&[command, &["--punctual", &named]].concat());
            assert!(code == Some(2) && err.contains(detail) && err.contains("\nhint: "), "{named}: {code:?} {err}");
        }
    }
}
