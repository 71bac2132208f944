//! Whatever meshlock reads that it has not written itself: what is right is understood, what is wrong refused
//! in one line, and nothing makes it panic or dawdle. One file per kind of input; no etcd is needed.
//!
//! `MESHLOCK_CASES` is the number of inputs for each promise, `MESHLOCK_SEED` chooses others.

#![expect(clippy::expect_used, reason = "a failed test should panic")]

mod credentials;
mod durations;
mod endpoints;
mod environment;
mod files;
mod lines;
mod messages;
mod names;
mod processes;
mod records;
mod reports;
mod views;

use clap::Parser as _;
use meshlock::cli::{self, Cli, Command};
use meshlock::outcome::Failure;
use meshlock::settings::{self, Run};
use nix::time::{ClockId, clock_gettime};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngSeed, TestCaseResult, TestRunner};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

/// Tries the promise on so many inputs, the same on each run.
fn holds<S: Strategy>(cases: u32, inputs: S, promise: impl Fn(S::Value) -> TestCaseResult) {
    let number = |name: &str| Some(std::env::var(name).ok()?.parse().expect("a number"));
    let seed = number("MESHLOCK_SEED").unwrap_or(7);
    let mut runner = TestRunner::new(Config {
        cases: number("MESHLOCK_CASES").map_or(cases, |cases| u32::try_from(cases).expect("a number of cases")),
        failure_persistence: None,
        max_global_rejects: u32::MAX,
        rng_seed: RngSeed::Fixed(seed),
        ..Config::default()
    });
    if let Err(broken) = runner.run(&inputs, promise) {
        panic!("MESHLOCK_SEED={seed}: {broken}");
    }
}

/// What etcd and our own limit for files let through, and what the kernel lets through as one argument or variable
/// (execve(2), `MAX_ARG_STRLEN`).
const MEGABYTE: usize = 1 << 20;
const ARGUMENT: usize = 1 << 17;

/// Tries that the work grows no faster than its input: sixteen times the bytes take no more than four times that
/// share of this thread's own time, whatever else the machine does.
fn keeps_pace<T>(most: usize, input: impl Fn(usize) -> Vec<u8>, parse: impl Fn(&[u8]) -> T) {
    let spent = |size: usize| {
        let input = input(size);
        let once = || {
            let began = thread_time();
            std::hint::black_box(parse(std::hint::black_box(&input)));
            thread_time().saturating_sub(began)
        };
        once().min(once())
    };
    let (little, much) = (spent(most / 16), spent(most));
    let allowed = (little * 16 * 4).max(Duration::from_millis(20));
    assert!(
        much <= allowed,
        "{} bytes took {little:?}, {most} took {much:?}: {:?}…",
        most / 16,
        String::from_utf8_lossy(&input(40))
    );
}

fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("a clock").into()
}

/// The settings that arguments and variables give to `meshlock run`.
fn settings_of<A: AsRef<OsStr>, N: Into<OsString>, V: Into<OsString>>(
    options: impl IntoIterator<Item = A>,
    variables: impl IntoIterator<Item = (N, V)>,
) -> Result<Run, Failure> {
    run_with(options, "x".as_ref(), variables)
}

fn run_with<A: AsRef<OsStr>, N: Into<OsString>, V: Into<OsString>>(
    options: impl IntoIterator<Item = A>,
    name: &OsStr,
    variables: impl IntoIterator<Item = (N, V)>,
) -> Result<Run, Failure> {
    settings::run(typed(options, name), &variables.into_iter().collect())
}

/// `meshlock run` as it was typed.
fn typed<A: AsRef<OsStr>>(options: impl IntoIterator<Item = A>, name: &OsStr) -> cli::Run {
    let options = options.into_iter().map(|option| option.as_ref().to_owned());
    let arguments = ["meshlock", "run"].map(OsString::from).into_iter().chain(options);
    let arguments = arguments.chain(["--".into(), name.to_owned(), "true".into()]);
    let Command::Run(typed) = Cli::try_parse_from(arguments).expect("arguments").command else {
        panic!("another command");
    };
    typed
}

/// As [`settings_of`], one option and nothing else.
fn with_option(option: &str, value: impl Into<OsString>) -> Result<Run, Failure> {
    let mut argument = OsString::from(format!("--{option}="));
    argument.push(value.into());
    settings_of([argument], [("", ""); 0])
}

const NOTHING: [(&str, &str); 0] = [];

/// One line of words for a person, as it gets out.
fn is_one_line(why: &str) -> TestCaseResult {
    let line =
        String::from_utf8(meshlock::report::line(why)).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let text = line.strip_suffix('\n');
    prop_assert!(text.is_some_and(|text| !text.contains(char::is_control)), "{:?}", line);
    Ok(())
}

/// Any characters, those that steer and separate more often than others.
fn text() -> impl Strategy<Value = String> {
    text_of(0..40)
}

fn text_of(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    let nasty: Vec<char> =
        "\0\t\n\r\u{1b}\u{7f}\u{85}\u{61c}\u{200e}\u{202e}\u{2028}\u{2066}\u{feff}\"\\'%/:,=.@[]{}-_ \
                            0123456789abc\u{e9}\u{65e5}\u{1f512}\u{10ffff}"
            .chars()
            .collect();
    let char = prop_oneof![3 => select(nasty), 1 => any::<char>(), 2 => prop::char::range('!', '~')];
    prop::collection::vec(char, length).prop_map(String::from_iter)
}

/// A text of so many characters, made of few.
fn long_text(length: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    (text_of(1..9), length).prop_map(|(text, length)| text.chars().cycle().take(length).collect())
}

/// Any bytes, mostly text.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        2 => text().prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..60),
    ]
}

/// What a variable or an argument can hold.
fn os_text() -> impl Strategy<Value = OsString> {
    bytes().prop_map(|bytes| OsString::from_vec(bytes.into_iter().filter(|byte| *byte != 0).collect()))
}
