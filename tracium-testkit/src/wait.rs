//! Waiting for what a user would see, with a deadline instead of a sleep.

use std::time::Duration;

/// Asks until the answer is `Some`, every 20 ms.
///
/// # Panics
/// After `deadline`, naming what was waited for.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, deadline: Duration, mut ask: impl FnMut() -> F) -> T {
    let end = tokio::time::Instant::now() + deadline;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < end, "not within {deadline:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
