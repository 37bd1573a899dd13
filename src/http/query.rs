//! Converts the parameters of a query to JSON, so that they are parsed and their faults reported like a body's.

use axum::extract::Query;
use axum::http::Uri;

use super::problem::Problem;
use crate::task::Fault;

/// The parameters as a JSON object, in their order.
pub(super) fn as_json(uri: &Uri) -> Result<String, Problem> {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let broken = |_| Fault { pointer: String::new(), code: "bad_value", detail: "the query cannot be read".to_owned() };
    let Query(pairs) = pairs.map_err(|error| Problem::invalid(vec![broken(error)]))?;
    let text = |text: &str| serde_json::Value::from(text).to_string();
    // A number in JSON has no sign and no leading zero.
    let is_number = |text: &str| text.parse::<u64>().is_ok_and(|number| number.to_string() == text);
    let member = |(name, value): &(String, String)| match &**name {
        "limit" | "next" | "windows" if is_number(value) => format!("{}:{value}", text(name)),
        _ => format!("{}:{}", text(name), text(value)),
    };
    Ok(format!("{{{}}}", pairs.iter().map(member).collect::<Vec<_>>().join(",")))
}

/// The fault of a cursor that no answer contained.
pub(super) fn bad_cursor() -> Fault {
    let detail = "it is not a `next_cursor` of an earlier answer".to_owned();
    Fault { pointer: "/cursor".to_owned(), code: "bad_value", detail }
}
