//! Exponential backoff as a plain function of the attempt.

use std::time::Duration;

/// Doubling delays from `initial` to `max`. No jitter of its own: a caller that retries in lockstep with others adds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub initial: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Backoff {
    /// Delay after the given number of failures in a row (1 = the first).
    #[must_use]
    pub fn delay(&self, attempts: u32) -> Duration {
        let factor = 1_u32.checked_shl(attempts.saturating_sub(1)).unwrap_or(u32::MAX);
        self.initial.saturating_mul(factor).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_limit_and_never_overflows() {
        let backoff = Backoff { initial: Duration::from_secs(1), max: Duration::from_secs(300) };
        let seconds: Vec<_> = (0..=10).map(|n| backoff.delay(n).as_secs()).collect();
        assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert_eq!(backoff.delay(u32::MAX).as_secs(), 300);
    }
}
