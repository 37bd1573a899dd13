use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::engine::AllowedTasks;
use crate::http::access::Scope;
use crate::http::{PutRate, TokenLimits};

fn load(
    file: &str,
    environment: &[(&str, &str)],
    flags: &[(&'static str, &'static str, &str)],
) -> Result<Config, String> {
    let sources = Sources {
        file: Some(("punctual.toml".into(), file.into())),
        environment: environment.iter().map(|&(name, value)| (name.into(), value.into())).collect(),
        flags: flags.iter().map(|&(flag, path, value)| (flag, path, value.to_owned())).collect(),
    };
    Config::load(sources).map_err(|error| error.to_string())
}

const SINK: (&str, &str, &str) = ("--sink", "sinks.default.url", "stdout:");

#[test]
fn the_defaults_need_only_a_sink() {
    let config = load("", &[], &[SINK]).unwrap();
    assert_eq!(config.engine.lease, Duration::from_secs(15));
    assert_eq!(config.engine.in_flight_bytes, 12 << 20);
    assert_eq!(config.engine.dead_keep, Duration::from_secs(30 * 86_400));
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:7171");
    assert_eq!(config.sinks["default"].answer_timeout, Duration::from_secs(7));
    let lane = EngineLane { sink: "default".into(), destination: None, dead_destination: None, waits_forever: false };
    assert_eq!(config.lanes, BTreeMap::from([(Lane::default(), lane)]));
    assert!(load("", &[], &[]).unwrap_err().contains("no sink"));
}

#[test]
fn later_layers_win_and_names_may_hold_dashes() {
    let file =
        "[claim]\nlease = \"20s\"\n[sinks.my-orders]\nurl = \"stdout:\"\n[lanes.a-b]\n[redis]\nurl = \"redis://file\"";
    let environment = [
        ("PUNCTUAL__CLAIM__LEASE", "30s"),
        ("PUNCTUAL__CLAIM__BATCH", "7"),
        ("PUNCTUAL__SINKS__MY_ORDERS__ANSWER_TIMEOUT", "2s"),
        ("PUNCTUAL__LANES__A_B__DESTINATION", "orders"),
        ("PUNCTUAL_TEST_STRICT", "1"),
        ("PUNCTUAL__REDIS__URL", "redis://environment"),
    ];
    let config = load(file, &environment, &[("--redis", "redis.url", "redis://flag")]).unwrap();
    assert_eq!((config.engine.lease, config.engine.batch), (Duration::from_secs(30), 7));
    assert_eq!(config.sinks["my-orders"].answer_timeout, Duration::from_secs(2));
    let lane = &config.lanes[&"a-b".parse().unwrap()];
    assert_eq!((lane.sink.as_str(), lane.destination.as_deref()), ("my-orders", Some("orders")));
    assert_eq!(config.lanes[&Lane::default()].sink, "my-orders");
    assert_eq!(config.redis.expose(), "redis://flag");
}

#[test]
fn all_faults_are_reported_at_once_with_their_place() {
    let file = "[claim]\nleese = \"20s\"\nbatch = 5000\ngrace = true\n\n[clam]\n[sinks.a]\nurl = \"stdout:\"\n\
                [lanes.default]\nsink = \"b\"\n[lanes.UP]\nsink = \"a\"\n[http]\nlisten = \"here\"";
    let environment = [("PUNCTUAL__CLAIM__LEESE", "1s"), ("PUNCTUAL__CLAIM__LEASE", "5x")];
    let faults = load(file, &environment, &[]).unwrap_err();
    for line in [
        "`claim.leese` (punctual.toml:2): there is no such option",
        "hint: did you mean `claim.lease`?",
        "`claim.batch` (punctual.toml:3): a whole number from 1 to 1000 is expected, not the number 5000",
        "`claim.grace` (punctual.toml:4): a string is expected, not this boolean",
        "`clam` (punctual.toml:6): there is no such section\n    hint: did you mean `[claim]`?",
        "`lanes.default.sink` (punctual.toml:10): `b` is not configured, only `a`",
        "`lanes.UP` (punctual.toml:12): a name is 1 to 32 of `a-z 0-9 -`",
        "`http.listen` (punctual.toml:14): `here`: an address is expected",
        "`claim.leese` (PUNCTUAL__CLAIM__LEESE): there is no such option",
        "hint: did you mean `PUNCTUAL__CLAIM__LEASE`?",
        "`claim.lease` (PUNCTUAL__CLAIM__LEASE): `5x` is not a duration: a unit is unknown",
    ] {
        assert!(faults.contains(line), "no `{line}` in:\n{faults}");
    }
}

