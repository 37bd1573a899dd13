//! What shells and `man` want to know of this command line; made of the same definitions that read it.

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::{Cli, Failure, out};

#[derive(Args)]
pub(super) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Prints the script by which a shell completes `punctual`.
pub(super) fn completions(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "punctual", &mut script);
    out::write(&script)
}

/// Prints one page with all commands.
pub(super) fn man() -> Result<(), Failure> {
    let page = page().map_err(Failure::failed)?;
    out::write(&page)
}

fn page() -> std::io::Result<Vec<u8>> {
    // Every command has it; once is enough.
    let mut root = without_help(Cli::command()).subcommand_help_heading("COMMAND");
    root.build();
    let mut page = Vec::new();
    let whole = Man::new(root.clone()).manual("punctual");
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    whole.render_synopsis_section(&mut page)?;
    section(&mut page, "DESCRIPTION", &[DESCRIPTION])?;
    section(&mut page, "COMMANDS", &[])?;
    commands(&root, &mut page)?;
    section(&mut page, "EXIT STATUS", EXIT_STATUS)?;
    section(&mut page, "ENVIRONMENT", ENVIRONMENT)?;
    section(&mut page, "FILES", FILES)?;
    Ok(page)
}

const DESCRIPTION: &str = "punctual takes tasks in over HTTP, each of which says what to publish and when (once, at an \
     interval, by cron), keeps them in Redis, and publishes each to Kafka, RabbitMQ, NATS JetStream or Redis Streams when \
     it is due, under one idempotency key. Data goes to stdout, everything else to stderr.";

const EXIT_STATUS: &[&str] = &[
    "0: done.",
    "1: what was asked for failed.",
    "2: the command line or the configuration is wrong.",
    "3, 4, 5, of punctual check alone: somebody cannot be reached; a log-in was refused; a certificate is not trusted.",
];

const ENVIRONMENT: &[&str] = &[
    "PUNCTUAL__SECTION__KEY sets an option of the configuration: PUNCTUAL__CLAIM__LEASE=20s is lease in [claim]. A dash in a \
     name is an underscore there.",
    "PUNCTUAL_URL is the API that punctual task and punctual dead speak to, PUNCTUAL_TOKEN a token of that instance, PUNCTUAL_CA_FILE a file \
     with the authorities to trust.",
];

const FILES: &[&str] = &[
    "punctual.toml in the working directory is read where --config names no other file. punctual config shows every option.",
];

fn without_help(command: Command) -> Command {
    command.disable_help_flag(true).disable_version_flag(true).mut_subcommands(without_help)
}

/// A part of the page for each command that does something.
fn commands(above: &Command, page: &mut Vec<u8>) -> std::io::Result<()> {
    for command in above.get_subcommands() {
        if command.has_subcommands() {
            commands(command, page)?;
            continue;
        }
        let mut heading = Roff::new();
        heading.control("SS", [command.get_bin_name().unwrap_or_else(|| command.get_name())]);
        heading.to_writer(page)?;
        let man = Man::new(command.clone());
        page.extend(part(|page| man.render_synopsis_section(page))?);
        page.extend_from_slice(b".PP\n");
        page.extend(part(|page| man.render_description_section(page))?);
        if command.get_arguments().next().is_some() {
            page.extend(part(|page| man.render_options_section(page))?);
        }
        if command.get_after_help().is_some() {
            page.extend_from_slice(b".PP\n");
            page.extend(part(|page| man.render_extra_section(page))?);
        }
    }
    Ok(())
}

/// A section without its heading: it is part of another.
fn part(render: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>) -> std::io::Result<Vec<u8>> {
    let mut rendered = Vec::new();
    render(&mut rendered)?;
    let text = String::from_utf8_lossy(&rendered);
    let lines =
        text.lines().filter(|line| !line.starts_with(".SH ") && !line.starts_with(".ie ") && !line.starts_with(".el "));
    Ok(lines.flat_map(|line| [line, "\n"]).collect::<String>().into_bytes())
}

fn section(page: &mut Vec<u8>, heading: &str, paragraphs: &[&str]) -> std::io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    for (index, paragraph) in paragraphs.iter().enumerate() {
        if index > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(*paragraph)]);
    }
    roff.to_writer(page)
}
