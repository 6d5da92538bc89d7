//! A publisher in memory, for unit tests and for services that embed a relay.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tracium_core::wire::Envelope;

use super::{FailureScope, PublishFailure, Publisher, PublisherError, TopicInfo};

/// Keeps what it is given, and fails as told.
#[derive(Debug, Default)]
pub struct FakePublisher {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    sent: Vec<Envelope>,
    failing: HashMap<(String, Vec<u8>), PublishFailure>,
    missing_topics: HashSet<String>,
    down: bool,
}

impl FakePublisher {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything acknowledged so far, in order.
    #[must_use]
    pub fn sent(&self) -> Vec<Envelope> {
        self.state().sent.clone()
    }

    /// Makes every message of the (topic, key) fail, or (`None`) go through again.
    pub fn fail_key(&self, topic: &str, key: &str, failure: Option<PublishFailure>) {
        let at = (topic.to_owned(), key.as_bytes().to_vec());
        match failure {
            Some(failure) => self.state().failing.insert(at, failure),
            None => self.state().failing.remove(&at),
        };
    }

    /// Makes the topic exist or not.
    pub fn set_topic_missing(&self, topic: &str, missing: bool) {
        match missing {
            true => self.state().missing_topics.insert(topic.to_owned()),
            false => self.state().missing_topics.remove(topic),
        };
    }

    /// Makes the broker answer or not.
    pub fn set_down(&self, down: bool) {
        self.state().down = down;
    }
}

#[async_trait::async_trait]
impl Publisher for FakePublisher {
    async fn check(&self) -> Result<(), PublisherError> {
        Ok(())
    }

    async fn topic(&self, topic: &str) -> Result<TopicInfo, PublishFailure> {
        if self.state().missing_topics.contains(topic) {
            return Err(PublishFailure::new(FailureScope::Topic, format!("unknown topic {topic}")));
        }
        Ok(TopicInfo::default())
    }

    async fn publish(&self, batch: &[Envelope], _deadline: Instant) -> Vec<Result<(), PublishFailure>> {
        let mut state = self.state();
        let mut failed = HashSet::new();
        batch
            .iter()
            .map(|envelope| {
                let at = (envelope.topic.clone(), envelope.key.clone());
                if state.down {
                    return Err(PublishFailure::new(FailureScope::Broker, "the broker is down"));
                }
                if failed.contains(&at) {
                    return Err(PublishFailure::new(FailureScope::Skipped, "an earlier message of the key failed"));
                }
                if let Some(failure) = state.failing.get(&at).cloned() {
                    failed.insert(at);
                    return Err(failure);
                }
                state.sent.push(envelope.clone());
                Ok(())
            })
            .collect()
    }
}
