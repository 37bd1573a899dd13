//! Passwords, which may be replaced while an instance runs.

use std::path::Path;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

use crate::target::decode;
use crate::{Away, Cause};

/// A password. It is read again for each login, so that a new one applies without a restart. `Debug` shows no secret.
#[derive(Clone)]
pub struct Password(Arc<dyn Fn() -> Result<SecretString, String> + Send + Sync>);

impl Password {
    /// A password that does not change.
    pub fn given(password: SecretString) -> Password {
        Password::from_source(move || Ok(password.clone()))
    }

    /// The content of a file, without white space at its end.
    pub fn in_file(path: &Path) -> Password {
        let path = path.to_owned();
        Password::from_source(move || match std::fs::read_to_string(&path) {
            Ok(text) if text.trim_end().is_empty() => Err(format!("the file `{}` is empty", path.display())),
            Ok(text) => Ok(text.trim_end().into()),
            Err(error) => Err(format!("cannot read the password in `{}`: {error}", path.display())),
        })
    }

    /// The password in a URL that `source` reads again for each login. Returns `None` if the URL has none now.
    pub fn in_url(source: impl Fn() -> Option<SecretString> + Send + Sync + 'static) -> Option<Password> {
        let given = password_of(&source()?)?;
        // `source` may read a file that is being edited and lacks the URL. The first password is then used.
        let read = move || Ok(source().as_ref().and_then(password_of).unwrap_or_else(|| given.clone()));
        Some(Password::from_source(read))
    }

    fn from_source(source: impl Fn() -> Result<SecretString, String> + Send + Sync + 'static) -> Password {
        Password(Arc::new(source))
    }

    /// The password now.
    ///
    /// # Errors
    /// Why it cannot be read; without the password.
    pub fn read(&self) -> Result<SecretString, String> {
        (self.0)()
    }

    /// The password now, for a login.
    pub(crate) fn for_login(&self) -> Result<SecretString, Away> {
        self.read().map_err(|detail| Away::new(Cause::LogIn, detail))
    }
}

/// The password in a URL.
fn password_of(url: &SecretString) -> Option<SecretString> {
    let (_, rest) = url.expose_secret().split_once("//")?;
    let (user_info, _) = rest.rsplit_once('@')?;
    decode(user_info.split_once(':')?.1).map(SecretString::from)
}

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_file_is_read_again_at_each_use_and_a_password_is_never_shown() {
        let path = std::env::temp_dir().join(format!("punctual-{}.password", std::process::id()));
        let password = Password::in_file(&path);
        let missing = password.read().expect_err("no file");
        assert!(missing.starts_with("cannot read the password in `"), "{missing}");
        for (text, read) in [("hunter2\n", Some("hunter2")), (" a b \r\n", Some(" a b")), ("\n", None)] {
            std::fs::write(&path, text).expect("a file");
            let found = password.read().ok();
            assert_eq!(found.as_ref().map(ExposeSecret::expose_secret), read, "{text:?}");
        }
        std::fs::remove_file(&path).expect("a file");
        let given = Password::given("hunter2".into());
        let url = Arc::new(parking_lot::Mutex::new("redis://u:a%40b@h"));
        let known = Arc::clone(&url);
        let in_url = Password::in_url(move || Some((*known.lock()).into())).expect("a password");
        for (text, read) in [("redis://u:a%40b@h", "a@b"), ("redis://:c:d@h:1/2", "c:d"), ("redis://h", "a@b")] {
            *url.lock() = text;
            assert_eq!(in_url.read().expect("a password").expose_secret(), read);
        }
        assert!(!format!("{given:?}").contains("hunter2"));
    }
}
