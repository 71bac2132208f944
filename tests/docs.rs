//! Man pages, completions, the README's tables and its example say what the code says: they are made from the one clap
//! definition and the one table of exit statuses, committed, and compared here.
//! `BLESS=1 cargo test --test docs` rewrites them.

#![expect(clippy::expect_used, reason = "a failed test should panic")]

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use meshlock::cli::Cli;
use meshlock::lock::board::pieces::Life;
use meshlock::lock::board::{Board, Lock, Read};
use meshlock::lock::keys::Place;
use meshlock::outcome::{EXIT_STATUSES, Row};
use meshlock::report::{self, locks, locks::Detail};
use meshlock::rules::{Asked, Rules};
use meshlock::settings::file::keys::{KEYS, Scope};
use meshlock::store::Item;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::time::{Duration, SystemTime};

/// meshlock's own page and one for each subcommand, by their paths.
fn pages() -> Vec<(String, Command)> {
    let cli = built();
    let own = ("man/meshlock.1".to_owned(), cli.clone());
    let of = |sub: &Command| (format!("man/meshlock-{}.1", sub.get_name()), sub.clone());
    [own].into_iter().chain(cli.get_subcommands().map(of)).collect()
}

/// The pages as they should be, by their paths.
fn man() -> impl Iterator<Item = (String, String)> {
    pages().into_iter().map(|(path, command)| {
        let page = page(&command, &read(&format!("{path}.in")));
        (path, page)
    })
}

/// The scripts as they should be: the shell, the path, the text.
fn completions() -> [(&'static str, &'static str, String); 3] {
    [
        (Shell::Bash, "bash", "completions/meshlock.bash"),
        (Shell::Zsh, "zsh", "completions/_meshlock"),
        (Shell::Fish, "fish", "completions/meshlock.fish"),
    ]
    .map(|(shell, program, path)| {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "meshlock", &mut script);
        (program, path, String::from_utf8(script).expect("UTF-8"))
    })
}

#[test]
fn the_tests_that_the_argument_for_safety_names_are_there() {
    let named: Vec<String> = read("docs/SAFETY.md")
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|words| words.contains('_') && words.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_'))
        .map(str::to_owned)
        .collect();
    assert!(named.len() > 8, "{named:?}");
    let tests: String = ["model/main.rs", "promises/loss.rs", "promises/tree.rs"]
        .map(|file| read(&format!("tests/{file}")))
        .concat();
    for name in named {
        assert!(tests.contains(&format!("fn {name}()")), "docs/SAFETY.md names {name}");
    }
}

/// What is measured is the machine's; how often a lease is renewed follows from the rules.
#[test]
fn the_arithmetic_for_fleets_is_that_of_the_rules() {
    let page = read("docs/SCALE.md");
    let (_, table) = page.split_once("| holders and waiters |").expect("the table");
    let number = |cell: &str| cell.replace(',', "").parse::<f64>().expect("a number");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() > 5, "{rows:?}");
    for row in rows {
        let asked = Asked {
            ttl: Duration::from_secs_f64(number(row[1].trim_end_matches(" s"))),
            grace: None,
            lost_grace: Duration::ZERO,
            max_runtime: None,
            release_timeout: Duration::from_secs(5),
        };
        let interval = Rules::as_asked(&asked).expect("a TTL in range").interval;
        // Up to 15 % sooner, by lot.
        let renewals = number(row[0]) / (interval.as_secs_f64() * 0.925);
        for (said, computed) in [(row[2], renewals), (row[3], 2.0 * renewals)] {
            assert!((number(said) - computed).abs() <= 0.5, "{row:?}: {computed}");
        }
    }
}

