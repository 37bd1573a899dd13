//! The limit of open files: every connection needs one.

use rustix::process::{Resource, getrlimit, setrlimit};
use tracing::{debug, warn};

use crate::config::Config;

/// What is left for Redis, the sinks and files. A Kafka sink has a connection to each broker.
const RESERVED_DESCRIPTORS: u64 = 128;

/// Raises the limit of open files to its maximum, and returns how many connections the API may have.
pub(super) fn connections(config: &Config) -> usize {
    let wanted = config.http.server.connections;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            debug!(%error, "cannot raise the limit of open files");
        }
    }
    let files = getrlimit(Resource::Nofile).current;
    let connections = within(wanted, files);
    if connections < wanted {
        warn!(
            files,
            connections,
            wanted,
            "the limit of open files is too low for `http.connections`; raise the limit or lower the option"
        );
    }
    connections
}

/// The number of connections that a limit of open files leaves; `None` is no limit.
fn within(wanted: usize, files: Option<u64>) -> usize {
    let left = files.map_or(u64::MAX, |files| files.saturating_sub(RESERVED_DESCRIPTORS).max(1));
    wanted.min(usize::try_from(left).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_limit_leaves_file_descriptors_for_redis_and_the_sinks() {
        assert_eq!(within(4096, None), 4096);
        assert_eq!(within(4096, Some(1_048_576)), 4096);
        assert_eq!(within(4096, Some(1024)), 896);
        assert_eq!(within(4096, Some(100)), 1, "the API answers nevertheless");
    }
}
