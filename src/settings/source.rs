//! Where a setting comes from: flags before `MESHLOCK_*` before `ETCDCTL_*`. Every complaint names the flag or
//! variable that it is about. Knows no single setting.

use crate::outcome::{Failure, FailureKind};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

/// The environment as data: read once, at the start.
#[derive(Clone)]
pub struct Environment {
    variables: Vec<(OsString, OsString)>,
    /// Somebody may sit at the terminal and be asked.
    pub(super) attended: bool,
}

impl Environment {
    /// Everything that this process has been given.
    pub fn inherited() -> Self {
        Self {
            variables: env::vars_os().collect(),
            // Not under cron, and not where something else than a person is to be read.
            attended: io::stdin().is_terminal(),
        }
    }

    /// The first of that name, as `getenv(3)` finds it. An empty variable is an unset one.
    pub(super) fn get(&self, name: &str) -> Option<&OsStr> {
        let found = self.variables.iter().find(|(other, _)| other == name);
        found
            .map(|(_, value)| value.as_os_str())
            .filter(|value| !value.is_empty())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }
}

/// The words of the call, as they were typed.
pub fn arguments() -> Vec<OsString> {
    env::args_os().collect()
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let variables = variables.into_iter();
        Self {
            variables: variables.map(|(name, value)| (name.into(), value.into())).collect(),
            attended: false,
        }
    }
}

/// The earlier goes before the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Layer {
    Flag,
    Meshlock,
    Etcdctl,
}

/// Where one setting was found; displays as the flag or the variable.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub layer: Layer,
    name: String,
}

impl Source {
    /// A wrong value is wrong usage where it was typed, and a bad setting where it was set.
    pub(super) const fn failure_kind(&self) -> FailureKind {
        match self.layer {
            Layer::Flag => FailureKind::Usage,
            Layer::Meshlock | Layer::Etcdctl => FailureKind::Config,
        }
    }

    /// Without the value, which may be a secret; `why` ends the sentence.
    pub(super) fn refuse(&self, why: &str) -> Failure {
        Failure::new(self.failure_kind(), format!("{self} {why}"))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A setting and where it was found.
pub(super) struct Found<T> {
    pub source: Source,
    pub value: T,
}

impl Found<&OsStr> {
    /// The value as `parse` understands it; its error ends the sentence that begins with source and value.
    pub(super) fn read<T>(&self, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Failure> {
        self.value
            .to_str()
            .ok_or_else(|| "is not UTF-8".to_owned())
            .and_then(parse)
            .map_err(|why| self.source.refuse(&format!("{} {why}", quoted(self.value))))
    }
}

/// In quotes, and no more of it than leaves room on the line for what is wrong with it.
pub(super) fn quoted(value: impl AsRef<OsStr>) -> String {
    let text = value.as_ref().to_string_lossy();
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("\"{}…\"", &text[..end]),
        None => format!("\"{text}\""),
    }
}

/// In characters.
const QUOTED: usize = 200;

/// Looks settings up by the long name of their flag.
pub(super) struct Sources<'a>(pub &'a Environment);

impl<'a> Sources<'a> {
    pub(super) fn find(&self, flag: &str, typed: Option<&'a OsStr>) -> Option<Found<&'a OsStr>> {
        match typed {
            Some(value) => Some(Found {
                source: Source {
                    layer: Layer::Flag,
                    name: format!("--{flag}"),
                },
                value,
            }),
            None => self.variable(flag),
        }
    }

    pub(super) fn path(&self, flag: &str, typed: Option<&'a Path>) -> Option<Found<PathBuf>> {
        self.find(flag, typed.map(Path::as_os_str)).map(|found| Found {
            source: found.source,
            value: found.value.into(),
        })
    }

    /// `some-option` in `MESHLOCK_SOME_OPTION`, or for a setting that etcdctl has too, in etcdctl's variable.
    pub(super) fn variable(&self, flag: &str) -> Option<Found<&'a OsStr>> {
        let upper = flag.replace('-', "_").to_ascii_uppercase();
        let etcdctl = super::connection::SHARED_WITH_ETCDCTL.contains(&upper.as_str());
        [
            (Layer::Meshlock, "MESHLOCK", true),
            (Layer::Etcdctl, "ETCDCTL", etcdctl),
        ]
        .into_iter()
        .filter(|(.., asked)| *asked)
        .find_map(|(layer, program, _)| {
            let name = format!("{program}_{upper}");
            let value = self.0.get(&name)?;
            Some(Found {
                source: Source { layer, name },
                value,
            })
        })
    }
}
