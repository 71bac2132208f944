//! Where a setting comes from: flags before `MESHLOCK_*` before `ETCDCTL_*` before the configuration files. Every
//! complaint names the flag, the variable or the line that it is about. Knows no single setting.

use super::connection::SHARED_WITH_ETCDCTL;
use super::file::{Files, Part};
use crate::outcome::{Failure, FailureKind};
use std::cell::RefCell;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, IsTerminal as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The environment as data: read once, at the start.
#[derive(Clone)]
pub struct Environment {
    variables: Vec<(OsString, OsString)>,
    ours: bool,
    /// Whoever sits at the terminal may be asked.
    attended: bool,
}

impl Environment {
    /// Everything that this process has been given.
    pub fn inherited() -> Self {
        Self {
            variables: env::vars_os().collect(),
            ours: true,
            attended: true,
        }
    }

    /// Ours, without a variable in it.
    #[cfg(test)]
    pub(super) const fn bare() -> Self {
        Self {
            variables: Vec::new(),
            ours: true,
            attended: false,
        }
    }

    /// Whether we live in it: one that was made up has no machine and no user around it.
    pub(super) const fn is_ours(&self) -> bool {
        self.ours
    }

    /// Not under cron, and not where something else than a person is to be read. Looked at only where it matters: the
    /// standard library has a large buffer ready for whoever asks for its standard input.
    pub(super) fn is_attended(&self) -> bool {
        self.attended && io::stdin().is_terminal()
    }

    /// The same, where nobody is to be asked.
    pub(super) fn unattended(&self) -> Self {
        Self {
            attended: false,
            ..self.clone()
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
            ours: false,
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
    /// The number of the file, and the part of it.
    File(usize, Part),
}

/// Where one setting was found; displays as the flag, the variable, or the line with the key.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub layer: Layer,
    /// The flag, the variable, or file and line.
    pub place: String,
    /// In a file, the key.
    key: Option<String>,
}

impl Source {
    /// A wrong value is wrong usage where it was typed, and a bad setting where it was set.
    pub(super) const fn failure_kind(&self) -> FailureKind {
        match self.layer {
            Layer::Flag => FailureKind::Usage,
            Layer::Meshlock | Layer::Etcdctl | Layer::File(..) => FailureKind::Config,
        }
    }

    /// Without the value, which may be a secret; `why` ends the sentence.
    pub(super) fn refuse(&self, why: &str) -> Failure {
        Failure::new(self.failure_kind(), format!("{self} {why}"))
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{}: {key}", self.place),
            None => f.write_str(&self.place),
        }
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
pub(super) struct Sources<'a> {
    pub environment: &'a Environment,
    pub files: &'a Files,
    /// Whose table in the files counts.
    lock: Option<&'a str>,
    /// The variables that can be settings: each is asked for some fifty times.
    variables: Vec<(Layer, &'a OsStr, &'a OsStr)>,
    /// What was found elsewhere than on the command line: setting, value, place.
    told: RefCell<Vec<[String; 3]>>,
}

impl<'a> Sources<'a> {
    pub(super) fn new(environment: &'a Environment, files: &'a Files, lock: Option<&'a OsStr>) -> Self {
        let variables = environment.iter().filter_map(|(name, value)| {
            let (layer, _) = PROGRAMS.iter().find(|(_, prefix)| starts(name, prefix))?;
            Some((*layer, name, value))
        });
        Self {
            variables: variables.collect(),
            environment,
            files,
            // No table has a name that is not UTF-8.
            lock: lock.and_then(OsStr::to_str),
            told: RefCell::new(Vec::new()),
        }
    }

    /// The same, as they are for one lock.
    pub(super) fn about<'b>(&self, lock: &'b OsStr) -> Sources<'b>
    where
        'a: 'b,
    {
        Sources::new(self.environment, self.files, Some(lock))
    }

