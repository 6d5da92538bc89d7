//! `Consumer`: several projections in one process, each with a consumer group and a loop of its own.

mod intake;
mod record;
mod source;
mod start;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracium_core::{NameError, SqlIdentifier, Topic};

use self::intake::{Intake, Limits};
use self::source::Source;
use self::worker::{Session, Worker};
use crate::batch::Scope;
use crate::{ConsumerError, ConsumerOptions, Start, Wired};

#[cfg(test)]
pub(crate) use self::record::Partition;
pub(crate) use self::record::Record;

/// Rebuilds will raise it; until then every projection has its first.
const EPOCH: i32 = 1;
/// What the polling thread may take beyond the drain deadline, to commit and to leave the group.
const LEAVE_GRACE: Duration = Duration::from_secs(3);

/// What a projection reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// The topics, all of which must exist. One aggregate type must not come from two of them: order holds within one.
    pub topics: Vec<Topic>,
    /// Where it begins with an aggregate it has never seen.
    pub start: Start,
}

impl Subscription {
    /// A subscription to topics by name.
    ///
    /// # Errors
    /// [`NameError`] for a name that is no topic.
    pub fn to<T: Into<String>>(topics: impl IntoIterator<Item = T>, start: Start) -> Result<Self, NameError> {
        let topics = topics.into_iter().map(Topic::new).collect::<Result<_, _>>()?;
        Ok(Self { topics, start })
    }
}

/// Runs projections.
///
/// Each has its own consumer group, `<name>.e<epoch>`, and its own loop: one that stands still does not hold up the
/// others. An offset is committed only after the effect of everything before it is committed in the projection's
/// database, and an event that is delivered again has no second effect.
///
/// ```no_run
/// use tokio_util::sync::CancellationToken;
/// use tracium_consumer::{Consumer, ConsumerOptions, IntoPostgres, Start, Subscription};
/// # use tracium_core::{Event, EvolveError, View};
/// # struct Totals;
/// # impl View for Totals {
/// #     const NAME: &'static str = "totals";
/// #     type Doc = u64;
/// #     fn evolve(doc: Option<u64>, _event: &Event) -> Result<Option<u64>, EvolveError> { Ok(Some(doc.unwrap_or(0) + 1)) }
/// # }
///
/// # async fn doc(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let stop = CancellationToken::new(); // cancel it on SIGTERM: signals are the caller's
/// Consumer::new(ConsumerOptions::default())
///     .with(Totals.into_postgres(pool), Subscription::to(["orders"], Start::Earliest)?)?
///     .run(stop)
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Consumer {
    options: ConsumerOptions,
    projections: Vec<(Wired, Subscription)>,
}

impl Consumer {
    /// A consumer without projections.
    #[must_use]
    pub fn new(options: ConsumerOptions) -> Self {
        Self { options, projections: Vec::new() }
    }

    /// Adds a projection: a [`crate::PostgresView`] or a [`crate::PostgresProjection`].
    ///
    /// # Errors
    /// [`ConsumerError`] for wiring that cannot work: a name that is not valid or taken, no topic, a topic and its copy;
    /// class fatal.
    pub fn with(mut self, projection: impl Into<Wired>, subscription: Subscription) -> Result<Self, ConsumerError> {
        let projection = projection.into();
        let name = projection.effect().name();
        SqlIdentifier::new(name).map_err(|source| ConsumerError::Name { name: name.to_owned(), source })?;
        if self.projections.iter().any(|(other, _)| other.effect().name() == name) {
            return Err(ConsumerError::ProjectionTwice { projection: name.to_owned() });
        }
        if subscription.topics.is_empty() {
            return Err(ConsumerError::NoTopics { projection: name.to_owned() });
        }
        if let Some((first, second)) = same_events(&subscription.topics) {
            return Err(ConsumerError::TopicTwice {
                projection: name.to_owned(),
                first: first.to_string(),
                second: second.to_string(),
            });
        }
        self.projections.push((projection, subscription));
        Ok(self)
    }

