//! Keeps `docker-compose.yml`, `Dockerfile`, README and `make up` consistent. Starts no container: the files are
//! read as text, and a script replaces Docker.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use punctual::config::{Config, Sources};
use punctual::http::access::Scope;
use punctual_sinks::SinkConfig;
use serde_json::Value;

const BROKERS: [&str; 3] = ["kafka", "nats", "rabbitmq"];

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The services of `docker-compose.yml`, by name.
fn services() -> Vec<(String, Value)> {
    let compose: Value = serde_saphyr::from_str(&file("docker-compose.yml")).expect("YAML");
    let services = compose["services"].as_object().expect("services");
    services.iter().map(|(name, service)| (name.clone(), service.clone())).collect()
}

/// The texts in a list.
fn texts(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    list.iter().map(|item| item.as_str().unwrap_or_else(|| panic!("no text: {item}"))).collect()
}

/// The profiles that start a service; empty if every profile does.
fn profiles(service: &Value) -> Vec<&str> {
    if service["profiles"].is_null() { Vec::new() } else { texts(&service["profiles"]) }
}

/// The services that a profile starts.
fn started(profile: &str) -> BTreeSet<String> {
    let starts = |service: &Value| profiles(service).is_empty() || profiles(service).contains(&profile);
    services().into_iter().filter(|(_, service)| starts(service)).map(|(name, _)| name).collect()
}

/// The SHA-256 of a token, as `make up` hands it to Docker.
const HASH: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// The environment of a service, with [`HASH`].
fn environment(service: &Value) -> Vec<(String, String)> {
    let pairs = service["environment"].as_object().into_iter().flatten();
    let text = |value: &Value| value.as_str().unwrap_or_else(|| panic!("quote it: {value}")).to_owned();
    pairs.map(|(name, value)| (name.clone(), text(value).replace("${PUNCTUAL_TOKEN_SHA256:-}", HASH))).collect()
}

/// The published ports of a service: on this machine, and in the container.
fn ports(service: &Value) -> Vec<(String, String)> {
    if service["ports"].is_null() {
        return Vec::new();
    }
    let split = |port: &str| port.rsplit_once(':').map(|(outer, own)| (outer.to_owned(), own.to_owned()));
    texts(&service["ports"]).iter().map(|port| split(port).unwrap_or_else(|| panic!("`{port}`"))).collect()
}