#[test]
fn a_toml_error_is_reported_with_its_line() {
    let faults = load("[claim]\nlease = \n", &[], &[SINK]).unwrap_err();
    assert!(faults.contains("punctual.toml:2: "), "{faults}");
}

#[test]
fn a_line_that_is_not_toml_is_not_quoted_and_causes_no_other_fault() {
    for file in [
        "[sinks.a]\nurl = kafka://h\n",
        "[sinks.a]\nurl = \"stdout:\"\n[sinks.b]\nurl = \"stdout:\"\n[lanes.default]\nsink = a\n",
        "[sinks.a]\nurl = \"stdout:\"\n[tokens.t]\nsha256 = abc\nscope = \"read\"\n",
        "[sinks.a]\nurl = \"stdout:\"\n[claim]\nlease = 2m\n",
        "[sinks.a]\nurl = \"stdout:\"\nproperties = { acks = all }\n",
        "[sinks.a]\nurl = \"stdout:\"\n[http]\nlisten = 0.0.0.0:7171\n",
    ] {
        let sources = Sources { file: Some(("p.toml".into(), file.into())), ..Sources::default() };
        let ConfigError(faults) = Config::load(sources).unwrap_err();
        assert!(faults.iter().all(|fault| fault.path.is_empty()), "{file}: {faults:?}");
    }
    // A later layer counts.
    let file = "[redis]\nurl = redis://h\n[sinks.a]\nurl = \"stdout:\"\n";
    let faults = load(file, &[("PUNCTUAL__REDIS__URL", "http://h")], &[]).unwrap_err();
    assert!(
        faults.contains("punctual.toml:2: ") && faults.contains("`redis.url` (PUNCTUAL__REDIS__URL): "),
        "{faults}"
    );
}

#[test]
fn a_file_that_is_not_toml_reports_its_first_faults_and_the_number_of_others() {
    let line = "{\"id\":\"a\",\"schedule\":{\"in\":\"1h\"},\"message\":{\"payload\":{}}}\n";
    let sources = Sources { file: Some(("p.toml".into(), line.repeat(15_000))), ..Sources::default() };
    let ConfigError(faults) = Config::load(sources).unwrap_err();
    let shown: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert!(shown.len() == 12 && shown[9].starts_with("p.toml:10: "), "{shown:?}");
    assert!(shown[10].starts_with("p.toml:11: and ") && shown[11].starts_with("`sinks`: "), "{shown:?}");
}

#[test]
fn an_answer_timeout_over_half_the_lease_is_refused_with_both_values() {
    let faults = load("[claim]\nlease = \"10s\"\n", &[], &[SINK]).unwrap_err();
    assert!(
        faults.contains("`sinks.answer_timeout` (punctual.toml:2): 7s is more than half of `claim.lease`, 10s"),
        "{faults}"
    );
    let faults = load("[sinks.default]\nanswer_timeout = \"7s501ms\"\n", &[], &[SINK]).unwrap_err();
    assert!(faults.contains("`sinks.default.answer_timeout` (punctual.toml:2): 7s501ms is more than half"), "{faults}");
    assert!(load("[sinks.default]\nanswer_timeout = \"7s500ms\"\n", &[], &[SINK]).is_ok());
}

#[test]
fn a_grace_not_longer_than_the_lease_is_refused_with_both_values() {
    let faults = load("[claim]\ngrace = \"16s\"\n", &[], &[SINK]).unwrap_err();
    assert!(
        faults.contains("`claim.grace` (punctual.toml:2): 16s is not longer than `claim.lease` (15s) plus 1 s"),
        "{faults}"
    );
    let faults = load("[claim]\nlease = \"59s\"\n", &[], &[SINK]).unwrap_err();
    assert!(
        faults.contains("`claim.grace` (punctual.toml:2): 1m is not longer than `claim.lease` (59s) plus 1 s"),
        "{faults}"
    );
    assert!(load("[claim]\ngrace = \"16s1ms\"\n", &[], &[SINK]).is_ok());
}

