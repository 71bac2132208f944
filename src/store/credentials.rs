//! Who we are and whom we trust, as of now: files that were replaced since count from the next connection on, and one
//! that has become unusable does not. Renewed certificates (cert-manager, Vault, a symbolic link that is swapped) so
//! reach a hold that lasts longer than they do.

use super::Connection;
use super::files::{Kept, Unusable};
use super::tls::Tls;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_rustls::rustls::ClientConfig;

/// Shared by all connections to one cluster. Cheap to clone.
#[derive(Clone)]
pub(super) struct Credentials(Arc<Mutex<Now>>);

struct Now {
    tls: Arc<Tls>,
    config: Option<Arc<ClientConfig>>,
    user: Option<(String, String)>,
    password_file: Option<Kept>,
    /// The last word about a file that has become unusable; said once.
    complaint: Option<String>,
    notices: Vec<String>,
}

impl Credentials {
    pub(super) fn new(settings: &Connection) -> Self {
        Self(Arc::new(Mutex::new(Now {
            tls: Arc::new(settings.tls.clone().unwrap_or_default()),
            config: None,
            user: settings.user.clone(),
            password_file: settings.password_file.clone(),
            complaint: None,
            notices: Vec::new(),
        })))
    }

    /// For a new connection, with the files that it stands on. They have just been read when it is the first.
    pub(super) fn tls(&self) -> Result<(Arc<ClientConfig>, Arc<Tls>), Unusable> {
        let mut now = self.now();
        let tls = Arc::clone(&now.tls);
        let Some(config) = now.config.clone() else {
            let config = tls.made.clone().map_or_else(|| tls.config(), Ok)?;
            now.config = Some(Arc::clone(&config));
            return Ok((config, tls));
        };
        match renewed(&tls).and_then(|renewed| renewed.map(|tls| Ok((tls.config()?, tls))).transpose()) {
            Ok(None) => {
                now.complaint = None;
                Ok((config, tls))
            }
            Ok(Some((config, tls))) => {
                let tls = Arc::new(tls);
                now.complaint = None;
                now.tls = Arc::clone(&tls);
                now.config = Some(Arc::clone(&config));
                Ok((config, tls))
            }
            Err(Unusable(why)) => {
                now.complain(&why);
                Ok((config, tls))
            }
        }
    }

    pub(super) fn user(&self) -> Option<(String, String)> {
        self.now().user.clone()
    }

    /// Reads the password's file once more; whether there is another password now.
    pub(super) fn another_password(&self) -> bool {
        let mut now = self.now();
        let Some(again) = now.password_file.as_ref().and_then(Kept::again) else {
            return false;
        };
        match again.and_then(|file| password(&file)) {
            Ok(password) => match &mut now.user {
                Some((_, old)) if *old != password => {
                    *old = password;
                    true
                }
                _ => false,
            },
            Err(Unusable(why)) => {
                now.complain(&why);
                false
            }
        }
    }

    /// What the user should know, each line once.
    pub(super) fn notices(&self) -> Vec<String> {
        std::mem::take(&mut self.now().notices)
    }

    fn now(&self) -> std::sync::MutexGuard<'_, Now> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Now {
    fn complain(&mut self, why: &str) {
        let line = format!("{why}; going on with what was read before");
        if self.complaint.as_ref() != Some(&line) {
            self.notices.push(line.clone());
            self.complaint = Some(line);
        }
    }
}

/// The same files where one of them has changed.
fn renewed(tls: &Tls) -> Result<Option<Tls>, Unusable> {
    let again = |file: &Kept| file.again().unwrap_or_else(|| Ok(file.clone()));
    let now = Tls {
        cacert: tls.cacert.as_ref().map(again).transpose()?,
        identity: match &tls.identity {
            Some((cert, key)) => Some((again(cert)?, again(key)?)),
            None => None,
        },
        server_name: tls.server_name.clone(),
        made: None,
    };
    let changed = now.cacert != tls.cacert || now.identity != tls.identity;
    Ok(changed.then_some(now))
}

/// In bytes: bcrypt, by which etcd keeps them, looks at 72.
const PASSWORD_LIMIT: usize = 4096;

/// The password that is in a file: all of it but one closing newline.
///
/// # Errors
/// Where that can be none.
pub fn password(file: &Kept) -> Result<String, Unusable> {
    let text = std::str::from_utf8(&file.contents).map_err(|_| file.unusable("it is not UTF-8"))?;
    let password = text.strip_suffix('\n').unwrap_or(text);
    // A file that was written on Windows.
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() {
        Err(file.unusable("it is empty"))
    } else if password.len() > PASSWORD_LIMIT {
        Err(file.unusable("it is longer than any password: 4 KiB at most"))
    } else if password.contains('\0') {
        Err(file.unusable("it has a NUL byte"))
    } else {
        Ok(password.to_owned())
    }
}
