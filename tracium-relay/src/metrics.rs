//! Counters of a relay, in Prometheus' names.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! metrics {
    ($($field:ident $name:literal $kind:literal $help:literal;)*) => {
        /// What a relay has counted since it started. Cheap to update, read at any time.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $(#[doc = $help] pub(crate) $field: AtomicU64,)*
        }

        impl Metrics {
            /// All of them in Prometheus' text format.
            #[must_use]
            pub fn to_prometheus(&self) -> String {
                let mut text = String::new();
                $(
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3}", $name, $help, $kind, self.$field.load(Relaxed));
                )*
                text
            }

            $(#[doc = $help]
            #[must_use]
            pub fn $field(&self) -> u64 {
                self.$field.load(Relaxed)
            })*
        }
    };
}

metrics! {
    published "tracium_relay_published_total" "counter" "Messages acknowledged by Kafka and marked.";
    batches "tracium_relay_batches_total" "counter" "Batches published.";
    failures "tracium_relay_publish_failures_total" "counter" "Messages that Kafka or the producer refused.";
    broker_failures "tracium_relay_broker_failures_total" "counter" "Batches given back because the broker did not answer.";
    stale_marks "tracium_relay_stale_marks_total" "counter" "Batches published whose marks were lost; their messages are sent again.";
    takeovers "tracium_relay_takeovers_total" "counter" "Shards taken.";
    leases_lost "tracium_relay_leases_lost_total" "counter" "Shards lost to another relay or to expiry.";
    producer_rebuilds "tracium_relay_producer_rebuilds_total" "counter" "Producers discarded and rebuilt.";
    stuck "tracium_relay_outbox_stuck_total" "counter" "Times a (topic, key) reached its tenth failed attempt.";
    held_keys "tracium_relay_held_keys" "gauge" "(topic, key)s held back now, on this relay's shards.";
    shards "tracium_relay_shards" "gauge" "Shards this relay holds.";
}

impl Metrics {
    pub(crate) fn add(counter: &AtomicU64, n: usize) {
        counter.fetch_add(n as u64, Relaxed);
    }
}
