//! The `punctual` program: reads the command line and does as it says.

use std::process::ExitCode;

/// A herd or an outage takes a hundred megabytes for some seconds. The system's allocator keeps most of that for ever, since
/// something small lies above it; this one gives it back within some ten seconds, from threads of its own. (Those do not work
/// with musl.)
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    punctual::cli::run(std::env::args_os())
}
