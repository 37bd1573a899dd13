//! The `punctual-lab` program: reads the command line and does as it says.

use std::process::ExitCode;

fn main() -> ExitCode {
    punctual_lab::cli::run(std::env::args_os())
}