/// Whether an image has a tag with at least two version numbers.
fn is_pinned(image: &str) -> bool {
    let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
    let version = tag.split('-').next().unwrap_or_default();
    let numbers: Vec<&str> = version.split('.').collect();
    numbers.len() >= 2 && numbers.iter().all(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[test]
fn punctual_has_limits_and_no_privileges() {
    for (name, service) in services().into_iter().filter(|(_, service)| !service["build"].is_null()) {
        assert_eq!(service["read_only"], true, "`{name}`");
        assert_eq!(texts(&service["cap_drop"]), ["ALL"], "`{name}`");
        assert_eq!(texts(&service["security_opt"]), ["no-new-privileges:true"], "`{name}`");
        assert!(service["mem_limit"].is_string() && service["pids_limit"].is_u64(), "`{name}`: {service}");
    }
}

#[test]
fn images_are_pinned() {
    for (name, service) in services() {
        let image = service["image"].as_str().unwrap_or_else(|| panic!("`{name}` has no image"));
        assert!(is_pinned(image), "`{name}`: `{image}` is not pinned");
        if !service["build"].is_null() {
            assert_eq!(image, format!("punctual:{}", env!("CARGO_PKG_VERSION")), "`{name}` is of another version");
        }
    }
    let dockerfile = file("Dockerfile");
    let bases: Vec<&str> = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(bases.len(), 2, "one stage builds, one runs: {bases:?}");
    for base in bases {
        let image = base.split(' ').next().expect("an image");
        assert!(is_pinned(image), "`{image}` is not pinned");
    }
    for moving in ["redis", "redis:latest", "redis:7", "redis:alpine", "redis:7-alpine", "debian:bookworm-slim"] {
        assert!(!is_pinned(moving), "{moving}");
    }
}

#[test]
fn every_service_is_health_checked_and_waited_for() {
    for (name, service) in services() {
        let check = texts(&service["healthcheck"]["test"]);
        assert!(["CMD", "CMD-SHELL"].contains(&check[0]) && check.len() > 1, "`{name}` is not checked: {check:?}");
        for limit in ["interval", "timeout", "retries"] {
            assert!(!service["healthcheck"][limit].is_null(), "the health of `{name}` has no {limit}");
        }
        for (other, wait) in service["depends_on"].as_object().into_iter().flatten() {
            assert_eq!(wait["condition"], "service_healthy", "`{name}` does not wait for `{other}`");
            for profile in profiles(&service) {
                assert!(started(profile).contains(other), "`{profile}` starts `{name}` without `{other}`");
            }
        }
        let is_ours = name.starts_with("punctual");
        assert_eq!(is_ours, service["depends_on"]["redis"].is_object(), "`{name}` and Redis");
    }
}

#[test]
fn a_profile_starts_redis_its_broker_and_one_punctual() {
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(started("none"), set(&["redis"]));
    assert_eq!(started("kafka"), set(&["redis", "kafka", "punctual-kafka"]));
    assert_eq!(started("nats"), set(&["redis", "nats", "nats-box", "punctual-nats"]));
    assert_eq!(started("rabbitmq"), set(&["redis", "rabbitmq", "punctual-rabbitmq"]));
    assert_eq!(started("all"), set(&["redis", "kafka", "nats", "nats-box", "rabbitmq", "punctual"]));
    let named: BTreeSet<String> =
        services().iter().flat_map(|(_, service)| profiles(service)).map(str::to_owned).collect();
    assert_eq!(named, set(&["all", "kafka", "nats", "rabbitmq"]));
}

#[test]
fn compose_ports_and_credentials_match_the_readme() {
    let readme = file("README.md");
    let mut published = BTreeSet::new();
    for (name, service) in services() {
        for (outer, _) in ports(&service) {
            assert!(outer.starts_with("127.0.0.1:"), "`{name}` is published to everybody: {outer}");
            assert!(readme.contains(&outer), "the README does not name {outer}, of `{name}`");
            published.insert(outer);
        }
    }
    // Every address in the README belongs to a service.
    for (at, address) in readme.match_indices("127.0.0.1:") {
        let digits: String =
            readme[at + address.len()..].chars().take_while(|character| character.is_ascii_digit()).collect();
        let address = format!("127.0.0.1:{digits}");
        assert!(published.contains(&address), "the README names {address}, which nothing publishes");
    }
    let (_, rabbitmq) = services().into_iter().find(|(name, _)| name == "rabbitmq").expect("a RabbitMQ");
    let environment = environment(&rabbitmq);
    let value = |name: &str| &environment.iter().find(|(known, _)| known == name).expect(name).1;
    let login = format!("{}:{}@", value("RABBITMQ_DEFAULT_USER"), value("RABBITMQ_DEFAULT_PASS"));
    assert!(readme.contains(&format!("amqp://{login}127.0.0.1:5672")), "the README logs in otherwise than {login}");
    // Every URL that logs in uses these credentials.
    for (name, text) in [("README.md", &readme), ("docker-compose.yml", &file("docker-compose.yml"))] {
        for (at, _) in text.match_indices("://") {
            let authority: &str = text[at + 3..].split(|end: char| "/ `'\"|)>\n".contains(end)).next().expect("a part");
            let ours = authority.contains("127.0.0.1:5672") || authority.contains("rabbitmq:5672");
            // The broker in the tour belongs to the reader.
            let own = name == "README.md" && !authority.contains('@');
            assert!(!ours || own || authority.starts_with(&login), "{name} logs in to RabbitMQ as `{authority}`");
        }
    }
}

#[test]
fn compose_gives_punctual_a_valid_configuration_for_services_of_its_profile() {
    for (name, service) in services().into_iter().filter(|(name, _)| name.starts_with("punctual")) {
        let mut environment = environment(&service);
        environment.push(("PUNCTUAL__HTTP__LISTEN".to_owned(), listen()));
        let config =
            Config::load(Sources { environment, ..Sources::default() }).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(ports(&service)[0].1, config.http.listen.port().to_string());
        assert!(!config.http.listen.ip().is_loopback(), "nobody outside of the container reaches it");
        let profile = profiles(&service)[0];
        let there = started(profile);
        let leads = |address: &str| {
            let host = address.split_once("://").expect("a URL").1.split(':').next().expect("a host");
            assert!(there.contains(host), "`{name}` looks for {address}, which `{profile}` does not start");
        };
        assert_eq!(config.redis.expose(), "redis://redis:6379");
        let mut kinds = BTreeSet::new();
        for sink in config.sinks.values() {
            let sink = SinkConfig::parse(sink.url.expose()).unwrap_or_else(|error| panic!("{name}: {error}"));
            leads(&sink.address());
            kinds.insert(sink.kind());
        }
        let expected = if profile == "all" { BROKERS.to_vec() } else { vec![profile] };
        assert_eq!(kinds, expected.into_iter().collect(), "the sinks of `{name}`");
    }
}

#[test]
fn the_containers_accept_only_the_token_of_make_up() {
    for (name, service) in services().into_iter().filter(|(name, _)| name.starts_with("punctual")) {
        let with = |given: &str| {
            let mut environment = environment(&service);
            environment.push(("PUNCTUAL__HTTP__LISTEN".to_owned(), listen()));
            environment.iter_mut().for_each(|(_, value)| *value = value.replace(HASH, given));
            Config::load(Sources { environment, ..Sources::default() })
        };
        let config = with(HASH).expect("a configuration");
        let [(_, known)] = config.tokens.iter().collect::<Vec<_>>()[..] else { panic!("one token, for `{name}`") };
        assert_eq!((known.sha256[1], known.scopes.as_slice()), (0x11, Scope::ALL), "`{name}`");
        let refused = with("").expect_err("nobody may use it without a token").to_string();
        assert!(refused.contains("`tokens.demo.sha256`"), "{refused}");
    }
}

/// The address on which punctual listens in the image.
fn listen() -> String {
    let dockerfile = file("Dockerfile");
    let listen = dockerfile.lines().find_map(|line| line.strip_prefix("ENV PUNCTUAL__HTTP__LISTEN="));
    listen.expect("the image says where to listen").to_owned()
}

#[test]
fn the_image_runs_as_a_plain_user_and_is_health_checked() {
    let dockerfile = file("Dockerfile");
    let (_, runtime) = dockerfile.rsplit_once("\nFROM ").expect("two stages");
    let instructions: Vec<&str> = runtime.lines().collect();
    let last = |name: &str| {
        let place = instructions.iter().rposition(|line| line.starts_with(name));
        place.unwrap_or_else(|| panic!("the image has no {name}"))
    };
    let user = instructions[last("USER ")].trim_start_matches("USER ");
    let id = user.split(':').next().and_then(|id| id.parse::<u32>().ok());
    assert!(id.is_some_and(|id| id >= 10_000), "`{user}` is to be a plain user, by number");
    assert!(last("USER ") > last("COPY ") && last("USER ") > last("RUN "), "root's work comes before");
    let health = instructions[last("HEALTHCHECK ")..].join(" ");
    assert!(health.contains("/readyz") && health.contains(listen().rsplit_once(':').expect("a port").1), "{health}");
    assert!(instructions[last("ENTRYPOINT ")].contains("[\"punctual\"]"), "no shell in between: it gets the signals");
}

/// The files that the image build copies are a valid workspace for cargo. They contain each file that the compiler read
/// for the programs.
#[test]
fn the_image_context_has_every_file_that_the_build_reads() {
    let (root, copy) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().unwrap());
    for path in file(".dockerignore").lines().filter_map(|line| line.strip_prefix('!')) {
        let to = copy.path().join(path);
        std::fs::create_dir_all(to.parent().expect("a folder")).unwrap();
        let copied = Command::new("cp").arg("-r").arg(root.join(path)).arg(&to).status().expect("cp runs");
        assert!(copied.success(), "`{path}` of .dockerignore is not there");
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--quiet", "--offline", "--locked", "--no-deps", "--format-version", "1"]);
    let output = cargo.current_dir(&copy).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for program in ["punctual", "punctual-lab"] {
        // Cargo writes this list beside each program.
        let list = Path::new(env!("CARGO_BIN_EXE_punctual")).with_file_name(format!("{program}.d"));
        let list = std::fs::read_to_string(&list).unwrap_or_else(|_| panic!("`make test` builds `{program}`"));
        let (_, read) = list.split_once(": ").expect("a list of files");
        let read = read.split_whitespace().map(|path| Path::new(path).strip_prefix(root).unwrap());
        // Continuous integration compiles with Clippy, which reads its own settings.
        let read: Vec<&Path> = read.filter(|path| *path != ".clippy.toml").collect();
        assert!(read.iter().any(|path| path.starts_with("lua")) && read.len() > 100, "{read:?}");
        for path in read {
            assert!(copy.path().join(path).exists(), "{program} needs `{}`", path.display());
        }
    }
    assert!(file("Dockerfile").contains("cargo build --locked --release --workspace --bins"));
}

/// Runs `.ci/compose` of this folder, like `make up` and `make down`, with the programs of this folder first, or alone.
fn run(folder: &Path, alone: bool, arguments: &[&str]) -> (Option<i32>, String) {
    let path = format!("{}{}", folder.display(), if alone { "" } else { ":/usr/bin:/bin" });
    let mut bash = Command::new("/bin/bash");
    let output = bash.arg(folder.join(".ci/compose")).args(arguments).env("PATH", path).output().expect("bash runs");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn make_up_names_a_missing_tool_or_starts_the_profile() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join(".ci")).unwrap();
    std::fs::write(folder.path().join(".ci/compose"), file(".ci/compose")).unwrap();
    // Written by another process: a program that another test starts in the meantime would inherit our open file, and a
    // file that is open for writing cannot be run.
    let docker = |answers: &str| {
        let script = format!("#!/bin/bash\necho \"$*\" >>\"$0.log\"\n{answers}\n");
        let write = "printf %s \"$1\" >docker; chmod 755 docker";
        let status = Command::new("/bin/bash").args(["-euc", write, "-", &script]).current_dir(folder.path()).status();
        assert!(status.expect("bash runs").success());
    };
    let missing = |word: &str| {
        let (code, said) = run(folder.path(), true, &["up", "nats"]);
        assert!(
            code == Some(2) && said.starts_with("error: ") && said.contains(word) && said.contains("\nhint: "),
            "{said}"
        );
    };
    missing("docker is missing");
    docker("exit 1");
    missing("no Docker engine answers");
    docker("[ \"$1\" = info ]");
    missing("no command `compose`");
    docker("echo \"$PUNCTUAL_TOKEN_SHA256\" >\"$0.hash\"");
    let (code, said) = run(folder.path(), true, &["up", "none"]);
    assert!(code == Some(2) && said.contains("there is no profile `none`"), "{said}");
    // All profiles use the same port, so another one is stopped first.
    let ours: BTreeSet<String> =
        services().into_iter().map(|(name, _)| name).filter(|name| name.starts_with("punctual")).collect();
    for profile in BROKERS.into_iter().chain(["all"]) {
        assert_eq!(run(folder.path(), false, &["up", profile]), (Some(0), String::new()));
        let asked = std::fs::read_to_string(folder.path().join("docker.log")).unwrap();
        let [.., removed, started] = asked.lines().collect::<Vec<_>>()[..] else { panic!("{asked}") };
        let removed = removed.strip_prefix("compose --profile * rm --stop --force ").expect(removed);
        assert_eq!(removed.split(' ').map(str::to_owned).collect::<BTreeSet<_>>(), ours);
        assert_eq!(started, format!("compose --profile {profile} up --build --detach --wait"));
    }
    let token = folder.path().join("punctual.token");
    assert_eq!(std::fs::metadata(&token).unwrap().permissions().mode() & 0o077, 0, "others may read the token");
    let token = std::fs::read_to_string(token).unwrap();
    assert!(token.len() == 64 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{token}");
    let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes());
    let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(std::fs::read_to_string(folder.path().join("docker.hash")).unwrap().trim(), hash);
    assert_eq!(run(folder.path(), false, &["down"]).0, Some(0));
    let asked = std::fs::read_to_string(folder.path().join("docker.log")).unwrap();
    assert!(asked.ends_with("compose --profile * down --volumes\n"), "{asked}");
}