#[test]
fn the_benches_that_the_pages_name_are_there() {
    let benches: Vec<(String, String)> = fs::read_dir(root().join("benches/beside"))
        .expect("the benches")
        .map(|entry| {
            let name = entry.expect("a file").file_name().into_string().expect("text");
            let text = read(&format!("benches/beside/{name}"));
            (name, text)
        })
        .collect();
    let mut named = 0;
    for page in ["README.md", "docs/SCALE.md"] {
        for call in read(page).split("benches/run ").skip(1) {
            let words = call
                .split(|c| "`'#\n|".contains(c))
                .next()
                .expect("what follows")
                .split(' ');
            for word in words.filter(|word| word.starts_with(|c: char| c == '-' || c.is_ascii_lowercase())) {
                let there = match word.strip_prefix("--") {
                    Some(option) => {
                        let field = format!("    {}: ", option.replace('-', "_"));
                        benches.iter().any(|(_, text)| text.contains(&field))
                    }
                    None => benches.iter().any(|(name, _)| *name == format!("{word}.rs")),
                };
                assert!(there, "{page} names `{word}` of benches/run");
                named += 1;
            }
        }
    }
    assert!(named > 4, "{named}");
}

#[test]
fn the_man_pages_are_those_of_the_command_line() {
    for (path, page) in man() {
        hold(&path, &page);
    }
}

#[test]
fn the_completions_are_those_of_the_command_line() {
    for (_, path, script) in completions() {
        hold(path, &script);
    }
}

#[test]
fn the_readme_has_the_tables_and_the_example_of_the_code() {
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
    let readme = between_marks(&readme, "status", &example());
    hold("README.md", &readme);
}

/// What status and history print of such a night.
fn example() -> String {
    let (board, now) = night();
    let screen = Some(100);
    let one = Board {
        locks: board.locks[..1].to_vec(),
        ..board.clone()
    };
    let failed: Vec<_> = board
        .locks
        .iter()
        .flat_map(|lock| &lock.runs)
        .filter(|ran| ran.failed())
        .cloned()
        .collect();
    let mut shown = String::from("```console\n");
    for (call, lines) in [
        ("status", locks::status(&board, Detail::Glance, now, screen)),
        ("status billing", locks::status(&one, Detail::Whole, now, screen)),
        ("history --failed", locks::history(&failed, true, now, screen)),
    ] {
        writeln!(shown, "$ meshlock {call}").expect("a string");
        shown += &report::plain(&lines);
    }
    shown + "```\n"
}

