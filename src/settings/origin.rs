//! Where a run comes from: the CI system whose variables we were given, else the unit, the scheduler or the
//! terminal above us. All of it is others' text: it is bounded here and made safe where it is shown.
//!
//! In two steps, since nothing waits for the second but the record: what the variables say, then a look around.

use super::source::Environment;
use crate::supervise::tree::Ancestor;

/// The longest text about a run, in bytes: every waiter reads the holder's record.
pub(super) const TEXT_LIMIT: usize = 1024;
/// More processes than ever stand above one another.
const ANCESTORS: usize = 64;

/// A CI system as it makes itself known. In `link` and `project`, `{NAME}` stands for that variable; the first that
/// has all its variables counts.
struct Ci {
    name: &'static str,
    known_by: &'static str,
    link: &'static [&'static str],
    project: &'static [&'static str],
}

/// Those that set another's variables too, or the common `CI` alone, come later or have a variable of their own.
const CI_SYSTEMS: &[Ci] = &[
    // https://docs.github.com/en/actions/reference/workflows-and-actions/variables
    Ci {
        name: "GitHub Actions",
        known_by: "GITHUB_ACTIONS",
        link: &["{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}"],
        project: &["{GITHUB_REPOSITORY}"],
    },
    // https://docs.gitlab.com/ci/variables/predefined_variables/
    Ci {
        name: "GitLab CI",
        known_by: "GITLAB_CI",
        link: &["{CI_JOB_URL}", "{CI_PIPELINE_URL}"],
        project: &["{CI_PROJECT_PATH}"],
    },
    // https://www.jenkins.io/doc/book/pipeline/jenkinsfile/#using-environment-variables
    Ci {
        name: "Jenkins",
        known_by: "JENKINS_URL",
        link: &["{BUILD_URL}"],
        project: &["{JOB_NAME}"],
    },
    // https://buildkite.com/docs/pipelines/configure/environment-variables
    Ci {
        name: "Buildkite",
        known_by: "BUILDKITE",
        link: &["{BUILDKITE_BUILD_URL}#{BUILDKITE_JOB_ID}", "{BUILDKITE_BUILD_URL}"],
        project: &[
            "{BUILDKITE_ORGANIZATION_SLUG}/{BUILDKITE_PIPELINE_SLUG}",
            "{BUILDKITE_PIPELINE_SLUG}",
        ],
    },
    // https://circleci.com/docs/reference/variables/
    Ci {
        name: "CircleCI",
        known_by: "CIRCLECI",
        link: &["{CIRCLE_BUILD_URL}"],
        project: &["{CIRCLE_PROJECT_USERNAME}/{CIRCLE_PROJECT_REPONAME}", "{CIRCLE_JOB}"],
    },
    // https://learn.microsoft.com/en-us/azure/devops/pipelines/build/variables; the project's id needs no escaping.
    Ci {
        name: "Azure Pipelines",
        known_by: "TF_BUILD",
        link: &["{SYSTEM_COLLECTIONURI}{SYSTEM_TEAMPROJECTID}/_build/results?buildId={BUILD_BUILDID}"],
        project: &["{SYSTEM_TEAMPROJECT}"],
    },
    // https://woodpecker-ci.org/docs/usage/environment; it is known by the value of `CI`.
    Ci {
        name: "Woodpecker CI",
        known_by: "CI=woodpecker",
        link: &["{CI_PIPELINE_URL}", "{CI_BUILD_LINK}"],
        project: &["{CI_REPO}"],
    },
    // https://docs.drone.io/pipeline/environment/reference/
    Ci {
        name: "Drone",
        known_by: "DRONE",
        link: &["{DRONE_BUILD_LINK}"],
        project: &["{DRONE_REPO}"],
    },
    // https://www.jetbrains.com/help/teamcity/predefined-build-parameters.html
    Ci {
        name: "TeamCity",
        known_by: "TEAMCITY_VERSION",
        link: &["{BUILD_URL}"],
        project: &[
            "{TEAMCITY_PROJECT_NAME} / {TEAMCITY_BUILDCONF_NAME}",
            "{TEAMCITY_PROJECT_NAME}",
        ],
    },
    // https://support.atlassian.com/bitbucket-cloud/docs/variables-and-secrets/
    Ci {
        name: "Bitbucket Pipelines",
        known_by: "BITBUCKET_BUILD_NUMBER",
        link: &["{BITBUCKET_GIT_HTTP_ORIGIN}/pipelines/results/{BITBUCKET_BUILD_NUMBER}"],
        project: &["{BITBUCKET_REPO_FULL_NAME}"],
    },
    Ci {
        name: "CI",
        known_by: "CI",
        link: &[],
        project: &[],
    },
];

