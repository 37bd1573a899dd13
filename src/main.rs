//! The `punctual` program: runs the command line.

use std::process::ExitCode;

/// A herd or an outage needs a hundred megabytes for some seconds. The system's allocator keeps most of that for ever,
/// because small allocations lie above it. jemalloc returns it within ten seconds, from background threads. (They do
/// not work with musl.)
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    punctual::cli::run(std::env::args_os())
}
