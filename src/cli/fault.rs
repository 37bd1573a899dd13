//! The faults of a request, as the API lists them.

use serde::Deserialize;

use super::out::Printable;

/// One fault of a put.
#[derive(Deserialize)]
pub(super) struct FaultView {
    pointer: Printable,
    detail: Printable,
}

/// Several faults, one per line. A single one is in the main text.
pub(super) fn faults(faults: &[FaultView]) -> String {
    let several = if faults.len() > 1 { faults } else { &[] };
    several.iter().map(|fault| format!("\n  {}: {}", fault.pointer, fault.detail)).collect()
}
