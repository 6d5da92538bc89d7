//! User headers of an event: ordered, repeatable, byte-exact.

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

/// Headers as Kafka has them: an ordered list of names and optional bytes. A name may appear twice, a value may be
/// absent, empty or not UTF-8; all of it survives the way through PostgreSQL and Kafka.
///
/// In PostgreSQL they are JSONB: an array of `["name", "text"]`, `["name", null]` or `["name", {"base64": "…"}]`; an
/// object of texts `{"name": "text"}` is read too, for callers in other languages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Headers(Vec<(String, Option<Vec<u8>>)>);

/// As lenient as PostgreSQL's `decode`, which checked it on the way in; line breaks, which its `encode` writes, are
/// taken out before.
const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// Headers that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Stored JSON of another shape.
    #[error("headers are not an array of [name, value] pairs or an object of texts: {found}")]
    Shape {
        /// The part that does not fit, cut to 100 characters.
        found: String,
    },
    /// A name that Kafka's clients cannot carry.
    #[error("header name {name:?} is empty or contains a NUL")]
    Name {
        /// The name.
        name: String,
    },
    /// A name that the wire format uses itself.
    #[error("header {name:?} is written by Tracium; choose another name")]
    Reserved {
        /// The name.
        name: String,
    },
}

impl Headers {
    /// No headers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a header.
    ///
    /// # Errors
    /// [`HeaderError`] if the name is empty, has a NUL or belongs to the wire format.
    pub fn push(&mut self, name: impl Into<String>, value: Option<Vec<u8>>) -> Result<(), HeaderError> {
        let name = name.into();
        if name.is_empty() || name.contains('\0') {
            return Err(HeaderError::Name { name });
        }
        if crate::wire::is_reserved(&name) {
            return Err(HeaderError::Reserved { name });
        }
        self.0.push((name, value));
        Ok(())
    }

    /// Appends without the checks: for headers read back from a broker.
    pub(crate) fn push_unchecked(&mut self, name: String, value: Option<Vec<u8>>) {
        self.0.push((name, value));
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&[u8]>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_deref()))
    }

    /// The first value of that name, if it is text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        let (_, value) = self.iter().find(|(n, _)| *n == name)?;
        std::str::from_utf8(value?).ok()
    }

    /// The stored form; `None` for no headers.
    #[must_use]
    pub fn to_json(&self) -> Option<Value> {
        if self.0.is_empty() {
            return None;
        }
        let pairs = self.0.iter().map(|(name, value)| {
            let value = match value {
                None => Value::Null,
                // JSONB's text takes no NUL, so such a value goes as base64 although it is UTF-8.
                Some(bytes) => match std::str::from_utf8(bytes) {
                    Ok(text) if !text.contains('\0') => Value::from(text),
                    _ => serde_json::json!({"base64": BASE64.encode(bytes)}),
                },
            };
            Value::Array(vec![Value::from(name.as_str()), value])
        });
        Some(Value::Array(pairs.collect()))
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`HeaderError::Shape`] if it is none.
    pub fn from_json(json: &Value) -> Result<Self, HeaderError> {
        let shape = |found: &Value| HeaderError::Shape { found: found.to_string().chars().take(100).collect() };
        let value_of = |value: &Value| match value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone().into_bytes())),
            Value::Object(map) => match map.get("base64") {
                Some(Value::String(text)) => {
                    let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
                    BASE64.decode(text).map(Some).map_err(|_| shape(value))
                }
                _ => Err(shape(value)),
            },
            _ => Err(shape(value)),
        };
        let mut headers = Vec::new();
        match json {
            Value::Null => {}
            Value::Object(map) => {
                for (name, value) in map {
                    headers.push((name.clone(), value_of(value)?));
                }
            }
            Value::Array(pairs) => {
                for pair in pairs {
                    let Some([Value::String(name), value]) = pair.as_array().map(Vec::as_slice) else {
                        return Err(shape(pair));
                    };
                    headers.push((name.clone(), value_of(value)?));
                }
            }
            other => return Err(shape(other)),
        }
        Ok(Self(headers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_stored_form_is_byte_exact(list in prop::collection::vec(("[a-z]{1,8}", prop::option::of(prop::collection::vec(any::<u8>(), 0..20))), 0..6)) {
            let headers = Headers(list.clone());
            let stored = headers.to_json().unwrap_or(Value::Null);
            prop_assert!(!stored.to_string().contains("\\u0000"));
            prop_assert_eq!(Headers::from_json(&stored), Ok(headers));
        }
    }

    #[test]
    fn an_object_of_texts_is_read_and_other_shapes_are_named() {
        let headers = Headers::from_json(&serde_json::json!({"tenant": "acme", "none": null})).unwrap();
        assert_eq!(headers.text("tenant"), Some("acme"));
        assert!(Headers::from_json(&serde_json::json!([["a"]])).unwrap_err().to_string().contains("[\"a\"]"));
        assert!(Headers::from_json(&serde_json::json!(5)).is_err());
    }

    #[test]
    fn names_of_the_wire_format_are_refused() {
        let mut headers = Headers::new();
        assert!(matches!(headers.push("event_id", None), Err(HeaderError::Reserved { .. })));
        assert!(matches!(headers.push("", None), Err(HeaderError::Name { .. })));
    }
}
