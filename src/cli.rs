//! The command line as clap knows it: the help texts are the manual, and the man pages, the completions
//! and the README's tables are made from this one definition. No logic: values stay as typed, and
//! `settings` decides what they mean, whichever of flag or variable they came from.

mod help;
mod parse;

pub use self::parse::{parse, refusal};

use clap::{Args, Parser, Subcommand, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a command under a distributed lock
///
/// meshlock runs a command while holding a lock in etcd, so that the command runs once at a time across
/// many machines. It stops the command, and all that the command started, before the lock could be
/// anyone else's.
#[derive(Parser)]
#[command(
    name = "meshlock",
    version,
    disable_help_subcommand = true,
    arg_required_else_help = false
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one, for a moment")]
pub enum Command {
    Run(Run),
    Status(Status),
    History(History),
    Verify(Verify),
    Doctor(Doctor),
    Config(Config),
}

/// Take a lock, run a command, let the lock go
///
/// Waits for the lock NAME, runs COMMAND while holding it, and lets it go when COMMAND ends. The command's
/// own exit status is passed on. Should the lock be lost, the command and everything it started are
/// stopped before another holder starts.
///
/// Options go before COMMAND; everything after it is its own and passed on untouched.
#[derive(Args, Default)]
#[command(
    after_help = "Exit statuses, the environment and the meaning of each option: meshlock run --help, meshlock-run(1).",
    after_long_help = help::of_run(),
    override_usage = "meshlock run [OPTIONS] NAME [--] COMMAND [ARG]...\n       meshlock run [OPTIONS] --lock-key KEY -- COMMAND [ARG]...",
    args_override_self = true,
)]
pub struct Run {
    /// The lock's name: 1 to 255 bytes of UTF-8 without control characters and commas
    ///
    /// Names are independent of one another, also where one is the beginning of another, as in team and
    /// team/db.
    ///
    /// With --lock-key it is no lock's name, and only what meshlock verify is to call it; it may be left out where a -- is
    /// before COMMAND.
    #[arg(value_name = "NAME", required = true, value_hint = ValueHint::Other)]
    pub name: Option<OsString>,

    /// The command to run and its arguments
    ///
    /// No shell is involved: for pipes and variables, write sh -c '…'.
    #[arg(
        value_name = "COMMAND",
        required = true,
        num_args = 1..,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,

    #[command(flatten)]
    pub waiting: Waiting,
    #[command(flatten)]
    pub holding: Holding,
    #[command(flatten)]
    pub records: Records,
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub configuration: Configuration,
    #[command(flatten)]
    pub output: Output,
}

/// Show who holds a lock, who waits, and how the last runs ended
///
/// Without a NAME, all locks under the prefix, one line each. With one, the whole of it: who holds it, since when and why,
/// what set it off and on which system, who answers for it, what was expected and whom to go to if it fails; the lease and
/// the fencing token; the queue, a freeze, runs that vanished, and the last five runs (meshlock history has the others).
///
/// Holders that are not meshlock's, as etcdctl's and those of Go programs, are shown as unknown; those that lie outside of
/// the prefix are seen only with --lock-key. Only reads: an etcd user with the right to read the prefix will do.
#[derive(Args)]
#[command(
    after_help = "The columns, the states and what the JSON holds: meshlock-status(1).",
    after_long_help = help::of_askers(),
    args_override_self = true,
)]
pub struct Status {
    /// The locks to show in full [default: all, one line each]
    #[arg(value_name = "NAME", value_hint = ValueHint::Other)]
    pub names: Vec<OsString>,

    #[command(flatten)]
    pub showing: Showing,
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub configuration: Configuration,
}

#[derive(Args)]
#[command(next_help_heading = "Showing")]
#[expect(clippy::struct_excessive_bools, reason = "flags, as they are typed")]
pub struct Showing {
    /// As JSON, in the format of docs/status.schema.json
    #[arg(long, group = "form")]
    pub json: bool,

