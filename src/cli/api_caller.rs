//! Calls the API for a command, and shows lists page by page.

use anyhow::anyhow;
use clap::Args;
use hyper::Method;
use hyper::header::HeaderName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::client::{ApiAnswer, Client};
use super::fault::{FaultView, faults};
use super::out::{self, Printable};
use super::target::ApiTarget;
use super::{Failure, say, tell};

/// The characters of a task id are valid in a path; all others must be escaped.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b':').remove(b'-');

/// Maximum number of entries in one page of an instance.
pub(super) const PAGE_ENTRIES: usize = 1000;

/// The instance, and how to show its answer.
#[derive(Args)]
pub(super) struct CallArguments {
    #[command(flatten)]
    pub(super) target: ApiTarget,
    /// Show the instance's answer as it is
    #[arg(long)]
    pub(super) json: bool,
}

/// An instance, and how to show its answers.
pub(super) struct ApiCaller<'a> {
    pub(super) arguments: &'a CallArguments,
    client: Client,
}

/// A page of a list.
#[derive(Deserialize)]
pub(super) struct PageView {
    pub(super) items: Vec<Box<RawValue>>,
    pub(super) next_cursor: Option<String>,
}

/// What the commands use of a problem.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ProblemView {
    pub(super) code: String,
    pub(super) detail: Printable,
    errors: Vec<FaultView>,
}

impl ApiCaller<'_> {
    pub(super) fn new(arguments: &CallArguments) -> Result<ApiCaller<'_>, Failure> {
        Ok(ApiCaller { arguments, client: Client::new(&arguments.target)? })
    }

    /// Calls the API. An error status is a failure with the API's text, and so is an answer that no instance gives.
    pub(super) async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        doing: &str,
    ) -> Result<(ApiAnswer, T), Failure> {
        let answer = self.answer(method, path, body, doing).await?;
        let view = self.view(&answer, doing)?;
        Ok((answer, view))
    }

    /// Calls the API and returns its answer, whatever its status is.
    pub(super) async fn answer(
        &self,
        method: Method,
        path: &str,
        body: Option<String>,
        doing: &str,
    ) -> Result<ApiAnswer, Failure> {
        self.answer_with(method, path, &[], body, doing).await
    }

    /// Like [`answer`](ApiCaller::answer), with these headers.
    pub(super) async fn answer_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(HeaderName, &str)],
        body: Option<String>,
        doing: &str,
    ) -> Result<ApiAnswer, Failure> {
        let answer = self.client.call(method, path, headers, body).await;
        answer.map_err(|error| error.while_doing(doing, &self.client))
    }

    /// What an answer says; see [`call`](ApiCaller::call).
    pub(super) fn view<T: DeserializeOwned>(&self, answer: &ApiAnswer, doing: &str) -> Result<T, Failure> {
        if !(200..300).contains(&answer.status) {
            return Err(refused(&self.client, answer, doing, self.arguments.json));
        }
        serde_json::from_str(&answer.text).map_err(|_| self.no_instance(doing, answer.status))
    }

    /// A page of about `limit` entries of a list.
    pub(super) async fn page(
        &self,
        path: &str,
        parameters: &[(&str, &Option<String>)],
        limit: usize,
        cursor: &Option<String>,
        doing: &str,
    ) -> Result<(ApiAnswer, PageView), Failure> {
        let path = format!("{path}?limit={}", limit.min(PAGE_ENTRIES));
        let path = with_query(&path, parameters.iter().copied().chain([("cursor", cursor)]));
        self.call(Method::GET, &path, None, doing).await
    }

    /// Shows at most `limit` entries of a list: as JSON, or each as a line.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(&str, &Option<String>)],
        limit: u64,
        doing: &str,
        line: impl Fn(&T) -> String,
    ) -> Result<(), Failure> {
        let mut left = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut cursor: Option<String> = None;
        loop {
            let (answer, page) = self.page(path, parameters, left, &cursor, doing).await?;
            for item in page.items.iter().take(left) {
                match serde_json::from_str::<T>(item.get()) {
                    _ if self.arguments.json => out::json(item.get())?,
                    Ok(entry) => say(&line(&entry))?,
                    Err(_) => return Err(self.no_instance(doing, answer.status)),
                }
            }
            let is_cut = page.items.len() > left;
            left = left.saturating_sub(page.items.len());
            cursor = page.next_cursor;
            if cursor.is_none() && !is_cut {
                return Ok(());
            }
            if left == 0 {
                tell("there are more: `--limit` says how many are shown\n");
                return Ok(());
            }
        }
    }

    /// The failure if something other than an instance answers.
    pub(super) fn no_instance(&self, doing: &str, status: u16) -> Failure {
        let shown = self.client.shown();
        Failure::failed(anyhow!("{doing}: `{shown}` answered {status} but not like an instance of punctual"))
    }
}

/// Does this for each task, one after the other. If an instance refuses one, prints why and goes on; ends at any other failure.
pub(super) async fn for_each(ids: &[String], act: impl AsyncFn(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut failed = 0;
    for id in ids {
        match act(id).await {
            Err(failure) if failure.is_about_task() && ids.len() > 1 => {
                failure.tell();
                failed += 1;
            }
            other => other?,
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::failed(anyhow!("{failed} of {} tasks failed", ids.len()))),
    }
}

/// The failure for an answer with an error status.
pub(super) fn refused(client: &Client, answer: &ApiAnswer, doing: &str, json: bool) -> Failure {
    // `--json` promises JSON, whatever the answer is.
    if json
        && serde_json::from_str::<IgnoredAny>(&answer.text).is_ok()
        && let Err(failure) = out::json(&answer.text)
    {
        return failure;
    }
    let problem = problem(answer);
    // A 409 is reported as "try again soon", which is true only for a task in flight. These two do not change by waiting.
    let status = if ["last", "not_next"].contains(&problem.code.as_str()) { 422 } else { answer.status };
    let failure = client.refused(status, doing, &format!("{}{}", problem.detail, faults(&problem.errors)));
    if [404, 409, 412, 422].contains(&status) { failure.about_task() } else { failure }
}

/// What an answer with an error status says; nothing if it is not from an instance.
pub(super) fn problem(answer: &ApiAnswer) -> ProblemView {
    serde_json::from_str(&answer.text).unwrap_or_default()
}

/// Adds to a path those query parameters that have a value.
pub(super) fn with_query<'a>(
    path: &str,
    parameters: impl IntoIterator<Item = (&'a str, &'a Option<String>)>,
) -> String {
    let mut path = path.to_owned();
    for (name, value) in parameters {
        if let Some(value) = value {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(&format!("{name}={}", escaped(value)));
        }
    }
    path
}

/// The members of a body that are given.
pub(super) fn members<'a>(
    parameters: impl IntoIterator<Item = (&'static str, &'a Option<String>)>,
) -> Map<String, Value> {
    let given = |(name, value): (&str, &Option<String>)| Some((name.to_owned(), Value::from(value.clone()?)));
    parameters.into_iter().filter_map(given).collect()
}

/// A text as a segment of a path, or a value in a query. Invalid characters are escaped, so that the API can report them.
pub(super) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}