#[test]
fn secrets_show_neither_in_debug_nor_in_faults() {
    let secret =
        [("PUNCTUAL__SINKS__A__URL", "nats://me:hunter2@host"), ("PUNCTUAL__REDIS__URL", "redis://:hunter2@host")];
    assert!(!format!("{:?}", load("", &secret, &[]).unwrap()).contains("hunter2"));
    let sources = Sources {
        file: Some(("p.toml".into(), "[redis]\nurl = \"redis://:hunter2@host\"".into())),
        environment: vec![("PUNCTUAL__SINKS__A__URL".into(), "hunter2".into()), ("OTHERS".into(), "hunter2".into())],
        flags: vec![("--sink", "sinks.default.url", "hunter2".into())],
    };
    assert_eq!(
        format!("{sources:?}"),
        "Sources { file: Some(\"p.toml\"), environment: [\"PUNCTUAL__SINKS__A__URL\"], flags: [\"--sink\"] }"
    );
    let contents = "-----BEGIN NATS USER JWT-----\nhunter2\n------END NATS USER JWT------\n";
    for (name, path, contents) in [
        ("PUNCTUAL__SINKS__A__CREDENTIALS_FILE", "sinks.a.credentials_file", contents),
        ("PUNCTUAL__SINKS__A__CREDENTIALS_FILE", "sinks.a.credentials_file", "-----BEGIN USER NKEY SEED----- hunter2"),
        ("PUNCTUAL__TLS__CA_FILE", "tls.ca_file", contents),
    ] {
        let faults = load("", &[("PUNCTUAL__SINKS__A__URL", "nats://host"), (name, contents)], &[]).unwrap_err();
        let line = format!("`{path}` ({name}): the path of a file is expected, not its contents");
        assert!(faults.contains(&line) && !faults.contains("hunter2") && !faults.contains("BEGIN"), "{faults}");
    }
    let wrong = [("PUNCTUAL__SINKS__A__URL", "hunter2"), ("PUNCTUAL__REDIS__URL", "http://:hunter2@host")];
    let faults = load("", &wrong, &[]).unwrap_err();
    assert!(faults.contains("redis.url") && faults.contains("sinks.a.url") && !faults.contains("hunter2"), "{faults}");
}

#[test]
fn properties_have_any_name_and_hold_text_numbers_or_booleans() {
    let file = "[sinks.my-orders]\nurl = \"kafka://h\"\nproperties = { \"sasl.mechanism\" = \"PLAIN\", \"linger.ms\" = 5 }\n\
                [sinks.b]\nurl = \"kafka://h\"\n[sinks.b.properties]\nsocket.keepalive.enable = true\nquoted.\"a.b\" = \"c\"\n\
                [sinks.empty]\nurl = \"kafka://h\"\nproperties = {}\n[lanes.default]\nsink = \"b\"";
    let environment = [
        ("PUNCTUAL__SINKS__MY_ORDERS__PROPERTIES__SASL_MECHANISM", "SCRAM-SHA-512"),
        ("PUNCTUAL__SINKS__MY_ORDERS__PROPERTIES__ACKS", "all"),
    ];
    let config = load(file, &environment, &[]).unwrap();
    let of = |sink: &str| {
        let properties = config.sinks[sink].properties.iter();
        properties.map(|(name, value)| format!("{name}={}", secrecy::ExposeSecret::expose_secret(value))).collect()
    };
    let properties: [Vec<String>; 3] = [of("my-orders"), of("b"), of("empty")];
    assert_eq!(properties[0], ["acks=all", "linger.ms=5", "sasl.mechanism=SCRAM-SHA-512"]);
    assert_eq!(properties[1], ["quoted.a.b=c", "socket.keepalive.enable=true"]);
    assert!(properties[2].is_empty());
    assert!(!format!("{config:?}").contains("SCRAM"));
    let faults =
        load("[sinks.a]\nurl = \"kafka://h\"\nproperties = { \"x.y\" = 1.5 }\npropertes = 1", &[], &[]).unwrap_err();
    assert!(
        faults.contains("`sinks.a.properties.x.y` (punctual.toml:3): a string, a whole number or a boolean"),
        "{faults}"
    );
    assert!(faults.contains("hint: did you mean `sinks.a.properties`?"), "{faults}");
}

#[test]
fn a_secret_file_that_everybody_can_read_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, mode: u32| {
        let file = folder.path().join(name);
        std::fs::write(&file, "secret").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        file.display().to_string()
    };
    for (mode, expected) in [(0o600, 0), (0o640, 0), (0o644, 2), (0o604, 2)] {
        let (key, credentials) = (at("key.pem", mode), at("a.creds", mode));
        let file = format!(
            "[http]\ncertificate_file = \"{key}\"\nkey_file = \"{key}\"\n\
             [sinks.default]\nurl = \"nats://h\"\ncredentials_file = \"{credentials}\"\n"
        );
        let warnings: Vec<_> = load(&file, &[], &[]).unwrap().warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), expected, "{mode:o}: {warnings:?}");
        for (place, warning) in
            ["`http.key_file` (punctual.toml:3)", "`sinks.default.credentials_file`"].iter().zip(&warnings)
        {
            assert!(warning.starts_with(place) && warning.contains("every user"), "{warning}");
        }
    }
}

