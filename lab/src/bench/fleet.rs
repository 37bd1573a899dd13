//! Instances with default settings, each a process of its own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{bail, ensure};
use secrecy::ExposeSecret;

use super::ground::Ground;
use super::process;
use super::tasks::SHARDS;
use crate::servers::Instance;

/// How long an instance may take to end; its deadline is 20 s.
const END: Duration = Duration::from_secs(40);

/// A lane and its destination, empty for none.
pub(super) type LaneTo<'a> = (&'a str, &'a str);

/// Running instances. Dropping them kills them.
pub(super) struct Fleet {
    instances: Vec<Instance>,
}

impl Fleet {
    /// Starts instances; returns when all serve.
    ///
    /// # Errors
    /// If one does not serve.
    pub(super) async fn start(ground: &Ground, count: usize, lanes: &[LaneTo<'_>]) -> anyhow::Result<Fleet> {
        let mut instances = Vec::with_capacity(count);
        for number in 0..count {
            let instance = Instance::new(&ground.program, number, |api| configuration(api, ground, lanes))?;
            instance.start().await?;
            instances.push(instance);
        }
        Ok(Fleet { instances })
    }

    /// Their addresses.
    pub(super) fn apis(&self) -> Vec<SocketAddr> {
        self.instances.iter().map(|instance| instance.api).collect()
    }

    /// The CPU time of all so far.
    pub(super) fn cpu(&self) -> Option<Duration> {
        self.pids().map(process::cpu).sum()
    }

    /// The memory of all, in bytes.
    pub(super) fn resident(&self) -> Option<u64> {
        self.pids().map(process::resident).sum()
    }

    fn pids(&self) -> impl Iterator<Item = u32> {
        self.instances.iter().filter_map(Instance::pid)
    }

    /// Asks all to end, and waits for that.
    ///
    /// # Errors
    /// If one does not end in order, or has logged an error; the figures are then not valid.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        for instance in &self.instances {
            let ended = instance.ended()?;
            ensure!(ended.is_none(), "an instance ended by itself: {}", instance.last_words());
            instance.signal("TERM")?;
        }
        for instance in &self.instances {
            match instance.end(END).await? {
                Some(0) => {}
                ended => bail!("an instance did not end in order ({ended:?}): {}", instance.last_words()),
            }
            let log = instance.log();
            ensure!(log.error_count == 0, "an instance logged errors: {}", log.errors.join(" | "));
        }
        Ok(())
    }
}

fn configuration(api: SocketAddr, ground: &Ground, lanes: &[LaneTo<'_>]) -> anyhow::Result<String> {
    // A JSON string is also a TOML string.
    let quoted = |text: &str| serde_json::to_string(text);
    let mut text = format!(
        "[http]\nlisten = \"{api}\"\n[redis]\nurl = {}\n[timeline]\nnamespace = \"{}\"\nshards = {SHARDS}\n\
         [log]\nformat = \"json\"\n[sinks.default]\nurl = {}\n",
        quoted(ground.redis_url.expose_secret())?,
        ground.namespace()?,
        quoted(ground.sink_url.expose_secret())?,
    );
    for (lane, destination) in lanes {
        text += &format!("[lanes.{lane}]\nsink = \"default\"\n");
        if !destination.is_empty() {
            text += &format!("destination = {}\n", quoted(destination)?);
        }
    }
    Ok(text)
}
