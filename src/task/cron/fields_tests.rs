//! Tests how valid expressions are read, and the error of each invalid one.

use super::*;

#[test]
fn expressions_are_read_as_numbers_with_seconds_first() {
    let cases = [
        ("* * * * *", "0 * * * * *"),
        ("  0\t30 9 * * mon-Fri ", "0 30 9 * * 1-5"),
        ("00 08 * JAN,dec *", "0 00 08 * 1,12 *"),
        ("5-59/7 8-18/2 1,15 JAN-MAR FRI-SUN", "0 5-59/7 8-18/2 1,15 1-3 5-7"),
        ("*/60 */24 */31 */12 */7", "0 */60 */24 */31 */12 */7"),
        ("0 0 ? * ?", "0 0 0 * * *"),
        ("*/1 0 */1 * MON", "0 * 0 * * 1"),
        ("0 0 l,15w * 5#3,5L,MON#L", "0 0 0 L,15W * 5#3,5#L,1#L"),
        ("0 0 LW * +FRI", "0 0 0 LW * +5"),
        ("0 0 * * 0,7,6-SUN,SUN-TUE", "0 0 0 * * 0,7,6-7,0-2"),
        ("0-0 22-23,0-2 * * *", "0 0 22-23,0-2 * * *"),
        ("@daily", "0 0 0 * * *"),
        ("@Midnight", "0 0 0 * * *"),
        ("@yearly", "0 0 0 1 1 *"),
        ("@annually", "0 0 0 1 1 *"),
        ("@monthly", "0 0 0 1 * *"),
        ("@weekly", "0 0 0 * * 0"),
        ("@hourly", "0 0 * * * *"),
    ];
    for (expression, text) in cases {
        let text = text.replacen("00 08", "0 8", 1);
        assert_eq!(read(expression).map(|fields| fields.text), Ok(text), "{expression}");
    }
}

#[test]
fn cron_is_due_at_fixed_times_of_day_unless_a_time_field_starts_with_a_star() {
    for fixed in ["0 2 * * *", "0,30 2-4 * * *", "0-59/10 0-23 * * *", "5,*/10 2 * * *", "0 0 12 * * *", "@daily"] {
        assert!(read(fixed).unwrap().is_fixed, "{fixed}");
    }
    for other in ["* 2 * * *", "0 * * * *", "*/15 2 * * *", "0 */2 * * *", "* 0 12 * * *", "@hourly"] {
        assert!(!read(other).unwrap().is_fixed, "{other}");
    }
}