#[test]
fn a_sink_that_no_lane_uses_is_a_warning_with_its_place() {
    let file = "[sinks.a]\nurl = \"stdout:\"\n\n[sinks.b]\nurl = \"memory:\"\n[lanes.default]\nsink = \"a\"";
    let warnings: Vec<_> = load(file, &[], &[]).unwrap().warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("`sinks.b.url` (punctual.toml:5): no lane uses this sink"), "{warnings:?}");
    assert!(load(file, &[("PUNCTUAL__LANES__MORE__SINK", "b")], &[]).unwrap().warnings.is_empty());
}

#[test]
fn connection_options_are_read_and_secret_ones_are_not_shown() {
    let environment = [
        ("PUNCTUAL__TLS__CA_FILE", "ca.pem"),
        ("PUNCTUAL__REDIS__URL", "rediss+sentinel://u:hunter2@a,b/m"),
        ("PUNCTUAL__REDIS__SENTINEL_PASSWORD", "hunter2"),
        ("PUNCTUAL__SINKS__A__URL", "tls://h"),
        ("PUNCTUAL__SINKS__A__CREDENTIALS_FILE", "a.creds"),
        ("PUNCTUAL__SINKS__A__SENTINEL_PASSWORD", "hunter2"),
        ("PUNCTUAL__SINKS__A__PROPERTIES__SASL_PASSWORD", "hunter2"),
    ];
    let config = load("", &environment, &[]).unwrap();
    assert_eq!(config.ca_file.as_deref(), Some(Path::new("ca.pem")));
    assert_eq!(config.sinks["a"].credentials_file.as_deref(), Some(Path::new("a.creds")));
    assert!(config.sentinel_password.is_some() && config.sinks["a"].sentinel_password.is_some());
    assert!(!format!("{config:?}").contains("hunter2"));
    let defaults = load("", &[], &[SINK]).unwrap();
    assert!(defaults.ca_file.is_none() && defaults.sentinel_password.is_none() && defaults.warnings.is_empty());
}

#[test]
fn a_fault_of_a_missing_option_has_the_place_of_its_section() {
    let file = "[claim]\nlease = \"10s\"\n\n[sinks.a]\npatience = \"5s\"\nanswer_timeout = \"1s\"\n[sinks.b]\n[sinks.c]\nurl = \"stdout:\"\n\
                [sinks.UP]\nurl = \"stdout:\"\n[lanes.more]\n";
    let faults = load(file, &[], &[]).unwrap_err();
    for line in [
        "`sinks.answer_timeout` (punctual.toml:2): 7s is more than half of `claim.lease`",
        "`sinks.a.url` (punctual.toml:5): a sink needs a URL",
        "`sinks.b.url` (punctual.toml:7): a sink needs a URL",
        "`sinks.UP` (punctual.toml:11): a name is 1 to 32",
        "`lanes.more.sink` (punctual.toml:12): the lane `more` needs a sink, and there are several",
        "`lanes.default.sink` (punctual.toml:5): the lane `default` needs a sink, and there are several",
        "hint: one of `UP`, `a`, `b`, `c`",
    ] {
        assert!(faults.contains(line), "no `{line}` in:\n{faults}");
    }
}