/// What lies in etcd in the night of the README's example.
fn night() -> (Board, SystemTime) {
    let record = |host: &str, pid: u32, program: &str, started: &str, more: &str| {
        format!(
            r#""format":1,"host":"{host}","user":"ops","pid":{pid},"program":"{program}","started":"2026-11-30T{started}Z"{more}"#
        )
    };
    let invoices = r##","owner":"team-invoices","reason":"month end","trigger":"cron","system":"erp-7","route":"#billing-oncall""##;
    let deploy = r#","owner":"ann","trigger":"https://ci.example/42","system":"shop","route":"ann""#;
    let holder = record("web1", 30191, "invoice.sh", "21:20:07", invoices);
    let waiter = record("web2", 812, "invoice.sh", "22:20:07", invoices);
    let gone = record("ci-3", 4121, "deploy.sh", "22:58:40", deploy);
    let ended = |holder: &str, token: u32, status: u8, from: &str, to: &str| {
        format!(
            r#"{{{holder},"token":{token},"result":"command","status":{status},"acquired":"2026-11-30T{from}Z","ended":"2026-11-30T{to}Z"}}"#
        )
    };
    let item = |key: &str, created: i64, value: String| Item {
        key: format!("meshlock/{key}"),
        value: value.into_bytes(),
        created,
        lease: 0x694d_90e3_a9b7_b10c,
    };
    let run = |name: &str, token: u32, value| item(&format!("log/{name}/{token:016x}"), i64::from(token) + 1, value);
    let first = record("web2", 411, "invoice.sh", "19:20:04", invoices);
    let second = record("web1", 29004, "invoice.sh", "20:20:06", invoices);
    let mut billing = Lock::new(
        &Place::new("meshlock/", "billing").expect("a name"),
        Read {
            queue: vec![
                item("lock/billing/694d90e3a9b7b10c", 1742, format!("{{{holder}}}")),
                item("lock/billing/2f1c07a1e0b4d35a", 1790, format!("{{{waiter}}}")),
            ],
            length: 2,
            runs: vec![
                run("billing", 1588, ended(&first, 1588, 0, "19:20:04", "19:32:10")),
                run("billing", 1650, ended(&second, 1650, 3, "20:20:06", "20:30:48")),
            ],
            marks: Some(Vec::new()),
            ..Read::default()
        },
    );
    billing.queue[0].life = Life::Left {
        left: Duration::from_secs(26),
        granted: Duration::from_secs(30),
    };
    let mut vanished = Lock::new(
        &Place::new("meshlock/", "deploy-shop").expect("a name"),
        Read {
            opens: vec![item(
                "open/deploy-shop/59aa31c0ffee1234",
                1801,
                format!(r#"{{{gone},"ttl_ms":30000}}"#),
            )],
            ..Read::default()
        },
    );
    vanished.open[0].life = Life::Gone;
    let report = record("web3", 77, "report.py", "22:00:01", r#","owner":"team-data""#);
    let free = Lock::new(
        &Place::new("meshlock/", "report").expect("a name"),
        Read {
            runs: vec![run("report", 1760, ended(&report, 1760, 0, "22:00:01", "22:04:31"))],
            ..Read::default()
        },
    );
    let board = Board {
        cluster: 0,
        revision: 1802,
        locks: vec![billing, vanished, free],
    };
    let now = humantime::parse_rfc3339("2026-11-30T23:25:12Z").expect("a time");
    (board, now)
}

/// From their standard input: the files may just be written anew.
#[test]
fn programs_that_read_them_find_nothing_wrong() {
    let scripts = completions().map(|(shell, path, script)| (shell, &["-n"][..], path.to_owned(), script));
    let pages = man().map(|(path, page)| ("mandoc", &["-Tlint", "-Wwarning"][..], path, page));
    for (program, flags, path, text) in scripts.into_iter().chain(pages) {
        let started = process::Command::new(program)
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        match started {
            Ok(mut reader) => {
                let mut stdin = reader.stdin.take().expect("a pipe");
                // One that reads no more has said why.
                stdin.write_all(text.as_bytes()).ok();
                drop(stdin);
                let output = reader.wait_with_output().expect("its end");
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
            "@SETTINGS@" => page += &settings(),
            "@EXAMPLE@" => page += &verbatim(&read("docs/config.toml")),
            "@EXIT_STATUS@" => {
                let all = ["meshlock", "run"].contains(&command.get_name());
                page += &exit_statuses(|row| if all { Some(row.meaning) } else { row.asking });
            }
            // Where the template names those with which its command can end.
            some if some.starts_with("@EXIT_STATUS ") => {
                let names: Vec<&str> = some.trim_end_matches('@').split(' ').skip(1).collect();
                for name in &names {
                    assert!(EXIT_STATUSES.iter().any(|row| row.name == *name), "{name}");
                }
                page += &exit_statuses(|row| names.contains(&row.name).then_some(row.asking.unwrap_or(row.meaning)));
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

/// What may stand in a configuration file, and what each is.
fn settings() -> String {
    let mut roff = Roff::new();
    for key in KEYS {
        let place = match key.scope {
            Scope::Anywhere => "",
            Scope::Top => "; at the top alone",
            Scope::Lock => "; below [lock.NAME] alone",
        };
        roff.control("TP", []);
        roff.text([bold(key.name)]);
        roff.text([roman(format!("{}{place}", key.kind.as_written()))]);
    }
    roff.to_roff()
}

/// Lines as they are, between .EX and .EE.
fn verbatim(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        let line = line
            .replace('\\', "\\e")
            .replace('-', "\\-")
            .replace('"', "\\(dq")
            .replace('~', "\\(ti");
        let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
        writeln!(lines, "{guard}{line}").expect("a string");
    }
    lines
}

fn exit_statuses(meaning: impl Fn(&Row) -> Option<&'static str>) -> String {
    let mut roff = Roff::new();
    for (row, meaning) in EXIT_STATUSES.iter().filter_map(|row| Some((row, meaning(row)?))) {
        roff.control("TP", []);
        roff.text([bold(row.status), roman("  "), roman(row.name)]);
        roff.text([roman(meaning)]);
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
