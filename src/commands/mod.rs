//! One file per subcommand, each a plain sequence; and the keeper's loop, which alone knows both the lock
//! and the processes under it.

mod asking;
pub mod config;
pub mod doctor;
pub mod history;
pub mod keep;
pub mod run;
pub mod status;
pub mod verify;

pub use self::asking::unwritable;
