//! Reads `/metrics` of instances, and sends single requests to them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use tokio::time::timeout;

/// Timeout of an answer; a batch may wait for room in the instance.
const LIMIT: Duration = Duration::from_secs(60);

/// The lateness histograms of all lanes.
#[derive(Clone, Debug, Default)]
pub(super) struct Scrape(BTreeMap<String, Histogram>);

/// Cumulative counts by upper bound in microseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram(BTreeMap<u64, u64>);

/// Median and 99th percentile of lateness.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Lateness {
    /// Number of occurrences.
    pub count: u64,
    /// The median, as the bound of its bucket.
    pub p50_ms: f64,
    /// The 99th percentile, as the bound of its bucket.
    pub p99_ms: f64,
}

/// Reads the metrics of an instance.
///
/// # Errors
/// If it does not answer 200.
pub(super) async fn scrape(api: SocketAddr) -> anyhow::Result<Scrape> {
    let text = ask(Method::GET, api, "/metrics", String::new()).await?;
    Ok(Scrape::read(&text))
}

/// Posts lines of JSON.
///
/// # Errors
/// If it is not answered 200.
pub(super) async fn post(api: SocketAddr, path: &str, body: String) -> anyhow::Result<String> {
    ask(Method::POST, api, path, body).await
}

async fn ask(method: Method, api: SocketAddr, path: &str, body: String) -> anyhow::Result<String> {
    let request = Request::builder().method(&method).uri(format!("http://{api}{path}"));
    let request = request.header("content-type", "application/x-ndjson").body(Full::from(Bytes::from(body)))?;
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let asking = async {
        let answer = client.request(request).await?;
        anyhow::Ok((answer.status(), answer.into_body().collect().await?.to_bytes()))
    };
    let asked = timeout(LIMIT, asking).await.unwrap_or_else(|_| bail!("no answer within {LIMIT:?}"));
    let (status, body) = asked.with_context(|| format!("cannot ask `{api}`"))?;
    let text = String::from_utf8_lossy(&body).into_owned();
    if !status.is_success() {
        bail!("`{method} {path}` of `{api}` is answered {status}: {text}");
    }
    Ok(text)
}

impl Scrape {
    fn read(text: &str) -> Scrape {
        let mut scrape = Scrape::default();
        for line in text.lines() {
            let Some((labels, value)) =
                line.strip_prefix("punctual_lateness_seconds_bucket{").and_then(|rest| rest.split_once("} "))
            else {
                continue;
            };
            let label = |name: &str| {
                let rest = labels.split(',').find_map(|label| label.strip_prefix(name))?;
                rest.strip_prefix("=\"")?.strip_suffix('"')
            };
            let (Some(lane), Some(bound), Ok(count)) = (label("lane"), label("le"), value.trim().parse()) else {
                continue;
            };
            let bound = bound.parse::<f64>().ok().filter(|bound| bound.is_finite());
            let bound = bound.map_or(u64::MAX, |bound| (bound * 1e6) as u64);
            scrape.0.entry(lane.to_owned()).or_default().0.insert(bound, count);
        }
        scrape
    }

    /// Adds the counts of another instance.
    pub(super) fn add(&mut self, other: &Scrape) {
        for (lane, histogram) in &other.0 {
            let sum = self.0.entry(lane.clone()).or_default();
            histogram.0.iter().for_each(|(bound, count)| *sum.0.entry(*bound).or_default() += count);
        }
    }

    pub(super) fn lateness(&self, lane: &str) -> Histogram {
        self.0.get(lane).cloned().unwrap_or_default()
    }
}

impl Histogram {
    /// Number of all occurrences.
    pub(super) fn count(&self) -> u64 {
        self.0.values().next_back().copied().unwrap_or_default()
    }

    /// The counts since `before`.
    pub(super) fn since(&self, before: &Histogram) -> Histogram {
        let less = |(bound, count): (&u64, &u64)| {
            (*bound, count.saturating_sub(before.0.get(bound).copied().unwrap_or_default()))
        };
        Histogram(self.0.iter().map(less).collect())
    }

    pub(super) fn figures(&self) -> Lateness {
        self.figures_of_least(self.count() as f64)
    }

    /// The figures of the `count` least late ones.
    pub(super) fn figures_of_least(&self, count: f64) -> Lateness {
        let within = |share: f64| {
            let bound = self.0.iter().find(|(_, below)| **below as f64 >= share * count).map_or(0, |(bound, _)| *bound);
            bound as f64 / 1000.0
        };
        Lateness { count: count as u64, p50_ms: within(0.5), p99_ms: within(0.99) }
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} occurrences, p50 <= {} ms, p99 <= {} ms", self.count, self.p50_ms, self.p99_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_read_per_lane_and_reported_as_its_bucket_bound() {
        let text = "# HELP x\n\
            punctual_lateness_seconds_bucket{le=\"0.001\",lane=\"a\"} 5\n\
            punctual_lateness_seconds_bucket{le=\"0.01\",lane=\"a\"} 9\n\
            punctual_lateness_seconds_bucket{le=\"+Inf\",lane=\"a\"} 10\n\
            punctual_lateness_seconds_bucket{le=\"+Inf\",lane=\"b\"} 3\n";
        let mut scrape = Scrape::read(text);
        let before = scrape.lateness("a");
        assert_eq!((before.count(), scrape.lateness("b").count(), scrape.lateness("c").count()), (10, 3, 0));
        assert_eq!((before.figures().p50_ms, before.figures_of_least(9.0).p99_ms), (1.0, 10.0));
        scrape.add(&Scrape::read(text));
        assert_eq!(scrape.lateness("a").since(&before).count(), 10);
        assert_eq!(scrape.lateness("a").count(), 20);
    }
}