#[test]
fn a_value_in_place_of_a_section_is_reported_with_a_hint() {
    let said = "a section is expected here, not a value\n    hint: ";
    for (file, place, hint) in [
        ("redis = \"redis://:hunter2@h\"", "`redis` (punctual.toml:1)", "`[redis]`"),
        ("lanes = \"x\"", "`lanes` (punctual.toml:1)", "`[lanes.NAME]`"),
        ("[[sinks]]\nurl = \"kafka://:hunter2@h\"", "`sinks` (punctual.toml:1)", "`[sinks.NAME]`"),
        ("sinks.a = \"kafka://:hunter2@h\"", "`sinks.a` (punctual.toml:1)", "`[sinks.a]` with `url` in it"),
        (
            "[sinks.a]\nurl = \"kafka://h\"\nproperties = \"hunter2\"",
            "`sinks.a.properties` (punctual.toml:3)",
            "`[sinks.a.properties]` with `\"name\" = \"value\"` in it",
        ),
    ] {
        let faults = load(file, &[], &[]).unwrap_err();
        let line = format!("{place}: {said}{hint}");
        assert!(faults.contains(&line) && !faults.contains("hunter2"), "no `{line}` in:\n{faults}");
    }
    let variable = ("PUNCTUAL__SINKS__A__PROPERTIES", "sasl.password=hunter2");
    let faults = load("[sinks.a]\nurl = \"kafka://h\"", &[variable], &[]).unwrap_err();
    let line = format!("`sinks.a.properties` ({}): {said}`[sinks.a.properties]`", variable.0);
    assert!(faults.contains(&line) && !faults.contains("hunter2"), "no `{line}` in:\n{faults}");
    let faults = load("[sinks]\nanswr_timeout = \"1s\"", &[], &[]).unwrap_err();
    assert!(faults.contains("there is no such option\n    hint: did you mean `sinks.answer_timeout`?"), "{faults}");
}

#[test]
fn a_line_break_at_the_end_of_a_url_or_path_is_removed() {
    let environment = [
        ("PUNCTUAL__REDIS__URL", "redis://h\n"),
        ("PUNCTUAL__SINKS__A__URL", " nats://h\n"),
        ("PUNCTUAL__TLS__CA_FILE", "ca.pem\n"),
    ];
    let config = load("", &environment, &[]).unwrap();
    assert_eq!((config.redis.expose(), config.sinks["a"].url.expose()), ("redis://h", "nats://h"));
    assert_eq!(config.ca_file.as_deref(), Some(Path::new("ca.pem")));
}

#[test]
fn settings_with_special_characters_are_shown_as_valid_toml() {
    let file = "[sinks.a]\nurl = \"kafka://h\"\n[sinks.a.properties]\n\"a\\\"b\\u007f.c\" = \"x\"\n\
                [lanes.default]\ndestination = \"\\u007f\\u0000\\n\\\"\"\n";
    let config = load(file, &[], &[]).unwrap();
    let shown: String = config.settings().iter().map(|of| of.toml() + "\n").collect();
    let again = load(&shown, &[], &[]).unwrap();
    assert_eq!(again.lanes, config.lanes);
    assert!(again.sinks["a"].properties.keys().eq(["a\"b\u{7f}.c"]), "{shown}");
}

const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";

#[test]
fn addresses_and_sinks_are_read_as_people_type_them() {
    let token = format!("[tokens.deploy]\nsha256 = \"{HASH}\"\nscope = \"write\"\n");
    for (typed, listen) in [
        ("7171", "127.0.0.1:7171"),
        ("localhost:7171", "127.0.0.1:7171"),
        (":7171", "0.0.0.0:7171"),
        ("[::1]:7171", "[::1]:7171"),
    ] {
        let config = load(&format!("[http]\nlisten = \"{typed}\"\n{token}"), &[], &[SINK]).expect(typed);
        assert_eq!(config.http.listen.to_string(), listen);
    }
    for bad in ["here", ":", "localhost", "localhost:x", "99999"] {
        assert!(load(&format!("[http]\nlisten = \"{bad}\"\n"), &[], &[SINK]).is_err(), "{bad}");
    }
    for (typed, url) in [("stdout", "stdout:"), ("memory", "memory:")] {
        let config = load(&format!("[sinks.a]\nurl = \"{typed}\"\n"), &[], &[]).expect(typed);
        assert_eq!(config.sinks["a"].url.expose(), url);
    }
}

#[test]
fn the_default_zone_is_a_zone_that_exists() {
    let zone = |zone: &str| load(&format!("[tasks]\nzone = \"{zone}\"\n"), &[], &[SINK]).map(|config| config.zone);
    assert_eq!(zone("Europe/Berlin"), Ok(Some("Europe/Berlin".to_owned())));
    assert_eq!(zone("UTC"), Ok(None));
    assert!(zone("Berlin").unwrap_err().contains("`tasks.zone` (punctual.toml:2): `Berlin`: a time zone is expected"));
}

