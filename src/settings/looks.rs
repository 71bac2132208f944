//! What may be done on a terminal, by what the environment says of it. Whether there is one is `report`'s affair.

use super::source::Environment;
use crate::report::Looks;

/// As <https://no-color.org> has it.
pub(super) fn of(environment: &Environment) -> Looks {
    let dumb = is_dumb(environment);
    Looks {
        colour: !dumb && environment.get("NO_COLOR").is_none(),
        cursor: !dumb,
    }
}

/// Whether it can do nothing but go on.
pub(super) fn is_dumb(environment: &Environment) -> bool {
    environment.get("TERM").is_none_or(|kind| kind == "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_the_cursor_need_a_terminal_that_has_them() {
        let term = ("TERM", "xterm");
        for (variables, colour, cursor) in [
            (&[][..], false, false),
            (&[term], true, true),
            (&[("TERM", "dumb")], false, false),
            (&[term, ("NO_COLOR", "1")], false, true),
            (&[term, ("NO_COLOR", "")], true, true),
        ] {
            let looks = of(&variables.iter().copied().collect());
            assert_eq!(looks, Looks { colour, cursor }, "{variables:?}");
        }
    }
}
