//! Settings with where they are from, for people a line each, and for programs. Shows; knows nothing of what they mean.

use super::table::{Column, NOTHING, Yields, column, table};
use super::text::{self, Line, Span};
use serde::Serialize;
use std::path::PathBuf;

/// The only format written.
const FORMAT: u32 = 1;

pub struct Shown {
    /// Whose settings they are.
    pub lock: Option<String>,
    /// The configuration files that were read, the one that goes first first.
    pub files: Vec<PathBuf>,
    pub settings: Vec<Setting>,
}

/// Holds no secret.
#[derive(Serialize)]
pub struct Setting {
    /// Whose alone it is, where all are shown.
    pub lock: Option<String>,
    pub key: String,
    /// Of a default what the help says of it.
    pub value: Option<String>,
    /// The variable, or file and line; of a default none.
    pub source: Option<String>,
}

const COLUMNS: &[Column] = &[
    column("SETTING", false, Yields::Never),
    column("VALUE", false, Yields::To(12)),
    column("FROM", false, Yields::To(12)),
];

const DEFAULT: &str = "default";

pub fn text(shown: &Shown, width: Option<usize>) -> Vec<Line> {
    let row = |name: &str, value: Option<&str>, source: &str| {
        vec![
            Span::plain(name),
            // An empty one would be no column.
            Span::plain(value.filter(|value| !value.is_empty()).unwrap_or(NOTHING)),
            Span::plain(source),
        ]
    };
    let files = shown
        .files
        .iter()
        .map(|file| row("file", Some(&file.to_string_lossy()), NOTHING));
    let settings = shown.settings.iter().map(|setting| {
        let name = match &setting.lock {
            Some(lock) => dotted(lock, &setting.key),
            None => setting.key.clone(),
        };
        let source = setting.source.as_deref().unwrap_or(DEFAULT);
        row(&name, setting.value.as_deref(), source)
    });
    table(COLUMNS, files.chain(settings).collect(), width)
}

/// As it would be written at the top of a file.
fn dotted(lock: &str, key: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if lock.bytes().all(bare) {
        format!("lock.{lock}.{key}")
    } else {
        let escaped = lock.replace('\\', "\\\\").replace('"', "\\\"");
        format!("lock.\"{escaped}\".{key}")
    }
}

#[derive(Serialize)]
struct All<'a> {
    format: u32,
    name: Option<&'a str>,
    files: Vec<String>,
    settings: &'a [Setting],
}

/// One JSON object and a newline.
pub fn json(shown: &Shown) -> String {
    text::json(&All {
        format: FORMAT,
        name: shown.lock.as_deref(),
        files: shown
            .files
            .iter()
            .map(|file| file.to_string_lossy().into_owned())
            .collect(),
        settings: &shown.settings,
    })
}
