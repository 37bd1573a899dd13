//! Instances with default settings, each a process of its own.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use secrecy::ExposeSecret;

use super::process;
use super::setup::BenchSetup;
use crate::servers::Instance;

/// How long to wait for an instance to end. The instance itself ends its work after 20 s at the latest.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(40);

/// A lane and its destination; an empty destination means that the lane names none.
pub(super) type LaneAndDestination<'a> = (&'a str, &'a str);

/// Running instances. Dropping them kills them.
pub(super) struct Fleet {
    instances: Vec<Instance>,
}

impl Fleet {
    /// Starts instances; returns when all serve.
    ///
    /// # Errors
    /// If one does not serve.
    pub(super) async fn start(
        setup: &BenchSetup,
        count: usize,
        lanes: &[LaneAndDestination<'_>],
    ) -> anyhow::Result<Fleet> {
        Fleet::start_with(setup, count, lanes, "").await
    }

    /// Like [`start`](Fleet::start), with more sections of the configuration.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn start_with(
        setup: &BenchSetup,
        count: usize,
        lanes: &[LaneAndDestination<'_>],
        more: &str,
    ) -> anyhow::Result<Fleet> {
        let mut instances = Vec::with_capacity(count);
        for number in 0..count {
            let instance = Instance::new(&setup.program, number, |api| Ok(configuration(api, setup, lanes)? + more))?;
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

    /// Kills the first `count`. Returns their ids.
    ///
    /// # Errors
    /// If one of them did not serve.
    pub(super) async fn kill(&mut self, count: usize) -> anyhow::Result<Vec<String>> {
        let killed: Vec<Instance> = self.instances.drain(..count).collect();
        killed.iter().try_for_each(|instance| instance.signal("KILL"))?;
        for instance in &killed {
            instance.end(DRAIN_TIMEOUT).await?;
        }
        killed.iter().map(|instance| instance.id().context("it has an id")).collect()
    }

    /// Asks all to end, and waits for that.
    ///
    /// # Errors
    /// If the exit code of one is not 0, or it has logged an error; the figures are then not valid.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        for instance in &self.instances {
            let ended = instance.ended()?;
            ensure!(ended.is_none(), "an instance ended by itself: {}", instance.log_tail());
            instance.signal("TERM")?;
        }
        for instance in &self.instances {
            match instance.end(DRAIN_TIMEOUT).await? {
                Some(0) => {}
                ended => bail!("an instance did not end with exit code 0 ({ended:?}): {}", instance.log_tail()),
            }
            let log = instance.log();
            ensure!(log.error_count == 0, "an instance logged errors: {}", log.errors.join(" | "));
        }
        Ok(())
    }
}

fn configuration(api: SocketAddr, setup: &BenchSetup, lanes: &[LaneAndDestination<'_>]) -> anyhow::Result<String> {
    // A JSON string is also a TOML string.
    let quoted = |text: &str| serde_json::to_string(text);
    let mut text = format!(
        "[http]\nlisten = \"{api}\"\n[redis]\nurl = {}\n[timeline]\nnamespace = \"{}\"\nshards = {}\n\
         [log]\nformat = \"json\"\n[sinks.default]\nurl = {}\n",
        quoted(setup.redis_url.expose_secret())?,
        setup.namespace()?,
        setup.shards,
        quoted(setup.sink_url.expose_secret())?,
    );
    for (lane, destination) in lanes {
        text += &format!("[lanes.{lane}]\nsink = \"default\"\n");
        if !destination.is_empty() {
            text += &format!("destination = {}\n", quoted(destination)?);
        }
    }
    Ok(text)
}
