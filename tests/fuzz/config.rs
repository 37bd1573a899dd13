//! A configuration file, optionally followed by a line `%% environment` and variables. It is accepted, or rejected with
//! the place of every fault. The output of `punctual config` loads as the same configuration. No secret appears in any
//! output.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use punctual::config::{Config, ConfigError, ConfigFault, Origin, Sources};

use super::{Target, Verdict};

/// The value of every secret in the inputs.
const SECRET: &str = "hunter2";

const FILE: &str = "fuzz.toml";

/// Parts of files, right and wrong ones.
const PARTS: &[&str] = &[
    "[sinks.a]\nurl = \"kafka://user:hunter2@h:9092,i\"\n",
    "[sinks.b]\nurl = \"stdout:\"\npatience = \"1m\"\n",
    "[sinks.b]\nurl = \"nats://hunter2@h\"\nanswer_timeout = \"8s\"\n",
    "[sinks.a.properties]\n\"sasl.password\" = \"hunter2\"\nx = 1.5\n",
    "[sinks.c]\nurl = \"redis://:hunter2@h:1/2\nsentinel_password = \"hunter2\"\n",
    "[sinks]\npatience = \"10s\"\n",
    "[lanes.default]\nsink = \"a\"\n",
    "[lanes.night]\nsink = \"b\"\ndestination = \"orders\"\n",
    "[lanes.UP]\n",
    "[claim]\nlease = \"20s\"\nbatch = 7\n",
    "[claim]\nlease = 20\nin_flight_bytes = \"1GiB\"\n",
    "[redis]\nurl = \"rediss+sentinel://u:hunter2@a,b/m\"\nstrict = true\n",
    "[redis]\nurl = hunter2\nsentinel_password = hunter2\n",
    "[tokens.t]\nsha256 = \"hunter2\"\nscope = \"read\"\n",
    "[tokens.t]\nsha256 = \"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\"\nscope = \"read\"\n",
    "[http]\nlisten = \"0.0.0.0:1\"\nbody_limit = \"2KiB\"\n",
    "[limits]\npayload = \"8MiB\"\nheaders = 5\n",
    "[log]\nformat = \"json\"\nfilter = \"info,punctual::engine=debug\"\n",
    "[tls]\nca_file = \"ca.pem\"\n",
    "sinks = 1\n",
    "[[lanes]]\nx = 1979-05-27\n",
    "= = =\n",
];
const VARIABLES: &[&str] = &[
    "PUNCTUAL__REDIS__URL=redis://:hunter2@h\n",
    "PUNCTUAL__REDIS__SENTINEL_PASSWORD=hunter2\n",
    "PUNCTUAL__SINKS__A__URL=amqp://u:hunter2@h/v\n",
    "PUNCTUAL__SINKS__A__URL=hunter2\n",
    "PUNCTUAL__SINKS__A__PROPERTIES__SASL_PASSWORD=hunter2\n",
    "PUNCTUAL__SINKS__MY_OWN__URL=memory:\n",
    "PUNCTUAL__TOKENS__T__SHA256=hunter2\n",
    "PUNCTUAL__CLAIM__LEESE=1s\n",
    "PUNCTUAL__CLAIM__BATCH= 9 \n",
    "PUNCTUAL_CLAIM__LEASE=1s\n",
    "PUNCTUAL__=x\n",
    "PUNCTUAL__SINKS=x\n",
];

const WORDS: &[&str] = &[
    "[",
    "]",
    "[[",
    "]]",
    "=",
    "\"",
    "'",
    "\"\"\"",
    "'''",
    "\\u0000",
    "\\",
    "{",
    "}",
    ",",
    ".",
    "#",
    "\n",
    "\r\n",
    "true",
    "-1",
    "9223372036854775808",
    "1e9",
    "0x1F",
    "1979-05-27T07:32:00Z",
    "[sinks.a]\n",
    "url = ",
    "sinks.b.url",
    "%% environment\n",
    "PUNCTUAL__",
    "__",
    "\u{feff}",
    "ä",
    "\u{7f}",
    "hunter2",
    "KiB",
    "MiB",
    "18446744073709551615",
];

pub(super) const TARGET: Target =
    Target { name: "config", check, written: files_and_variables, dictionary: WORDS, inputs: 500 };

fn files_and_variables() -> BoxedStrategy<Vec<u8>> {
    let file = subsequence(PARTS, 0..7).prop_shuffle();
    let written = (file, vec(select(VARIABLES), 0..3))
        .prop_map(|(file, variables)| format!("{}%% environment\n{}", file.concat(), variables.concat()).into_bytes());
    written.boxed()
}

