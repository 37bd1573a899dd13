//! The `punctual` that instances are started from.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::time::Instant;

use super::{Missing, find_program};

/// The version that it must report.
const VERSION: &str = concat!("punctual ", env!("CARGO_PKG_VERSION"));

/// How long it may take to report its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of its version.
const MAX_VERSION_BYTES: u64 = 80;

/// The file of a `punctual` of this version.
#[derive(Clone, Debug)]
pub struct Program(PathBuf);

impl Program {
    /// The named file; else the one beside this program, else the first in PATH.
    ///
    /// # Errors
    /// If there is none, it cannot be run, or it has another version.
    pub fn find(named: Option<PathBuf>) -> Result<Program, Missing> {
        let beside = || Some(std::env::current_exe().ok()?.parent()?.join("punctual"));
        let found = named.or_else(|| beside().filter(|file| file.is_file())).or_else(|| find_program("punctual"));
        let Some(file) = found else {
            let hint = "build it beside this program (`cargo build`), or name one: `--punctual FILE`";
            return Err(Missing::new("there is no `punctual` to start", hint));
        };
        let version = version_of(&file).map_err(|error| {
            Missing::new(&format!("cannot run `{}`: {error}", file.display()), "name another: `--punctual FILE`")
        })?;
        if version == VERSION {
            return Ok(Program(file));
        }
        let detail = format!("`{}` is `{version}`, and this program is for `{VERSION}`", file.display());
        Err(Missing::new(&detail, "name one of that version: `--punctual FILE`"))
    }

    /// A program that is never started.
    #[cfg(test)]
    pub(crate) fn nowhere() -> Program {
        Program(PathBuf::new())
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.0
    }
}

/// The first line of its output.
fn version_of(file: &Path) -> io::Result<String> {
    let mut child = Command::new(file).arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > VERSION_TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("it tells no version within {VERSION_TIMEOUT:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut version = String::new();
    child.stdout.take().map(|stdout| stdout.take(MAX_VERSION_BYTES).read_to_string(&mut version)).transpose()?;
    Ok(version.lines().next().unwrap_or_default().to_owned())
}
