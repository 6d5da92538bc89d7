//! The verdict: what the run proved, or what is wrong, event by event. Pure.

#[cfg(test)]
mod tests;

use serde::Serialize;
use tracium_testkit::history::{Findings, Report};

use super::evidence::Evidence;

/// What happened, told by those who did it.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) events: u64,
    pub(super) relay_kills: u64,
    pub(super) consumer_kills: u64,
    pub(super) planned_kills: u64,
    pub(super) conflicts: u64,
    /// Deliveries that the projections dropped as duplicates.
    pub(super) ignored: u64,
    /// What did not end as it should: a chain that stood still, a child that did not stop.
    pub(super) troubles: Vec<String>,
}

/// The contract's line, and a little more.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Summary {
    pub(super) appended: u64,
    pub(super) rolled_back: u64,
    pub(super) published: u64,
    pub(super) delivered: u64,
    pub(super) duplicates_delivered: u64,
    pub(super) applied: u64,
    pub(super) lost: u64,
    pub(super) phantom: u64,
    pub(super) reordered: u64,
    pub(super) double_effects: u64,
    pub(super) kills: u64,
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) ok: bool,
    pub(super) orders: u64,
    pub(super) wrong_documents: u64,
    pub(super) missing_effects: u64,
    pub(super) quarantined: u64,
    pub(super) conflicts: u64,
    pub(super) duplicates_ignored: u64,
    pub(super) relay_kills: u64,
    pub(super) consumer_kills: u64,
}

/// Summary and the problems in words; no problem, no violation.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) summary: Summary,
    pub(super) problems: Vec<String>,
}

/// Judges a run.
pub(super) fn judge(run: &Run, history: &Report, evidence: &Evidence) -> Verdict {
    let mut problems = run.troubles.clone();
    for (kind, findings) in history.violations() {
        tell(&mut problems, kind, findings);
    }
    let doubled = doubled(evidence);
    let missing = missing(evidence);
    let documents = wrong_documents(evidence);
    tell(&mut problems, "double effect", &doubled);
    tell(&mut problems, "missing effect", &missing);
    tell(&mut problems, "read model differs from the fold of the event store", &documents);
    let surplus = surplus(evidence, &mut problems);
    problems.extend(evidence.quarantined.iter().map(|q| format!("quarantined: {q}")));

    let applied: u64 = evidence.effects.values().sum();
    let kills = run.relay_kills + run.consumer_kills;
    let mut expect = |what: &str, is: u64, should: u64| {
        if is != should {
            problems.push(format!("{what}: {is}, not {should}"));
        }
    };
    expect("events committed", history.appended, run.events);
    expect("events in the event store", evidence.stored.len() as u64, history.appended);
    expect("outbox rows published", evidence.published, history.appended);
    expect("outbox rows still waiting", evidence.pending, 0);
    expect("effects", applied, history.appended);
    expect("kills", kills, run.planned_kills);

    let summary = Summary {
        appended: history.appended,
        rolled_back: history.rolled_back,
        published: evidence.published,
        delivered: history.delivered,
        duplicates_delivered: history.duplicates_delivered,
        applied,
        lost: history.lost.count,
        phantom: history.phantom.count,
        reordered: history.reordered.count,
        double_effects: doubled.count.max(surplus),
        kills,
        seed: run.seed,
        seconds: (run.seconds * 10.0).round() / 10.0,
        ok: problems.is_empty(),
        orders: evidence.expected.len() as u64,
        wrong_documents: documents.count,
        missing_effects: missing.count,
        quarantined: evidence.quarantined.len() as u64,
        conflicts: run.conflicts,
        duplicates_ignored: run.ignored,
        relay_kills: run.relay_kills,
        consumer_kills: run.consumer_kills,
    };
    Verdict { summary, problems }
}

fn tell(problems: &mut Vec<String>, kind: &str, findings: &Findings) {
    problems.extend(findings.examples.iter().map(|example| format!("{kind}: {example}")));
    if findings.count > findings.examples.len() as u64 {
        problems.push(format!("{kind}: {} in all", findings.count));
    }
}

fn name(evidence: &Evidence, id: &uuid::Uuid) -> String {
    evidence.stored.get(id).cloned().unwrap_or_else(|| format!("event {id}, which the event store does not have"))
}

/// Events that took effect more often than once, or without being stored at all.
fn doubled(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    for (id, times) in &evidence.effects {
        let allowed = u64::from(evidence.stored.contains_key(id));
        for _ in allowed..*times {
            findings.add(|| format!("{} took effect {times} times", name(evidence, id)));
        }
    }
    findings
}

/// Events that took no effect.
fn missing(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    for (id, name) in &evidence.stored {
        if evidence.effects.get(id).is_none_or(|times| *times == 0) {
            findings.add(|| name.clone());
        }
    }
    findings
}

/// Documents that are not what the order's events make.
fn wrong_documents(evidence: &Evidence) -> Findings {
    let mut findings = Findings::default();
    for (id, order) in &evidence.expected {
        let expected = serde_json::to_value(order).unwrap_or_default();
        match evidence.documents.get(id) {
            Some(document) if *document == expected => {}
            Some(document) => findings.add(|| format!("{id:?} is {document}, its events make {expected}")),
            None => findings.add(|| format!("{id:?} is missing, its events make {expected}")),
        }
    }
    for id in evidence.documents.keys().filter(|id| !evidence.expected.contains_key(*id)) {
        findings.add(|| format!("{id:?} has a document and no events"));
    }
    findings
}

/// How much the counters are above the event store; differences either way are problems.
fn surplus(evidence: &Evidence, problems: &mut Vec<String>) -> u64 {
    let mut surplus = 0;
    let kinds: std::collections::BTreeSet<&String> = evidence.expected_counts.keys().chain(evidence.counts.keys()).collect();
    for kind in kinds {
        let expected = evidence.expected_counts.get(kind).copied().unwrap_or_default();
        let counted = evidence.counts.get(kind).copied().unwrap_or_default();
        if counted != expected {
            problems.push(format!(
                "{kind}: counted {} events of {} bytes, the event store has {} of {}",
                counted.0, counted.1, expected.0, expected.1
            ));
            surplus += u64::try_from(counted.0 - expected.0).unwrap_or(0);
        }
    }
    surplus
}
