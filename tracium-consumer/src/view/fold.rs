//! Folding a batch: documents and events in, documents and what became of each event out. No IO.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tracium_core::{Aggregate, Event, Version, View};

use crate::ProjectionError;
use crate::decision::{Position, gap_cause};
use crate::effect::{Effected, is_skipped};
use crate::error::chain;
use crate::projection::panic_text;
use crate::sink::{Changed, Stored};

/// An aggregate's fold so far.
struct Progress<D> {
    /// Of the document, not of last_seen: an event at or below it has been folded already.
    version: Version,
    known: bool,
    doc: Option<D>,
    applied: Vec<usize>,
    moved: bool,
    standing: bool,
}

impl<D> Progress<D> {
    fn new(stored: Option<&Stored>, doc: Option<D>) -> Self {
        let version = stored.map_or(Version::ZERO, |s| s.version);
        Self { version, known: stored.is_some(), doc, applied: Vec::new(), moved: false, standing: false }
    }
}

/// Folds `events`; `slots` tells where an aggregate stands in `aggregates` and `stored`.
pub(crate) fn fold<'a, V: View>(
    aggregates: &[&'a Aggregate],
    slots: &HashMap<&Aggregate, usize>,
    stored: &[Option<Stored>],
    events: &[Event],
) -> Result<(Vec<Effected>, Vec<Changed<'a>>), ProjectionError> {
    let mut effects = Vec::with_capacity(events.len());
    let mut folds: Vec<Option<Progress<V::Doc>>> = aggregates.iter().map(|_| None).collect();
    for (index, event) in events.iter().enumerate() {
        let slot = event.aggregate.as_ref().and_then(|a| slots.get(a));
        let (Some(position), Some(&slot)) = (Position::of(event), slot) else {
            effects.push(Effected::Refused("a View needs versions; use a Projection".to_owned()));
            continue;
        };
        let progress = match &mut folds[slot] {
            Some(progress) => progress,
            empty => match begin::<V>(stored[slot].as_ref()) {
                Ok(progress) => empty.insert(progress),
                Err(cause) => {
                    empty.insert(Progress::new(None, None)).standing = true;
                    effects.push(Effected::Refused(cause));
                    continue;
                }
            },
        };
        effects.push(step::<V>(progress, stored[slot].as_ref(), position, index, events)?);
    }
    let changed = encode::<V>(aggregates, &folds, &mut effects);
    Ok((effects, changed))
}

fn begin<V: View>(stored: Option<&Stored>) -> Result<Progress<V::Doc>, String> {
    let doc = stored.and_then(|s| s.doc.as_deref()).map(serde_json::from_str).transpose();
    let doc = doc.map_err(|error| format!("the stored document does not fit the view's type: {error}"))?;
    Ok(Progress::new(stored, doc))
}

fn step<V: View>(
    progress: &mut Progress<V::Doc>,
    stored: Option<&Stored>,
    position: Position,
    index: usize,
    events: &[Event],
) -> Result<Effected, ProjectionError> {
    if progress.standing {
        return Ok(Effected::Behind);
    }
    // The document's own version decides, whatever last_seen said: it may be ahead after a crash.
    if position.version <= progress.version {
        return Ok(Effected::Duplicate);
    }
    if progress.known && position.previous > progress.version {
        progress.standing = true;
        return Ok(Effected::Gap(format!("the stored document is behind: {}", gap_cause(progress.version, position))));
    }
    if !is_skipped(&events[index]) {
        match evolve::<V>(progress.doc.take(), &events[index]) {
            Ok(doc) => progress.doc = doc,
            Err(cause) => {
                progress.standing = true;
                progress.doc = again::<V>(stored, &progress.applied, events)?;
                return Ok(Effected::Refused(cause));
            }
        }
        progress.applied.push(index);
    }
    progress.version = position.version;
    progress.known = true;
    progress.moved = true;
    Ok(Effected::Applied)
}

/// One step of the user's fold; a panic refuses the event like an error.
fn evolve<V: View>(doc: Option<V::Doc>, event: &Event) -> Result<Option<V::Doc>, String> {
    match catch_unwind(AssertUnwindSafe(|| V::evolve(doc, event))) {
        Ok(Ok(doc)) => Ok(doc),
        Ok(Err(error)) => Err(chain(&error)),
        Err(panic) => Err(format!("the fold panicked: {}", panic_text(panic.as_ref()).replace('\0', "\u{FFFD}"))),
    }
}

/// The document before a refused event, which took it along: the fold is pure, so it can be folded again.
fn again<V: View>(stored: Option<&Stored>, applied: &[usize], events: &[Event]) -> Result<Option<V::Doc>, ProjectionError> {
    let mut doc = begin::<V>(stored).map_err(ProjectionError::fatal)?.doc;
    for index in applied {
        doc = evolve::<V>(doc, &events[*index]).map_err(|cause| {
            ProjectionError::fatal(format!("view {} is not pure: the same events failed the second time: {cause}", V::NAME))
        })?;
    }
    Ok(doc)
}

/// The documents that moved on. One that cannot be written as JSON refuses its aggregate's events.
fn encode<'a, V: View>(
    aggregates: &[&'a Aggregate],
    folds: &[Option<Progress<V::Doc>>],
    effects: &mut [Effected],
) -> Vec<Changed<'a>> {
    let mut changed = Vec::with_capacity(folds.len());
    for (aggregate, progress) in aggregates.iter().zip(folds) {
        let Some(progress) = progress.as_ref().filter(|p| p.moved) else { continue };
        match progress.doc.as_ref().map(serde_json::to_string).transpose() {
            Ok(doc) => changed.push(Changed { aggregate, version: progress.version, doc }),
            Err(error) => {
                let mut answers = progress.applied.iter();
                if let Some(first) = answers.next() {
                    effects[*first] = Effected::Refused(format!("the document cannot be written as JSON: {error}"));
                }
                for later in answers {
                    effects[*later] = Effected::Behind;
                }
            }
        }
    }
    changed
}
