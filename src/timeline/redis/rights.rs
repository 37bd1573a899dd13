//! Checks that the Redis user has every right that the timeline needs: its commands, its keys, and the wake channels.
//! Otherwise an instance would start, and be answered `NOPERM` later.

use std::collections::BTreeSet;
use std::time::Duration;

use super::call::load_scripts;
use super::session::{CallError, Session};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::ALL;

/// Asks Redis which of the commands in ARGV the user may not run: those on the key KEYS[1], and PUBLISH on the channel
/// ARGV[1]. Redis before 7.0 cannot tell. Redis 8 answers only if the number of arguments is one that the command can have.
const MISSING_COMMANDS: &str = "if not redis.acl_check_cmd then return {} end
local missing = {}
for i = 2, #ARGV do
  local target = ARGV[i] == 'PUBLISH' and ARGV[1] or KEYS[1]
  local is_answered, may
  for _, arguments in ipairs({ { target, target, target }, { target, target }, { target }, {} }) do
    is_answered, may = pcall(redis.acl_check_cmd, ARGV[i], unpack(arguments))
    if is_answered then break end
  end
  if not (is_answered and may) then missing[#missing + 1] = ARGV[i] end
end
return missing";

/// Why a user may not have all rights.
pub(super) enum RightsError {
    Call(CallError),
    /// Some are missing, or it is unknown which.
    Missing(String),
}

impl From<CallError> for RightsError {
    fn from(error: CallError) -> RightsError {
        RightsError::Call(error)
    }
}

/// The commands that scripts run.
fn commands() -> BTreeSet<&'static str> {
    let calls = ["call('", "first_write('"];
    let mut found = BTreeSet::new();
    for source in ALL.iter().map(|script| script.source) {
        for call in calls {
            found.extend(source.split(call).skip(1).filter_map(|rest| rest.split('\'').next()));
        }
        // The command is the second argument; the definition of the function names none.
        let listed = source.split("call_with(").skip(1).filter_map(|rest| rest.split_once(", '")?.1.split('\'').next());
        found.extend(listed.filter(|command| command.bytes().all(|byte| byte.is_ascii_uppercase())));
    }
    found
}

/// Checks the rights on one shard. The error text names those that are missing. Stores scripts in the cache of Redis, and
/// writes nothing else.
///
/// # Errors
/// A call failed, with `NOPERM` if its own right is missing, or commands of the scripts are not allowed.
pub(super) async fn check(session: &Session, keys: &Keys, timeout: Duration) -> Result<(), RightsError> {
    session.ask(&redis::cmd("PING"), timeout, None).await?;
    load_scripts(session, timeout).await?;
    let hash = session.ask(redis::cmd("SCRIPT").arg("LOAD").arg(MISSING_COMMANDS), timeout, None).await?;
    let commands: Vec<&str> = commands().into_iter().collect();
    let mut ask = redis::cmd("EVALSHA");
    ask.arg(redis::from_redis_value::<String>(hash).map_err(unreadable)?).arg(1).arg(keys.nothing()).arg(keys.wake());
    let missing = session.ask(ask.arg(commands), timeout, None).await?;
    let missing: Vec<String> = redis::from_redis_value(missing).map_err(unreadable)?;
    match missing.is_empty() {
        true => Ok(()),
        false => Err(RightsError::Missing(format!(
            "its user lacks the right to {}; docs/operations.md lists all that it needs",
            missing.join(", ")
        ))),
    }
}

fn unreadable(error: redis::ParsingError) -> RightsError {
    RightsError::Missing(format!("cannot read its answer about the rights of its user: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every command in upper case that follows a call, and nothing else, such as an option.
    #[test]
    fn the_commands_of_the_scripts_are_found() {
        let found = commands();
        for command in
            ["TIME", "HSET", "HDEL", "HMGET", "ZADD", "ZREM", "ZRANGEBYSCORE", "PUBLISH", "SADD", "SET", "GET"]
        {
            assert!(found.contains(command), "{command} in {found:?}");
        }
        assert!(found.iter().all(|command| command.bytes().all(|byte| byte.is_ascii_uppercase())), "{found:?}");
        for option in ["XX", "LIMIT", "WITHSCORES", "BADCALL"] {
            assert!(!found.contains(option), "{option}");
        }
    }

    /// The user of docs/operations.md may run all of these.
    #[test]
    fn the_documented_redis_user_is_allowed_to_run_all_script_commands() {
        let page = include_str!("../../../docs/operations.md");
        let allowed: BTreeSet<&str> = page.split_whitespace().filter_map(|word| word.strip_prefix('+')).collect();
        let missing: Vec<_> =
            commands().into_iter().filter(|command| !allowed.contains(&*command.to_lowercase())).collect();
        assert_eq!(missing, Vec::<&str>::new());
    }
}