    /// As Prometheus' text format, for node-exporter's textfile collector
    #[arg(long, group = "form")]
    pub prometheus: bool,

    /// Draw anew at each change in etcd, until Ctrl-C
    ///
    /// On a terminal in the place of what was drawn before, else one picture after the other. An etcd that has not answered
    /// for some seconds is told.
    #[arg(long, group = "form")]
    pub watch: bool,

    /// For monitoring: exit with 0 if free, with 75 if not
    ///
    /// Taken is a lock with which meshlock run --no-wait would not start. Says on standard error which, and nothing
    /// if all is well.
    #[arg(long, group = "form")]
    pub check: bool,

    /// With --check: exit with 0 unless held for longer than this, then with 1
    ///
    /// A hold of which nobody knows since when, as of etcdctl's, counts as longer.
    #[arg(long, value_name = "DURATION", requires = "check", value_hint = ValueHint::Other)]
    pub warn_after: Option<OsString>,

    /// Ask for the leases' TTL of all locks, also where there are more than 100
    ///
    /// And with --watch on a terminal, each two seconds, as otherwise only where names are given.
    #[arg(long)]
    pub ttl_left: bool,
}

/// Show how the last runs ended, newest first
///
/// Of the lock NAME, or of all locks under the prefix. Each run leaves a record with its result, who and what it was, and what
/// was expected of it; of each lock the last 20 are kept, unless meshlock run --keep says otherwise. Only reads.
#[derive(Args)]
#[command(
    after_help = "The columns and what the JSON holds: meshlock-history(1).",
    after_long_help = help::of_askers(),
    args_override_self = true,
)]
pub struct History {
    /// The lock whose runs to show [default: all]
    #[arg(value_name = "NAME", value_hint = ValueHint::Other)]
    pub name: Option<OsString>,

    /// Only runs that did not end as was expected of them
    ///
    /// Expected is that the command ends by itself, with an exit status of --expect (0, where that was not given). A
    /// record that cannot be read counts as a failure.
    #[arg(long, help_heading = "Showing")]
    pub failed: bool,

    /// At most this many runs, and at least one [default: 20]
    #[arg(short, long, value_name = "N", help_heading = "Showing", value_hint = ValueHint::Other)]
    pub number: Option<OsString>,

    /// As JSON, in the format of docs/history.schema.json
    #[arg(long, help_heading = "Showing")]
    pub json: bool,

    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub configuration: Configuration,
}

/// Check from inside a command whether its lock is still held
///
/// For scripts under meshlock run, right before a step that must not be done by two: meshlock verify && ./pay.sh. Asks
/// etcd, and ends with 0 only if the lock is still held by this very hold and its lease lasts for long enough. With 79
/// it is not, and a line on standard error says why. With 64 no such lock is held around this process; with 69, 77 or
/// 78 nothing could be proven. Anything but 0 means no.
///
/// Between the answer and the step time passes, in which the lock can be lost: a resource that compares the fencing token
/// is the better guard, and verify the one for resources that cannot.
#[derive(Args)]
#[command(
    after_help = "What it is worth, and where it asks: meshlock-verify(1).",
    after_long_help = help::of_verify(),
    args_override_self = true,
)]
pub struct Verify {
    /// The lock's name [default: the innermost lock around this process]
    #[arg(value_name = "NAME", value_hint = ValueHint::Other)]
    pub name: Option<OsString>,

    /// How much time must be left [default: any]
    ///
    /// Until the lease can end, less the margin of a tenth of the TTL (1s at least): by then the command would have to be
    /// dead. Where renewals fail it gets its stop signal before that, by the grace. More than a hold of this TTL can ever
    /// have left is refused (64).
    #[arg(long, value_name = "DURATION", value_hint = ValueHint::Other)]
    pub at_least: Option<OsString>,

    /// Say nothing where the lock is not held
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Output")]
    pub quiet: bool,

