//! What `INFO` says about a Redis server: whether it is set up to keep its data. Managed servers forbid `CONFIG`.

use std::time::Duration;

use super::durable::{Durability, unproven};
use super::session::{CallError, Session, detail};

const NO_REPLICA: &str = "start a replica, or `redis.durability = \"memory\"`";

/// The relevant part of `INFO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerState {
    /// The version; `None` if Redis does not report it.
    pub version: Option<String>,
    /// Settings that are dangerous for a timeline.
    pub advice: Vec<Advice>,
}

/// A setting or state of Redis that is dangerous for a timeline, and how to change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Advice {
    /// The setting and its consequence.
    pub detail: String,
    /// How to change it.
    pub hint: &'static str,
}

impl Advice {
    /// Redis does not answer `INFO`.
    pub(super) fn untold(detail: &str) -> Advice {
        let detail = format!("Redis does not report its eviction and persistence: {detail}");
        Advice { detail, hint: "allow its user to call `INFO`" }
    }

    /// Redis did not confirm a write in time.
    pub(super) fn unproven(durability: Durability, detail: &str, limit: Duration) -> Advice {
        let name = durability.as_str();
        let detail = format!(
            "puts would be answered 503: `redis.durability` is `{name}`; a test write failed: {detail} ({limit:?})"
        );
        let hint = match durability {
            Durability::Fsync => "`appendfsync everysec` or `always`, on a disk that keeps up",
            _ => "`INFO replication` shows whether the replica keeps up",
        };
        Advice { detail, hint }
    }

    /// The same, with the address of its server.
    pub(super) fn of(self, address: &str) -> Advice {
        Advice { detail: format!("`{address}`: {}", self.detail), ..self }
    }

    fn is_of_replicas(&self) -> bool {
        self.hint == NO_REPLICA
    }
}

/// Returns an advice for each dangerous setting, or a single one if Redis does not report its settings.
pub(super) async fn advice(
    session: &Session,
    durability: Durability,
    timeout: Duration,
) -> Result<Vec<Advice>, CallError> {
    let info = match session.ask(&redis::cmd("INFO"), timeout, None).await {
        Ok(info) => redis::from_redis_value::<String>(info).unwrap_or_default(),
        Err(CallError::Refused(error)) => return Ok(vec![Advice::untold(&detail(&error))]),
        Err(unanswered) => return Err(unanswered),
    };
    let mut advice = ServerState::read(&info, durability).advice;
    if !advice.iter().any(Advice::is_of_replicas) {
        advice.extend(unproven(session, durability).await);
    }
    Ok(advice)
}

impl ServerState {
    /// Parses the reply of `INFO`. Missing lines are not judged.
    pub(super) fn read(info: &str, durability: Durability) -> ServerState {
        let line = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        let number = |name: &str| line(name).and_then(|text| text.parse::<u64>().ok());
        let mut advice = Vec::new();
        let (most, policy) = (number("maxmemory").unwrap_or(0), line("maxmemory_policy").unwrap_or_default());
        // The keys of a timeline have no expiry, so the `volatile` policies never evict them.
        if most > 0 && policy.starts_with("allkeys-") {
            advice.push(Advice {
                detail: format!("Redis drops tasks when its {most} bytes are full: `maxmemory-policy` is `{policy}`"),
                hint: "`maxmemory-policy noeviction`: a full Redis then refuses puts, and waiting tasks are still published",
            });
        }
        if number("aof_enabled") == Some(0) {
            let detail = match number("rdb_saves") {
                Some(0) => {
                    "Redis may lose all waiting tasks when it stops: `appendonly` is off, and it has made no snapshot since its start"
                }
                _ => "Redis loses everything since its last snapshot when it stops: `appendonly` is off",
            };
            let hint = "`appendonly yes`; with `appendfsync always` nothing that was answered 2xx is lost";
            advice.push(Advice { detail: detail.to_owned(), hint });
        }
        if durability == Durability::Replica && number("connected_slaves") == Some(0) {
            let detail = "Redis has no replica, and `redis.durability` requires one: every put is answered 503";
            advice.push(Advice { detail: detail.to_owned(), hint: NO_REPLICA });
        }
        for status in ["rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"] {
            if line(status) == Some("err") {
                let detail = format!("Redis cannot write to its disk: `{status}` is `err`");
                advice.push(Advice { detail, hint: "its log says why; until then it may refuse puts" });
            }
        }
        ServerState { version: line("redis_version").map(str::to_owned), advice }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(info: &str) -> Vec<String> {
        ServerState::read(info, Durability::Memory).advice.into_iter().map(|advice| advice.detail).collect()
    }

    #[test]
    fn server_advice_names_only_settings_that_can_lose_tasks() {
        let well = "# Server\r\nredis_version:7.0.15\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
                    rdb_last_bgsave_status:ok\r\naof_last_write_status:ok\r\n";
        assert_eq!(
            ServerState::read(well, Durability::Replica),
            ServerState { version: Some("7.0.15".to_owned()), advice: Vec::new() }
        );
        // Managed servers omit lines.
        assert_eq!(advice(""), Vec::<String>::new());
        let evicts = |most: u64, policy: &str| advice(&format!("maxmemory:{most}\r\nmaxmemory_policy:{policy}\r\n"));
        assert_eq!(
            evicts(1 << 20, "allkeys-lru"),
            ["Redis drops tasks when its 1048576 bytes are full: `maxmemory-policy` is `allkeys-lru`"]
        );
        for (most, policy) in [(0, "allkeys-lru"), (1 << 20, "noeviction"), (1 << 20, "volatile-ttl")] {
            assert!(evicts(most, policy).is_empty(), "{most} {policy}");
        }
        assert!(advice("aof_enabled:0\r\nrdb_saves:0\r\n")[0].contains("no snapshot since its start"));
        assert!(advice("aof_enabled:0\r\nrdb_saves:3\r\n")[0].contains("since its last snapshot"));
        assert!(advice("aof_enabled:0\r\n")[0].contains("since its last snapshot"));
        let alone = |durability| ServerState::read("connected_slaves:0\r\n", durability).advice.len();
        assert_eq!([Durability::Memory, Durability::Replica, Durability::Fsync].map(alone), [0, 1, 0]);
        assert!(advice("rdb_last_bgsave_status:err\r\n")[0].contains("`rdb_last_bgsave_status` is `err`"));
    }
}