fn check(input: &[u8]) -> Verdict {
    let text = String::from_utf8_lossy(input);
    let (file, variables) = text.split_once("%% environment\n").unwrap_or((&text, ""));
    let environment = variables.lines().filter_map(|line| line.split_once('='));
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let sources = Sources { file: Some((FILE.to_owned(), file.to_owned())), environment, flags: Vec::new() };
    let loaded = Config::load(sources.clone());
    let secret = must_be_hidden(file, variables);
    prop_assert!(!format!("{sources:?}").contains(SECRET) || !secret, "{sources:?}");
    match &loaded {
        Err(error) => {
            have_places(file, &error.0)?;
            let shown = format!("{error} {error:?}");
            prop_assert!(!secret || !shown.contains(SECRET), "{shown}");
        }
        Ok(config) => {
            have_places(file, &config.warnings)?;
            let shown = format!("{config:?} {:?}", config.settings());
            prop_assert!(!secret || !shown.contains(SECRET), "{shown}");
            is_the_same_again(config)?;
        }
    }
    one_more_fault_hides_no_other(sources, &loaded)
}

/// Every fault has a text, and a fault of the file has the number of an existing line.
fn have_places(file: &str, faults: &[ConfigFault]) -> Verdict {
    let lines = file.split('\n').count();
    for fault in faults {
        prop_assert!(!fault.detail.is_empty() && !fault.to_string().is_empty(), "{fault:?}");
        if let Origin::File { path, line } = &fault.origin {
            prop_assert!(path == FILE && (1..=lines).contains(line), "{lines} lines, {fault:?}");
            prop_assert!(fault.to_string().contains(&format!("{FILE}:{line}")), "{fault}");
        }
    }
    Ok(())
}

/// The shown settings load as the same configuration. Settings with masked secrets are not compared.
fn is_the_same_again(config: &Config) -> Verdict {
    let settings = config.settings();
    let lines: Vec<_> = settings.iter().map(|of| of.toml() + "\n").collect();
    if lines.iter().any(|line| line.contains("***")) {
        return Ok(());
    }
    let file = Some((FILE.to_owned(), lines.concat()));
    let again = Config::load(Sources { file, ..Sources::default() });
    let again = again.map_err(|error| TestCaseError::fail(format!("{error}\n{}", lines.concat())))?;
    let values = |config: &Config| config.settings().into_iter().map(|of| (of.path, of.value)).collect::<Vec<_>>();
    prop_assert_eq!(values(&again), values(config));
    Ok(())
}

/// All faults are reported at once: an additional fault is reported together with all the others.
fn one_more_fault_hides_no_other(mut sources: Sources, loaded: &Result<Config, ConfigError>) -> Verdict {
    let name = "PUNCTUAL__CLAIM__NO_SUCH_OPTION";
    if sources.environment.iter().any(|(known, _)| known == name) {
        return Ok(());
    }
    sources.environment.push((name.to_owned(), SECRET.to_owned()));
    let Err(ConfigError(more)) = Config::load(sources) else {
        return Err(TestCaseError::fail("an unknown option is accepted"));
    };
    let former = loaded.as_ref().err().map_or(&[][..], |error| &error.0);
    let (new, others): (Vec<_>, Vec<_>) =
        more.iter().partition(|fault| fault.origin == Origin::Environment(name.to_owned()));
    prop_assert_eq!(new.len(), 1);
    prop_assert_eq!(others, former.iter().collect::<Vec<_>>());
    Ok(())
}

/// Whether the secret appears only as the value of a secret option, on a line of its own. In a URL it may only be the
/// user or the password.
fn must_be_hidden(file: &str, variables: &str) -> bool {
    // With a string of several lines, the key and its value are on different lines.
    if file.contains("\"\"\"") || file.contains("'''") {
        return false;
    }
    let only_in_secret = |line: &str, keys: &[&str]| {
        let (before, value) = line.split_once('=')?;
        let key = before.trim().trim_matches('"').to_lowercase();
        let url = key.ends_with("url") && value.trim_start().trim_start_matches('"').contains("://");
        let secret = keys.iter().any(|end| key.ends_with(end)) || key.contains("__properties__");
        let (ahead, _) = value.split_once(SECRET)?;
        let (_, behind) = value.rsplit_once(SECRET)?;
        let plain = !before.contains(SECRET) && !value.contains(['{', '[']);
        Some(plain && (secret || (url && ahead.contains("://") && behind.contains('@'))))
    };
    let keys = ["password", "sha256"];
    let is_in_place = |line: &str| !line.contains(SECRET) || only_in_secret(line, &keys) == Some(true);
    file.split(['\n', '\r']).all(is_in_place) && variables.lines().all(is_in_place)
}
