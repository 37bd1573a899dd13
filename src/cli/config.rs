//! `punctual config`: shows the resulting configuration and where each value comes from.

use anyhow::anyhow;
use clap::Args;
use serde_json::{Map, Value, json};

use super::parts::Parts;
use super::program::{Failure, runtime};
use super::{SourceArguments, say, tell};
use crate::config::{Config, ConfigFault, Origin, Setting};

#[derive(Args)]
pub(super) struct ConfigArguments {
    #[command(flatten)]
    sources: SourceArguments,
    /// Show it as JSON: an object of options, each with `value` and `origin`
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: ConfigArguments) -> Result<(), Failure> {
    let sources = arguments.sources.sources()?;
    let runtime = runtime()?;
    // The parts are built too, so that an instance starts with the shown configuration.
    let inside = runtime.enter();
    let (config, parts) = Config::load_and(sources, Parts::build)?;
    drop(inside);
    let settings = config.settings();
    match arguments.json {
        true => {
            let object: Map<String, Value> = settings.iter().map(as_json).collect();
            let text = serde_json::to_string_pretty(&object).map_err(|error| Failure::failed(anyhow!(error)))?;
            say(&format!("{text}\n"))?;
        }
        false => say(&table(&settings))?,
    }
    warn(config.warnings.iter().chain(&parts.warnings));
    Ok(())
}

/// Prints warnings: settings that work but are probably not intended.
pub(super) fn warn<'a>(warnings: impl Iterator<Item = &'a ConfigFault>) {
    warnings.for_each(|warning| tell(&format!("warning: {warning}\n")));
}

fn as_json(setting: &Setting) -> (String, Value) {
    (setting.path.clone(), json!({"value": setting.value, "origin": origin(setting)}))
}

fn origin(setting: &Setting) -> String {
    match (&setting.follows, &setting.origin) {
        (Some(followed), _) => followed.clone(),
        (None, origin) => origin.to_string(),
    }
}

/// Lines of TOML, with the origin as a comment; `default` if the option is not set.
fn table(settings: &[Setting]) -> String {
    let lines: Vec<_> = settings.iter().map(|of| (of.toml(), of)).collect();
    let width = lines.iter().map(|(line, _)| line.chars().count()).filter(|width| *width <= 60).max().unwrap_or(0);
    let mut text = String::new();
    for (line, of) in lines {
        text += &match (&of.origin, &of.follows) {
            (Origin::Default, None) => format!("{line:width$}  # default\n"),
            _ => format!("{line:width$}  # {}\n", origin(of)),
        };
    }
    text
}
