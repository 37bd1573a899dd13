//! Times in RFC 3339, to the millisecond.

use jiff::civil;

use super::object::{Field, shown};
use crate::clock::Timestamp;

const EPOCH: civil::DateTime = civil::datetime(1970, 1, 1, 0, 0, 0, 0);

/// How to round a time between two milliseconds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    /// Up, so that no message is published early.
    Up,
    /// Down, so that no message is published after its end.
    Down,
}

/// Parses a valid due.
pub(super) fn read(field: Field<'_, '_>, round: Rounding) -> Option<Timestamp> {
    let text = field.text_of("a time such as `2026-11-20T09:30:00Z`")?;
    let shown = shown(&text);
    let Some(time) = parse_rounded(&text, round) else {
        let detail = format!("`{shown}` is not a time in RFC 3339, with its offset, such as 2026-11-20T09:30:00Z");
        return field.path.fault("bad_time", detail);
    };
    if !time.is_valid_due() {
        let (first, last) = (Timestamp::MIN_DUE, Timestamp::MAX_DUE);
        return field.path.fault("out_of_range", format!("`{shown}` is not between {first} and {last}"));
    }
    Some(time)
}

/// Parses a time as the API does. Returns `None` if the text is no time. The result may be out of range for a due.
#[must_use]
pub fn parse(text: &str) -> Option<Timestamp> {
    parse_rounded(text, Rounding::Up)
}

/// Parses `YYYY-MM-DD`, `T` or a space, `hh:mm:ss`, an optional fraction, then `Z` or an offset.
fn parse_rounded(text: &str, round: Rounding) -> Option<Timestamp> {
    let (date_time, rest) = text.split_at_checked(19)?;
    let bytes = date_time.as_bytes();
    let marks = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if marks.iter().any(|(at, mark)| bytes[*at] != *mark) || !matches!(bytes[10], b'T' | b't' | b' ') {
        return None;
    }
    let part = |from: usize, to: usize| digits(date_time.get(from..to)?);
    let small = |number: i64| i8::try_from(number).ok();
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute, second) = (part(11, 13)?, part(14, 16)?, part(17, 19)?);
    // A leap second counts as one second after the 59th, because the 59th itself would be early.
    let leap = i64::from(second == 60);
    let second = second - leap;
    let date = civil::Date::new(i16::try_from(year).ok()?, small(month)?, small(day)?).ok()?;
    let time = civil::Time::new(small(hour)?, small(minute)?, small(second)?, 0).ok()?;
    let (millis, rest) = fraction(rest, round)?;
    // Computed here because jiff's own timestamps end a day before the timeline's.
    let since_epoch = date.to_datetime(time).duration_since(EPOCH).as_secs();
    Some(Timestamp::from_millis((since_epoch - offset(rest)? + leap) * 1000 + millis))
}

/// The milliseconds of a fraction, 0 to 1000, and the rest of the text.
fn fraction(text: &str, round: Rounding) -> Option<(i64, &str)> {
    let Some(text) = text.strip_prefix('.') else { return Some((0, text)) };
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    if length == 0 {
        return None;
    }
    let (fraction, rest) = text.split_at(length);
    let (millis, finer) = fraction.split_at(length.min(3));
    let between = round == Rounding::Up && finer.bytes().any(|digit| digit != b'0');
    Some((digits(&format!("{millis:0<3}"))? + i64::from(between), rest))
}

/// The offset of local time from UTC, in seconds.
fn offset(text: &str) -> Option<i64> {
    if text == "Z" || text == "z" {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    let (hours, minutes) = (two_digits(hours, 23)?, two_digits(minutes, 59)?);
    Some(sign * (hours * 3600 + minutes * 60))
}

fn two_digits(text: &str, most: i64) -> Option<i64> {
    digits(text).filter(|number| text.len() == 2 && *number <= most)
}

fn digits(text: &str) -> Option<i64> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(text: &str) -> Option<i64> {
        super::parse(text).map(Timestamp::as_millis)
    }

    #[test]
    fn times_are_read_with_any_offset() {
        let noon = 1_795_176_000_000;
        for text in [
            "2026-11-20T12:00:00Z",
            "2026-11-20t12:00:00z",
            "2026-11-20 12:00:00.000Z",
            "2026-11-20T13:00:00+01:00",
            "2026-11-20T06:30:00-05:30",
            "2026-11-20T12:00:00-00:00",
        ] {
            assert_eq!(up(text), Some(noon), "{text}");
        }
        assert_eq!(up("2016-12-31T23:59:60Z"), up("2017-01-01T00:00:00Z"), "a leap second is not early");
        assert_eq!(up("1969-12-31T23:59:59.5Z"), Some(-500));
        assert_eq!(up("9999-12-31T23:59:59.999Z"), Some(Timestamp::MAX_DUE.as_millis()));
        assert_eq!(up("0000-01-01T00:00:00+23:59"), Some(-62_167_219_200_000 - 86_340_000));
    }

    #[test]
    fn times_finer_than_a_millisecond_round_up_and_ends_round_down() {
        let second = 1_795_176_000_000;
        assert_eq!(up("2026-11-20T12:00:00.5Z"), Some(second + 500));
        assert_eq!(up("2026-11-20T12:00:00.1230001Z"), Some(second + 124));
        assert_eq!(up("2026-11-20T12:00:00.123000000000000000000Z"), Some(second + 123));
        assert_eq!(up("2026-11-20T12:00:00.9999999999999Z"), Some(second + 1000));
        let down = parse_rounded("2026-11-20T12:00:00.9999Z", Rounding::Down).unwrap();
        assert_eq!(down.as_millis(), second + 999);
    }

    #[test]
    fn other_time_formats_are_refused() {
        for text in [
            "",
            "now",
            "2026-11-20",
            "2026-11-20T12:00:00",
            "2026-11-20T12:00Z",
            "2026-11-20T12:00:00.Z",
            "2026-11-20T24:00:00Z",
            "2026-02-29T12:00:00Z",
            "2026-11-20T12:60:00Z",
            "2026-11-20T12:00:61Z",
            "2026-11-20T12:00:00+1:00",
            "2026-11-20T12:00:00+0100",
            "2026-11-20T12:00:00+24:00",
            "2026-11-20T12:00:00Z[UTC]",
            "2026-11-20T12:00:00Zz",
            "2026-11-20T12:00:0äZ",
            "+026-11-20T12:00:00Z",
            "20261120T120000Z",
        ] {
            assert_eq!(up(text), None, "{text}");
        }
    }
}
