//! The tree is the architecture: which module may know which, and the single places for what must have a
//! single place. Reads the source as text; must not know what it does.
#![expect(clippy::unwrap_used, reason = "a failed test should panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which modules may be named in which. Whatever is missing here may be known by nobody.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("moment", &[]),
    ("outcome", &[]),
    ("rules", &[]),
    ("link", &["outcome"]),
    ("cli", &["outcome", "rules"]),
    ("store", &["moment", "outcome"]),
    ("lock", &["link", "moment", "outcome", "rules", "store"]),
    ("health", &["lock", "moment", "store"]),
    ("report", &["health", "link", "lock", "outcome"]),
    ("supervise", &["link", "moment", "outcome", "rules"]),
    (
        "settings",
        &["cli", "lock", "outcome", "report", "rules", "store", "supervise"],
    ),
    (
        "commands",
        &[
            "health",
            "link",
            "lock",
            "moment",
            "outcome",
            "report",
            "rules",
            "settings",
            "store",
            "supervise",
        ],
    ),
];

/// Every source file of the product with its text, comments and strings included.
fn sources() -> Vec<(PathBuf, String)> {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    assert!(found.len() > 20, "the sources are where they were");
    found
}

/// The lines of a file that are code, those of its unit tests left out.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[cfg(test)]")
        .next()
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

/// The top module of a file: `lock` for src/lock/queue.rs.
fn module(path: &Path) -> String {
    let inside = path
        .strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
        .unwrap();
    let first = inside.iter().next().unwrap().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

fn is(path: &Path, file: &str) -> bool {
    path.ends_with(file)
}

/// Where `word` stands in code, except in the files that `allowed` names.
fn places_of(word: &str, allowed: &[&str]) -> Vec<String> {
    sources()
        .iter()
        .filter(|(path, _)| !allowed.iter().any(|file| is(path, file)) && !is(path, "tests.rs"))
        .flat_map(|(path, text)| {
            let lines = code(text).filter(|line| line.contains(word));
            lines
                .map(|line| format!("{}: {}", path.display(), line.trim()))
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn dependencies_point_one_way() {
    let may_know: BTreeMap<&str, BTreeSet<&str>> = MAY_KNOW
        .iter()
        .map(|(module, known)| (*module, known.iter().copied().collect()))
        .collect();
    for (path, text) in sources() {
        let here = module(&path);
        if ["main", "lib"].contains(&here.as_str()) {
            continue;
        }
        let known = may_know
            .get(here.as_str())
            .unwrap_or_else(|| panic!("{here} is not in the table"));
        for line in code(&text) {
            for named in line.split("crate::").skip(1) {
                let named: String = named
                    .chars()
                    .take_while(|char| char.is_ascii_lowercase() || *char == '_')
                    .collect();
                assert!(
                    named == here || known.contains(named.as_str()),
                    "{} must not know {named}: {}",
                    path.display(),
                    line.trim()
                );
            }
        }
    }
}

#[test]
fn the_table_has_no_circle_and_nothing_that_is_not_used() {
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for (module, known) in MAY_KNOW {
        assert!(
            known.iter().all(|known| done.contains(known)),
            "{module} knows a later one"
        );
        done.insert(module);
    }
    for (here, known) in MAY_KNOW {
        for named in *known {
            let used = sources()
                .iter()
                .any(|(path, text)| module(path) == *here && text.contains(&format!("crate::{named}")));
            assert!(used, "{here} may know {named}, and does not");
        }
    }
}

#[test]
fn only_settings_reads_the_environment() {
    assert_eq!(places_of("env::", &["settings/source.rs"]), [""; 0]);
}

#[test]
fn only_report_prints() {
    for word in ["print!(", "println!(", "eprint!(", "eprintln!("] {
        assert_eq!(places_of(word, &[]), [""; 0]);
    }
    assert_eq!(places_of("stderr()", &["report/mod.rs"]), [""; 0]);
    assert_eq!(places_of("stdout()", &["report/out.rs"]), [""; 0]);
}

#[test]
fn only_main_and_the_keepers_own_process_exit() {
    assert_eq!(places_of("process::exit", &[]), [""; 0]);
    assert_eq!(
        places_of("exit_now(", &["main.rs", "supervise/sys.rs", "commands/keep.rs"]),
        [""; 0]
    );
}

#[test]
fn only_sys_is_unsafe_and_says_why_each_time() {
    assert_eq!(places_of("unsafe", &["supervise/sys.rs"]), [""; 0]);
}

#[test]
fn only_store_names_etcds_client() {
    let named: Vec<String> = ["etcd_client", "tonic::"]
        .iter()
        .flat_map(|word| places_of(word, &[]))
        .filter(|place| !place.contains("/src/store/"))
        .collect();
    assert_eq!(named, [""; 0]);
}

#[test]
fn every_file_says_what_it_is_for() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{}", path.display());
    }
}
