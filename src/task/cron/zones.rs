//! Time zones by their IANA names.

use jiff::tz::TimeZone;

use crate::clock::Timestamp;

/// Names that a machine may know but that are refused here. Two depend on the machine, so two instances would compute
/// different dues. The other two name no place.
const NO_PLACES: [&str; 4] = ["localtime", "posixrules", "Factory", "Etc/Unknown"];

/// Folders of copies that some machines have; those in `right` count leap seconds.
const COPIES: [&str; 2] = ["posix/", "right/"];

/// The time zone of this name, in any case of letters.
pub(in crate::task) fn find(name: &str) -> Option<TimeZone> {
    let begins = |copy: &&str| name.get(..copy.len()).is_some_and(|start| start.eq_ignore_ascii_case(copy));
    if NO_PLACES.iter().any(|known| name.eq_ignore_ascii_case(known)) || COPIES.iter().any(begins) {
        return None;
    }
    TimeZone::get(name).ok()
}

/// A time on the clock of a zone, with its offset and the name: `2026-12-24 19:00:00 +01:00 Europe/Berlin`. `None` if there
/// is no such zone.
#[must_use]
pub fn local_time(time: Timestamp, zone: &str) -> Option<String> {
    let local = jiff::Timestamp::from_millisecond(time.as_millis()).ok()?.to_zoned(find(zone)?);
    Some(local.strftime(&format!("%Y-%m-%d %H:%M:%S %:z {}", zone.replace('%', "%%"))).to_string())
}

/// The names of all time zones.
pub(in crate::task) fn names() -> Vec<String> {
    let names = jiff::tz::db().available().map(|name| name.to_string());
    names.filter(|name| find(name).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_names_without_a_place_or_dependent_on_the_machine_are_refused() {
        for name in [
            "localtime",
            "LOCALTIME",
            "posixrules",
            "Factory",
            "factory",
            "Etc/Unknown",
            "right/UTC",
            "posix/Europe/Berlin",
        ] {
            assert!(find(name).is_none(), "{name}");
            assert!(!names().iter().any(|known| known == name), "{name}");
        }
        for name in ["UTC", "Europe/Berlin", "europe/berlin", "Etc/GMT-5", "Asia/Kolkata", "EST5EDT"] {
            assert!(find(name).is_some(), "{name}");
        }
    }
}
