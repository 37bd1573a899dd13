//! Checks whether a Redis Cluster can store the timeline: finds the master of each slot, and checks each master.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use punctual_sinks::{Away, Cause, RedisAccess};

use super::check::{ServerCheck, ServerCheckError, away, check_layout, check_master, refused};
use super::cluster::{self, Server, SlotAnswer, is_in_cluster, probe};
use super::connector::{SOCKET, connection};
use super::server::Advice;
use super::session::Session;
use super::time::Time;
use super::wait_connection::server_process;
use super::{RedisConfig, RedisError};
use crate::timeline::keys::Keys;

/// More tasks in one shard make the move of its slot take more than a second, during which the shard is away.
const MANY_TASKS: u64 = 300_000;

/// A larger difference between the clocks of two masters is reported.
const MAX_CLOCK_DIFFERENCE_MICROS: i64 = 100_000;

/// The nodes that answered, and who has which slot.
struct Found {
    sessions: BTreeMap<Server, Session>,
    /// The master of each shard, in order; the last one is the master of the slot of the namespace.
    owners: Vec<Server>,
    advice: Vec<Advice>,
}

/// Checks all masters of the timeline.
pub(super) async fn check(
    config: &RedisConfig,
    access: &RedisAccess,
    keys: &[Keys],
) -> Result<ServerCheck, ServerCheckError> {
    let Found { sessions, owners, mut advice } = find(config, access, keys).await?;
    if access.servers().len() < 2 {
        advice.push(Advice {
            detail: "the URL names one node of the cluster: an instance that starts while that is down finds no other"
                .to_owned(),
            hint: "name at least two nodes that do not fail together; replicas will do",
        });
    }
    let mut begun = false;
    let (mut version, mut masters, mut clocks) = (None, Vec::new(), Vec::new());
    let (namespace_owner, of_shards) = (owners.last(), &owners[..keys.len()]);
    for (server, session) in &sessions {
        let own: Vec<Keys> =
            of_shards.iter().zip(keys).filter(|(owner, _)| *owner == server).map(|(_, keys)| keys.clone()).collect();
        if own.is_empty() && namespace_owner != Some(server) {
            continue;
        }
        let address = access.address_of(server);
        if namespace_owner == Some(server) {
            begun = check_layout(config, session).await.map_err(|error| at(&address, error))?;
        }
        let checked = check_master(config, access, session, keys, &own).await;
        let state = checked.map_err(|error| at(&address, error))?;
        advice.extend(state.advice.into_iter().map(|advice| advice.of(&address)));
        advice.extend(full_coverage(config, session, &address).await);
        for keys in &own {
            advice.extend(many_tasks(config, session, keys).await?);
        }
        clocks.push((address.clone(), clock_difference(config, session).await?));
        version = version.or(state.version);
        masters.push((address, own.len()));
    }
    advice.extend(different_clocks(&clocks));
    Ok(ServerCheck { begun, version, masters, advice })
}