#[test]
fn a_fault_names_its_field_value_and_range() {
    let year = "; six fields begin with seconds, and there is no field for the year";
    let cases = [
        ("", "it is empty"),
        ("* * * *", "it has 4 fields"),
        ("5", "it has 1 field"),
        ("* * * * * * *", "it has 7 fields; there is none for the year"),
        ("* * * * * * * *", "it has 8 fields"),
        ("61 * * * *", "`61` in the minutes, which go from 0 to 59"),
        ("* 24 * * *", "`24` in the hours, which go from 0 to 23"),
        ("* * 0 * *", "`0` in the days of the month, which go from 1 to 31"),
        ("* * * 13 *", "`13` in the months, which go from 1 to 12 or JAN to DEC"),
        ("* * * * 8", "`8` in the days of the week, which go from 0 to 7 or SUN to SAT"),
        ("60 * * * * *", "`60` in the seconds, which go from 0 to 59"),
        ("99999999999 * * * *", "`99999999999` in the minutes, which go from 0 to 59"),
        ("-5 * * * *", "`-5` in the minutes, which go from 0 to 59"),
        ("+5 * * * *", "`+5` in the minutes, which go from 0 to 59"),
        ("1.5 * * * *", "`1.5` in the minutes, which go from 0 to 59"),
        ("H * * * *", "`H` in the minutes, which go from 0 to 59"),
        ("0 0 * JANFEB *", "`JANFEB` in the months: names have three letters, such as `JAN`"),
        ("0 0 1 january *", "`january` in the months: names have three letters, such as `JAN`"),
        ("0 0 * * MONDAY", "`MONDAY` in the days of the week: names have three letters, such as `MON`"),
        ("0 0 * 1JAN *", "`1JAN` in the months, which go from 1 to 12 or JAN to DEC"),
        ("0 0 1UARY * *", "`1UARY` in the days of the month, which go from 1 to 31"),
        ("0 0 * MON *", "`MON` in the months: it is the name of a day of the week"),
        ("0 0 * * JAN", "`JAN` in the days of the week: it is the name of a month"),
        ("0 0 * * JUL", "`JUL` in the days of the week: it is the name of a month"),
        ("0 MON * * *", "`MON` in the hours: it is the name of a day of the week"),
        ("0 0 FEB * *", "`FEB` in the days of the month: it is the name of a month"),
        ("0 0 * JAN-MON *", "`JAN-MON` in the months: it is the name of a day of the week"),
        ("*/90 * * * *", "`*/90` in the minutes, which have 60 values, fewer than its step"),
        ("0 */48 * * *", "`*/48` in the hours, which have 24 values, fewer than its step"),
        ("0 0 * * */8", "`*/8` in the days of the week, which have 7 values, fewer than its step"),
        ("10-20/12 * * * *", "`10-20/12` in the minutes: the range has 11 values, fewer than its step"),
        ("*/0 * * * *", "`*/0` in the minutes: a step is a number from 1 to 60"),
        ("*/x * * * *", "`*/x` in the minutes: a step is a number from 1 to 60"),
        ("*/5/5 * * * *", "`*/5/5` in the minutes: a step is a number from 1 to 60"),
        ("*/ * * * *", "`*/` in the minutes: a step is a number from 1 to 60"),
        ("5/15 * * * *", "`5/15` in the minutes: write `5-59/15`"),
        ("/15 * * * *", "`/15` in the minutes: write `*/15`"),
        ("5, * * * *", "`5,` in the minutes has an empty part"),
        ("0 1,,2 * * *", "`1,,2` in the hours has an empty part"),
        (", * * * *", "`,` in the minutes has an empty part"),
        ("0 0 * * +", "`+` in the days of the week: a day must follow it"),
        ("*,5 * * * *", "`*` in the minutes cannot be a part of a list"),
        ("? * * * *", "`?` in the minutes: only the fields of days accept it"),
        ("0 0 ?,5 * *", "`?` in the days of the month cannot be a part of a list"),
        ("0 22-2 * * *", "`22-2` in the hours goes backwards; write two ranges"),
        ("0 0 * * FRI-MON", "`FRI-MON` in the days of the week goes backwards; write two ranges"),
        ("0 0 * NOV-FEB *", "`NOV-FEB` in the months goes backwards; write two ranges"),
        ("1- * * * *", "`1-` in the minutes, which go from 0 to 59"),
        ("1-2-3 * * * *", "`1-2-3` in the minutes, which go from 0 to 59"),
        ("L * * * *", "`L` in the minutes, which go from 0 to 59"),
        ("0 0 L-3 * *", "`L-3` in the days of the month, which go from 1 to 31"),
        ("0 0 32W * *", "`32W` in the days of the month, which go from 1 to 31"),
        ("0 0 1-5W * *", "`1-5W` in the days of the month, which go from 1 to 31"),
        ("0 0 L,LW * *", "`L` and `LW` in the days of the month cannot be combined"),
        ("0 0 * * L", "`L` in the days of the week: a day of the week must come before it, such as `5L` or `5#3`"),
        ("0 0 * * #2", "`#2` in the days of the week: a day of the week must come before it, such as `5L` or `5#3`"),
        ("0 0 * * 5#6", "`5#6` in the days of the week: a number from 1 to 5 must follow `#`"),
        ("0 0 * * 5#", "`5#` in the days of the week: a number from 1 to 5 must follow `#`"),
        ("0 0 * * 1-5#2", "`1-5#2` in the days of the week, which go from 0 to 7 or SUN to SAT"),
        ("0 0 5#3 * *", "`5#3` in the days of the month, which go from 1 to 31"),
        ("0 22 * * MON *", &format!("`MON` in the months: it is the name of a day of the week{year}")),
        ("0 12 * * ? 2026", &format!("`?` in the months: only the fields of days accept it{year}")),
        ("0 12 1 1 * 2026", &format!("`2026` in the days of the week, which go from 0 to 7 or SUN to SAT{year}")),
        ("0 61 * * * *", "`61` in the minutes, which go from 0 to 59"),
        ("@every 5m", "for `@every`, use the schedule `every` in place of `cron`"),
        ("@reboot", "there is no `@reboot`, because a task does not belong to a machine"),
        ("@daily 5", "nothing may follow `@daily`"),
        (
            "@sometimes",
            "`@sometimes` is not known; known are `@yearly`, `@annually`, `@monthly`, `@weekly`, `@daily`, `@midnight`, `@hourly`",
        ),
        ("TZ=Europe/Berlin 0 2 * * *", "put the zone of `TZ=Europe/Berlin` into `zone`"),
        ("CRON_TZ=UTC @daily", "put the zone of `CRON_TZ=UTC` into `zone`"),
        ("MAILTO=me * * * * *", "`MAILTO=me` is no field"),
        ("ß * * * *", "`ß` in the minutes, which go from 0 to 59"),
        ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa * * * *", "`aaaaaaaaaaaaaaaaaaaa...` in the minutes, which go from 0 to 59"),
    ];
    for (expression, fault) in cases {
        assert_eq!(read(expression).map(|fields| fields.text), Err(fault.to_owned()), "{expression}");
    }
}
