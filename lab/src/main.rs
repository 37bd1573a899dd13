//! The `punctual-lab` program: runs the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    punctual_lab::cli::run(std::env::args_os())
}
