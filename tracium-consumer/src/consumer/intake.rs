//! What the polling thread and the worker share: the buffer, who owns which partition, and what is confirmed.
//!
//! ```text
//! partition:  owned ──revoke or shutdown──▶ draining ──batch in flight ended, or deadline──▶ gone
//!             buffered, applied, confirmed    not buffered, confirmed                           neither
//! ```
//!
//! **Invariant:** an offset is handed out for a commit only after [`Intake::confirm`], which the worker calls only after
//! the transaction of the effect has committed, and never for a partition that is gone.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::record::{Partition, Record};
use crate::{ConsumerError, ConsumerOptions};

/// The states of [`Partition::ownership`].
pub(crate) struct Ownership;

impl Ownership {
    pub(crate) const OWNED: u8 = 0;
    pub(crate) const DRAINING: u8 = 1;
    pub(crate) const GONE: u8 = 2;
}

/// How much may be taken at once and kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) batch_size: usize,
    pub(crate) batch_bytes: usize,
    pub(crate) linger: Duration,
    pub(crate) buffer_bytes: usize,
}

impl Limits {
    pub(crate) fn of(options: &ConsumerOptions) -> Self {
        let bytes = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            batch_size: bytes(options.batch_size),
            batch_bytes: bytes(options.batch_bytes),
            linger: options.linger,
            buffer_bytes: bytes(options.max_buffer_bytes),
        }
    }
}

/// See the module.
pub(crate) struct Intake {
    limits: Limits,
    state: Mutex<State>,
    /// For the worker: something to take, or the end.
    arrived: Notify,
    /// For the worker between two attempts: a partition of its batch may be gone.
    released: Notify,
    /// For the polling thread in a revoke: the batch in flight has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    assigned: HashMap<String, HashMap<i32, Assigned>>,
    queue: VecDeque<Record>,
    queued_bytes: usize,
    taken_bytes: usize,
    /// The partitions of the batch that is being applied this moment.
    in_flight: Vec<Arc<Partition>>,
    closed: bool,
    failure: Option<ConsumerError>,
    paused: bool,
}

struct Assigned {
    partition: Arc<Partition>,
    /// What librdkafka was told; `None` for a new assignment.
    paused: Option<bool>,
    committed: i64,
}

/// Partitions to be paused and to be resumed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pressure {
    pub(crate) pause: Vec<(Arc<str>, i32)>,
    pub(crate) resume: Vec<(Arc<str>, i32)>,
}

impl Intake {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default(), arrived: Notify::new(), released: Notify::new(), ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- the polling thread -------------------------------------------------------------------------------------

    /// Takes partitions into possession.
    pub(crate) fn assign(&self, partitions: impl IntoIterator<Item = (String, i32)>) {
        let mut state = self.lock();
        for (topic, number) in partitions {
            let partition = Arc::new(Partition::new(topic.as_str().into(), number));
            let assigned = Assigned { partition, paused: None, committed: -1 };
            state.assigned.entry(topic).or_default().insert(number, assigned);
        }
    }

    /// The partition, if it is owned.
    pub(crate) fn partition(&self, topic: &str, number: i32) -> Option<Arc<Partition>> {
        self.lock().assigned.get(topic)?.get(&number).map(|a| a.partition.clone())
    }

