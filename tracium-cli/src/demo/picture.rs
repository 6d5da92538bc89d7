//! The live picture: a few lines redrawn in place on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::chaos::Kills;
use super::progress::Progress;
use crate::out;

const REDRAW: Duration = Duration::from_millis(200);
const LINE_EVERY: Duration = Duration::from_secs(2);
/// Rates are over this long.
const RATE_OVER: Duration = Duration::from_secs(2);

struct Sample {
    at: Instant,
    appended: u64,
    delivered: u64,
    applied: u64,
}

/// Draws until the token is cancelled, once more at the end.
pub(super) async fn draw(
    events: u64,
    seed: u64,
    started: Instant,
    progress: watch::Receiver<Progress>,
    kills: watch::Receiver<Kills>,
    stop: CancellationToken,
) {
    let terminal = std::io::stderr().is_terminal();
    let mut tick = tokio::time::interval(if terminal { REDRAW } else { LINE_EVERY });
    let mut samples: Vec<Sample> = Vec::new();
    let mut drawn = 0;
    loop {
        let last = tokio::select! { () = stop.cancelled() => true, _ = tick.tick() => false };
        let (p, k) = (progress.borrow().clone(), kills.borrow().clone());
        let now = Instant::now();
        samples.push(Sample { at: now, appended: p.appended, delivered: p.delivered, applied: p.applied });
        while samples.len() > 2 && now - samples[0].at > RATE_OVER {
            samples.remove(0);
        }
        if terminal {
            let lines = picture(events, seed, now - started, &p, &k, &samples[0], now);
            let up = if drawn == 0 { String::new() } else { format!("\x1b[{drawn}A") };
            let body: String = lines.iter().map(|line| format!("\x1b[2K{line}\n")).collect();
            out::raw(&format!("{up}{body}"));
            drawn = lines.len();
        } else {
            out::note(line(events, now - started, &p, &k));
        }
        if last {
            return;
        }
    }
}

fn line(events: u64, elapsed: Duration, p: &Progress, k: &Kills) -> String {
    format!(
        "{:5.1} s  {}/{events} appended, {} in the outbox, {} delivered, {} applied, {} kills, {} duplicates ignored",
        elapsed.as_secs_f64(),
        p.appended,
        p.pending,
        p.delivered,
        p.applied,
        k.relay + k.consumer,
        p.ignored
    )
}

fn picture(events: u64, seed: u64, elapsed: Duration, p: &Progress, k: &Kills, since: &Sample, now: Instant) -> Vec<String> {
    let rate = |before: u64, value: u64| {
        let seconds = (now - since.at).as_secs_f64().max(0.1);
        #[allow(clippy::cast_precision_loss, reason = "a rate for the eye")]
        let per_second = value.saturating_sub(before) as f64 / seconds;
        format!("{per_second:>7.0}/s")
    };
    let bar = |value: u64| {
        let full = usize::try_from(value.min(events) * 24 / events.max(1)).unwrap_or(0);
        format!("{}{}", "█".repeat(full), "·".repeat(24 - full))
    };
    let duplicates = p.delivered - p.first_delivered.min(p.delivered);
    let last = if k.last.is_empty() { String::new() } else { format!(", last: {}", k.last) };
    vec![
        format!("\x1b[1mtracium demo\x1b[0m  seed {seed}  {:.0} s", elapsed.as_secs_f64()),
        format!(
            "  appended   {:>9} {} {}  {} rolled back, {} conflicts",
            p.appended,
            rate(since.appended, p.appended),
            bar(p.appended),
            p.rolled_back,
            p.conflicts
        ),
        format!("  in outbox  {:>9}", p.pending),
        format!(
            "  delivered  {:>9} {} {}  {duplicates} duplicates",
            p.delivered,
            rate(since.delivered, p.delivered),
            bar(p.first_delivered)
        ),
        format!(
            "  applied    {:>9} {} {}  {} behind, {} duplicates ignored",
            p.applied,
            rate(since.applied, p.applied),
            bar(p.applied),
            p.first_delivered.saturating_sub(p.applied),
            p.ignored
        ),
        format!(
            "  \x1b[31mkilled\x1b[0m     {:>9} of {}: relay {}, consumer {}{last}",
            k.relay + k.consumer,
            k.planned,
            k.relay,
            k.consumer
        ),
    ]
}