/// Programs that start others by the clock: the process's name, what it is called, and where its jobs stand.
const SCHEDULERS: &[(&str, &str, &str)] = &[
    ("cron", "cron", "crontab"),
    ("crond", "cron", "crontab"),
    ("atd", "at", "at queue"),
    ("anacron", "anacron", "anacrontab"),
];

/// What set the run off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Ci {
        name: &'static str,
        link: Option<String>,
        project: Option<String>,
    },
    /// As far as they can be found; the invocation is what journalctl(1) finds the run by.
    Unit {
        unit: Option<String>,
        invocation: Option<String>,
    },
    Scheduler {
        name: &'static str,
        jobs: &'static str,
    },
    Terminal,
    Unknown,
}

/// What our variables say of it.
#[derive(Clone, Debug)]
pub(super) struct Clues {
    /// It says all.
    ci: Option<Origin>,
    /// The process that systemd itself executed (systemd.exec(5)).
    executed: Option<i32>,
    invocation: Option<String>,
}

impl Clues {
    pub(super) fn read(environment: &Environment) -> Self {
        let variable = |name: &str| environment.get(name).map(|value| value.to_string_lossy().into_owned());
        let known = CI_SYSTEMS.iter().find(|ci| ci.is_known(variable));
        Self {
            ci: known.map(|ci| Origin::Ci {
                name: ci.name,
                link: filled_in(ci.link, variable).filter(|link| is_link(link)),
                project: filled_in(ci.project, variable),
            }),
            executed: variable("SYSTEMD_EXEC_PID").and_then(|pid| pid.parse().ok()),
            invocation: variable("INVOCATION_ID"),
        }
    }
}

impl Origin {
    /// `ancestry` begins with ourselves, and is walked only as far as it must be; `cgroup` is /proc/self/cgroup.
    pub(super) fn find(
        clues: Clues,
        ancestry: impl Iterator<Item = Ancestor>,
        cgroup: impl FnOnce() -> String,
    ) -> Self {
        let Clues {
            ci,
            executed,
            invocation,
        } = clues;
        ci.unwrap_or_else(|| Self::above(executed, invocation, ancestry, cgroup))
    }

    /// The nearest that answers for us. cron is itself a unit, and what it starts may have its variables: so whoever
    /// comes first on the way up counts, and of the two in one process cron.
    fn above(
        executed: Option<i32>,
        invocation: Option<String>,
        ancestry: impl Iterator<Item = Ancestor>,
        cgroup: impl FnOnce() -> String,
    ) -> Self {
        let mut at_terminal = None;
        for process in ancestry.take(ANCESTORS) {
            let itself = at_terminal.is_none();
            let at_terminal = *at_terminal.get_or_insert(process.terminal);
            let scheduler = SCHEDULERS
                .iter()
                .find(|(process_name, ..)| *process_name == process.name);
            if let Some((_, name, jobs)) = scheduler.filter(|_| !itself) {
                return Self::Scheduler { name, jobs };
            }
            // A desktop's terminals and multiplexers are units too: who types there is no unit.
            if executed == Some(process.pid) && (itself || !at_terminal) {
                let unit = unit(&cgroup());
                // A scope holds what somebody else started, and only the variables of a unit further up.
                if unit.as_ref().is_none_or(|unit| kind(unit) != "scope") {
                    return Self::Unit { unit, invocation };
                }
                break;
            }
        }
        if at_terminal == Some(true) {
            Self::Terminal
        } else {
            Self::Unknown
        }
    }

    /// For the record: what set the run off.
    pub(super) fn trigger(&self) -> String {
        let with = |what: &str, more: &Option<String>, before: &str| {
            more.as_ref()
                .map_or_else(|| what.to_owned(), |more| format!("{what}{before}{more}"))
        };
        let text = match self {
            Self::Ci { name, link, .. } => with(name, link, ": "),
            Self::Unit { unit, invocation } => with(&with("systemd", unit, ": "), invocation, ", invocation "),
            Self::Scheduler { name, .. } => (*name).to_owned(),
            Self::Terminal => "terminal".to_owned(),
            Self::Unknown => "unknown".to_owned(),
        };
        cut(&text, TEXT_LIMIT)
    }

    /// For the record: the source system.
    pub(super) fn system(&self, host: &str, user: &str) -> String {
        let part = match self {
            Self::Ci { project, .. } => project.clone(),
            Self::Unit { unit, .. } => unit.clone(),
            Self::Scheduler { jobs, .. } => Some(format!("{jobs} of {user}")),
            Self::Terminal | Self::Unknown => None,
        };
        match part {
            // The host is what makes it one: cut off last.
            Some(part) => format!("{} on {host}", cut(&part, TEXT_LIMIT.saturating_sub(host.len() + 4))),
            None => host.to_owned(),
        }
    }
}

