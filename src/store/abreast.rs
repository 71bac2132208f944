//! Many questions, so many of them under way at a time. Knows nothing of what is asked.

use super::Fault;
use tokio::task::JoinSet;

/// Hands on each answer with the number of its question, as they come. A fault that is made of one ends it all.
pub(crate) async fn ask<T: Send + 'static>(
    at_a_time: usize,
    questions: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
    mut take: impl FnMut(usize, T) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut questions = questions.enumerate();
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() < at_a_time
            && let Some((number, question)) = questions.next()
        {
            under_way.spawn(async move { (number, question.await) });
        }
        match under_way.join_next().await {
            None => return Ok(()),
            Some(Ok((number, answer))) => take(number, answer)?,
            Some(Err(error)) => return Err(Fault::Internal { why: error.to_string() }),
        }
    }
}