    /// Say how long it is held, too
    #[arg(short, long, help_heading = "Output")]
    pub verbose: bool,

    #[command(flatten)]
    pub connection: Connection,
}

/// Check whether etcd, our rights in it and this machine are fit for locks
///
/// Asks every endpoint, all at once and each for --dial-timeout at the most, and says what is well and what is not: one line
/// for each finding, with its level, whom it concerns, and what to do. It writes nothing, takes no lock and disturbs none.
///
/// green is well. yellow: locks work, and something should be seen to. red: locks do not work, or cannot be relied on; the
/// exit status is then 1, and 69 where no endpoint answers at all.
#[derive(Args)]
#[command(
    after_help = "What is looked at, and what the JSON holds: meshlock-doctor(1).",
    after_long_help = help::of_askers(),
    args_override_self = true,
)]
pub struct Doctor {
    /// Say it as one JSON object, with the facts
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Say only what is not as it should be
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Say each known defect of the servers' versions in a line of its own
    #[arg(short, long, help_heading = "Output")]
    pub verbose: bool,

    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub connection: Connection,
    #[command(flatten)]
    pub configuration: Configuration,
}

/// Show which settings apply, and where each comes from
///
/// One line for each setting of meshlock run, with its value and the variable or the line of a configuration file that it
/// comes from. With a NAME, as they are for that lock; without, as they are for a lock that no file has a table for, and
/// below that what the files say of single locks. Passwords are not shown, and etcd is not asked.
///
/// The settings are checked, too: what is wrong with one is said on standard error, and the exit status is then 78.
#[derive(Args)]
#[command(
    after_help = "What a configuration file may hold, and what goes before what: meshlock-config(1).",
    after_long_help = help::of_config(),
    args_override_self = true,
)]
pub struct Config {
    /// The lock whose settings to show
    #[arg(value_name = "NAME", value_hint = ValueHint::Other)]
    pub name: Option<OsString>,

    /// As JSON, in the format of docs/config.schema.json
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    #[command(flatten)]
    pub configuration: Configuration,
}

#[derive(Args, Default)]
#[command(next_help_heading = "Waiting")]
pub struct Waiting {
    /// Do not wait: if another has the lock, exit at once
    ///
    /// The exit status is then 75, or that of -E. A contended -n writes nothing to etcd.
    #[arg(short, long, conflicts_with = "wait")]
    pub no_wait: bool,

    /// Wait this long for the lock, then exit [default: without limit]
    ///
    /// Counts from the start, connecting included; 0 is -n. The exit status is 75, or that of -E, if
    /// another still has the lock, and 69 if etcd is away as the wait ends, which takes up to a second more.
    ///
    /// Where the last holder vanished without a release, the hand-over delay (a tenth of its TTL, 1 s at
    /// least) is sat out however short the wait, and with -n too: nobody is waited for then, and a job that
    /// never waits long enough would find its lock shut for ever.
    #[arg(short, long, value_name = "DURATION", value_hint = ValueHint::Other)]
    pub wait: Option<OsString>,

    /// Exit with N if another has the lock [default: 75]
    #[arg(short = 'E', long, value_name = "N", value_hint = ValueHint::Other)]
    pub conflict_exit_code: Option<OsString>,
}

#[derive(Args, Default)]
#[command(next_help_heading = "Holding and stopping")]
pub struct Holding {
    /// How soon others may start if this machine vanishes [default: 30s]
    ///
    /// The time to live of the lease in etcd, 4s to 300s. It does not limit the command: the lease is renewed
    /// for as long as the command runs (for a limit, see --max-runtime). It is also how long etcd may be
    /// unreachable, less a margin and the grace, before the command has to be stopped.
    #[arg(long, value_name = "DURATION", value_hint = ValueHint::Other)]
    pub ttl: Option<OsString>,

