//! Tokens and TLS for callers and operators: what works, what is reported, and what is never shown.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Run, punctual, read, run};
use crate::support;
use crate::support::certificates::Certificates;
use crate::support::punctual::Punctual;
use crate::support::server::free_port;

const READER: &str = "reader-hunter2";
const WRITER: &str = "writer-hunter3";
const UNKNOWN: &str = "unknown-hunter4";

/// Tokens by their hashes, made as in the documentation.
fn tokens() -> String {
    let hash = |token: &str| {
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes());
        hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let section = |name: &str, token: &str, scope: &str| {
        format!("[tokens.{name}]\nsha256 = \"{}\"\nscope = \"{scope}\"\n", hash(token))
    };
    section("reader", READER, "read") + &section("writer", WRITER, "write")
}

/// An instance with its timeline in memory that requires tokens, and uses TLS if there is a certificate.
fn instance(certificates: Option<&Certificates>) -> Punctual {
    let files = certificates.map(|certificates| {
        let (certificate, key) = (certificates.certificate_file(), certificates.key_file());
        format!("certificate_file = \"{}\"\nkey_file = \"{}\"\n", certificate.display(), key.display())
    });
    Punctual::start_unready(&format!(
        "{}[redis]\nurl = \"memory:\"\n[sinks.default]\nurl = \"stdout:\"\n[log]\nfilter = \"trace\"\n{}",
        files.unwrap_or_default(),
        tokens()
    ))
}

fn call(arguments: &[&str], variables: &[(&str, &str)]) -> Run {
    read(punctual(arguments).envs(variables.iter().copied()).output().unwrap())
}

fn put<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["task", "put", "a", "--in", "1h", "--url", url], more].concat()
}

#[test]
fn a_token_comes_from_the_environment_or_a_file_and_never_shows() {
    let instance = instance(None);
    let url = &format!("http://127.0.0.1:{}", instance.port);
    let written = call(&put(url, &[]), &[("PUNCTUAL_TOKEN", WRITER)]);
    assert_eq!(written.code, Some(0), "{}", written.err);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{READER}\n")).unwrap();
    let path = file.path().to_str().unwrap();
    // The file takes precedence.
    let shown = call(&["task", "get", "a", "--url", url, "--token-file", path], &[("PUNCTUAL_TOKEN", UNKNOWN)]);
    assert!(shown.code == Some(0) && shown.out.contains("\"scheduled\""), "{}{}", shown.out, shown.err);
    for (token, detail, hint) in [
        (
            None,
            "cannot put the task `a`: a token is expected",
            "the variable `PUNCTUAL_TOKEN`, or a file that `--token-file`",
        ),
        (Some(UNKNOWN), "the token is not known here", "has other tokens: the variable `PUNCTUAL_TOKEN`"),
        (Some(READER), "the token has no scope `write`", "says what it may: `scope`"),
    ] {
        let variables: Vec<_> = token.map(|token| ("PUNCTUAL_TOKEN", token)).into_iter().collect();
        let refused = call(&put(url, &[]), &variables);
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{}", refused.err);
        assert!(refused.err.contains(detail) && refused.err.contains(hint), "{}", refused.err);
        assert!(!refused.err.contains("hunter"), "{}", refused.err);
        // A batch is refused before it is sent, whatever its length.
        let tasks = tempfile::NamedTempFile::new().unwrap();
        let line = "{\"id\":\"b\",\"schedule\":{\"in\":\"1h\"},\"message\":{}}\n";
        std::fs::write(tasks.path(), line.repeat(200_000)).unwrap();
        let refused = call(&["task", "put", "-f", tasks.path().to_str().unwrap(), "--url", url], &variables);
        assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{}", refused.err);
        assert!(
            refused.err.contains(detail.rsplit(": ").next().unwrap()) && refused.err.contains(hint),
            "{}",
            refused.err
        );
    }
    for (token, file, detail) in [
        (" ", None, "`PUNCTUAL_TOKEN` holds no token"),
        ("hunter5 hunter6", None, "`PUNCTUAL_TOKEN` holds no token"),
        ("", Some("/nowhere"), "cannot read the token in `/nowhere`"),
        ("", Some("/dev/null"), "`/dev/null` holds no token"),
        ("", Some("/dev/zero"), "`/dev/zero` holds no token"),
    ] {
        let more = file.map(|file| vec!["--token-file", file]).unwrap_or_default();
        let wrong = call(&put(url, &more), &[("PUNCTUAL_TOKEN", token)]);
        assert_eq!(wrong.code, Some(2), "{}", wrong.err);
        assert!(wrong.err.contains(detail) && !wrong.err.contains("hunter"), "{}", wrong.err);
    }
    // The instance does not show a token or its hash in its logs either.
    let mut request =
        ureq::get(format!("{url}/metrics")).header("authorization", format!("Bearer {READER}")).call().unwrap();
    let metrics = request.body_mut().read_to_string().unwrap();
    assert!(metrics.contains("status=\"401\""), "{metrics}");
    let log = instance.log();
    assert!(log.contains("a request was not allowed") && log.contains("no_token"), "{log}");
    let hashes: Vec<String> =
        tokens().lines().filter_map(|line| line.strip_prefix("sha256 = ")).map(str::to_owned).collect();
    assert_eq!(hashes.len(), 2);
    for text in [&metrics, &log] {
        assert!(!text.contains("hunter"), "{text}");
        assert!(hashes.iter().all(|hash| !text.contains(hash.trim_matches('"'))), "{text}");
    }
}

