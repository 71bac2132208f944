//! parse → settings → command → outcome → exit; nothing else.

use clap::error::ErrorKind;
use meshlock::cli::Command;
use meshlock::outcome::{Exit, Failure, INTERNAL, Outcome};
use meshlock::settings::{self, Environment, Verbosity};
use meshlock::supervise::sys;
use meshlock::{cli, commands, outcome, report};

/// musl's own allocator maps and unmaps memory for every other object of so short a life: 190 calls in a run of
/// `true`, against 28 with this one, a tenth of the run's time.
#[cfg(target_env = "musl")]
#[global_allocator]
static HEAP: sys::Heap = sys::Heap::new();

fn main() {
    // A panic must not unwind past a running command. It ends here, and the command dies with us (the death
    // signal, and the keeper's last duty).
    std::panic::set_hook(Box::new(|panic| {
        report::Reporter::new(Verbosity::Normal).notice(&format!("internal error: {panic}; please report this"));
        sys::exit_now(INTERNAL);
    }));
    sys::keep_stdout_closed();
    end(match cli::parse(settings::arguments()) {
        Ok(command) => obey(command),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            report::help(&error).map_or_else(|error| failed(commands::unwritable(&error)), |()| Exit::Status(0))
        }
        Err(error) => failed(cli::refusal(&error)),
    });
}

/// Out of line, or its frame, of the size of all settings of all commands, would lie below the parser's.
#[inline(never)]
fn obey(command: Command) -> Exit {
    let environment = Environment::inherited();
    // The guardian's limit is its command's too; all others have no child that would inherit it.
    if !matches!(command, Command::Run(_)) {
        sys::leave_no_core();
    }
    let exit = match command {
        Command::Run(typed) => settings::run(typed, &environment).map(|settings| {
            let conflict_status = settings.conflict_status;
            commands::run::run(settings).exit(conflict_status)
        }),
        Command::Status(typed) => settings::status::status(&typed, &environment)
            .and_then(|settings| commands::status::status(&settings))
            .map(Exit::Status),
        Command::History(typed) => settings::status::history(&typed, &environment)
            .and_then(|settings| commands::history::history(&settings))
            .map(Exit::Status),
        Command::Verify(typed) => settings::verify::verify(typed, &environment)
            .and_then(|settings| commands::verify::verify(&settings))
            .map(Exit::Status),
        Command::Config(typed) => settings::config::config(&typed, &environment)
            .and_then(commands::config::config)
            .map(Exit::Status),
        Command::Doctor(typed) => settings::doctor::doctor(&typed, &environment)
            .and_then(|settings| commands::doctor::doctor(&settings))
            .map(Exit::Status),
    };
    exit.unwrap_or_else(failed)
}

fn failed(failure: Failure) -> Exit {
    let outcome = Outcome::Failed(failure);
    report::Reporter::new(Verbosity::Normal).outcome(&outcome);
    outcome.exit(outcome::CONTENDED)
}

/// Destructors have nothing left to do, and a signal's death is not an exit.
fn end(exit: Exit) -> ! {
    match exit {
        Exit::Status(status) => sys::exit_now(status),
        Exit::Raise(signal) => {
            // As PID 1 the kernel keeps the signal from us: then the shell's way of saying it remains.
            sys::die_of(signal);
            sys::exit_now(outcome::CommandEnd::Signaled(signal).status())
        }
    }
}
