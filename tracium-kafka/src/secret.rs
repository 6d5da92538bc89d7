//! A value that must not be printed.

use serde::{Deserialize, Serialize, Serializer};

/// A password. `Debug` and serialisation show `***`; only [`Secret::expose`] gives it away.
///
/// ```
/// let password = tracium_kafka::Secret::from("geheim");
/// assert_eq!(format!("{password:?}"), "***");
/// assert_eq!(password.expose(), "geheim");
/// ```
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// What is shown instead.
    pub const MASK: &str = "***";

    /// The value itself: for the call that needs it, never for a text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Self::MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(Self::MASK)
    }
}
