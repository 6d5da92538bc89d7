//! The class of an error: the only thing that decides what happens next.

/// What to do about an error. Every public error of Tracium answers with one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The same call may succeed later, in a new transaction or on a new connection: retry with backoff.
    Transient,
    /// This input fails every time: keep it, show it, go on without it.
    Poison,
    /// Nothing will succeed before somebody changes the set-up: stop.
    Fatal,
}

impl Class {
    /// The class in lower case, as stored with a dead letter and shown in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Transient => "transient",
            Class::Poison => "poison",
            Class::Fatal => "fatal",
        }
    }
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error that knows its [`Class`].
pub trait Classify {
    /// The error's class.
    fn class(&self) -> Class;
}

/// The class of a PostgreSQL error, by SQLSTATE (PostgreSQL documentation, appendix A).
///
/// Serialization failures, deadlocks, lost connections, a server that starts or stops and exhausted resources are
/// transient. A missing schema, missing rights and a wrong password are fatal. What the row itself violates (classes 22,
/// 23 and 54: bad values, constraints, PostgreSQL's limits) is poison.
#[must_use]
pub fn class_of_database_error(error: &sqlx::Error) -> Class {
    let Some(database) = error.as_database_error() else {
        return match error {
            sqlx::Error::Configuration(_)
            | sqlx::Error::TypeNotFound { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::Encode(_) => Class::Fatal,
            _ => Class::Transient,
        };
    };
    match database.code().as_deref() {
        Some(code) => class_of_sqlstate(code),
        None => Class::Transient,
    }
}

fn class_of_sqlstate(code: &str) -> Class {
    match code {
        // 55P03 lock_not_available, 57014 query_canceled (a timeout), 25006 read only (a standby after failover)
        "55P03" | "57014" | "25006" | "25P02" | "25P03" => Class::Transient,
        "TR001" | "TR002" | "TR003" | "TR004" => Class::Poison,
        _ => match code.get(..2) {
            Some("08" | "40" | "53" | "57" | "58" | "XX") => Class::Transient,
            Some("22" | "23" | "54") => Class::Poison,
            _ => Class::Fatal,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadlock_is_transient_a_missing_table_fatal_and_a_bad_value_poison() {
        assert_eq!(class_of_sqlstate("40P01"), Class::Transient);
        assert_eq!(class_of_sqlstate("57P01"), Class::Transient);
        assert_eq!(class_of_sqlstate("42P01"), Class::Fatal);
        assert_eq!(class_of_sqlstate("42501"), Class::Fatal);
        assert_eq!(class_of_sqlstate("22P02"), Class::Poison);
    }
}
