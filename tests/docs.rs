//! Man pages, completions and the README's tables say what the code says: they are made from the one clap
//! definition and the one table of exit statuses, committed, and compared here.
//! `BLESS=1 cargo test --test docs` rewrites them.

#![expect(clippy::expect_used, reason = "a failed test should panic")]

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use meshlock::cli::Cli;
use meshlock::outcome::EXIT_STATUSES;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

/// meshlock's own page and one for each subcommand.
fn pages() -> Vec<(String, Command)> {
    let cli = built();
    let own = ("man/meshlock.1".to_owned(), cli.clone());
    let of = |sub: &Command| (format!("man/meshlock-{}.1", sub.get_name()), sub.clone());
    [own].into_iter().chain(cli.get_subcommands().map(of)).collect()
}

#[test]
fn the_man_pages_are_those_of_the_command_line() {
    for (path, command) in pages() {
        hold(&path, &page(&command, &read(&format!("{path}.in"))));
    }
}

#[test]
fn the_completions_are_those_of_the_command_line() {
    for (shell, path) in [
        (Shell::Bash, "completions/meshlock.bash"),
        (Shell::Zsh, "completions/_meshlock"),
        (Shell::Fish, "completions/meshlock.fish"),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "meshlock", &mut script);
        hold(path, &String::from_utf8(script).expect("UTF-8"));
    }
}

#[test]
fn the_readme_has_the_tables_of_the_code() {
    let mut statuses = String::from("| status | name | meaning |\n| --- | --- | --- |\n");
    for row in EXIT_STATUSES {
        writeln!(statuses, "| {} | {} | {} |", row.status, row.name, row.meaning).expect("a string");
    }
    let mut options = String::from("| option | what |\n| --- | --- |\n");
    let cli = built();
    for option in options_of(cli.find_subcommand("run").expect("the subcommand")) {
        let help = option.get_help().expect("help").to_string();
        let cell = |text: &str| text.replace('|', "\\|");
        writeln!(options, "| `{}` | {} |", cell(&usage(option)), cell(&help)).expect("a string");
    }
    let readme = read("README.md");
    let readme = between_marks(&readme, "exit-status", &statuses);
    let readme = between_marks(&readme, "options", &options);
    hold("README.md", &readme);
}

#[test]
fn programs_that_read_them_find_nothing_wrong() {
    let lint = &["-Tlint", "-Wwarning"][..];
    let scripts = [
        ("bash", &["-n"][..], "completions/meshlock.bash".to_owned()),
        ("zsh", &["-n"], "completions/_meshlock".to_owned()),
        ("fish", &["-n"], "completions/meshlock.fish".to_owned()),
    ];
    let pages = pages().into_iter().map(|(path, _)| ("mandoc", lint, path));
    for (program, flags, path) in scripts.into_iter().chain(pages) {
        match process::Command::new(program)
            .args(flags)
            .arg(root().join(&path))
            .output()
        {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success() && said.is_empty(), "{program} {path}:\n{said}");
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound, "{program}: {error}"),
        }
    }
}

#[test]
fn every_variable_in_the_manual_is_one_that_the_code_knows() {
    for (path, command) in pages() {
        let page = read(&format!("{path}.in"));
        let flags: Vec<_> = options_of(&command)
            .filter_map(|option| option.get_long())
            .map(|flag| flag.replace('-', "_").to_ascii_uppercase())
            .collect();
        for word in page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            let Some(name) = word.strip_prefix("MESHLOCK_").filter(|name| !name.is_empty()) else {
                continue;
            };
            let known = flags.iter().any(|flag| flag == name)
                || name.starts_with("HELD_")
                || ["PASSWORD", "SOME_OPTION"].contains(&name);
            assert!(known, "{path}: {word}");
        }
    }
}

fn built() -> Command {
    let mut cli = Cli::command();
    cli.build();
    cli
}

