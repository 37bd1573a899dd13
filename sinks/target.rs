//! Splits the URL of a sink into hosts, user, password and path.

use crate::Password;

/// The scheme of a URL, and what it says about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheme {
    pub(crate) name: &'static str,
    /// The default port; 0 if the URL has no address.
    port: u16,
    /// Whether the connection uses TLS.
    pub(crate) tls: bool,
    /// What the example has behind its host.
    example: &'static str,
}

impl Scheme {
    pub(crate) const fn plain(name: &'static str, port: u16) -> Scheme {
        Scheme { name, port, tls: false, example: "" }
    }

    pub(crate) const fn over_tls(name: &'static str, port: u16) -> Scheme {
        Scheme { name, port, tls: true, example: "" }
    }

    /// A scheme without an address.
    pub(crate) const fn bare(name: &'static str) -> Scheme {
        Scheme { name, port: 0, tls: false, example: "" }
    }

    /// The same scheme, with a text behind the host of the example.
    pub(crate) const fn as_in(self, example: &'static str) -> Scheme {
        Scheme { example, ..self }
    }

    /// An example of a URL.
    pub(crate) fn example(self) -> String {
        match self.port {
            0 => format!("`{}:`", self.name),
            port => format!("`{}://127.0.0.1:{port}{}`", self.name, self.example),
        }
    }
}

/// The parts of a URL.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) scheme: Scheme,
    /// Name or address, and port.
    pub(crate) hosts: Vec<(String, u16)>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Password>,
    /// The path without its leading `/`; may be empty.
    pub(crate) path: String,
}

impl Target {
    /// Parses the part behind the colon of the scheme.
    ///
    /// # Errors
    /// Explains what is wrong without quoting the URL, which may contain a password.
    pub(crate) fn parse(scheme: Scheme, rest: &str) -> Result<Target, String> {
        if scheme.port == 0 {
            let target = Target { scheme, hosts: Vec::new(), user: None, password: None, path: String::new() };
            let bare = matches!(rest, "" | "//");
            return if bare { Ok(target) } else { Err(format!("`{}:` takes no address", scheme.name)) };
        }
        let malformed = |detail: &str| format!("a URL of {} {detail}, as in {}", scheme.name, scheme.example());
        let rest = rest.strip_prefix("//").ok_or_else(|| malformed("has `//` behind its scheme"))?;
        // The last `@`, because an unencoded password may contain `@`, `?`, `#` and `/`.
        let (user_info, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        if rest.contains(['?', '#']) {
            return Err(malformed("has no parameters: options have settings of their own"));
        }
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = hosts.split(',').map(|host| parse_host(host, scheme.port)).collect::<Option<Vec<_>>>();
        let hosts = hosts.ok_or_else(|| malformed("names hosts and ports"))?;
        let (user, password) = user_info.map_or((None, None), |text| match text.split_once(':') {
            Some((user, password)) => (Some(user), Some(password)),
            None => (Some(text), None),
        });
        let decode = |text: &str| decode(text).ok_or_else(|| malformed("has `%` only before two hex digits"));
        let user = user.filter(|user| !user.is_empty()).map(decode).transpose()?;
        let password = password.map(decode).transpose()?.map(|password| Password::given(password.into()));
        Ok(Target { scheme, hosts, user, password, path: path.to_owned() })
    }

    /// Sets a password that is not in the URL.
    ///
    /// # Errors
    /// If the URL has one, or no login is possible there.
    pub(crate) fn set_password(&mut self, password: Password) -> Result<(), String> {
        if self.hosts.is_empty() {
            return Err(format!("`{}:` has no login", self.scheme.name));
        }
        if self.password.is_some() {
            return Err("the URL has a password too; leave it out there".to_owned());
        }
        self.password = Some(password);
        Ok(())
    }

    /// Takes the place of the password in the URL, if there is one.
    pub(crate) fn replace_password(&mut self, password: Password) {
        self.password = self.password.take().map(|_| password);
    }

    /// The URL without user and password.
    pub(crate) fn address(&self) -> String {
        let name = self.scheme.name;
        if self.hosts.is_empty() {
            return format!("{name}:");
        }
        let hosts: Vec<String> = self.hosts.iter().map(|(host, port)| address(host, *port)).collect();
        let slash = if self.path.is_empty() { "" } else { "/" };
        format!("{name}://{}{slash}{}", hosts.join(","), self.path)
    }
}

/// Host and port as written in URLs: `[::1]:6379`.
pub(crate) fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn parse_host(text: &str, default_port: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        None if port.is_empty() => default_port,
        None => return None,
    };
    let good = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    (!host.is_empty() && host.chars().all(good)).then(|| (host.to_owned(), port))
}

/// Decodes `%41`.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let hex = |byte: u8| char::from(byte).to_digit(16);
        decoded.push(match byte {
            b'%' => u8::try_from(hex(bytes.next()?)? * 16 + hex(bytes.next()?)?).ok()?,
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn only_the_percent_sign_of_a_password_needs_encoding() {
        let scheme = Scheme::plain("nats", 4222);
        for (written, meant) in
            [("p?s#s", "p?s#s"), ("pa/s?s@word", "pa/s?s@word"), ("a:b", "a:b"), ("%2525%40", "%25@"), ("", "")]
        {
            let target = Target::parse(scheme, &format!("//me:{written}@h,i:7/path"));
            let target = target.unwrap_or_else(|detail| panic!("{written}: {detail}"));
            let password = target.password.as_ref().map(|password| password.read().expect("a password"));
            assert_eq!(password.as_ref().map(ExposeSecret::expose_secret), Some(meant));
            assert_eq!((target.user.as_deref(), target.address().as_str()), (Some("me"), "nats://h:4222,i:7/path"));
        }
        for (rest, detail) in [
            ("//me:p?s@h?x=1", "has no parameters"),
            ("//h#x", "has no parameters"),
            ("//me:100%@h", "has `%` only before two hex digits"),
        ] {
            let refused = Target::parse(scheme, rest).err().unwrap_or_default();
            assert!(refused.contains(detail), "{rest}: {refused}");
        }
    }
}
