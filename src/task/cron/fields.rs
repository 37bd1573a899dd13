//! Reads the fields of a cron expression and reports a fault by its field, value and range.
//!
//! The library that searches for times gets only numbers. Given names, it would accept parts of longer words, and names
//! of months as days of the week.

/// An expression whose fields are all valid.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CronFields {
    /// Six fields, seconds first, with numbers in place of names.
    pub(super) text: String,
    /// Whether it names fixed times of the day: none of seconds, minutes and hours begins with `*`.
    pub(super) is_fixed: bool,
}

/// Names that stand for a whole expression.
const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];

const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// Maximum number of characters of a part in an error.
const MAX_SHOWN: usize = 20;

/// One kind of field.
struct Field {
    /// In the plural, for errors.
    name: &'static str,
    low: u32,
    high: u32,
    /// Number of different values; 0 and 7 are the same weekday.
    values: u32,
    /// The name of the value `low`, and those that follow.
    names: &'static [&'static str],
    is_day_of_month: bool,
    is_day_of_week: bool,
}

impl Field {
    const fn plain(name: &'static str, low: u32, high: u32) -> Field {
        let (is_day_of_month, is_day_of_week) = (false, false);
        Field { name, low, high, values: high - low + 1, names: &[], is_day_of_month, is_day_of_week }
    }
}

const FIELDS: [Field; 6] = [
    Field::plain("seconds", 0, 59),
    Field::plain("minutes", 0, 59),
    Field::plain("hours", 0, 23),
    Field { is_day_of_month: true, ..Field::plain("days of the month", 1, 31) },
    Field { names: &MONTHS, ..Field::plain("months", 1, 12) },
    Field { names: &WEEKDAYS, values: 7, is_day_of_week: true, ..Field::plain("days of the week", 0, 7) },
];

/// Reads an expression: five fields, or six with seconds first, or a nickname.
///
/// # Errors
/// Why the expression is invalid, as a part of a sentence.
pub(super) fn read(expression: &str) -> Result<CronFields, String> {
    let mut parts: Vec<&str> = expression.split_whitespace().collect();
    let first = parts.first().copied().unwrap_or_default();
    if let Some((name, _)) = first.split_once('=') {
        let named = ["TZ", "CRON_TZ"].iter().any(|known| name.eq_ignore_ascii_case(known));
        return Err(if named {
            format!("put the zone of `{}` into `zone`", shown(first))
        } else {
            format!("`{}` is no field", shown(first))
        });
    }
    if first.starts_with('@') {
        parts = nickname(&parts)?.split(' ').collect();
    }
    match parts.len() {
        5 => fields(&parts),
        6 => fields(&parts).map_err(|fault| match fields(&parts[..5]) {
            Ok(_) => format!("{fault}; six fields begin with seconds, and there is no field for the year"),
            Err(_) => fault,
        }),
        7 => Err("it has 7 fields; there is none for the year".to_owned()),
        0 => Err("it is empty".to_owned()),
        1 => Err("it has 1 field".to_owned()),
        number => Err(format!("it has {number} fields")),
    }
}

fn nickname(parts: &[&str]) -> Result<&'static str, String> {
    let name = parts[0];
    let known = NICKNAMES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
    match known {
        Some((_, fields)) if parts.len() == 1 => Ok(fields),
        Some(_) => Err(format!("nothing may follow `{name}`")),
        None if name.eq_ignore_ascii_case("@every") => {
            Err("for `@every`, use the schedule `every` in place of `cron`".to_owned())
        }
        None if name.eq_ignore_ascii_case("@reboot") => {
            Err("there is no `@reboot`, because a task does not belong to a machine".to_owned())
        }
        None => {
            let names: Vec<&str> = NICKNAMES.iter().map(|(name, _)| *name).collect();
            Err(format!("`{}` is not known; known are `{}`", shown(name), names.join("`, `")))
        }
    }
}

/// Reads five fields, or six with seconds first.
fn fields(parts: &[&str]) -> Result<CronFields, String> {
    let own = if parts.len() == 5 { &FIELDS[1..] } else { &FIELDS };
    let mut texts = vec!["0".to_owned(); FIELDS.len() - own.len()];
    for (part, field) in parts.iter().zip(own) {
        texts.push(field.read(part)?);
    }
    let is_fixed = texts[..3].iter().all(|text| !text.starts_with('*'));
    Ok(CronFields { text: texts.join(" "), is_fixed })
}

impl Field {
    /// Reads a list of parts, and writes it with numbers.
    fn read(&self, text: &str) -> Result<String, String> {
        // `+` at the beginning: the day must fit both its fields.
        let (plus, list) = match text.strip_prefix('+').filter(|_| self.is_day_of_week) {
            Some(list) => ("+", list),
            None => ("", text),
        };
        if list == "*" || (list == "?" && (self.is_day_of_month || self.is_day_of_week)) {
            return Ok(format!("{plus}*"));
        }
        if list.is_empty() && !plus.is_empty() {
            return Err(format!("`+` in the {}: a day must follow it", self.name));
        }
        let parts: Vec<String> = list.split(',').map(|part| self.part(part, list)).collect::<Result<_, _>>()?;
        let has = |wanted: &str| parts.iter().any(|part| part == wanted);
        if has("L") && has("LW") {
            return Err(format!("`L` and `LW` in the {} cannot be combined", self.name));
        }
        // `*/1` names every value. In a field of days it becomes `*`, so that the other field of days decides alone.
        let text = if parts == ["*/1"] { "*".to_owned() } else { parts.join(",") };
        Ok(plus.to_owned() + &text)
    }

