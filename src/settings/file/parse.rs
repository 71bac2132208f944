//! From the text of a configuration file to settings, each as the text that its flag would have been given, with the
//! line that it is from. What cannot be meant is refused with its line. Reads no file, and knows no setting but by the
//! table.

use super::keys::{KEYS, Key, Kind};
use crate::lock::keys::Place;
use crate::outcome::{Failure, FailureKind};
use crate::settings::misspelt::nearest;
use crate::settings::source::quoted;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

/// One configuration file.
#[derive(Debug, Default)]
pub struct File {
    pub path: PathBuf,
    /// For all locks.
    pub(super) top: Table,
    /// For single locks, by their names.
    pub(super) locks: BTreeMap<String, Table>,
}

/// By the names of the settings.
pub(in crate::settings) type Table = BTreeMap<&'static str, Entry>;

#[derive(Debug)]
pub(in crate::settings) struct Entry {
    /// As the flag would have been given.
    pub value: OsString,
    /// From 1.
    pub line: usize,
}

/// The table of tables.
const LOCK: &str = "lock";

/// `path` is where the text is from, and absolute.
///
/// # Errors
/// With the first line that cannot be.
pub fn parse(path: &Path, text: &str) -> Result<File, Failure> {
    let ends: Vec<usize> = text.match_indices('\n').map(|(offset, _)| offset).collect();
    let line = |offset: usize| 1 + ends.partition_point(|end| *end < offset);
    let refuse = |(offset, why): Complaint| {
        let why = format!("{}:{}: {why}", path.display(), line(offset));
        Failure::new(FailureKind::Config, why)
    };
    let document = DeTable::parse(text).map_err(|error| {
        // Where the text ends too early there is nothing to point at.
        let offset = error.span().map_or(text.trim_end().len(), |span| span.start);
        let why = if is_bare_word(text, offset) {
            "no value: put a text in quotes (only true, false and numbers go without)"
        } else {
            error.message()
        };
        refuse((offset, why.to_owned()))
    })?;
    let reader = Reader {
        directory: path.parent().unwrap_or(path),
        line: &line,
    };
    let mut file = File {
        path: path.to_owned(),
        ..File::default()
    };
    for (name, value) in in_order(document.get_ref()) {
        let read = if name.get_ref() == LOCK {
            reader.locks(name, value).map(|locks| file.locks = locks)
        } else {
            reader.at_the_top(name, value).map(|(key, entry)| {
                file.top.insert(key, entry);
            })
        };
        read.map_err(refuse)?;
    }
    Ok(file)
}

/// Whether a value with a letter in it stands there without quotes. The parser takes it for what its first letters are
/// like, and speaks of booleans, numbers and dates.
fn is_bare_word(text: &str, offset: usize) -> bool {
    let ends = |char: char| char.is_whitespace() || "=,[]{}#".contains(char);
    let (Some(before), Some(after)) = (text.get(..offset), text.get(offset..)) else {
        return false;
    };
    let start = offset - before.rsplit(ends).next().map_or(0, str::len);
    let word = offset + after.find(ends).unwrap_or(after.len());
    let word = &text[start..word];
    let line = text[..start].rsplit('\n').next().unwrap_or_default();
    line.contains('=')
        && line.trim_end().ends_with(['=', ',', '['])
        && word.starts_with(|first: char| first.is_alphanumeric())
        && word.contains(char::is_alphabetic)
}

/// Where, in bytes, and what.
type Complaint = (usize, String);

type Name<'t> = Spanned<DeString<'t>>;
type Value<'t> = Spanned<DeValue<'t>>;

struct Reader<'a> {
    directory: &'a Path,
    line: &'a dyn Fn(usize) -> usize,
}