/// The template with its `@…@` lines filled in.
fn page(command: &Command, template: &str) -> String {
    let man = Man::new(command.clone());
    let mut name = Vec::new();
    man.render_name_section(&mut name).expect("a Vec");

    let mut page = String::new();
    for line in template.lines() {
        match line {
            "@NAME@" => page += &without_preamble(&name),
            "@DESCRIPTION@" => page += &description(command),
            "@COMMANDS@" => page += &commands(command),
            "@OPTIONS@" => page += &options(command),
            "@EXIT_STATUS@" => page += &exit_statuses(|_| true),
            // Those of a page whose command cannot end in every way.
            some if some.starts_with("@EXIT_STATUS ") => {
                let names: Vec<&str> = some.trim_end_matches('@').split(' ').skip(1).collect();
                page += &exit_statuses(|name| names.contains(&name));
            }
            other => {
                page += &other.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
                page.push('\n');
            }
        }
    }
    page.replace('–', "\\(en").replace('…', "...")
}

/// roff begins each piece with two lines that define the apostrophe; none of ours needs them.
fn without_preamble(rendered: &[u8]) -> String {
    let rendered = String::from_utf8_lossy(rendered);
    let begin = rendered.find(".SH").expect("a section");
    rendered[begin..].replace("\\*(Aq", "\\(aq")
}

/// Without its first paragraph, which the section before has said.
fn description(command: &Command) -> String {
    let mut roff = Roff::new();
    roff.control("SH", ["DESCRIPTION"]);
    let text = command.get_long_about().expect("a description").to_string();
    for (number, paragraph) in text.split("\n\n").skip(1).enumerate() {
        if number > 0 {
            roff.control("PP", []);
        }
        roff.text([roman(paragraph)]);
    }
    roff.to_roff()
}

fn commands(command: &Command) -> String {
    let mut roff = Roff::new();
    for sub in command.get_subcommands() {
        roff.control("TP", []);
        roff.text([bold(format!("{}-{}", command.get_name(), sub.get_name())), roman("(1)")]);
        roff.text([roman(sub.get_about().expect("about").to_string())]);
    }
    roff.to_roff()
}

fn exit_statuses(told: impl Fn(&str) -> bool) -> String {
    let mut roff = Roff::new();
    for row in EXIT_STATUSES.iter().filter(|row| told(row.name)) {
        roff.control("TP", []);
        roff.text([bold(row.status), roman("  "), roman(row.name)]);
        roff.text([roman(row.meaning)]);
    }
    roff.to_roff()
}

/// Under a heading each, in the order of the definition: `clap_mangen` makes sections of the headings and leaves blank
/// lines in.
fn options(command: &Command) -> String {
    let mut roff = Roff::new();
    let mut heading = None;
    for option in options_of(command) {
        if option.get_help_heading() != heading {
            heading = option.get_help_heading();
            roff.control("SS", heading);
        }
        roff.control("TP", []);
        let mut usage: Vec<Inline> = Vec::new();
        if let Some(short) = option.get_short() {
            usage.extend([bold(format!("-{short}")), roman(", ")]);
        }
        usage.push(bold(format!("--{}", option.get_long().expect("a long name"))));
        if let Some(value) = value(option) {
            usage.extend([roman(" "), italic(value)]);
        }
        roff.text(usage);
        let help = option.get_long_help().or(option.get_help()).expect("help").to_string();
        for (number, paragraph) in help.split("\n\n").enumerate() {
            if number > 0 {
                roff.control("IP", []);
            }
            roff.text([roman(paragraph)]);
        }
    }
    roff.to_roff()
}

/// Visible and not the same everywhere.
fn options_of(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|argument| !argument.is_positional() && argument.get_long() != Some("help"))
}

fn value(option: &Arg) -> Option<String> {
    let names = option
        .get_value_names()
        .filter(|_| option.get_action().takes_values())?;
    Some(names.join(" "))
}

fn usage(option: &Arg) -> String {
    let short = option
        .get_short()
        .map(|short| format!("-{short}, "))
        .unwrap_or_default();
    let value = value(option).map(|value| format!(" {value}")).unwrap_or_default();
    format!("{short}--{}{value}", option.get_long().expect("a long name"))
}

fn between_marks(text: &str, name: &str, block: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = text.split_once(&begin).expect("the begin mark");
    let (_, after) = rest.split_once(&end).expect("the end mark");
    format!("{before}{begin}{block}{end}{after}")
}

/// The committed file is `expected`, or becomes it with BLESS=1.
#[track_caller]
fn hold(path: &str, expected: &str) {
    if std::env::var_os("BLESS").is_some() {
        fs::write(root().join(path), expected).expect("written");
    }
    assert!(
        read(path) == expected,
        "{path} is not what the code says: BLESS=1 cargo test --test docs"
    );
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
