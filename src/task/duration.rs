//! Durations as text: whole numbers with `ms`, `s`, `m`, `h` or `d`, also joined, as in `1h30m`.

use std::time::Duration;

/// The longest duration: the timeline's last due, so that sums of times and durations never overflow.
pub const MAX_DURATION: Duration = Duration::from_millis(253_402_300_799_999);

/// The units, longest first, with their milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// The text is not a duration; the error says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadDuration(String);

/// Parses a duration: whole numbers, each with its unit, longer units first and each unit once. `0s` is valid.
///
/// # Errors
/// If the text is anything else, or longer than [`MAX_DURATION`].
pub fn parse(text: &str) -> Result<Duration, BadDuration> {
    let shown: String = text.chars().take(40).collect();
    let bad = |why: &str| {
        BadDuration(format!(
            "`{shown}` is not a duration: {why}; write whole numbers with ms, s, m, h or d, such as 1h30m"
        ))
    };
    let mut units = UNITS.iter();
    let (mut rest, mut total) = (text, 0_u64);
    if rest.is_empty() {
        return Err(bad("it is empty"));
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, more) = rest.split_at(digits);
        let letters = more.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, more) = more.split_at(letters);
        if number.is_empty() {
            return Err(bad(match rest.chars().next() {
                Some('-') => "it is negative",
                Some(' ') => "there is a space in it",
                _ => "a number is missing",
            }));
        }
        if unit.is_empty() {
            return Err(bad(match more.chars().next() {
                Some('.' | ',') => "it has a fraction",
                Some(' ') => "there is a space before the unit",
                _ => "a unit is missing",
            }));
        }
        if !UNITS.iter().any(|(name, _)| *name == unit) {
            return Err(bad("a unit is unknown"));
        }
        let (_, ms) =
            units.find(|(name, _)| *name == unit).ok_or_else(|| bad("the longer unit comes first, each once"))?;
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*ms));
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(|| bad("it is too long"))?;
        rest = more;
    }
    let total = Duration::from_millis(total);
    if total > MAX_DURATION { Err(bad("it is too long")) } else { Ok(total) }
}

/// Formats a duration in its shortest form, in whole milliseconds: 5400 s are `1h30m`, zero is `0s`.
#[must_use]
pub fn format(span: Duration) -> String {
    let mut left = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let mut text = String::new();
    for (name, ms) in UNITS {
        if left >= ms {
            text.push_str(&(left / ms).to_string());
            text.push_str(name);
            left %= ms;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        let read = |text| parse(text).map(|span| span.as_millis());
        assert_eq!(read("1h30m"), Ok(5_400_000));
        assert_eq!(read("90m"), Ok(5_400_000));
        assert_eq!(read("250ms"), Ok(250));
        assert_eq!(read("1d2h3m4s5ms"), Ok(93_784_005));
        assert_eq!(read("0s"), Ok(0));
        for text in ["", "5", "s", "-5s", "+5s", "1.5s", "5 s", " 5s", "5s ", "5S", "5w", "1m1h", "1s1s", "5µs", "s5"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        for text in ["99999999999999999999s", "18446744073709551615d", "253402300800s", "2932897d"] {
            assert!(parse(text).unwrap_err().to_string().contains("too long"), "{text}");
        }
    }

    #[test]
    fn durations_are_written_in_their_shortest_form() {
        let cases = [(5_400_000, "1h30m"), (86_400_000, "1d"), (61_001, "1m1s1ms"), (0, "0s"), (999, "999ms")];
        for (ms, text) in cases {
            assert_eq!(format(Duration::from_millis(ms)), text);
        }
    }

    proptest! {
        #[test]
        fn a_written_value_reads_back_unchanged(ms in 0..=253_402_300_799_999_u64) {
            let span = Duration::from_millis(ms);
            prop_assert_eq!(parse(&format(span)), Ok(span));
        }

        #[test]
        fn duration_parser_never_panics_on_any_text(text in "[0-9a-zµ .-]{0,12}") {
            let _read = parse(&text);
        }
    }
}