impl Ci {
    fn is_known(&self, variable: impl Fn(&str) -> Option<String>) -> bool {
        match self.known_by.split_once('=') {
            Some((name, value)) => variable(name).is_some_and(|set| set == value),
            None => {
                variable(self.known_by).is_some_and(|set| !["0", "false"].contains(&set.to_ascii_lowercase().as_str()))
            }
        }
    }
}

/// The first of the templates whose variables are all there.
fn filled_in(templates: &[&str], variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    templates.iter().find_map(|template| {
        let mut text = String::new();
        let mut rest = *template;
        while let Some((before, inside)) = rest.split_once('{') {
            let (name, after) = inside.split_once('}')?;
            text += before;
            text += &variable(name)?;
            rest = after;
        }
        Some(text + rest)
    })
}

/// One that leads somewhere, and gives no password away. Cut off it would lead elsewhere: then rather none.
fn is_link(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    ["http", "https"].contains(&scheme)
        && !authority.is_empty()
        && !authority.contains('@')
        && text.len() <= TEXT_LIMIT / 2
        && !text.chars().any(|char| char.is_whitespace() || char.is_control())
}

/// The innermost unit in /proc/self/cgroup (`cgroups(7)`): a user's own units lie within user@1000.service.
fn unit(cgroup: &str) -> Option<String> {
    let path = cgroup.lines().find_map(|line| {
        let (_, controllers_and_path) = line.split_once(':')?;
        let (controllers, path) = controllers_and_path.split_once(':')?;
        ["", "name=systemd"].contains(&controllers).then_some(path)
    });
    let is_unit = |name: &&str| ["service", "scope"].contains(&kind(name));
    path?.rsplit('/').find(is_unit).map(str::to_owned)
}

/// What kind of unit it is, by the end of its name (systemd.unit(5)).
fn kind(unit: &str) -> &str {
    unit.rsplit('.').next().unwrap_or_default()
}

