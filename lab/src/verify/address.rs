//! Splits the addresses of servers, so that a proxy can be put in between.

use super::{Kind, Missing};

/// The parts of the URL of one server.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    scheme: String,
    /// With its `@`; may contain a password.
    user: String,
    host: String,
    port: u16,
    /// The rest: a virtual host, a database.
    rest: String,
}

impl Address {
    /// Splits the URL of a server.
    ///
    /// # Errors
    /// If it names several servers or TLS, because no proxy can be put in between; or if it is malformed.
    pub(super) fn of(kind: Kind, url: &str) -> Result<Address, Missing> {
        let (scheme, port) = kind.scheme();
        let no = |detail: &str| Missing::new(detail, &format!("name one plain address: {scheme}://127.0.0.1:{port}"));
        let Some(rest) = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")) else {
            return Err(no(&format!("`verify` attacks connections in the open, by `{scheme}://`")));
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        let (user, servers) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        if servers.contains(',') {
            return Err(no("`verify` attacks the connections to one server"));
        }
        let (host, port) = match servers.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port.parse().map_err(|_| no("a port is a number of 1 to 65535"))?),
            None => (servers, port),
        };
        if host.is_empty() {
            return Err(no("an address begins with a host"));
        }
        let [scheme, user, host, rest] = [scheme, user, host, rest].map(str::to_owned);
        Ok(Address { scheme, user, host, port, rest })
    }

    /// The address of a server that was started here.
    pub(super) fn own(kind: Kind, port: u16) -> Address {
        let [scheme, user, host, rest] = [kind.scheme().0, "", "127.0.0.1", ""].map(str::to_owned);
        Address { scheme, user, host, port, rest }
    }

    /// The URL.
    pub(super) fn url(&self) -> secrecy::SecretString {
        format!("{}://{}{}{}", self.scheme, self.user, self.server(), self.rest).into()
    }

    /// The URL through a proxy.
    pub(super) fn through(&self, port: u16) -> secrecy::SecretString {
        format!("{}://{}127.0.0.1:{port}{}", self.scheme, self.user, self.rest).into()
    }

    /// `host:port`.
    pub(super) fn server(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn a_proxied_address_changes_only_its_server() {
        for (kind, url, server, through) in [
            (Kind::Redis, "redis://h", "h:6379", "redis://127.0.0.1:1"),
            (Kind::Redis, "redis://u:p@ss@h:2/3", "h:2", "redis://u:p@ss@127.0.0.1:1/3"),
            (Kind::RabbitMq, "amqp://u:p@h/v", "h:5672", "amqp://u:p@127.0.0.1:1/v"),
            (Kind::Nats, "nats://[::1]", "[::1]:4222", "nats://127.0.0.1:1"),
            (Kind::Kafka, "kafka://[::1]:9", "[::1]:9", "kafka://127.0.0.1:1"),
        ] {
            let address = Address::of(kind, url).unwrap();
            assert_eq!((address.server().as_str(), address.through(1).expose_secret()), (server, through));
            assert!(Address::of(kind, address.url().expose_secret()).unwrap() == address);
        }
    }

    #[test]
    fn an_address_that_cannot_be_proxied_is_refused_without_its_password() {
        for (kind, url) in [
            (Kind::Redis, "rediss://u:secret@h"),
            (Kind::Nats, "nats://u:secret@h,i"),
            (Kind::Kafka, "kafka://u:secret@h:x"),
            (Kind::Kafka, "kafka://u:secret@"),
            (Kind::Kafka, "secret"),
        ] {
            let refused = Address::of(kind, url).err().unwrap();
            assert!(!format!("{refused} {refused:?}").contains("secret"));
        }
    }
}