    /// From the stop signal to SIGKILL [default: a sixth of the TTL, at most 5s]
    ///
    /// The time the command has to clean up when meshlock stops it. It is taken out of the TTL, so that the
    /// command is gone before the lease can have ended; a grace that leaves no time to renew is refused.
    #[arg(long, value_name = "DURATION", value_hint = ValueHint::Other)]
    pub grace: Option<OsString>,

    /// The signal that asks the command to stop [default: TERM]
    ///
    /// A name with or without SIG, or a number.
    #[arg(long, value_name = "SIGNAL", value_hint = ValueHint::Other)]
    pub stop_signal: Option<OsString>,

    /// From the proof that the lock is lost to SIGKILL [default: 0]
    ///
    /// By default the command is killed at once, since another may start soon. At most half the hand-over
    /// delay, which is a tenth of the TTL but at least 1s.
    #[arg(long, value_name = "DURATION", value_hint = ValueHint::Other)]
    pub lost_grace: Option<OsString>,

    /// Stop the command when it has run this long, and exit with 124 [default: without limit]
    ///
    /// Limits the command and has nothing to do with the TTL. The lock is released once the command's
    /// processes are gone.
    #[arg(long, value_name = "DURATION", value_hint = ValueHint::Other)]
    pub max_runtime: Option<OsString>,

    /// What becomes of processes that the command leaves running [default: leave]
    ///
    /// leave: the lock goes when the command itself ends, whatever it left in the background. wait: the lock is
    /// kept until the last of them has ended, or HUP, INT, QUIT or TERM has them killed. kill: they are killed,
    /// then the lock goes.
    #[arg(
        long,
        value_name = "leave|wait|kill",
        value_enum,
        hide_possible_values = true,
        ignore_case = true
    )]
    pub stragglers: Option<crate::rules::Stragglers>,

    /// Try this long to release the lock at the end [default: 5s]
    ///
    /// If etcd is away, meshlock then exits with the command's own status all the same, and says how long the
    /// lease may still block others.
    #[arg(long, value_name = "DURATION", value_hint = ValueHint::Other)]
    pub release_timeout: Option<OsString>,
}

#[derive(Args, Default)]
#[command(next_help_heading = "Records")]
pub struct Records {
    /// Write the outcome to FILE as JSON
    ///
    /// A regular file is replaced as a whole by a new one; anything else, such as a FIFO or /dev/fd/3, is opened at
    /// the start and written at the end.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,

    /// Keep the records of this many runs in etcd, 0 to 1000 [default: 20]
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    pub keep: Option<OsString>,

    /// Who answers for this run, for the record
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    pub owner: Option<OsString>,

    /// Why it runs, for the record
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    pub reason: Option<OsString>,

    /// Who or what to go to when it fails, for the record
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    pub route: Option<OsString>,

    /// The exit statuses that count as success, for the record [default: 0]
    ///
    /// A list such as 0,3, as a shell shows them: 143 is a death by SIGTERM. It changes no exit status; a run that
    /// was stopped, or whose command could not be started, never counts as success.
    #[arg(long, value_name = "LIST", value_hint = ValueHint::Other)]
    pub expect: Option<OsString>,

    /// What set the run off, for the record [default: what can be found]
    ///
    /// Found are, in this order: a CI system with the link to its run, by its variables; a systemd unit; cron, at or
    /// anacron; a terminal.
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    pub trigger: Option<OsString>,

    /// Which system it belongs to, for the record [default: the CI project, unit or crontab, and the host]
    #[arg(long, value_name = "TEXT", value_hint = ValueHint::Other)]
    pub system: Option<OsString>,

    /// Record the command's arguments too
    ///
    /// Up to 4 KiB of them. They can hold secrets, and whoever may read the records reads them.
    #[arg(long)]
    pub record_args: bool,
}

#[derive(Args, Default)]
#[command(next_help_heading = "Place in etcd")]
pub struct Place {
    /// Everything of meshlock's lies under this key prefix [default: meshlock/]
    #[arg(long, value_name = "PREFIX", value_hint = ValueHint::Other)]
    pub prefix: Option<OsString>,