/// Asks the nodes of the URL, and those that they name, for all slots.
async fn find(config: &RedisConfig, access: &RedisAccess, keys: &[Keys]) -> Result<Found, ServerCheckError> {
    let slots = cluster::slots(&config.namespace, keys);
    let mut owners: Vec<Option<Server>> = vec![None; slots.len()];
    let mut found = Found { sessions: BTreeMap::new(), owners: Vec::new(), advice: Vec::new() };
    let (mut seen, mut processes, mut unknown) = (BTreeSet::new(), BTreeSet::new(), None);
    let mut failed: Option<Away> = None;
    let mut queue: VecDeque<(Server, bool)> = access.servers().iter().map(|server| (server.clone(), true)).collect();
    while let Some((server, is_in_url)) = queue.pop_front() {
        if !seen.insert(server.clone()) {
            continue;
        }
        let address = access.address_of(&server);
        let commands = access.connect_to(&server, SOCKET, connection(), config.connect_timeout).await;
        let session = match commands {
            Ok(commands) => Session::new(commands, Time::of_server(Arc::default())).in_cluster(),
            Err(away) if is_in_url => {
                found.advice.push(Advice {
                    detail: format!("`{address}` of the URL cannot be reached: {}", away.detail),
                    hint: "an instance uses the other nodes of the URL in the meantime",
                });
                failed.get_or_insert(away.with_prefix(format!("`{address}`: ")));
                continue;
            }
            Err(away) => {
                let prefix = match away.cause {
                    Cause::LogIn => format!(
                        "the node `{address}` refuses the login that others accept; Redis does not copy users between nodes, so \
                         create the user there, too: "
                    ),
                    _ => format!(
                        "the cluster names the node `{address}`; if it runs and is not reachable from here, set \
                         `cluster-announce-ip` there: "
                    ),
                };
                return Err(ServerCheckError::Away(away.with_prefix(prefix)));
            }
        };
        if !is_in_cluster(&session, config.response_timeout).await.map_err(refused)? {
            return Err(ServerCheckError::Redis(RedisError::NoCluster(address)));
        }
        // A node may have several names.
        let process = server_process(&session, config.response_timeout).await.map_err(away)?;
        if !processes.insert(process) {
            continue;
        }
        let answers = probe(&session, slots.iter().map(String::as_str), config.response_timeout).await;
        for ((owner, key), answer) in owners.iter_mut().zip(&slots).zip(answers) {
            match answer {
                SlotAnswer::Here | SlotAnswer::Moving => {
                    let former = owner.replace(server.clone());
                    let Some(former) = former else { continue };
                    let Some(other) = found.sessions.get(&former) else { continue };
                    // The slot may have moved since the other was asked.
                    let still = probe(other, [key.as_str()], config.response_timeout).await;
                    if matches!(still[..], [SlotAnswer::Here]) {
                        let other = access.address_of(&former);
                        let detail = format!(
                            "`{other}` and `{address}` are in different clusters, because both have the same slot; name nodes of \
                             one cluster only"
                        );
                        return Err(refused(detail));
                    }
                }
                SlotAnswer::At(other) => queue.push_back((other, false)),
                SlotAnswer::Unknown(detail) => unknown = Some(format!("`{address}`: {detail}")),
            }
        }
        found.sessions.insert(server, session);
    }
    // A node that is down may be the one with the slots that nobody else has.
    found.owners = owners.into_iter().collect::<Option<_>>().ok_or_else(|| match (failed, unknown) {
        (Some(away), _) => ServerCheckError::Away(away),
        (None, detail) => refused(detail.unwrap_or_else(|| "no node has the slots of all shards".to_owned())),
    })?;
    Ok(found)
}

/// Adds the address of the server to a failure.
fn at(address: &str, error: ServerCheckError) -> ServerCheckError {
    match error {
        ServerCheckError::Away(away) => ServerCheckError::Away(away.with_prefix(format!("`{address}`: "))),
        error => error,
    }
}

/// With Redis' default, all masters refuse while the slots of one are not covered.
async fn full_coverage(config: &RedisConfig, session: &Session, address: &str) -> Option<Advice> {
    let get = redis::cmd("CONFIG").arg("GET").arg("cluster-require-full-coverage").to_owned();
    let value = match session.ask(&get, config.response_timeout, None).await {
        Ok(answer) => redis::from_redis_value::<Vec<String>>(answer).ok()?.pop()?,
        // Managed servers forbid CONFIG, and `INFO` does not have it.
        Err(_) => {
            return Some(Advice {
                detail: format!("`{address}` does not say whether it serves while another master is down"),
                hint: "look at `cluster-require-full-coverage`, which should be `no`; or allow the user to call `CONFIG GET`",
            });
        }
    };
    (value == "yes").then(|| Advice {
        detail: format!(
            "`{address}` refuses all calls while another master is down: `cluster-require-full-coverage` is `yes`"
        ),
        hint: "`cluster-require-full-coverage no`: the shards of the other masters then go on",
    })
}

async fn many_tasks(config: &RedisConfig, session: &Session, keys: &Keys) -> Result<Option<Advice>, ServerCheckError> {
    let answer = session.ask(redis::cmd("HLEN").arg(keys.tasks()), config.response_timeout, None).await;
    let tasks: u64 = redis::from_redis_value(answer.map_err(away)?).unwrap_or_default();
    Ok((tasks > MANY_TASKS).then(|| Advice {
        detail: format!(
            "the hash `{}` has {tasks} tasks: while its slot is moved, the shard is away for a second or more",
            keys.tasks()
        ),
        hint: "move it when few tasks wait; a new namespace can have more shards",
    }))
}

/// The clock of the server minus that of this machine, in microseconds.
async fn clock_difference(config: &RedisConfig, session: &Session) -> Result<i64, ServerCheckError> {
    session.ask_time(config.response_timeout).await.map_err(away)?;
    Ok(-session.time.clock().wall_difference_micros().unwrap_or_default())
}

fn different_clocks(clocks: &[(String, i64)]) -> Option<Advice> {
    let (first, least) = clocks.iter().min_by_key(|(_, difference)| *difference)?;
    let (last, most) = clocks.iter().max_by_key(|(_, difference)| *difference)?;
    (most - least > MAX_CLOCK_DIFFERENCE_MICROS).then(|| Advice {
        detail: format!("the clock of `{last}` is {} ms ahead of that of `{first}`", (most - least) / 1000),
        hint: "set the clocks by NTP: a task is due on the clock of the master that has it",
    })
}
