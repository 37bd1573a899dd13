//! Logs, to stderr: data goes to stdout. Called once, by the command line.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Reads what is to be logged: `warn`, `info`, or by room: `info,punctual::engine=debug`.
///
/// # Errors
/// Why it cannot be read.
pub fn filter(text: &str) -> Result<EnvFilter, String> {
    // The clients of NATS and RabbitMQ call every attempt that fails an error, and RabbitMQ's logs each message that comes
    // back with its payload; the sinks say what it means. The later directive wins.
    EnvFilter::try_new(format!("async_nats=off,lapin=off,{text}"))
        .map_err(|error| format!("`{text}` is no log filter, such as `info` or `info,punctual::engine=debug`: {error}"))
}

/// Sets up logging for this process; `filter` as [`filter`] reads it. With `json` each line is an object.
///
/// # Errors
/// When the filter cannot be read.
pub fn start(filter: &str, json: bool) -> Result<(), String> {
    let filter = self::filter(filter)?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(!json && std::io::stderr().is_terminal());
    // A second call in one process (tests) keeps the first.
    let set = match json {
        true => tracing::subscriber::set_global_default(logs.json().flatten_event(true).finish()),
        false => tracing::subscriber::set_global_default(logs.finish()),
    };
    match set {
        Ok(()) => tell_of_panics(),
        Err(_) => tracing::debug!("logging was set up before"),
    }
    Ok(())
}

/// A panic is an ERROR of the log, in its form, and not lines of its own between those of the log.
fn tell_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let detail = panic.payload_as_str().unwrap_or("no words");
        tracing::error!(place, words = detail, "a part of punctual has panicked");
    }));
}