    pub(super) fn find(&self, flag: &str, typed: Option<&'a OsStr>) -> Option<Found<&'a OsStr>> {
        if let Some(value) = typed {
            return Some(Found {
                source: Source {
                    layer: Layer::Flag,
                    place: format!("--{flag}"),
                    key: None,
                },
                value,
            });
        }
        let found = self.set(flag)?;
        let told = [flag.to_owned(), shown(flag, found.value), found.source.place.clone()];
        let mut all = self.told.borrow_mut();
        if !all.contains(&told) {
            all.push(told);
        }
        Some(found)
    }

    pub(super) fn path(&self, flag: &str, typed: Option<&'a Path>) -> Option<Found<PathBuf>> {
        self.find(flag, typed.map(Path::as_os_str)).map(|found| Found {
            source: found.source,
            value: found.value.into(),
        })
    }

    /// What was found elsewhere than on the command line, a line each.
    pub(super) fn told(&self) -> Vec<String> {
        let line = |[flag, value, place]: &[String; 3]| format!("{flag} is {}, from {place}", quoted(value));
        self.told.borrow().iter().map(line).collect()
    }

    /// Elsewhere than on the command line.
    pub(super) fn set(&self, flag: &str) -> Option<Found<&'a OsStr>> {
        self.variable(flag).or_else(|| self.in_a_file(flag))
    }

    /// `some-option` in `MESHLOCK_SOME_OPTION`, or for a setting that etcdctl has too, in etcdctl's variable. The first
    /// of that name, as `getenv(3)` finds it; an empty variable is an unset one.
    pub(super) fn variable(&self, flag: &str) -> Option<Found<&'a OsStr>> {
        let shared = || SHARED_WITH_ETCDCTL.iter().any(|name| spells(name.as_bytes(), flag));
        PROGRAMS.iter().find_map(|(layer, prefix)| {
            let named = |name: &OsStr| spells(&name.as_bytes()[prefix.len()..], flag);
            let mut of_layer = self.variables.iter().filter(|(of, ..)| of == layer);
            let &(_, name, value) = of_layer.find(|(_, name, _)| named(name))?;
            if value.is_empty() || (*layer == Layer::Etcdctl && !shared()) {
                return None;
            }
            let source = Source {
                layer: *layer,
                place: name.to_string_lossy().into_owned(),
                key: None,
            };
            Some(Found { source, value })
        })
    }

    fn in_a_file(&self, flag: &str) -> Option<Found<&'a OsStr>> {
        let (number, part, file, entry) = self.files.find(self.lock, flag)?;
        let source = Source {
            layer: Layer::File(number, part),
            place: format!("{}:{}", file.path.display(), entry.line),
            key: Some(flag.to_owned()),
        };
        Some(Found {
            source,
            value: &entry.value,
        })
    }
}

/// Whose variables are settings, and how their names begin.
const PROGRAMS: [(Layer, &str); 2] = [(Layer::Meshlock, "MESHLOCK_"), (Layer::Etcdctl, "ETCDCTL_")];

fn starts(name: &OsStr, prefix: &str) -> bool {
    name.as_bytes().starts_with(prefix.as_bytes())
}

/// Whether `SOME_OPTION` is `some-option`.
fn spells(name: &[u8], flag: &str) -> bool {
    let letter = |byte: u8| if byte == b'-' { b'_' } else { byte.to_ascii_uppercase() };
    name.len() == flag.len() && name.iter().zip(flag.bytes()).all(|(name, flag)| *name == letter(flag))
}

/// What may be shown of a setting: no password.
pub(super) fn shown(flag: &str, value: &OsStr) -> String {
    let text = value.to_string_lossy();
    let masked = |visible: &str| format!("{visible}{MASK}");
    match flag {
        "password" => masked(""),
        "user" if text.contains(':') => masked(&text[..=text.find(':').unwrap_or(0)]),
        // What stands before an at sign may be a user's name and password.
        "endpoints" if text.contains('@') => masked(""),
        _ => text.into_owned(),
    }
}

const MASK: &str = "********";