    /// Share the lock KEY with etcdctl lock or a Go program
    ///
    /// KEY is the lock's name there, and another lock than a NAME of the same text. meshlock queues under it verbatim; its
    /// own records stay under --prefix, with =KEY, percent-encoded, in the place of the name. Holders that are not
    /// meshlock's lie outside of the prefix and are seen only with this option.
    #[arg(long, value_name = "KEY", value_hint = ValueHint::Other)]
    pub lock_key: Option<OsString>,
}

#[derive(Args, Default)]
#[command(next_help_heading = "Connection")]
pub struct Connection {
    /// etcd's members, separated by commas [default: 127.0.0.1:2379]
    ///
    /// As HOST:PORT, http://HOST:PORT or https://HOST:PORT; without a scheme, https if a TLS file is given.
    #[arg(long, value_name = "LIST", value_hint = ValueHint::Other)]
    pub endpoints: Option<OsString>,

    /// Ask DNS for etcd's members, as etcdctl does
    ///
    /// They are the targets of the SRV records _etcd-client-ssl._tcp.DOMAIN, which speak TLS, and after these of
    /// _etcd-client._tcp.DOMAIN; where a TLS file is given, of the former alone. DNS is asked at the start, within
    /// --dial-timeout, and again when all members fail. Not beside --endpoints.
    #[arg(long, value_name = "DOMAIN", value_hint = ValueHint::Other)]
    pub discovery_srv: Option<OsString>,

    /// Which of several clusters in the domain of --discovery-srv
    ///
    /// The records are then _etcd-client-ssl-NAME._tcp.DOMAIN and _etcd-client-NAME._tcp.DOMAIN.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Other)]
    pub discovery_srv_name: Option<OsString>,

    /// How long the first contact with etcd may take [default: 5s]
    #[arg(long, value_name = "DURATION", value_hint = ValueHint::Other)]
    pub dial_timeout: Option<OsString>,

    /// The certificates to check the servers against, PEM [default: the system's, for https]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub cacert: Option<PathBuf>,

    /// The client's certificate, PEM
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub cert: Option<PathBuf>,

    /// The client certificate's private key, PEM, not encrypted
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,

    /// What the servers' certificates must be for [default: the host in the endpoint]
    ///
    /// A host name or an IP address: for servers that are reached by another, as through a tunnel or a port that is
    /// forwarded.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::Hostname)]
    pub tls_server_name: Option<OsString>,

    /// The etcd user
    ///
    /// As NAME or NAME:PASSWORD. A password on the command line can be seen by every user of this machine: better
    /// give it by --password-file or by a variable. Where none is given, it is taken from the credential
    /// meshlock.password of a systemd service, or asked for at the terminal.
    #[arg(long, value_name = "NAME[:PASSWORD]", value_hint = ValueHint::Other)]
    pub user: Option<OsString>,

    /// The file with the etcd user's password
    ///
    /// One closing newline is not part of the password. It may be a FIFO, as in --password-file <(pass show etcd), and
    /// is read again should etcd refuse the password later.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub password_file: Option<PathBuf>,
}

#[derive(Args, Default)]
#[command(next_help_heading = "Configuration")]
pub struct Configuration {
    /// Read the settings from FILE and no other [default: ~/.config/meshlock/config.toml, then /etc/meshlock/config.toml]
    ///
    /// In TOML: meshlock-config(1) tells what may stand there. With /dev/null there is none.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
}

#[derive(Args, Default)]
#[command(next_help_heading = "Output")]
pub struct Output {
    /// Say nothing of waiting and contention
    ///
    /// Lost locks, unreachable servers, refusals and wrong usage are still told.
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Say more: what was decided, and what was left running
    #[arg(short, long)]
    pub verbose: bool,
}