#[test]
fn the_command_line_uses_tls_and_reports_an_untrusted_certificate() {
    let (ours, other) = (Certificates::new(), Certificates::new());
    let instance = instance(Some(&ours));
    let url = &format!("https://127.0.0.1:{}", instance.port);
    let (ca, wrong) = (ours.ca_file(), other.ca_file());
    let (ca, wrong) = (ca.to_str().unwrap(), wrong.to_str().unwrap());
    let token = ("PUNCTUAL_TOKEN", WRITER);
    let written = call(&put(url, &["--ca-file", ca]), &[token]);
    assert_eq!(written.code, Some(0), "{}", written.err);
    let tasks = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tasks.path(), "{\"id\":\"b\",\"schedule\":{\"in\":\"1h\"},\"message\":{}}\n".repeat(3000)).unwrap();
    let batch = ["task", "put", "-f", tasks.path().to_str().unwrap(), "--url", url];
    let written = call(&batch, &[token, ("PUNCTUAL_CA_FILE", ca)]);
    assert_eq!((written.code, written.err.as_str()), (Some(0), ""), "{}", written.out);
    for arguments in
        [&batch.map(str::to_owned).to_vec(), &put(url, &[]).into_iter().map(str::to_owned).collect::<Vec<_>>()]
    {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let refused = call(&arguments, &[token, ("PUNCTUAL_CA_FILE", wrong)]);
        assert_eq!(refused.code, Some(1));
        assert!(refused.err.contains(&format!("at `{url}`: invalid peer certificate: ")), "{}", refused.err);
        assert!(
            refused.err.contains(&format!("\nhint: trusted are the authorities in `{wrong}` alone")),
            "{}",
            refused.err
        );
    }
    let missing = call(&put(url, &["--ca-file", "/nowhere.pem"]), &[token]);
    assert!(
        missing.code == Some(2) && missing.err.contains("cannot read the certificates in `/nowhere.pem`"),
        "{}",
        missing.err
    );
    // Each is called with the other protocol.
    let plain = url.replace("https", "http");
    let refused = call(&put(&plain, &[]), &[token]);
    assert!(
        refused.code == Some(1) && refused.err.contains("hint: it speaks no plain HTTP, maybe TLS"),
        "{}",
        refused.err
    );
    let server = super::serve(&[]);
    let refused = call(&put(&super::url(&server).replace("http", "https"), &["--ca-file", ca]), &[token]);
    assert!(
        refused.code == Some(1) && refused.err.contains("hint: it speaks no TLS, maybe plain HTTP"),
        "{}",
        refused.err
    );
    assert!(!instance.log().contains("hunter"), "{}", instance.log());
}

#[test]
fn another_client_trusts_the_listener_by_its_authority_alone() {
    if !support::have("curl") {
        return;
    }
    let (ours, other) = (Certificates::new(), Certificates::new());
    let instance = instance(Some(&ours));
    let curl = |ca: &Path, more: &[&str]| {
        let url = format!("https://localhost:{}/v1/stats", instance.port);
        let output = Command::new("curl")
            .args(["-sS", "--fail-with-body", "--cacert"])
            .arg(ca)
            .args(more)
            .arg(url)
            .stdin(Stdio::null())
            .output();
        read(output.unwrap())
    };
    let token = format!("authorization: Bearer {READER}");
    let answer = curl(&ours.ca_file(), &["-H", &token]);
    assert!(answer.code == Some(0) && answer.out.contains("\"lanes\""), "{}{}", answer.out, answer.err);
    let answer = curl(&ours.ca_file(), &[]);
    assert!(answer.code == Some(22) && answer.out.contains("no_token"), "{}{}", answer.out, answer.err);
    assert_eq!(curl(&other.ca_file(), &["-H", &token]).code, Some(60), "not trusted");
}

