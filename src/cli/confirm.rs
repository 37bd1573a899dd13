//! Asks back before many things are changed.

use std::io::{IsTerminal, stdin};

use anyhow::anyhow;

use super::{Failure, tell};

/// Asks on the terminal for the number of `things` that would be `done`, such as `tasks` and `cancelled`.
///
/// # Errors
/// If there is no terminal, or another text is typed.
pub(super) fn confirm(things: &str, done: &str, matched: u64) -> Result<(), Failure> {
    if !stdin().is_terminal() {
        let failure = Failure::usage(anyhow!("{matched} {things} would be {done}, and no terminal to ask on"));
        return Err(failure.hint("`--yes` does it without asking; `--dry-run` only counts them"));
    }
    tell(&format!("{matched} {things} will be {done}. Type the number to go on: "));
    let mut typed = String::new();
    stdin().read_line(&mut typed).map_err(Failure::failed)?;
    match typed.trim() == matched.to_string() {
        true => Ok(()),
        false => Err(Failure::failed(anyhow!("nothing was {done}: the number was not typed"))),
    }
}
