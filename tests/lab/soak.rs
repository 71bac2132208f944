//! Not written yet.

#[derive(clap::Args)]
pub(crate) struct Arguments {}

impl Arguments {
    pub(crate) const fn short() -> Self {
        Self {}
    }
}

pub(crate) const fn run(_arguments: &Arguments) {}