    /// Reads one part of a list: `*/n`, `a`, `a-b`, `a-b/n`, and what only days have.
    fn part(&self, part: &str, list: &str) -> Result<String, String> {
        if part.is_empty() {
            return Err(format!("`{}` in the {} has an empty part", shown(list), self.name));
        }
        if part == "?" && !self.is_day_of_month && !self.is_day_of_week {
            return Err(format!("`?` in the {}: only the fields of days accept it", self.name));
        }
        if matches!(part, "*" | "?") {
            return Err(format!("`{part}` in the {} cannot be a part of a list", self.name));
        }
        let upper = part.to_ascii_uppercase();
        if self.is_day_of_month {
            if upper == "L" || upper == "LW" {
                return Ok(upper);
            }
            if let Some(day) = upper.strip_suffix('W') {
                return Ok(format!("{}W", self.value(day, part)?));
            }
        }
        if self.is_day_of_week
            && let Some(days) = self.of_month(&upper, part)?
        {
            return Ok(days);
        }
        match upper.split_once('/') {
            Some((range, step)) => self.steps(range, step, part),
            None => self
                .range(&upper, part)
                .map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") }),
        }
    }

    /// Reads `5L`, the last Friday of a month, and `5#3`, the third; `None` if it is neither.
    fn of_month(&self, upper: &str, part: &str) -> Result<Option<String>, String> {
        // `JUL` is no last day.
        if MONTHS.contains(&upper) {
            return Ok(None);
        }
        let (days, which) = match (upper.split_once('#'), upper.strip_suffix('L')) {
            (Some((days, which)), _) => (days, which),
            (None, Some(days)) => (days, "L"),
            (None, None) => return Ok(None),
        };
        if days.is_empty() {
            let day = "a day of the week must come before it, such as `5L` or `5#3`";
            return Err(format!("`{}` in the {}: {day}", shown(part), self.name));
        }
        if !matches!(which, "1" | "2" | "3" | "4" | "5" | "L") {
            return Err(format!("`{}` in the {}: a number from 1 to 5 must follow `#`", shown(part), self.name));
        }
        Ok(Some(format!("{}#{which}", self.value(days, part)?)))
    }

    /// Reads `*/n` or `a-b/n`.
    fn steps(&self, range: &str, step: &str, part: &str) -> Result<String, String> {
        let whole = range == "*";
        if range.is_empty() || (!whole && !range.contains('-')) {
            let range = if range.is_empty() { "*".to_owned() } else { format!("{range}-{}", self.high) };
            let instead = format!("{range}/{step}");
            return Err(format!("`{}` in the {}: write `{}`", shown(part), self.name, shown(&instead)));
        }
        let (from, to) = if whole { (self.low, self.high) } else { self.range(range, part)? };
        let values = (to - from + 1).min(self.values);
        let Some(step) = number(step).filter(|step| *step > 0) else {
            return Err(format!("`{}` in the {}: a step is a number from 1 to {values}", shown(part), self.name));
        };
        if step > values {
            let of = if whole {
                format!("the {}, which have", self.name)
            } else {
                format!("the {}: the range has", self.name)
            };
            let noun = if values == 1 { "value" } else { "values" };
            return Err(format!("`{}` in {of} {values} {noun}, fewer than its step", shown(part)));
        }
        Ok(if whole { format!("*/{step}") } else { format!("{from}-{to}/{step}") })
    }

    /// Reads `a` or `a-b`.
    fn range(&self, text: &str, part: &str) -> Result<(u32, u32), String> {
        let Some((from, to)) = text.split_once('-') else {
            let value = self.value(text, part)?;
            return Ok((value, value));
        };
        let (from, to) = (self.value(from, part)?, self.value(to, part)?);
        // Sunday ends a week as 7.
        let to = if self.is_day_of_week && to == 0 && from > 0 { 7 } else { to };
        if from > to {
            return Err(format!("`{}` in the {} goes backwards; write two ranges", shown(part), self.name));
        }
        Ok((from, to))
    }

    /// Reads a number or a name, whole.
    fn value(&self, text: &str, part: &str) -> Result<u32, String> {
        let named = |names: &[&str]| names.iter().position(|name| *name == text).and_then(|at| u32::try_from(at).ok());
        if let Some(value) = number(text).or_else(|| Some(self.low + named(self.names)?)) {
            return match (self.low..=self.high).contains(&value) {
                true => Ok(value),
                false => Err(format!("`{}` in the {}", shown(part), self.which())),
            };
        }
        let all = MONTHS.iter().chain(&WEEKDAYS);
        let begins = |name: &&&str| text.starts_with(**name) && text.bytes().all(|byte| byte.is_ascii_alphabetic());
        let why = if named(&MONTHS).is_some() {
            "it is the name of a month".to_owned()
        } else if named(&WEEKDAYS).is_some() {
            "it is the name of a day of the week".to_owned()
        } else if let Some(name) = all.clone().find(begins) {
            format!("names have three letters, such as `{name}`")
        } else {
            return Err(format!("`{}` in the {}", shown(part), self.which()));
        };
        Err(format!("`{}` in the {}: {why}", shown(part), self.name))
    }

    /// `minutes, which go from 0 to 59`.
    fn which(&self) -> String {
        let names = if self.names.is_empty() {
            String::new()
        } else {
            format!(" or {} to {}", self.names[0], self.names[self.names.len() - 1])
        };
        format!("{}, which go from {} to {}{names}", self.name, self.low, self.high)
    }
}

/// A number that is written in digits only; too large a one is `u32::MAX`.
fn number(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u32::MAX))
}

/// The beginning of a part, for an error.
fn shown(part: &str) -> String {
    match part.char_indices().nth(MAX_SHOWN) {
        None => part.to_owned(),
        Some((end, _)) => format!("{}...", &part[..end]),
    }
}

#[cfg(test)]
#[path = "fields_tests.rs"]
mod tests;