#[test]
fn an_address_beyond_loopback_requires_a_token() {
    for listen in ["0.0.0.0:7171", "10.0.0.1:7171", "[::]:7171"] {
        let address = format!("[http]\nlisten = \"{listen}\"\n");
        let faults = load(&address, &[], &[SINK]).unwrap_err();
        let line = format!("`http.listen` (punctual.toml:2): `{listen}` is not a loopback address, and without tokens");
        assert!(faults.contains(&line) && faults.contains("hint: a section `[tokens.NAME]`"), "{faults}");
        let probes = load(&format!("[http]\nprobe_listen = \"{listen}\"\n"), &[], &[SINK]).unwrap_err();
        assert!(
            probes.contains(&format!("`http.probe_listen` (punctual.toml:2): `{listen}` is not a loopback")),
            "{probes}"
        );
        let token = format!("{address}[tokens.deploy]\nsha256 = \"{HASH}\"\nscope = \"write\"\n");
        let config = load(&token, &[], &[SINK]).unwrap();
        let of = &config.tokens["deploy"];
        assert_eq!((of.sha256[1], of.sha256[31], of.scopes.as_slice()), (0x11, 0xff, &[Scope::Write][..]));
        let warnings: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
        assert!(warnings.len() == 1 && warnings[0].contains("without TLS"), "{warnings:?}");
        let tls = [("PUNCTUAL__HTTP__CERTIFICATE_FILE", "c.pem"), ("PUNCTUAL__HTTP__KEY_FILE", "k.pem")];
        assert!(load(&token, &tls, &[SINK]).unwrap().warnings.is_empty());
    }
    for listen in ["127.0.0.1:1", "[::1]:1"] {
        assert!(load(&format!("[http]\nlisten = \"{listen}\"\n"), &[], &[SINK]).is_ok());
    }
}

#[test]
fn a_token_needs_a_hash_and_a_scope_and_no_hash_is_shown_even_if_it_is_wrong() {
    let file = "[tokens.a]\nsha256 = \"hunter2\"\nscope = \"all\"\n[tokens.b]\n[tokens.UP]\nscope = \"read\"\nsha = \"hunter2\"\n";
    let faults = load(file, &[("PUNCTUAL__TOKENS__C__SHA256", HASH)], &[SINK]).unwrap_err();
    for line in [
        "`tokens.a.sha256` (punctual.toml:2): the SHA-256 of the token is expected, 64 hexadecimal digits",
        "`tokens.a.scope` (punctual.toml:3): `all`: one or several of `read`, `write`, `discard`, `operate` are expected",
        "`tokens.b.sha256` (punctual.toml:4): a token needs its `sha256`",
        "`tokens.b.scope` (punctual.toml:4): a token needs its `scope`",
        "`tokens.c.scope` (PUNCTUAL__TOKENS__C__SHA256): a token needs its `scope`",
        "`tokens.UP` (punctual.toml:6): a name is 1 to 32",
        "`tokens.UP.sha` (punctual.toml:7): there is no such option",
    ] {
        assert!(faults.contains(line), "no `{line}` in:\n{faults}");
    }
    assert!(!faults.contains("hunter2") && !faults.contains(HASH), "{faults}");
    let environment = [("PUNCTUAL__TOKENS__MY_OWN__SHA256", HASH), ("PUNCTUAL__TOKENS__MY_OWN__SCOPE", "write read")];
    let config = load("", &environment, &[SINK]).unwrap();
    assert_eq!(config.tokens["my-own"].scopes, [Scope::Write, Scope::Read]);
    assert!(config.tokens["my-own"].limits.allowed.prefix.as_str().is_empty());
    let shown = format!("{config:?}").to_lowercase();
    assert!(shown.contains("tokens") && !shown.contains(&HASH.to_lowercase()[..8]), "{shown}");
    assert!(!shown.contains("17, 34, 51"), "{shown}");
}

#[test]
fn a_token_with_two_names_or_an_empty_token_is_refused() {
    let token = |name: &str, hash: &str| format!("[tokens.{name}]\nsha256 = \"{hash}\"\nscope = \"read\"\n");
    let nothing = "E3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let file = token("ci", HASH) + &token("ops", &HASH.to_lowercase()) + &token("empty", nothing);
    let faults = load(&file, &[], &[SINK]).unwrap_err();
    for line in [
        "`tokens.ops.sha256` (punctual.toml:5): it is the token of `tokens.ci` too",
        "`tokens.empty.sha256` (punctual.toml:8): it is the SHA-256 of an empty text: was the variable empty?",
    ] {
        assert!(faults.contains(line), "no `{line}` in:\n{faults}");
    }
}

