//! meshlock's modules. Hidden and without a stable API: the library exists so that the tests can drive
//! the decision functions and render the documentation from the same tables as the binary.
#![doc(hidden)]

pub mod cli;
pub mod commands;
pub mod health;
pub mod link;
pub mod lock;
pub mod moment;
pub mod outcome;
pub mod report;
pub mod rules;
pub mod settings;
pub mod store;
pub mod supervise;
