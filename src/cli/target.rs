//! The instance to call and the token to use, from flags and variables. An empty variable counts as unset.

use std::fmt::Display;
use std::io::Read;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::anyhow;
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use hyper::Uri;
use hyper::header::HeaderValue;
use punctual_sinks::Tls;
use tokio_rustls::TlsConnector;

use super::{Failure, tell};
use crate::config::{SecretUrl, others_may_read};

/// The variable for a token. As an argument, every user of the machine could see it.
const TOKEN: &str = "PUNCTUAL_TOKEN";

const CA_FILE: &str = "PUNCTUAL_CA_FILE";

/// Maximum size of a token's file in bytes; far more than a token.
const MAX_TOKEN_BYTES: u64 = 64 << 10;

const DEFAULT: &str = "http://127.0.0.1:7171";

/// The instance to call, and the token.
#[derive(Args)]
pub(super) struct ApiTarget {
    /// The instance's API
    #[arg(long, value_name = "URL", env = "PUNCTUAL_URL", hide_env_values = true, default_value = DEFAULT)]
    url: String,
    /// File that contains a token of the instance; without it the variable PUNCTUAL_TOKEN may contain one
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// PEM file with the authorities to trust over https, in place of the system's
    #[arg(
        long,
        value_name = "FILE",
        env = CA_FILE,
        hide_env_values = true,
        value_parser = OsStringValueParser::new().map(PathBuf::from)
    )]
    ca_file: Option<PathBuf>,
}

/// The address of an instance.
pub(super) struct Address {
    /// The URL without a possible user and password.
    pub(super) shown: String,
    pub(super) over_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port as written.
    pub(super) authority: String,
    /// The path before `/v1`.
    pub(super) base: String,
}

impl Address {
    /// Whether the address is on this machine.
    pub(super) fn is_here(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl ApiTarget {
    pub(super) fn address(&self) -> Result<Address, Failure> {
        let url = &complete(if self.url.is_empty() { DEFAULT } else { &self.url });
        let shown = SecretUrl::new(url.to_owned()).to_string();
        let wrong = |detail: &str| Failure::usage(anyhow!("cannot call an instance at `{shown}`: {detail}"));
        let whole = "a URL is expected such as `http://127.0.0.1:7171`";
        // The parser's error may quote a password.
        let uri: Uri = url.parse().map_err(|_| wrong(whole))?;
        let over_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong(whole)),
        };
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        if authority.contains('@') {
            return Err(wrong("it takes a token, no user or password").hint(how_to_give_a_token()));
        }
        if uri.query().is_some() {
            return Err(wrong("it takes no query"));
        }
        let host = uri.host().unwrap_or_default();
        // Parsed here: the URL parser treats a port above 65535 as none, and the token would go to another server.
        let port = match authority.strip_prefix(host) {
            Some("") => Some(if over_tls { 443 } else { 80 }),
            rest => rest.and_then(|rest| rest.strip_prefix(':')?.parse().ok()).filter(|&port| port != 0),
        };
        let port = port.ok_or_else(|| wrong("a port is a number from 1 to 65535"))?;
        // Only the flag is an error: the variable may be set for other instances.
        if !over_tls && self.ca_file().is_some_and(|file| std::env::var_os(CA_FILE).is_none_or(|said| said != *file)) {
            return Err(wrong("`--ca-file` is for `https://`"));
        }
        Ok(Address {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            base: uri.path().trim_end_matches('/').to_owned(),
            over_tls,
            authority,
            shown,
        })
    }

    pub(super) fn ca_file(&self) -> Option<&Path> {
        self.ca_file.as_deref().filter(|file| !file.as_os_str().is_empty())
    }

    pub(super) fn connector(&self) -> Result<TlsConnector, Failure> {
        let tls = self.ca_file().map_or_else(|| Ok(Tls::default()), Tls::from_ca_file);
        let failed = |error: &dyn Display| {
            Failure::usage(anyhow!("{error}"))
                .hint("`--ca-file` or `PUNCTUAL_CA_FILE` names a PEM file with authorities")
        };
        let mut config = tls.and_then(|tls| tls.client_config()).map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// The header with the token.
    pub(super) fn token(&self) -> Result<Option<HeaderValue>, Failure> {
        let (place, token) = match &self.token_file {
            Some(file) => {
                let mut read = String::new();
                std::fs::File::open(file)
                    .and_then(|opened| {
                        if opened.metadata().is_ok_and(|file| others_may_read(&file)) {
                            tell(&format!("warning: every user of this machine may read `{}`\n", file.display()));
                        }
                        opened.take(MAX_TOKEN_BYTES).read_to_string(&mut read)
                    })
                    .map_err(|error| {
                        Failure::usage(anyhow!("cannot read the token in `{}`: {error}", file.display()))
                    })?;
                (format!("`{}`", file.display()), read)
            }
            None => match std::env::var(TOKEN) {
                Ok(token) if token.is_empty() => return Ok(None),
                Ok(token) => (format!("`{TOKEN}`"), token),
                Err(std::env::VarError::NotPresent) => return Ok(None),
                Err(std::env::VarError::NotUnicode(_)) => return Err(no_token(&format!("`{TOKEN}`"))),
            },
        };
        let token = token.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(no_token(&place));
        }
        let mut header = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| no_token(&place))?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

/// The URL of an address as people type it: `localhost:7171`, `:7171`, `7171`.
fn complete(address: &str) -> String {
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    match address.split_once(':') {
        None if is_port(address) => format!("http://127.0.0.1:{address}"),
        Some(("", port)) if is_port(port) => format!("http://127.0.0.1:{port}"),
        Some((host, port)) if !host.is_empty() && is_port(port) => format!("http://{host}:{port}"),
        _ => address.to_owned(),
    }
}

pub(super) fn how_to_give_a_token() -> String {
    format!("the variable `{TOKEN}`, or a file that `--token-file` names, holds a token")
}

fn no_token(place: &str) -> Failure {
    Failure::usage(anyhow!("{place} holds no token: one word of visible ASCII characters is expected"))
}
