//! Help, completions and the manual page, generated from one definition. The help is compared with snapshots.

use std::process::{Command, Stdio};

use super::{read, run};
use crate::support;

/// All commands and subcommands.
fn commands(above: &[&str]) -> Vec<Vec<String>> {
    let help = run(&[above, &["--help"]].concat()).out;
    let list = help.split("\nCommands:\n").nth(1).map(|rest| rest.split("\n\n").next().unwrap()).unwrap_or_default();
    // Continuation lines are indented further.
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let mut all = vec![above.iter().map(|&name| name.to_owned()).collect()];
    for name in names.map(|line| line.split_whitespace().next().unwrap()) {
        all.extend(commands(&[above, &[name]].concat()));
    }
    all
}

#[test]
fn the_help_of_every_command_matches_its_snapshot() {
    let all = commands(&[]);
    assert!(all.len() >= 12, "{all:?}");
    for command in all {
        let arguments: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let run = run(&arguments);
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{arguments:?}");
        let name = [&["punctual".to_owned()], command.as_slice()].concat().join("-");
        insta::assert_snapshot!(format!("help-{name}"), run.out);
    }
}

#[test]
fn bash_completes_commands_and_their_options() {
    let script = run(&["completions", "bash"]).out;
    let complete = |command_line: &str, at: usize| {
        let ask = format!(
            "{script}\nCOMP_WORDS=({command_line}) COMP_CWORD={at}\n_punctual punctual \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at} - 1]}}\"\n\
             printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["-uc", &ask]).stdin(Stdio::null()).output();
        let run = read(output.unwrap());
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
        run.out
    };
    assert_eq!(complete("punctual prev", 1), "preview\n");
    assert_eq!(complete("punctual task ca", 2), "cancel\n");
    assert!(complete("punctual preview --z", 2).contains("--zone"));
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let run = run(&["completions", shell]);
        assert!(run.code == Some(0) && run.out.contains("preview"), "{shell}: {}", run.err);
    }
    assert_eq!(run(&["completions", "cmd"]).code, Some(2));
}

#[test]
fn the_manual_page_has_every_command_and_no_empty_section() {
    let page = run(&["man"]).out;
    for command in commands(&[]) {
        let leaf = !command.is_empty() && !["task", "dead", "lane"].iter().any(|above| command.as_slice() == [*above]);
        let heading = format!(".SS \"punctual {}\"\n", command.join(" "));
        assert_eq!(page.contains(&heading), leaf, "{heading}");
    }
    // Without the lines that set up the page or separate paragraphs.
    let content = |line: &&str| !line.is_empty() && ![".ie ", ".el ", ".PP"].iter().any(|mark| line.starts_with(mark));
    let lines: Vec<&str> = page.lines().filter(content).collect();
    let headings = |line: &str| line.starts_with(".SH") || line.starts_with(".SS");
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| headings(line)) {
        let next = lines.get(at + 1).unwrap_or_else(|| panic!("nothing stands behind `{line}`"));
        // A section with parts begins with the heading of the first part.
        let parts = line.starts_with(".SH") && next.starts_with(".SS");
        assert!(parts || !headings(next), "`{line}` is empty: `{next}`");
    }
    assert!(page.starts_with(".") && page.contains("\n.TH punctual 1"), "{}", &page[..200]);
    if !support::have_quietly("groff") {
        return;
    }
    let mut groff = Command::new("groff");
    groff.args(["-man", "-ww", "-z"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = groff.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), page.as_bytes()).unwrap();
    assert_eq!(read(child.wait_with_output().unwrap()).err, "", "groff has something to say");
}
