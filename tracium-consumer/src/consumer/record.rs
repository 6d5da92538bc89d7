//! A message in memory of our own, so that librdkafka's can be freed, with its original bytes for the dead letters.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8};

use rdkafka::message::{BorrowedMessage, Headers, Message};
use tracium_core::Event;
use tracium_core::wire::{self, WireError};

/// One assignment of a partition: given back and assigned again, it is another one. All but the number and the topic is
/// read and written under the intake's lock.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) topic: Arc<str>,
    pub(crate) number: i32,
    /// See [`super::intake::Ownership`].
    pub(super) ownership: AtomicU8,
    /// The offset after the last confirmed effect; -1 = none yet.
    pub(super) confirmed: AtomicI64,
    /// The partition's end as last heard of; -1 = not yet.
    pub(crate) end_offset: AtomicI64,
}

impl Partition {
    pub(crate) fn new(topic: Arc<str>, number: i32) -> Self {
        Self { topic, number, ownership: AtomicU8::new(0), confirmed: AtomicI64::new(-1), end_offset: AtomicI64::new(-1) }
    }
}

/// A message. Key, payload, header names and values lie one after the other in one allocation.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) partition: Arc<Partition>,
    pub(crate) offset: i64,
    pub(crate) timestamp_ms: Option<i64>,
    bytes: Box<[u8]>,
    key: Option<usize>,
    payload: Option<usize>,
    headers: Box<[(usize, Option<usize>)]>,
    /// Why the headers could not be read; the bytes lack what follows.
    unreadable: Option<&'static str>,
}

impl Record {
    /// Copies a message.
    pub(crate) fn copy(message: &BorrowedMessage<'_>, partition: Arc<Partition>) -> Self {
        let mut record = Builder::new(message.key(), message.payload());
        let mut unreadable = None;
        if let Some(headers) = message.headers() {
            for index in 0..headers.count() {
                // rdkafka 0.39 panics on a header name that is not UTF-8, which any producer may write.
                match catch_unwind(AssertUnwindSafe(|| headers.try_get(index))) {
                    Ok(Some(header)) => record.header(header.key, header.value),
                    Ok(None) => break,
                    Err(_) => {
                        unreadable = Some("a header's name is not UTF-8; this header and those after it are not kept");
                        break;
                    }
                }
            }
        }
        record.finish(partition, message.offset(), message.timestamp().to_millis(), unreadable)
    }

    /// Bytes in memory, about.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.headers.len() * size_of::<(usize, Option<usize>)>() + size_of::<Self>()
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        self.key.map(|length| &self.bytes[..length])
    }

    pub(crate) fn payload(&self) -> Option<&[u8]> {
        let start = self.key.unwrap_or(0);
        self.payload.map(|length| &self.bytes[start..start + length])
    }

    /// In order.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        let mut at = self.key.unwrap_or(0) + self.payload.unwrap_or(0);
        self.headers.iter().map(move |(name, value)| {
            let name_end = at + name;
            let value_end = name_end + value.unwrap_or(0);
            let name = std::str::from_utf8(&self.bytes[at..name_end]).unwrap_or("?");
            let value = value.map(|_| &self.bytes[name_end..value_end]);
            at = value_end;
            (name, value)
        })
    }

    /// The event in it.
    pub(crate) fn decode(&self) -> Result<Event, Undecodable> {
        if let Some(reason) = self.unreadable {
            return Err(Undecodable::Headers(reason));
        }
        Ok(wire::decode(self.key(), self.timestamp_ms, self.headers(), self.payload())?)
    }
}

/// A message that is no event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecodable {
    #[error("{0}")]
    Headers(&'static str),
    #[error(transparent)]
    Wire(#[from] WireError),
}

struct Builder {
    bytes: Vec<u8>,
    key: Option<usize>,
    payload: Option<usize>,
    headers: Vec<(usize, Option<usize>)>,
}

impl Builder {
    fn new(key: Option<&[u8]>, payload: Option<&[u8]>) -> Self {
        let mut bytes = Vec::with_capacity(key.map_or(0, <[u8]>::len) + payload.map_or(0, <[u8]>::len) + 384);
        bytes.extend_from_slice(key.unwrap_or_default());
        bytes.extend_from_slice(payload.unwrap_or_default());
        Self { bytes, key: key.map(<[u8]>::len), payload: payload.map(<[u8]>::len), headers: Vec::with_capacity(10) }
    }

    fn header(&mut self, name: &str, value: Option<&[u8]>) {
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.headers.push((name.len(), value.map(<[u8]>::len)));
    }

    fn finish(
        self,
        partition: Arc<Partition>,
        offset: i64,
        timestamp_ms: Option<i64>,
        unreadable: Option<&'static str>,
    ) -> Record {
        Record {
            partition,
            offset,
            timestamp_ms,
            bytes: self.bytes.into_boxed_slice(),
            key: self.key,
            payload: self.payload,
            headers: self.headers.into_boxed_slice(),
            unreadable,
        }
    }
}

#[cfg(test)]
impl Record {
    /// A record of an envelope, for tests.
    pub(crate) fn of(envelope: &wire::Envelope, partition: &Arc<Partition>, offset: i64) -> Self {
        let mut builder = Builder::new(Some(&envelope.key), envelope.payload.as_deref());
        for (name, value) in &envelope.headers {
            builder.header(name, value.as_deref());
        }
        builder.finish(partition.clone(), offset, Some(envelope.timestamp_ms), None)
    }

    /// A record without anything in it, for tests.
    pub(crate) fn empty(partition: &Arc<Partition>, offset: i64) -> Self {
        Builder::new(None, None).finish(partition.clone(), offset, None, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_empty_stay_apart_and_headers_keep_their_order() {
        let partition = Arc::new(Partition::new("t".into(), 0));
        let mut builder = Builder::new(None, Some(b""));
        builder.header("a", None);
        builder.header("", Some(b""));
        builder.header("a", Some(&[0, 255]));
        let record = builder.finish(partition, 7, None, None);
        assert_eq!((record.key(), record.payload()), (None, Some(&b""[..])));
        let headers: Vec<_> = record.headers().collect();
        assert_eq!(headers, [("a", None), ("", Some(&b""[..])), ("a", Some(&[0, 255][..]))]);
    }
}
