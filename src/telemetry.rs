//! Logs to stderr; stdout is for data. The command line sets them up once.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Parses a log filter: `warn`, `info`, or by module: `info,punctual::engine=debug`.
///
/// # Errors
/// Why it cannot be parsed.
pub fn filter(text: &str) -> Result<EnvFilter, String> {
    // The clients of NATS and RabbitMQ log every failed attempt as an error, and RabbitMQ's logs returned messages with
    // their payloads. The sinks report what matters. Later directives win, so users can enable them.
    EnvFilter::try_new(format!("async_nats=off,lapin=off,{text}")).map_err(|error| {
        format!("`{text}` cannot be used as a log filter: {error}. Examples: `info`, `info,punctual::engine=debug`")
    })
}

/// Sets up logging for this process; see [`filter`] for the filter. With `json` each line is an object.
///
/// # Errors
/// If the filter cannot be parsed.
pub fn start(filter: &str, json: bool) -> Result<(), String> {
    let filter = self::filter(filter)?;
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(!json && std::io::stderr().is_terminal());
    // A second call in one process (in tests) keeps the first setup.
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

/// Logs a panic as an ERROR in the format of the log.
fn tell_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string);
        let detail = panic.payload_as_str().unwrap_or("no panic message");
        tracing::error!(place, detail, "a part of punctual has panicked");
    }));
}