#[test]
fn a_certificate_and_its_key_go_together_and_limits_fit_into_a_body() {
    let file = "[http]\ncertificate_file = \"c.pem\"\nbody_limit = \"2KiB\"\n[limits]\npayload = 2049\nheaders = 1001\n[log]\nformat = \"xml\"\n";
    let faults = load(file, &[], &[SINK]).unwrap_err();
    for line in [
        "`http.certificate_file` (punctual.toml:2): a certificate needs its key\n    hint: `http.key_file`",
        "`limits.payload` (punctual.toml:5): 2049 bytes, in base64 and with headers, do not fit into `http.body_limit`, 2048 bytes\n    hint: `http.body_limit = 27308`",
        "`limits.headers` (punctual.toml:6): a whole number from 0 to 1000 is expected, not the number 1001",
        "`log.format` (punctual.toml:8): `xml`: a format is expected: `text` or `json`",
    ] {
        assert!(faults.contains(line), "no `{line}` in:\n{faults}");
    }
    let key = load("[http]\nkey_file = \"-----BEGIN PRIVATE KEY----- hunter2\"\n", &[], &[SINK]).unwrap_err();
    assert!(key.contains("the path of a file is expected, not its contents") && !key.contains("hunter2"), "{key}");
    let limits =
        |payload: u32| load(&format!("[limits]\npayload = {payload}\nheaders = 3\nheader_bytes = 10\n"), &[], &[SINK]);
    let read = limits(780_279).unwrap().http.api.task;
    assert_eq!((read.payload, read.headers, read.header_bytes), (780_279, 3, 10));
    // Its base64, 1 040 376 bytes, and 10 bytes of headers leave less than 8 KiB of one MiB.
    assert!(limits(780_280).is_err());
}

#[test]
fn a_faulty_value_causes_no_second_fault_and_hides_no_other_fault() {
    let file = "[redis]\nurl = 1\n[http]\nlisten = 1\nbody_limit = 1\n[claim]\nlease = 1\n[timeline]\nnamespace = 1\n\
                [log]\nfilter = 1\n[sinks.a]\nurl = \"stdout:\"\n";
    let sources = Sources { file: Some(("p.toml".into(), file.into())), ..Sources::default() };
    let built = |config: &Config| Err::<(), _>(vec![config.fault("sinks.a.url", "a fault of what is built")]);
    let ConfigError(faults) = Config::load_and(sources, built).unwrap_err();
    let mut lines: Vec<_> = faults
        .iter()
        .map(|fault| match &fault.origin {
            Origin::File { line, .. } => *line,
            _ => 0,
        })
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, [2, 4, 5, 7, 9, 11, 13], "{faults:?}");
}

#[test]
fn a_hint_names_an_option_only_if_it_is_similar() {
    for (file, meant) in [
        ("[sink.a]\nurl = \"stdout:\"", Some("sinks.a.url")),
        ("lease = \"1s\"", Some("claim.lease")),
        ("[clam]\nlease = \"1s\"", Some("claim.lease")),
        ("[elsewhere]\nurl = \"stdout:\"", None),
        ("[lanes.x]\nsinc = \"a\"", Some("lanes.x.sink")),
        ("[lanes.default]\nsink = \"b\"", None),
    ] {
        let faults = load(&format!("{file}\n[sinks.a]\nurl = \"stdout:\"\n"), &[], &[]).unwrap_err();
        match meant {
            Some(meant) => assert!(faults.contains(&format!("did you mean `{meant}`?")), "{file}: {faults}"),
            None => assert!(!faults.contains("did you mean"), "{file}: {faults}"),
        }
    }
}

#[test]
fn environment_variables_of_other_programs_are_ignored() {
    let others = ["PUNCTUAL_URL", "PUNCTUAL_TOKEN", "PUNCTUAL_CA_FILE", "PUNCTUAL_TEST_STRICT", "PUNCTUAL_CACHE"];
    let service = ["PUNCTUAL_PORT", "PUNCTUAL_SERVICE_HOST", "PUNCTUAL_PORT_7171_TCP_ADDR", "REDIS_URL", "PATH"];
    for name in others.into_iter().chain(service) {
        assert!(load("", &[(name, "x")], &[SINK]).is_ok(), "{name}");
    }
}

