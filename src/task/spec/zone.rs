//! The member `zone`, with hints for names that people use in place of a zone's.

use super::object::{self, Path};
use crate::task::cron::zones;

/// Names of up to this length that are no offset get no hint: `PST` is not `EST`.
const MAX_UNHINTED_LENGTH: usize = 4;

/// Reports a name that is no time zone.
pub(super) fn check(name: &str, path: Path<'_>) {
    if zones::find(name).is_none() {
        let shown = object::shown(name);
        let detail = format!("`{shown}` is not a known time zone, such as Europe/Berlin{}", hint(name));
        path.member("zone").fault::<()>("bad_zone", detail);
    }
}

/// `; did you mean ...?` for an offset, for the last part of a name, and for a similar name.
fn hint(name: &str) -> String {
    if let Some(hours) = hours_ahead(name) {
        return match hours {
            0 => "; did you mean `UTC`?".to_owned(),
            // The signs of these names are the opposite of what one expects.
            _ => format!(
                "; did you mean `Etc/GMT{:+}`, {} h {} UTC?",
                -hours,
                hours.abs(),
                if hours > 0 { "ahead of" } else { "behind" }
            ),
        };
    }
    // A short name, or one with another offset, may resemble the name of a different zone.
    if name.len() <= MAX_UNHINTED_LENGTH || name.contains(char::is_numeric) {
        return String::new();
    }
    let (names, wanted) = (zones::names(), name.replace(' ', "_"));
    let is_last = |known: &&String| known.rsplit_once('/').is_some_and(|(_, last)| last.eq_ignore_ascii_case(&wanted));
    match names.iter().find(is_last) {
        Some(known) => format!("; did you mean `{known}`?"),
        None => object::hint(&wanted, names.iter().map(String::as_str)),
    }
}

/// The whole hours of an offset such as `GMT+5`, `UTC-03:00` or `+0500`, if there is a zone of that offset.
fn hours_ahead(name: &str) -> Option<i32> {
    let offset = name.find(['+', '-']).map(|sign| (&name[..sign], &name[sign..]));
    let (_, offset) = offset.filter(|(prefix, _)| {
        ["", "GMT", "UTC", "UT", "Z", "Etc/UTC"].iter().any(|known| prefix.eq_ignore_ascii_case(known))
    })?;
    let (sign, digits) = (if offset.starts_with('-') { -1 } else { 1 }, &offset[1..]);
    let hours = match digits.len() {
        1 | 2 => digits,
        4 => digits.strip_suffix("00")?,
        5 => digits.strip_suffix(":00")?,
        _ => return None,
    };
    let hours = hours.bytes().all(|byte| byte.is_ascii_digit()).then(|| hours.parse::<i32>().ok())?? * sign;
    (-12..=14).contains(&hours).then_some(hours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_hints_name_the_nearest_zone_or_none() {
        let cases = [
            ("GMT+5", "Etc/GMT-5`, 5 h ahead"),
            ("UTC+5", "Etc/GMT-5`, 5 h ahead"),
            ("utc-3", "Etc/GMT+3`, 3 h behind"),
            ("+05:00", "Etc/GMT-5`"),
            ("-0800", "Etc/GMT+8`"),
            ("UTC+00:00", "`UTC`"),
            ("Berlin", "`Europe/Berlin`"),
            ("new york", "`America/New_York`"),
            ("America/New York", "`America/New_York`"),
            ("Europe/Berln", "`Europe/Berlin`"),
        ];
        for (name, wanted) in cases {
            assert!(hint(name).contains(wanted), "{name}{}", hint(name));
        }
        for name in [
            "PST",
            "CEST",
            "PDT",
            "IST",
            "+05:30",
            "UTC+15",
            "GMT-13",
            "Etc/GMT+13",
            "localtime",
            "Factory",
            "+",
            "Mars",
        ] {
            let hint = hint(name);
            assert!(hint.is_empty(), "{name}{hint}");
        }
    }
}