    /// Runs until the token is cancelled, or a projection fails for good, which stops the others; the first error is
    /// returned when all have stopped.
    ///
    /// On cancellation every loop stops its intake, waits up to `drain_deadline` for the batch in flight, commits the
    /// offsets of what is done and leaves its group.
    ///
    /// Cancel safety: dropping the future stops as well, without waiting for the batch in flight. What it had not
    /// committed is delivered again, and takes effect once.
    ///
    /// # Errors
    /// [`ConsumerError`]. Transient errors of a running projection are not returned, they are retried for ever; at the
    /// start an unreachable broker or database is returned after `start_deadline`.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ConsumerError> {
        self.options.validate()?;
        if self.projections.is_empty() {
            return Err(ConsumerError::NoProjection);
        }
        let Self { options, projections } = self;
        let topics: Vec<(String, Topic)> = projections
            .iter()
            .flat_map(|(wired, subscription)| {
                subscription.topics.iter().map(|topic| (wired.effect().name().to_owned(), topic.clone()))
            })
            .collect();
        let asked = options.clone();
        tokio::task::spawn_blocking(move || start::check_topics(&asked, &topics))
            .await
            .map_err(|_| ConsumerError::Died { projection: String::new(), what: "check of the topics" })??;

        // Cancelled with the caller's token, by the first error, and when this future is dropped.
        let stop_all = stop.child_token();
        let _stop_on_drop = stop_all.clone().drop_guard();
        let options = Arc::new(options);
        let mut loops = JoinSet::new();
        for (wired, subscription) in projections {
            loops.spawn(project(wired, subscription, options.clone(), stop_all.clone()));
        }
        let mut result = Ok(());
        while let Some(ended) = loops.join_next().await {
            let ended = ended.unwrap_or(Err(ConsumerError::Died { projection: String::new(), what: "loop" }));
            if ended.is_err() && result.is_ok() {
                stop_all.cancel();
                result = ended;
            }
        }
        result
    }
}

/// One projection, from its checks to its leaving.
async fn project(
    wired: Wired,
    subscription: Subscription,
    options: Arc<ConsumerOptions>,
    stop: CancellationToken,
) -> Result<(), ConsumerError> {
    let effect = wired.effect();
    let name = effect.name().to_owned();
    let mut session = Session::new(effect.pool().connect_options(), &name, &options);
    start::prepare(effect, EPOCH, &mut session, options.start_deadline).await?;
    let group = group(options.group_prefix.as_deref(), &name, EPOCH);
    let intake = Arc::new(Intake::new(Limits::of(&options)));
    // However this function ends, the polling thread ends too.
    let _close = CloseOnDrop(intake.clone());
    let source = Source {
        projection: name.clone(),
        group: group.clone(),
        topics: subscription.topics,
        intake: intake.clone(),
        stop: stop.clone(),
    };
    let left = source.spawn(&options)?;
    tracing::info!(projection = name, group, "projection runs");
    let mut worker = Worker {
        scope: Scope { effect, epoch: EPOCH, start: subscription.start },
        intake: &intake,
        session,
        backoff: options.backoff(),
        batch_deadline: options.batch_deadline,
        drain_deadline: options.drain_deadline,
        stop,
    };
    let result = worker.run().await;
    intake.close();
    match tokio::time::timeout(options.drain_deadline + LEAVE_GRACE, left).await {
        Ok(Ok(())) => tracing::info!(projection = name, group, "projection stopped"),
        Ok(Err(_)) => return result.and(Err(ConsumerError::Died { projection: name, what: "polling thread" })),
        Err(_) => tracing::warn!(projection = name, group, "left the group without an answer; events may come again"),
    }
    result
}

/// The consumer group of a projection's epoch.
fn group(prefix: Option<&str>, projection: &str, epoch: i32) -> String {
    let prefix = prefix.map(|p| format!("{p}.")).unwrap_or_default();
    format!("{prefix}{projection}.e{epoch}")
}

struct CloseOnDrop(Arc<Intake>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Two topics that carry the same aggregates: the same one twice, or `orders` and its copy `orders.v2`.
fn same_events(topics: &[Topic]) -> Option<(&Topic, &Topic)> {
    fn original(topic: &Topic) -> &str {
        match topic.as_str().rsplit_once(".v") {
            Some((name, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => topic.as_str(),
        }
    }
    topics.iter().enumerate().find_map(|(at, first)| {
        topics[at + 1..].iter().find(|second| original(first) == original(second)).map(|second| (first, second))
    })
}
