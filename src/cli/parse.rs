//! From the words of the call to one of the commands, or to one line on what is wrong with them. Knows no option's
//! meaning.

use super::{Cli, Command, Config, Doctor, History, Run, Status, Verify};
use crate::outcome::{Failure, FailureKind};
use clap::error::ErrorKind;
use clap::{Args as _, CommandFactory as _, FromArgMatches as _};
use std::ffi::{OsStr, OsString};

/// The command line. A `--` in the place of NAME, of which clap does not tell, leaves [`Run::name`] empty.
///
/// # Errors
/// clap's, on a wrong one, and where help or version are asked for.
pub fn parse(words: Vec<OsString>) -> Result<Command, clap::Error> {
    let behind = words
        .iter()
        .position(|word| word == "--")
        .map(|at| words.len() - at - 1);
    match understood(&words) {
        // Of the words behind it one is not the command's: the one that was taken for NAME.
        Ok(Command::Run(mut run)) if behind == Some(run.command.len() + 1) => {
            run.command.splice(..0, run.name.take());
            Ok(Command::Run(run))
        }
        // It is the command, and there is no NAME.
        Err(error) if behind == Some(1) && error.kind() == ErrorKind::MissingRequiredArgument => {
            let mut words = words;
            words.insert(words.len() - 1, OsString::new());
            match understood(&words) {
                Ok(Command::Run(run)) => Ok(Command::Run(Run { name: None, ..run })),
                _ => Err(error),
            }
        }
        other => other,
    }
}

fn understood(words: &[OsString]) -> Result<Command, clap::Error> {
    let mut command = words.get(1).and_then(|word| alone(word)).unwrap_or_else(Cli::command);
    let understood = command.try_get_matches_from_mut(words)?;
    Ok(Cli::from_arg_matches(&understood)?.command)
}

/// Adds a subcommand's arguments.
type Augment = fn(clap::Command) -> clap::Command;

/// The subcommands, each with what defines it.
const SUBCOMMANDS: &[(&str, Augment)] = &[
    ("run", Run::augment_args),
    ("status", Status::augment_args),
    ("history", History::augment_args),
    ("verify", Verify::augment_args),
    ("doctor", Doctor::augment_args),
    ("config", Config::augment_args),
];

/// The definition with what the first word asks for alone. To build the others takes longer than all else before the
/// first connection.
fn alone(first: &OsStr) -> Option<clap::Command> {
    let command = clap::Command::new(env!("CARGO_PKG_NAME")).version(env!("CARGO_PKG_VERSION"));
    if first == "--version" || first == "-V" {
        return Some(command);
    }
    let (name, augment) = SUBCOMMANDS.iter().find(|(name, _)| first == *name)?;
    Some(command.subcommand(augment(clap::Command::new(*name))))
}

/// clap's several lines on a wrong command line as one of ours.
pub fn refusal(error: &clap::Error) -> Failure {
    let rendered = error.render().to_string();
    let first = rendered.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = first.trim_start_matches("error: ").split_whitespace().collect();
    // A wrong value comes without a usage; only options of run have values that clap itself knows.
    let usage = rendered
        .split_once("Usage: ")
        .map_or("meshlock run", |(_, usage)| usage);
    let subcommand = usage.split_whitespace().nth(1).unwrap_or_default();
    let help = if subcommand.starts_with(|first: char| first.is_ascii_lowercase()) {
        format!("meshlock {subcommand} --help")
    } else {
        "meshlock --help".to_owned()
    };
    Failure::new(FailureKind::Usage, format!("{}; see {help}", words.join(" ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn each_subcommand_is_the_same_alone() {
        let mut whole = Cli::command();
        whole.build();
        for subcommand in whole.get_subcommands() {
            let name = subcommand.get_name();
            let mut alone = alone(name.as_ref()).unwrap_or_else(|| panic!("{name}"));
            alone.build();
            let alone = alone.find_subcommand(name).expect("itself");
            let long_help = |command: &clap::Command| command.clone().render_long_help().to_string();
            assert_eq!(long_help(alone), long_help(subcommand));
        }
    }

    #[test]
    fn before_a_double_dash_stands_the_name_or_nothing() {
        for (call, name, command) in [
            ("x -- ls", Some("x"), "ls"),
            ("x -- ls -- a", Some("x"), "ls -- a"),
            ("x ls -- a", Some("x"), "ls -- a"),
            ("x ls", Some("x"), "ls"),
            ("-- ls", None, "ls"),
            ("-- ls -a", None, "ls -a"),
            ("-n -- ls -- a", None, "ls -- a"),
            ("--lock-key k -- ls", None, "ls"),
            ("-- --", None, "--"),
        ] {
            let call: Vec<&str> = ["meshlock", "run"].into_iter().chain(call.split(' ')).collect();
            let Command::Run(run) = parse(words(&call)).unwrap_or_else(|error| panic!("{call:?}: {error}")) else {
                panic!("another command");
            };
            assert_eq!(run.name.as_deref(), name.map(OsStr::new), "{call:?}");
            assert_eq!(run.command, words(&command.split(' ').collect::<Vec<_>>()), "{call:?}");
        }
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_command_line_is_told_in_one_line() {
        for (arguments, line) in [
            (
                "",
                "'meshlock' requires a subcommand but one was not provided [subcommands: run, status, history, verify, doctor, config]; see meshlock --help",
            ),
            ("rin x ls", "unrecognized subcommand 'rin'; see meshlock --help"),
            (
                "run x",
                "the following required arguments were not provided: <COMMAND>...; see meshlock run --help",
            ),
            (
                "run --bogus x ls",
                "unexpected argument '--bogus' found; see meshlock run --help",
            ),
            (
                "run --stragglers some x ls",
                "invalid value 'some' for '--stragglers <leave|wait|kill>' [possible values: leave, wait, kill]; \
                 see meshlock run --help",
            ),
            ("--bogus", "unexpected argument '--bogus' found; see meshlock --help"),
            (
                "run -nw 5 x ls",
                "the argument '--no-wait' cannot be used with '--wait <DURATION>'; see meshlock run --help",
            ),
        ] {
            let arguments: Vec<_> = ["meshlock"].into_iter().chain(arguments.split_whitespace()).collect();
            let error = parse(words(&arguments)).err().expect("an error");
            assert_eq!(refusal(&error).why, line);
        }
    }

    #[test]
    fn options_may_follow_the_name_and_the_last_of_two_counts() {
        let arguments = ["meshlock", "run", "--ttl=5", "x", "--ttl", "6", "ls", "--ttl=7"];
        let Command::Run(run) = Cli::try_parse_from(arguments).expect("arguments").command else {
            panic!("another command");
        };
        assert_eq!(run.holding.ttl, Some("6".into()));
        assert_eq!(run.command, ["ls", "--ttl=7"]);
    }
}
