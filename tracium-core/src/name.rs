//! Validated names. Everything that reaches SQL, Kafka or a sink as an identifier passes through one of these.

use std::fmt;

/// A name that does not fit where it would go.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Nothing at all.
    #[error("{what} is empty")]
    Empty {
        /// Which name.
        what: &'static str,
    },
    /// Longer than the narrowest place it goes to takes.
    #[error("{what} is {bytes} bytes long, the limit is {limit}")]
    TooLong {
        /// Which name.
        what: &'static str,
        /// Its length in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A character that is not allowed.
    #[error("{what} {value:?} is not allowed: {rule}")]
    Malformed {
        /// Which name.
        what: &'static str,
        /// The value, cut to 100 characters.
        value: String,
        /// The rule in words.
        rule: &'static str,
    },
}

fn check(
    what: &'static str,
    value: &str,
    limit: usize,
    rule: &'static str,
    fits: impl Fn(&str) -> bool,
) -> Result<(), NameError> {
    if value.is_empty() {
        return Err(NameError::Empty { what });
    }
    if value.len() > limit {
        return Err(NameError::TooLong { what, bytes: value.len(), limit });
    }
    if !fits(value) {
        return Err(NameError::Malformed { what, value: value.chars().take(100).collect(), rule });
    }
    Ok(())
}

fn starts_then(value: &str, first: impl Fn(char) -> bool, rest: impl Fn(char) -> bool) -> bool {
    let mut chars = value.chars();
    chars.next().is_some_and(first) && chars.all(rest)
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $limit:literal, $rule:literal, $fits:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Takes the name if it is valid.
            ///
            /// # Errors
            /// [`NameError`] naming what is wrong with it.
            pub fn new(value: impl Into<String>) -> Result<Self, NameError> {
                let value = value.into();
                check($what, &value, $limit, $rule, $fits)?;
                Ok(Self(value))
            }

            /// The name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The name, owned.
            #[must_use]
            pub fn into_string(self) -> String {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(value: &str) -> Result<Self, NameError> {
                Self::new(value)
            }
        }
    };
}

name!(
    /// The type of an aggregate, `order`: lower case, digits, `_` and `-`, at most 100 characters.
    AggregateType, "aggregate type", 100, "a lower-case letter, then lower-case letters, digits, _ or -",
    |v| starts_then(v, |c| c.is_ascii_lowercase(), |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-')
);
name!(
    /// The id of an aggregate within its type: any text of 1 to 512 bytes without a NUL. 512 bytes is the limit of a
    /// document id in Elasticsearch; PostgreSQL's text takes no NUL.
    AggregateId, "aggregate id", 512, "a NUL character", |v| !v.contains('\0')
);
name!(
    /// The type of an event, `order.created`: letters, digits, `_`, `.` and `-`, at most 200 characters.
    EventType, "event type", 200, "a letter, then letters, digits, _, . or -",
    |v| starts_then(v, |c| c.is_ascii_alphabetic(), |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
);
name!(
    /// A Kafka topic: letters, digits, `.`, `_` and `-`, at most 249 characters (Kafka's own rule).
    Topic, "topic", 249, "letters, digits, ., _ or -, and neither . nor ..",
    |v| v != "." && v != ".." && v.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
);
name!(
    /// A table, view or schema name in lower case, at most 48 characters, so that an epoch's suffix still fits
    /// PostgreSQL's 63.
    SqlIdentifier, "SQL identifier", 48, "a lower-case letter or _, then lower-case letters, digits or _",
    |v| starts_then(v, |c| c.is_ascii_lowercase() || c == '_', |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
);

/// One aggregate: its type and its id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Aggregate {
    /// The type, which decides the topic.
    pub aggregate_type: AggregateType,
    /// The id, which is the partition key.
    pub aggregate_id: AggregateId,
}

impl Aggregate {
    /// Names an aggregate.
    ///
    /// # Errors
    /// [`NameError`] if type or id is not valid.
    pub fn new(aggregate_type: impl Into<String>, aggregate_id: impl Into<String>) -> Result<Self, NameError> {
        Ok(Self { aggregate_type: AggregateType::new(aggregate_type)?, aggregate_id: AggregateId::new(aggregate_id)? })
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.aggregate_type, self.aggregate_id.as_str())
    }
}

/// The version of an aggregate: the number of its events, so the first event is version 1. 0 means "before the first".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Version(i64);

impl Version {
    /// Before the first event.
    pub const ZERO: Version = Version(0);

    /// The version, if it is not negative.
    #[must_use]
    pub fn new(value: i64) -> Option<Self> {
        (value >= 0).then_some(Self(value))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0
    }

    /// The version after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_take_quotes_and_emoji_but_neither_nothing_nor_a_kilobyte_nor_nul() {
        for id in ["o'; DROP TABLE x; --", "🧾-\"42\"", " ", "ü"] {
            assert_eq!(AggregateId::new(id).map(AggregateId::into_string), Ok(id.to_owned()));
        }
        assert_eq!(AggregateId::new("").unwrap_err().to_string(), "aggregate id is empty");
        assert_eq!(
            AggregateId::new("x".repeat(1024)).unwrap_err().to_string(),
            "aggregate id is 1024 bytes long, the limit is 512"
        );
        assert!(AggregateId::new("a\0b").is_err());
    }

    #[test]
    fn a_topic_follows_kafkas_rule() {
        assert!(Topic::new("orders.v2").is_ok());
        for bad in [".", "..", "or ders", "orders/1", "ördr"] {
            assert!(Topic::new(bad).is_err(), "{bad}");
        }
        assert!(Topic::new("x".repeat(250)).is_err());
    }

    #[test]
    fn an_sql_identifier_cannot_carry_sql() {
        for bad in ["a;b", "a b", "a\"b", "A", "1a", ""] {
            assert!(SqlIdentifier::new(bad).is_err(), "{bad}");
        }
    }
}
