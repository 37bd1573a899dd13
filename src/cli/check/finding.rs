//! What a check found, as text and as JSON.

use punctual_sinks::Cause;
use serde_json::{Value, json};

use crate::config::{Config, ConfigError, ConfigFault};

/// The result of one check.
pub(super) struct Finding {
    /// `configuration`, `timeline`, `sink <name>`, `lane <name>` or `door <name>`.
    pub(super) of: String,
    pub(super) result: Result<String, CheckFailure>,
    /// What works but is probably not intended: text and hint.
    pub(super) warnings: Vec<(String, Option<String>)>,
}

/// Why a check failed.
pub(super) struct CheckFailure {
    pub(super) kind: Kind,
    /// The option, and where it was set.
    fault: ConfigFault,
}

/// The kind of a failure, which decides the exit code.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Refused,
    Missing,
    Unreadable,
    Configuration,
    Unreachable,
    LogIn,
    Untrusted,
}

impl Kind {
    pub(super) fn code(self) -> u8 {
        match self {
            Kind::Refused | Kind::Missing | Kind::Unreadable => 1,
            Kind::Configuration => 2,
            Kind::Unreachable => 3,
            Kind::LogIn => 4,
            Kind::Untrusted => 5,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Refused => "other",
            // What a door reads, or a destination.
            Kind::Missing | Kind::Unreadable => "missing",
            Kind::Configuration => "configuration",
            Kind::Unreachable => "unreachable",
            Kind::LogIn => "log_in",
            Kind::Untrusted => "untrusted",
        }
    }

    /// The beginning of the error text.
    fn detail(self) -> &'static str {
        match self {
            Kind::Refused => "it refuses calls",
            Kind::Missing => "messages would be refused",
            Kind::Unreadable => "it cannot be read",
            Kind::Configuration => "it cannot be used",
            Kind::Unreachable => "it cannot be reached",
            Kind::LogIn => "the login was refused",
            Kind::Untrusted => "its certificate is not trusted",
        }
    }

    fn hint(self, option: &str) -> Option<String> {
        match self {
            Kind::Refused | Kind::Missing | Kind::Unreadable | Kind::Configuration => None,
            Kind::Unreachable => {
                Some(format!("start it, or name another address in `{option}`; if it runs, it may hang"))
            }
            Kind::LogIn => Some(format!(
                "the user is in `{option}`, and the password is there or in a file that an option beside it names"
            )),
            Kind::Untrusted => Some("`tls.ca_file` names a file with the authorities to trust".to_owned()),
        }
    }
}

impl CheckFailure {
    pub(super) fn new(config: &Config, option: &str, kind: Kind, detail: String) -> CheckFailure {
        // The kind's own text already says this.
        let detail = Cause::ALL.iter().find_map(|cause| detail.strip_prefix(cause.beginning())).unwrap_or(&detail);
        let detail = format!("{}: {detail}", kind.detail());
        CheckFailure { kind, fault: ConfigFault { hint: kind.hint(option), ..config.fault(option, detail) } }
    }
}

impl Finding {
    pub(super) fn as_text(&self) -> String {
        let mut text = String::new();
        let mut line = |state: &str, detail: &str, hint: Option<&str>| {
            text += &format!("{state:<8} {:<16} {}\n", self.of, detail.replace('\n', "\n    "));
            text += &hint.map(|hint| format!("{:<8} {:<16} hint: {hint}\n", "", "")).unwrap_or_default();
        };
        match &self.result {
            Ok(found) => line("ok", found, None),
            Err(trouble) => {
                let detail = ConfigFault { hint: None, ..trouble.fault.clone() }.to_string();
                line("failed", &detail, trouble.fault.hint.as_deref());
            }
        }
        for (detail, hint) in &self.warnings {
            line("warning", detail, hint.as_deref());
        }
        text
    }

    pub(super) fn as_json(&self) -> Value {
        let (check, name) = match self.of.split_once(' ') {
            Some((check, name)) => (check, Some(name)),
            None => (self.of.as_str(), None),
        };
        let warnings: Vec<_> =
            self.warnings.iter().map(|(detail, hint)| json!({"detail": detail, "hint": hint})).collect();
        let mut object = json!({"check": check, "warnings": warnings});
        if let Some(name) = name {
            object["name"] = name.into();
        }
        match &self.result {
            Ok(found) => {
                object["result"] = "ok".into();
                object["found"] = found.as_str().into();
            }
            Err(trouble) => {
                object["result"] = "failed".into();
                object["kind"] = trouble.kind.name().into();
                object["fault"] = fault_as_json(&trouble.fault);
            }
        }
        object
    }
}

fn fault_as_json(fault: &ConfigFault) -> Value {
    let origin = fault.origin.to_string();
    json!({"option": fault.path, "origin": origin, "detail": fault.detail, "hint": fault.hint})
}

/// A configuration with faults: nothing else was checked.
pub(super) fn faults_as_json(error: &ConfigError) -> Value {
    let faults: Vec<_> = error.0.iter().map(fault_as_json).collect();
    let check = json!({"check": "configuration", "result": "failed", "kind": "configuration", "faults": faults});
    json!({"result": "failed", "exit_code": Kind::Configuration.code(), "checks": [check]})
}
