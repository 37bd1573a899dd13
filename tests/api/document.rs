//! Checks answers against the OpenAPI document.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::client::Answer;

/// The document.
pub(super) static DOCUMENT: LazyLock<Value> = LazyLock::new(punctual::http::openapi);

/// An operation of the document.
pub(super) struct Operation {
    pub(super) method: String,
    /// With names in braces.
    pub(super) path: String,
    pub(super) value: &'static Value,
}

/// All operations, in the order of the document.
pub(super) fn operations() -> Vec<Operation> {
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let of_path = |(path, item): (&String, &'static Value)| {
        let path = path.clone();
        let operation = move |(method, value): (&String, &'static Value)| Operation {
            method: method.to_uppercase(),
            path: path.clone(),
            value,
        };
        item.as_object().unwrap().iter().map(operation).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

/// Whether a path matches a template with names in braces.
fn fits(template: &str, path: &str) -> bool {
    let path = path.split('?').next().unwrap_or_default();
    let (template, path): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    template.len() == path.len()
        && template.iter().zip(path).all(|(part, given)| *part == given || part.starts_with('{') && !given.is_empty())
}

/// The faults of a value by a schema of the document. Unknown members of answers are faults too.
pub(super) fn faults(schema: &Value, value: &Value) -> Vec<String> {
    static COMPONENTS: LazyLock<Value> = LazyLock::new(|| {
        let mut components = DOCUMENT["components"].clone();
        for schema in components["schemas"].as_object_mut().unwrap().values_mut() {
            close(schema);
        }
        components
    });
    let mut whole = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "components": *COMPONENTS});
    whole["allOf"] = json!([schema]);
    let validator: Validator = jsonschema::validator_for(&whole).unwrap();
    validator.iter_errors(value).map(|error| format!("{error} at {}", error.instance_path())).collect()
}

fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            members.values_mut().for_each(close);
            if members.contains_key("properties") {
                members.entry("additionalProperties").or_insert(json!(false));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}

/// Panics if the document does not describe the answer. For unknown paths and methods any
/// problem with the status 401, 403, 404 or 405 is valid.
pub(super) fn check(method: &str, path: &str, answer: &Answer) {
    if method == "HEAD" {
        return;
    }
    let known = operations().into_iter().find(|known| known.method == method && fits(&known.path, path));
    let about = format!("{method} {path} was answered {answer:?}");
    let kind = answer.header("content-type").unwrap_or_default();
    let Some(known) = known else {
        let problem = json!({"$ref": "#/components/schemas/Problem"});
        assert!(matches!(answer.status, 401 | 403 | 404 | 405), "{about}");
        assert_eq!(faults(&problem, &answer.json()), [""; 0], "{about}");
        return;
    };
    let response = &known.value["responses"][answer.status.to_string()];
    let content = &response["content"][kind];
    assert!(content.is_object(), "{about}; the document has {response}");
    let text = || Value::from(answer.body.as_str());
    let value = if kind.contains("json") && !kind.contains("ndjson") { answer.json() } else { text() };
    assert_eq!(faults(&content["schema"], &value), [""; 0], "{about}");
    if let Some(schema) = response.get("x-item-schema") {
        for line in answer.lines() {
            assert_eq!(faults(schema, &line), [""; 0], "{about}");
        }
    }
}
