//! Supervision of the command: the guardian, its link to the keeper, the process tree, signals and the
//! terminal. Knows no store and no lock.

pub mod alarm;
pub mod guard;
pub mod guardian;
pub mod last_duty;
pub mod link;
pub mod signals;
pub mod sys;
pub mod tree;
