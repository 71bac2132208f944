//! What commands that only ask etcd something stand on: a runtime on the one thread, etcd's client, and the words for
//! what does not succeed. They start nothing, so they need no guardian. Knows nothing of what is asked.

use crate::outcome::{Failure, FailureKind};
use crate::store::etcd::Etcd;
use crate::store::{Connection, Fault};
use std::io;
use tokio::runtime::Builder;

/// Does `work` with etcd's client, to its end.
///
/// # Errors
/// What `work` ended by; that etcd could not be reached is said as such.
pub(super) fn asking<T>(
    connection: &Connection,
    work: impl AsyncFnOnce(Etcd) -> Result<T, Fault>,
) -> Result<T, Failure> {
    on_one_thread(async { work(Etcd::new(connection)).await })?.map_err(|fault| unanswered(&fault))
}

/// Does `work` to its end, with no thread but ours and those on which names are looked up.
///
/// # Errors
/// Where the runtime cannot be made.
pub(super) fn on_one_thread<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_io().enable_time().build();
    let runtime = runtime.map_err(|error| Failure::new(FailureKind::Internal, format!("cannot start: {error}")))?;
    let done = runtime.block_on(work);
    // Where a name is still being looked up, nobody waits for it (`getaddrinfo(3)` cannot be called off).
    runtime.shutdown_background();
    Ok(done)
}

/// That etcd has no answer for us.
pub(super) fn unanswered(fault: &Fault) -> Failure {
    match fault {
        Fault::Unreachable { why } => {
            Failure::new(FailureKind::Unavailable, format!("etcd could not be reached: {why}"))
        }
        other => other.failure(),
    }
}

/// That the answer cannot be shown.
pub fn unwritable(error: &io::Error) -> Failure {
    Failure::new(
        FailureKind::Config,
        format!("standard output cannot be written: {error}"),
    )
}
