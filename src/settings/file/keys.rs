//! The one table of what a configuration file may say: each setting under the name of its flag, how it is written in
//! TOML, and where in the file it may stand. The tests hold it against the command line, the manual is made from it.

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// That of the flag; in the variable's name with underscores and in capitals.
    pub name: &'static str,
    pub kind: Kind,
    pub scope: Scope,
}

/// What stands behind the equals sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// The name of a file; a relative one is of the configuration file's directory.
    File,
    /// With a unit, or a number of seconds.
    Duration,
    Number,
    /// A name, or a number.
    Signal,
    Stragglers,
    /// Of texts, or all in one text with commas.
    List,
    /// The same of numbers.
    Statuses,
    /// A flag that has no value.
    Switch,
}

/// Where it may stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// At the top of the file alone: `status` shows all locks, and reads them from one place.
    Top,
    /// In `[lock.NAME]` alone: two locks must not share it.
    Lock,
    Anywhere,
}

/// In the order of the flags.
pub const KEYS: &[Key] = &[
    key("no-wait", Kind::Switch, Scope::Anywhere),
    key("wait", Kind::Duration, Scope::Anywhere),
    key("conflict-exit-code", Kind::Number, Scope::Anywhere),
    key("ttl", Kind::Duration, Scope::Anywhere),
    key("grace", Kind::Duration, Scope::Anywhere),
    key("stop-signal", Kind::Signal, Scope::Anywhere),
    key("lost-grace", Kind::Duration, Scope::Anywhere),
    key("max-runtime", Kind::Duration, Scope::Anywhere),
    key("stragglers", Kind::Stragglers, Scope::Anywhere),
    key("release-timeout", Kind::Duration, Scope::Anywhere),
    key("report", Kind::File, Scope::Lock),
    key("keep", Kind::Number, Scope::Anywhere),
    key("owner", Kind::Text, Scope::Anywhere),
    key("reason", Kind::Text, Scope::Anywhere),
    key("route", Kind::Text, Scope::Anywhere),
    key("expect", Kind::Statuses, Scope::Anywhere),
    key("trigger", Kind::Text, Scope::Anywhere),
    key("system", Kind::Text, Scope::Anywhere),
    key("record-args", Kind::Switch, Scope::Anywhere),
    key("prefix", Kind::Text, Scope::Top),
    key("lock-key", Kind::Text, Scope::Lock),
    key("endpoints", Kind::List, Scope::Top),
    key("discovery-srv", Kind::Text, Scope::Top),
    key("discovery-srv-name", Kind::Text, Scope::Top),
    key("dial-timeout", Kind::Duration, Scope::Top),
    key("cacert", Kind::File, Scope::Top),
    key("cert", Kind::File, Scope::Top),
    key("key", Kind::File, Scope::Top),
    key("tls-server-name", Kind::Text, Scope::Top),
    key("user", Kind::Text, Scope::Top),
    key("password-file", Kind::File, Scope::Top),
    key("quiet", Kind::Switch, Scope::Anywhere),
    key("verbose", Kind::Switch, Scope::Anywhere),
];

const fn key(name: &'static str, kind: Kind, scope: Scope) -> Key {
    Key { name, kind, scope }
}

impl Kind {
    /// With an example, as the end of "write …".
    pub const fn as_written(self) -> &'static str {
        match self {
            Self::Text => "a text, as in \"…\"",
            Self::File => "the name of a file, as in \"…\"",
            Self::Duration => "a duration, as \"30s\", or a number of seconds",
            Self::Number => "a whole number",
            Self::Signal => "a signal, as \"TERM\" or 15",
            Self::Stragglers => "\"leave\", \"wait\" or \"kill\"",
            Self::Statuses => "a list, as [0, 3]",
            Self::List => "a list, as [\"…\", \"…\"]",
            Self::Switch => "true or false",
        }
    }
}

impl Scope {
    pub const fn at_the_top(self) -> bool {
        !matches!(self, Self::Lock)
    }

    pub const fn in_a_lock(self) -> bool {
        !matches!(self, Self::Top)
    }
}
