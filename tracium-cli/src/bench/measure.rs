//! What a process used, and how fast something counted up.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::stage::{Process, log_tail};

/// How often a count is looked at.
const TICK: Duration = Duration::from_millis(20);
/// How long nothing may move.
const STANDSTILL: Duration = Duration::from_secs(60);

/// CPU time and peak memory of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) cpu: Duration,
    pub(super) peak_rss_kib: u64,
}

/// A measured run.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) seconds: f64,
    pub(super) events_per_s: f64,
    pub(super) usage: Usage,
}

impl Usage {
    /// Of a process, by the system's own account.
    pub(super) fn of(pid: u32) -> anyhow::Result<Self> {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}; the figures need Linux's /proc"))
        };
        Self::parse(&read("stat")?, &read("status")?, rustix::param::clock_ticks_per_second())
            .with_context(|| format!("/proc/{pid} is not as expected"))
    }

    fn parse(stat: &str, status: &str, ticks_per_second: u64) -> Option<Self> {
        // The second field is the name in parentheses, and may hold anything; utime and stime are the 14th and 15th.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ').skip(11);
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        let ticks = ticks()? + ticks()?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(Self {
            cpu: Duration::from_millis(ticks * 1000 / ticks_per_second.max(1)),
            peak_rss_kib: peak.trim().strip_suffix(" kB")?.trim().parse().ok()?,
        })
    }
}

/// Waits until a count reaches `events` while a child works, timing from the first look that found any to the last.
pub(super) async fn time<F: Future<Output = anyhow::Result<u64>>>(
    child: &mut Process,
    events: u64,
    mut count: impl FnMut() -> F,
) -> anyhow::Result<Figures> {
    let mut first: Option<(Instant, u64)> = None;
    let mut last = (Instant::now(), 0);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let done = count().await?;
        let now = Instant::now();
        if done > 0 {
            first.get_or_insert((now, done));
        }
        if done >= events {
            break;
        }
        if done > last.1 {
            last = (now, done);
        }
        if let Some(status) = child.ended() {
            bail!("{} ended by itself with {status}: {}", child.spec.name, log_tail(&child.spec.log));
        }
        if last.0.elapsed() > STANDSTILL {
            let name = &child.spec.name;
            bail!("nothing moved for {STANDSTILL:?} at {done} of {events} events; {name}: {}", log_tail(&child.spec.log));
        }
    }
    let usage = Usage::of(child.pid().context("the child is gone")?)?;
    let (began, before) = first.context("BUG: done without a first")?;
    Ok(Figures::of(began.elapsed(), events - before.min(events), events, usage))
}

impl Figures {
    /// `counted` of all `events` in that time; a run that was over at the first look has no better rate than that.
    pub(super) fn of(elapsed: Duration, counted: u64, events: u64, usage: Usage) -> Self {
        let seconds = elapsed.max(TICK).as_secs_f64();
        let counted = if counted == 0 { events } else { counted };
        Self { seconds, events_per_s: float(counted) / seconds, usage }
    }
}

#[allow(clippy::cast_precision_loss, reason = "figures for people; exact to 2^53")]
pub(super) fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_and_peak_memory_are_read_whatever_the_process_is_called() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 500 0 0 0 130 20 0 0 20 0 4 0 100 1000 200 18446744073709551615";
        let status = "Name:\ta) b (c\nVmPeak:\t  900 kB\nVmHWM:\t   84321 kB\nVmRSS:\t 10 kB\n";
        let usage = Usage::parse(stat, status, 100).expect("parse");
        assert_eq!(usage, Usage { cpu: Duration::from_millis(1500), peak_rss_kib: 84_321 });
        assert_eq!(Usage::parse("42 (x) S", status, 100), None);
    }

    #[test]
    fn this_process_has_used_memory() {
        assert!(Usage::of(std::process::id()).expect("usage").peak_rss_kib > 1000);
    }
}