impl Reader<'_> {
    fn at_the_top(&self, name: &Name, value: &Value) -> Result<(&'static str, Entry), Complaint> {
        let key = known(name, &[LOCK], |key| key.scope.at_the_top())?;
        if !key.scope.at_the_top() {
            let why = format!("{} belongs to a single lock: write it below [lock.NAME]", key.name);
            return Err((name.span().start, why));
        }
        self.entry(key, name, value)
    }

    fn locks(&self, name: &Name, value: &Value) -> Result<BTreeMap<String, Table>, Complaint> {
        let not_one = |at: usize| (at, "lock holds a table for each lock: write [lock.NAME]".to_owned());
        let DeValue::Table(locks) = value.get_ref() else {
            return Err(not_one(name.span().start));
        };
        let mut tables = BTreeMap::new();
        for (lock, value) in in_order(locks) {
            let DeValue::Table(table) = value.get_ref() else {
                return Err(not_one(lock.span().start));
            };
            // The prefix is another matter, and a legal one.
            if let Err(why) = Place::new("/", lock.get_ref()) {
                let why = format!("{} cannot be a lock's name: {why}", quoted(lock.get_ref().as_ref()));
                return Err((lock.span().start, why));
            }
            let entries = in_order(table)
                .into_iter()
                .map(|(name, value)| self.in_a_lock(name, value));
            tables.insert(lock.get_ref().clone().into_owned(), entries.collect::<Result<_, _>>()?);
        }
        Ok(tables)
    }

    fn in_a_lock(&self, name: &Name, value: &Value) -> Result<(&'static str, Entry), Complaint> {
        let key = known(name, &[], |key| key.scope.in_a_lock()).map_err(|(at, why)| match value.get_ref() {
            DeValue::Table(_) => (
                at,
                format!("{why} (a lock's name with a dot in it stands in quotes: [lock.\"a.b\"])"),
            ),
            _ => (at, why),
        })?;
        if !key.scope.in_a_lock() {
            let why = format!(
                "{} is the same for all locks: write it before the first [lock.NAME]",
                key.name
            );
            return Err((name.span().start, why));
        }
        self.entry(key, name, value)
    }

    fn entry(&self, key: &'static Key, name: &Name, value: &Value) -> Result<(&'static str, Entry), Complaint> {
        let at = name.span().start;
        let Some(text) = as_typed(key.kind, value.get_ref()) else {
            let what = match (key.kind, value.get_ref()) {
                (Kind::List | Kind::Statuses, DeValue::Array(_)) => "a list of something else",
                (_, value) => what(value),
            };
            let why = format!("{} is {what}: write {}", key.name, key.kind.as_written());
            return Err((at, why));
        };
        if key.name == "user" && text.contains(':') {
            return Err((at, format!("user has a password in it: {IN_A_FILE}")));
        }
        let value = match key.kind {
            Kind::File => self.directory.join(text).into_os_string(),
            _ => text.into(),
        };
        let line = (self.line)(at);
        Ok((key.name, Entry { value, line }))
    }
}

/// A configuration file is read by more people and programs than a password is meant for.
const IN_A_FILE: &str = "write it into a file that only its users can read, and name that by password-file";

/// The setting of that name, wherever it may stand. `also` are names that are no settings.
fn known(name: &Name, also: &[&'static str], fits: impl Fn(&Key) -> bool) -> Result<&'static Key, Complaint> {
    let (at, name) = (name.span().start, name.get_ref().as_ref());
    if let Some(key) = KEYS.iter().find(|key| key.name == name) {
        return Ok(key);
    }
    if name == "password" {
        return Err((at, format!("password is not for configuration files: {IN_A_FILE}")));
    }
    let fitting = KEYS.iter().filter(|key| fits(key)).map(|key| key.name);
    let names: Vec<_> = fitting.chain(also.iter().copied()).collect();
    let meant = nearest(&name.to_ascii_lowercase().replace('_', "-"), names);
    let hint = meant.map_or_else(
        || "meshlock-config(1) has them all".to_owned(),
        |meant| format!("is {meant} meant?"),
    );
    Err((at, format!("there is no setting {}: {hint}", quoted(name))))
}

/// The text that the flag would have been given; `None` for what it cannot be.
fn as_typed(kind: Kind, value: &DeValue) -> Option<String> {
    match (kind, value) {
        (Kind::Switch, DeValue::Boolean(on)) => Some(on.to_string()),
        (Kind::Switch, _) => None,
        (_, DeValue::String(text)) => Some(text.clone().into_owned()),
        (Kind::Duration | Kind::Number | Kind::Signal | Kind::List | Kind::Statuses, DeValue::Integer(number)) => {
            // What does not fit is none of ours, whatever it is: as it stands there.
            let decimal = i64::from_str_radix(number.as_str(), number.radix());
            Some(decimal.map_or_else(|_| number.to_string(), |number| number.to_string()))
        }
        (Kind::Duration, DeValue::Float(number)) => Some(number.as_str().to_owned()),
        (Kind::List | Kind::Statuses, DeValue::Array(items)) => {
            let items = items.iter().map(|item| match item.get_ref() {
                DeValue::Array(_) => None,
                item => as_typed(Kind::List, item),
            });
            Some(items.collect::<Option<Vec<_>>>()?.join(","))
        }
        _ => None,
    }
}

fn what(value: &DeValue) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(true) => "true",
        DeValue::Boolean(false) => "false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// As it is written: of several mistakes the first is told.
fn in_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(&'t Name<'i>, &'t Value<'i>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

#[cfg(test)]
mod tests;
