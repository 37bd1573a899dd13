//! The login to NATS: a user and a password, a token, or a file with a user's JWT and key.
//! <https://docs.nats.io/using-nats/developer/connecting/creds>

use std::path::{Path, PathBuf};

use async_nats::{Auth, AuthError};
use nkeys::KeyPair;
use secrecy::ExposeSecret;

use crate::Password;

/// The login. `Debug` shows no secret.
#[derive(Clone)]
pub(super) enum Credentials {
    /// Without a password the user is a token.
    User(Option<String>, Option<Password>),
    /// A file as `nsc` writes it. It is read for each login, because JWTs are renewed.
    File(PathBuf),
}

impl Credentials {
    /// Checks that the login can be used.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Credentials::User(..) => Ok(()),
            Credentials::File(path) => read(path).map(drop),
        }
    }

    /// The reply to a server that sent this nonce.
    pub(super) fn log_in(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut auth = Auth::new();
        match self {
            Credentials::User(user, Some(password)) => {
                auth.username = Some(user.clone().unwrap_or_default());
                auth.password = Some(password.read().map_err(AuthError::new)?.expose_secret().to_owned());
            }
            Credentials::User(token, None) => auth.token.clone_from(token),
            Credentials::File(path) => {
                let (jwt, key) = read(path).map_err(AuthError::new)?;
                let unsigned = |_| AuthError::new(format!("the key in `{}` cannot sign", path.display()));
                auth.signature = Some(key.sign(nonce).map_err(unsigned)?);
                auth.jwt = Some(jwt);
            }
        }
        Ok(auth)
    }
}

/// Reads JWT and key pair from a credentials file. Errors do not quote it.
fn read(path: &Path) -> Result<(String, KeyPair), String> {
    let shown = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read the credentials in `{shown}`: {error}"))?;
    let jwt = block(&text, "NATS USER JWT").ok_or_else(|| format!("`{shown}` holds no `NATS USER JWT`"))?;
    let seed = block(&text, "USER NKEY SEED").ok_or_else(|| format!("`{shown}` holds no `USER NKEY SEED`"))?;
    let key = KeyPair::from_seed(seed).map_err(|_| format!("the `USER NKEY SEED` in `{shown}` is malformed"))?;
    Ok((jwt.to_owned(), key))
}

/// The text between `-----BEGIN <name>-----` and `------END <name>------`.
fn block<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("BEGIN {name}"))?;
    let (inside, _) = rest.trim_start_matches('-').split_once(&format!("END {name}"))?;
    Some(inside.trim_end_matches('-').trim()).filter(|inside| !inside.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_credentials_file_signs_and_a_bad_file_is_refused_without_its_secrets() {
        let path = std::env::temp_dir().join(format!("punctual-{}.creds", std::process::id()));
        let write = |text: &str| std::fs::File::create(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        let user = KeyPair::new_user();
        let seed = user.seed().expect("a seed");
        let jwt = "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\nkeep it\n";
        let key = format!("-----BEGIN USER NKEY SEED-----\r\n{seed}\r\n------END USER NKEY SEED------\n");
        let credentials = Credentials::File(path.clone());
        write(&format!("{jwt}{key}")).expect("a file");
        let auth = credentials.log_in(b"nonce").expect("a login");
        assert_eq!(auth.jwt.as_deref(), Some("a.b.c"));
        assert!(user.verify(b"nonce", &auth.signature.expect("a signature")).is_ok());
        for (text, detail) in [
            (key.clone(), "holds no `NATS USER JWT`"),
            (jwt.to_owned(), "holds no `USER NKEY SEED`"),
            (format!("{jwt}{}", key.replace(&seed, &seed[..20])), "is malformed"),
        ] {
            write(&text).expect("a file");
            let refused = credentials.check().expect_err("a bad file");
            assert!(refused.contains(detail) && !refused.contains(&seed[..20]), "{refused}");
        }
        std::fs::remove_file(&path).expect("a file");
        assert!(credentials.check().expect_err("no file").contains("cannot read the credentials"));
    }
}