#[test]
fn durability_and_strict_are_read_from_file_and_environment() {
    let said = |config: Config| (config.durability, config.strict);
    assert_eq!(said(load("", &[], &[SINK]).unwrap()), (Durability::Memory, false));
    let file = "[redis]\ndurability = \"fsync\"\nstrict = true\n";
    assert_eq!(said(load(file, &[], &[SINK]).unwrap()), (Durability::Fsync, true));
    let environment = [("PUNCTUAL__REDIS__STRICT", "false"), ("PUNCTUAL__REDIS__DURABILITY", "replica")];
    assert_eq!(said(load(file, &environment, &[SINK]).unwrap()), (Durability::Replica, false));
    let faults = load("[redis]\ndurability = \"disk\"\nstrict = 1\n", &[], &[SINK]).unwrap_err();
    for line in [
        "`redis.durability` (punctual.toml:2): `disk`: one of `memory`, `replica`, `fsync` is expected",
        "`redis.strict` (punctual.toml:3): `true` or `false` is expected, not the number 1",
    ] {
        assert!(faults.contains(line), "no `{line}` in:\n{faults}");
    }
}

#[test]
fn a_secret_without_its_quotes_is_not_shown() {
    let faults = load("redis.sentinel_password = 12345678\n", &[], &[SINK]).unwrap_err();
    let expected = "`redis.sentinel_password` (punctual.toml:1): a string is expected, not this number";
    assert!(faults.contains(expected) && !faults.contains("12345678"), "{faults}");
}

#[test]
fn a_token_limits_lanes_ids_destinations_pending_tasks_and_puts() {
    let token = format!("[lanes.shop]\n[lanes.news]\n[tokens.t]\nsha256 = \"{HASH}\"\nscope = \"write\"\n");
    let limits = "lanes = [\"shop\", \"news\"]\nprefix = \"shop.\"\ndestinations = [\"orders.*\"]\npending_max = 100\nputs = \"30/m\"\n";
    let TokenLimits { allowed: AllowedTasks { lanes, prefix, destinations }, pending_max, puts } =
        load(&(token.clone() + limits), &[], &[SINK]).unwrap().tokens["t"].limits.clone();
    assert_eq!(lanes.iter().map(Lane::as_str).collect::<Vec<_>>(), ["shop", "news"]);
    assert!(destinations.is_some_and(|allowed| allowed.allow("orders.a") && !allowed.allow("news")));
    assert_eq!((prefix.as_str(), pending_max), ("shop.", Some(100)));
    assert_eq!(puts, Some(PutRate { puts: 30, per: Duration::from_secs(60) }));
    // Variables have no arrays.
    let environment = [("PUNCTUAL__TOKENS__T__LANES", "news shop"), ("PUNCTUAL__TOKENS__T__PREFIX", "a.")];
    let config = load(&token, &environment, &[SINK]).unwrap();
    assert_eq!(config.tokens["t"].limits.allowed.lanes.len(), 2);
    assert!(config.settings().iter().any(|setting| setting.path == "tokens.t.lanes"));
    for (limits, line) in [
        (
            "lanes = [\"shop\"]",
            "`tokens.t.lanes` (punctual.toml:6): without `prefix` the token could replace and cancel",
        ),
        ("lanes = [\"shp\"]\nprefix = \"a.\"", "`shp` is not configured, only `default`, `news`, `shop`"),
        ("lanes = []\nprefix = \"a.\"", "the names of lanes are expected"),
        ("lanes = [1]\nprefix = \"a.\"", "an array of strings is expected, not this array"),
        ("lanes = 7\nprefix = \"a.\"", "an array of strings is expected, not the number 7"),
        ("lanes = [\"A\"]\nprefix = \"a.\"", "`A`: a name is 1 to 32"),
        ("prefix = \".a\"", "the beginning of ids is expected"),
        ("prefix = \"\"", "the beginning of ids is expected"),
        ("destinations = []", "patterns of destinations are expected"),
        ("pending_max = 0", "a whole number from 1 to"),
        ("puts = \"5\"", "`5`: a rate is expected"),
        ("puts = \"0/s\"", "`0/s`: a rate is expected"),
        ("puts = \"5/d\"", "`5/d`: a rate is expected"),
    ] {
        let faults = load(&format!("{token}{limits}\n"), &[], &[SINK]).unwrap_err();
        assert!(faults.contains(line), "no `{line}` in:\n{faults}");
    }
}

#[test]
fn a_sink_may_have_a_list_of_destinations() {
    let sink = "[sinks.a]\nurl = \"stdout:\"\ndestinations = [\"orders.*\", \"news\"]\n";
    let config = load(sink, &[], &[]).unwrap();
    let allowed = config.sinks["a"].destinations.clone().unwrap();
    assert!(allowed.allow("news") && !allowed.allow("other"));
    assert!(config.settings().iter().any(|s| s.toml() == "sinks.a.destinations = [\"orders.*\",\"news\"]"));
}