/// As much of it as fits, and a sign that there was more.
pub(super) fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit.saturating_sub("…".len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)], ancestry: &[(i32, &str)], terminal: bool, cgroup: &str) -> (String, String) {
        let ancestry = ancestry.iter().map(|(pid, name)| Ancestor {
            pid: *pid,
            name: (*name).to_owned(),
            terminal,
        });
        let clues = Clues::read(&variables.iter().copied().collect());
        let origin = Origin::find(clues, ancestry, || cgroup.to_owned());
        (origin.trigger(), origin.system("web1", "ops"))
    }

    /// What each of the systems sets is in tests/promises/origin.rs.
    #[test]
    fn a_ci_system_is_told_from_what_only_looks_like_it() {
        let github = [
            ("CI", "true"),
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_SERVER_URL", "https://github.com"),
            ("GITHUB_REPOSITORY", "acme/billing"),
        ];
        let buildkite = [
            ("CI", "true"),
            ("BUILDKITE", "true"),
            ("BUILDKITE_BUILD_URL", "https://buildkite.com/acme/billing/builds/3"),
            ("BUILDKITE_JOB_ID", "018f"),
            ("BUILDKITE_ORGANIZATION_SLUG", "acme"),
            ("BUILDKITE_PIPELINE_SLUG", "billing"),
        ];
        for (variables, trigger, system) in [
            // Without all that a link needs there is none.
            (&github[..], "GitHub Actions", "acme/billing on web1"),
            (
                &buildkite[..],
                "Buildkite: https://buildkite.com/acme/billing/builds/3#018f",
                "acme/billing on web1",
            ),
            (&buildkite[..2], "Buildkite", "web1"),
            // It sets Drone's for what was written for Drone.
            (&[("CI", "woodpecker"), ("DRONE", "true")], "Woodpecker CI", "web1"),
            (&[("CI", "true"), ("DRONE", "true")], "Drone", "web1"),
            (&[("CI", "1")], "CI", "web1"),
            (&[("CI", "false")], "unknown", "web1"),
            (&[("CI", "")], "unknown", "web1"),
            (&[("BUILD_URL", "https://ci.example/")], "unknown", "web1"),
        ] {
            let found = of(variables, &[(9, "meshlock"), (8, "sh")], false, "");
            assert_eq!(found, (trigger.to_owned(), system.to_owned()), "{variables:?}");
        }
    }

    #[test]
    fn the_processes_are_looked_at_only_where_no_variable_answers() {
        let clues = Clues::read(&[("CI", "true")].into_iter().collect());
        let never = std::iter::from_fn(|| panic!("looked"));
        let origin = Origin::find(clues, never, || panic!("looked"));
        assert_eq!(origin.trigger(), "CI");
    }

    #[test]
    fn a_unit_a_scheduler_a_terminal_or_nobody() {
        let service = "0::/system.slice/invoice.service\n";
        let of_a_user = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/invoice.service/payload\n";
        let hybrid = "12:cpu,cpuacct:/system.slice\n1:name=systemd:/system.slice/invoice.service\n";
        let scope = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n";
        let us = (90, "meshlock");
        let [shell, cron, first] = [(80, "sh"), (70, "cron"), (1, "systemd")];
        let executed = |pid: &'static str| ("SYSTEMD_EXEC_PID", pid);
        let invoked = ("INVOCATION_ID", "0a1b");
        let unit = ("systemd: invoice.service", "invoice.service on web1");
        for (variables, ancestry, terminal, cgroup, (trigger, system)) in [
            (&[executed("90")][..], &[us, first][..], false, service, unit),
            (&[executed("80")], &[us, shell, first], false, of_a_user, unit),
            (&[executed("80")], &[us, shell, first], false, hybrid, unit),
            (
                &[executed("90"), invoked],
                &[us, first],
                false,
                service,
                ("systemd: invoice.service, invocation 0a1b", "invoice.service on web1"),
            ),
            // In a container the unit's name may be out of sight.
            (&[executed("90")], &[us, first], false, "0::/\n", ("systemd", "web1")),
            // systemd-run --pty, or a service on a terminal of its own.
            (&[executed("90")], &[us, first], true, service, unit),
            // Somebody types in a terminal, or a program, that is a unit.
            (
                &[executed("80")],
                &[us, shell, first],
                true,
                service,
                ("terminal", "web1"),
            ),
            (
                &[executed("80")],
                &[us, shell, first],
                false,
                scope,
                ("unknown", "web1"),
            ),
            // A variable that was handed down to another's process.
            (
                &[executed("4711"), invoked],
                &[us, shell, first],
                false,
                service,
                ("unknown", "web1"),
            ),
            (&[executed("x")], &[us, first], false, service, ("unknown", "web1")),
            // cron is a unit, and its jobs may inherit its variables.
            (
                &[executed("70")],
                &[us, shell, cron, first],
                false,
                service,
                ("cron", "crontab of ops on web1"),
            ),
            (
                &[],
                &[us, shell, cron, cron, first],
                false,
                "",
                ("cron", "crontab of ops on web1"),
            ),
            (&[], &[us, (80, "crond")], false, "", ("cron", "crontab of ops on web1")),
            (
                &[],
                &[us, shell, (70, "atd"), first],
                false,
                "",
                ("at", "at queue of ops on web1"),
            ),
            (
                &[],
                &[us, (80, "anacron"), cron],
                false,
                "",
                ("anacron", "anacrontab of ops on web1"),
            ),
            // script(1) under cron.
            (&[], &[us, shell, cron], true, "", ("cron", "crontab of ops on web1")),
            (&[], &[(90, "cron"), shell], false, "", ("unknown", "web1")),
            (&[], &[us, shell, first], true, "", ("terminal", "web1")),
            (&[], &[us, shell, first], false, "", ("unknown", "web1")),
            (&[], &[], false, "", ("unknown", "web1")),
        ] {
            let found = of(variables, ancestry, terminal, cgroup);
            assert_eq!(
                found,
                (trigger.to_owned(), system.to_owned()),
                "{variables:?} {ancestry:?} {terminal} {cgroup}"
            );
        }
    }

    #[test]
    fn hostile_values_stay_within_bounds() {
        let long = "é".repeat(100_000);
        let (trigger, system) = of(
            &[
                ("JENKINS_URL", "x"),
                ("BUILD_URL", &format!("https://x/{long}")),
                ("JOB_NAME", &long),
            ],
            &[],
            false,
            "",
        );
        assert_eq!(trigger, "Jenkins");
        assert!(system.len() <= TEXT_LIMIT && system.ends_with("é… on web1"), "{system}");
        let (trigger, _) = of(
            &[("SYSTEMD_EXEC_PID", "9"), ("INVOCATION_ID", &long)],
            &[(9, "meshlock")],
            false,
            "",
        );
        assert!(trigger.len() <= TEXT_LIMIT && trigger.ends_with('…'), "{trigger}");
        for no_link in [
            "javascript:alert(1)",
            "https://",
            "https://user:password@ci.example/job/1",
            "https://ci.example/a\nb",
            "https://ci.example/a b",
            "https://ci.example/\u{1b}[2J",
        ] {
            assert!(!is_link(no_link), "{no_link}");
        }
        assert!(is_link("https://ci.example/a@b?c=@"));
    }
}