    /// Buffers records of owned partitions.
    pub(crate) fn push(&self, records: impl IntoIterator<Item = Record>) {
        let mut state = self.lock();
        for record in records {
            if record.partition.ownership.load(Relaxed) == Ownership::OWNED && !state.closed {
                state.queued_bytes += record.size();
                state.queue.push_back(record);
            }
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// What to pause and resume for the buffer to stay within its bytes. New assignments are told either way.
    pub(crate) fn pressure(&self) -> Pressure {
        let mut state = self.lock();
        state.paused = too_full(state.queued_bytes + state.taken_bytes, self.limits.buffer_bytes, state.paused);
        let paused = state.paused;
        let mut pressure = Pressure::default();
        for assigned in state.assigned.values_mut().flat_map(HashMap::values_mut).filter(|a| a.paused != Some(paused)) {
            let list = if paused { &mut pressure.pause } else { &mut pressure.resume };
            list.push((assigned.partition.topic.clone(), assigned.partition.number));
            assigned.paused = Some(paused);
        }
        pressure
    }

    /// Notes the end of a partition.
    pub(crate) fn set_end_offset(&self, topic: &str, number: i32, end: i64) {
        if let Some(partition) = self.partition(topic, number) {
            partition.end_offset.store(end, Relaxed);
        }
    }

    /// Confirmed offsets that were not handed out yet.
    pub(crate) fn to_commit(&self) -> Vec<(Arc<str>, i32, i64)> {
        let mut state = self.lock();
        let mut offsets = Vec::new();
        for assigned in state.assigned.values_mut().flat_map(HashMap::values_mut) {
            let confirmed = assigned.partition.confirmed.load(Relaxed);
            if confirmed > assigned.committed {
                assigned.committed = confirmed;
                offsets.push((assigned.partition.topic.clone(), assigned.partition.number, confirmed));
            }
        }
        offsets
    }

    /// Gives partitions back, for a revoke and a shutdown alike: intake stops, what is buffered of them is dropped, the
    /// batch in flight has until the deadline. Returns the offsets that are confirmed by then; later ones count no more.
    pub(crate) fn release(&self, partitions: &[(String, i32)], deadline: Duration) -> Vec<(Arc<str>, i32, i64)> {
        let end = Instant::now() + deadline;
        let mut state = self.lock();
        let mut leaving = Vec::new();
        for (topic, number) in partitions {
            if let Some(assigned) = state.assigned.get_mut(topic).and_then(|numbers| numbers.remove(number)) {
                assigned.partition.ownership.store(Ownership::DRAINING, Relaxed);
                leaving.push(assigned.partition);
            }
        }
        state.drop_unowned();
        self.released.notify_one();
        while state.in_flight.iter().any(|p| p.ownership.load(Relaxed) == Ownership::DRAINING) {
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else { break };
            state = self.ended.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut offsets = Vec::new();
        for partition in leaving {
            partition.ownership.store(Ownership::GONE, Relaxed);
            let confirmed = partition.confirmed.load(Relaxed);
            if confirmed >= 0 {
                offsets.push((partition.topic.clone(), partition.number, confirmed));
            }
        }
        offsets
    }

    /// Ends the worker with an error.
    pub(crate) fn fail(&self, error: ConsumerError) {
        self.lock().failure.get_or_insert(error);
        self.close();
    }

    /// Whether there is nobody left to take records.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    // ---- the worker ---------------------------------------------------------------------------------------------

    /// The next records, as they came; `None` at the end.
    ///
    /// Cancel safety: nothing is taken before it is ready.
    pub(crate) async fn next(&self) -> Result<Option<Vec<Record>>, ConsumerError> {
        let mut waiting_since = None;
        loop {
            let wait = {
                let mut state = self.lock();
                if let Some(error) = state.failure.take() {
                    return Err(error);
                }
                if state.closed {
                    return Ok(None);
                }
                if state.queue.is_empty() {
                    waiting_since = None;
                    None
                } else {
                    let full = state.queue.len() >= self.limits.batch_size || state.queued_bytes >= self.limits.batch_bytes;
                    let waited = waiting_since.get_or_insert_with(Instant::now).elapsed();
                    match self.limits.linger.checked_sub(waited).filter(|left| !full && !left.is_zero()) {
                        None => return Ok(Some(state.take(self.limits))),
                        left => left,
                    }
                }
            };
            match wait {
                None => self.arrived.notified().await,
                // the time-out only says that the linger is over
                Some(left) => drop(tokio::time::timeout(left, self.arrived.notified()).await),
            }
        }
    }

    /// Begins an attempt with what is left of the batch after partitions were given back. While the result lives, a
    /// revoke of one of its partitions waits.
    pub(crate) fn begin(&self, batch: &mut Vec<Record>) -> Option<InFlight<'_>> {
        let mut state = self.lock();
        batch.retain(|record| record.partition.ownership.load(Relaxed) == Ownership::OWNED);
        state.in_flight.clear();
        for record in batch.iter() {
            if !state.in_flight.iter().any(|p| Arc::ptr_eq(p, &record.partition)) {
                state.in_flight.push(record.partition.clone());
            }
        }
        // made only if there is something: its drop takes the lock that is held here
        (!batch.is_empty()).then(|| InFlight(self))
    }

    /// The effect of the batch is committed: its offsets may be.
    pub(crate) fn confirm(&self, batch: &[Record]) {
        let _state = self.lock();
        for record in batch.iter().filter(|r| r.partition.ownership.load(Relaxed) != Ownership::GONE) {
            record.partition.confirmed.fetch_max(record.offset + 1, Relaxed);
        }
    }

    /// The worker holds no batch any more.
    pub(crate) fn put_down(&self) {
        self.lock().taken_bytes = 0;
    }

    /// When a partition has been given back.
    pub(crate) async fn released(&self) {
        self.released.notified().await;
    }

    /// No worker, no intake.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        state.queued_bytes = 0;
        drop(state);
        self.arrived.notify_one();
    }
}

impl State {
    fn take(&mut self, limits: Limits) -> Vec<Record> {
        let mut batch = Vec::with_capacity(self.queue.len().min(limits.batch_size));
        let mut bytes = 0;
        while let Some(record) = self.queue.front().filter(|_| batch.len() < limits.batch_size) {
            bytes += record.size();
            if bytes > limits.batch_bytes && !batch.is_empty() {
                break;
            }
            self.queued_bytes = self.queued_bytes.saturating_sub(record.size());
            self.taken_bytes += record.size();
            batch.extend(self.queue.pop_front());
        }
        batch
    }

    fn drop_unowned(&mut self) {
        self.queue.retain(|record| record.partition.ownership.load(Relaxed) == Ownership::OWNED);
        self.queued_bytes = self.queue.iter().map(Record::size).sum();
    }
}

/// An attempt; see [`Intake::begin`].
pub(crate) struct InFlight<'a>(&'a Intake);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight.clear();
        self.0.ended.notify_all();
    }
}

/// Pauses at the limit, goes on below half of it: not at every message.
fn too_full(bytes: usize, limit: usize, paused: bool) -> bool {
    if paused { bytes > limit / 2 } else { bytes >= limit }
}
