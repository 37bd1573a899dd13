//! Completions and manual page, generated from the definitions of the command line.

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::out;
use super::program::Failure;

/// The arguments of `completions`.
#[derive(Args, Debug)]
pub struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// The text of a manual page around the commands; each text is a paragraph.
#[derive(Debug)]
pub struct PageTexts {
    /// What the program does.
    pub description: &'static str,
    /// Its exit codes.
    pub exit_status: &'static [&'static str],
    /// The environment variables that it reads.
    pub environment: &'static [&'static str],
    /// The files that it reads.
    pub files: &'static [&'static str],
}

impl CompletionsArguments {
    /// Prints the completion script of a shell for a program.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn print(&self, command: &mut Command, name: &str) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, command, name, &mut script);
        out::write(&script)
    }
}

/// Prints one page with all commands.
///
/// # Errors
/// If stdout cannot be written.
pub fn man(command: Command, texts: &PageTexts) -> Result<(), Failure> {
    let page = render(command, texts).map_err(Failure::failed)?;
    out::write(&page)
}

fn render(command: Command, texts: &PageTexts) -> std::io::Result<Vec<u8>> {
    // Without `--help` and `--version`, which every command would list again.
    let mut root = without_help(command).subcommand_help_heading("COMMAND");
    root.build();
    let mut page = Vec::new();
    let whole = Man::new(root.clone()).manual("punctual");
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    whole.render_synopsis_section(&mut page)?;
    section(&mut page, "DESCRIPTION", &[texts.description])?;
    section(&mut page, "COMMANDS", &[])?;
    commands(&root, &mut page)?;
    section(&mut page, "EXIT STATUS", texts.exit_status)?;
    for (heading, paragraphs) in [("ENVIRONMENT", texts.environment), ("FILES", texts.files)] {
        if !paragraphs.is_empty() {
            section(&mut page, heading, paragraphs)?;
        }
    }
    Ok(page)
}

fn without_help(command: Command) -> Command {
    command.disable_help_flag(true).disable_version_flag(true).mut_subcommands(without_help)
}

/// Adds a section for each command without subcommands.
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

/// A section without its heading, because it is part of another one.
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