#[test]
fn faults_of_certificate_files_are_reported_with_all_others_and_their_lines() {
    let (ours, other) = (Certificates::new(), Certificates::new());
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (key, line) in [
        (other.key_file(), format!("`http.key_file` ({path}:3): the key in `")),
        ("nowhere.key".into(), format!("`http.key_file` ({path}:3): cannot read the key in `nowhere.key`: ")),
    ] {
        let text = format!(
            "[http]\ncertificate_file = \"{}\"\nkey_file = \"{}\"\n[claim]\nleese = \"1s\"\n[sinks.default]\nurl = \"stdout:\"\n",
            ours.certificate_file().display(),
            key.display()
        );
        std::fs::write(file.path(), text).unwrap();
        let refused = run(&["serve", "--redis", "memory:", "--config", path]);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains(&line) && refused.err.contains("`claim.leese`"), "no {line} in {}", refused.err);
    }
}

#[test]
fn an_absent_instance_and_an_invalid_url_are_reported() {
    let nobody = format!("https://127.0.0.1:{}", free_port());
    let ca = Certificates::new().ca_file();
    let away = run(&put(&nobody, &["--ca-file", ca.to_str().unwrap()]));
    // The file of the authority is gone; that is reported first.
    assert_eq!(away.code, Some(2), "{}", away.err);
    let ours = Certificates::new();
    let ca = ours.ca_file();
    let away = run(&put(&nobody, &["--ca-file", ca.to_str().unwrap()]));
    assert!(
        away.code == Some(1) && away.err.contains("\nhint: start an instance with `punctual serve`"),
        "{}",
        away.err
    );
    for url in [
        "instance",
        "ftp://127.0.0.1",
        "http://me:hunter2@127.0.0.1:1",
        "http://me:hunter2@[::bad",
        "http://a?b=hunter2",
        "http://127.0.0.1:99999",
        "https://127.0.0.1:65536",
        "http://[::1]:99999",
        "http://127.0.0.1:",
        "http://127.0.0.1:0",
    ] {
        let wrong = run(&put(url, &[]));
        assert_eq!(wrong.code, Some(2), "{url}: {}", wrong.err);
        assert!(wrong.err.contains("cannot call an instance at `") && !wrong.err.contains("hunter2"), "{}", wrong.err);
    }
}

#[test]
fn empty_variables_say_nothing() {
    let empty = [("PUNCTUAL_URL", ""), ("PUNCTUAL_TOKEN", ""), ("PUNCTUAL_CA_FILE", "")];
    let instance = instance(None);
    let url = &format!("http://127.0.0.1:{}", instance.port);
    let refused = call(&put(url, &[]), &empty[1..]);
    assert!(refused.code == Some(1) && refused.err.contains("a token is expected"), "{}", refused.err);
    let usual = call(&["task", "get", "a"], &empty);
    assert!(usual.code == Some(1) && usual.err.contains("`http://127.0.0.1:7171`"), "{}", usual.err);
}

#[test]
fn an_unused_ca_file_and_an_unencrypted_token_are_reported() {
    let plain = format!("http://127.0.0.1:{}", free_port());
    let refused = run(&put(&plain, &["--ca-file", "/nowhere.pem"]));
    assert!(refused.code == Some(2) && refused.err.contains("`--ca-file` is for `https://`"), "{}", refused.err);
    // A variable applies to all calls, including those over https.
    let away = call(&put(&plain, &[]), &[("PUNCTUAL_CA_FILE", "/nowhere.pem")]);
    assert_eq!(away.code, Some(1), "{}", away.err);
    let warning =
        |url: &str, token| call(&put(url, &[]), &[("PUNCTUAL_TOKEN", token)]).err.contains("warning: the token");
    // A name that does not exist, and an address without a server.
    assert!(warning("http://punctual.invalid", WRITER), "a token in the clear");
    assert!(!warning("http://punctual.invalid", ""), "no token");
    assert!(!warning(&plain, WRITER) && !warning(&plain.replace("127.0.0.1", "localhost"), WRITER), "here");
}
