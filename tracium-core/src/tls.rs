//! Why PostgreSQL's TLS was refused, in the words of its connection parameters.

/// What is wrong with an encrypted connection to PostgreSQL.
///
/// The client library says it in the words of its TLS stack, under "i/o error"; this names the cause and, by
/// [`TlsProblem::parameter`], the part of the database URL to look at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsProblem {
    /// The server's certificate is past its date, or not yet valid.
    #[error("the server's certificate has expired, or this machine's clock is wrong; renew it")]
    CertificateExpired,
    /// The server's certificate is for other names.
    #[error(
        "the server's certificate is not for the host of the URL; name the server as its certificate does (sslmode=verify-ca would leave the name unchecked)"
    )]
    HostName,
    /// Nobody we trust has signed the server's certificate.
    #[error(
        "the server's certificate is signed by no authority that is trusted here; name the authority's PEM file by sslrootcert"
    )]
    UnknownAuthority,
    /// The server's certificate is refused for another reason.
    #[error("the server's certificate is refused; see sslrootcert")]
    Certificate,
    /// The server speaks no TLS, and the URL demands it.
    #[error("the server offers no TLS, which sslmode demands; switch it on there (ssl = on)")]
    NotOffered,
    /// The server takes no connection without TLS, or none of this user from this address.
    #[error("the server's pg_hba.conf has no line for this login; if it asks for TLS, set sslmode=verify-full")]
    Demanded,
    /// The server wants a certificate of ours, or refuses it.
    #[error("the server refuses our certificate, or the lack of one; see sslcert and sslkey")]
    ClientCertificate,
}

impl TlsProblem {
    /// What the error says of TLS, if it does.
    #[must_use]
    pub fn of(error: &sqlx::Error) -> Option<Self> {
        if let Some(database) = error.as_database_error() {
            let demands = database.code().as_deref() == Some("28000") && database.message().contains("pg_hba.conf");
            return demands.then_some(Self::Demanded);
        }
        let mut text = error.to_string();
        let mut next = std::error::Error::source(error);
        while let Some(source) = next {
            text.push_str(&source.to_string());
            next = source.source();
        }
        // The words of rustls, and of sqlx where there is no TLS at all.
        let has = |words: &str| text.contains(words);
        if has("server does not support TLS") {
            Some(Self::NotOffered)
        } else if has("invalid peer certificate") {
            Some(if has("xpired") || has("NotValidYet") || has("not valid yet") {
                Self::CertificateExpired
            } else if has("NotValidForName") || has("not valid for name") {
                Self::HostName
            } else if has("UnknownIssuer") {
                Self::UnknownAuthority
            } else {
                Self::Certificate
            })
        } else if has("CertificateRequired")
            || has("received fatal alert: BadCertificate")
            || has("received fatal alert: UnknownCA")
        {
            Some(Self::ClientCertificate)
        } else {
            None
        }
    }

    /// The parameter of the database URL to look at first.
    #[must_use]
    pub fn parameter(&self) -> &'static str {
        match self {
            Self::CertificateExpired | Self::HostName => "host",
            Self::UnknownAuthority | Self::Certificate => "sslrootcert",
            Self::NotOffered | Self::Demanded => "sslmode",
            Self::ClientCertificate => "sslcert",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_not_about_tls_is_none() {
        assert_eq!(TlsProblem::of(&sqlx::Error::PoolTimedOut), None);
        let refused = std::io::Error::new(std::io::ErrorKind::ConnectionRefused, "refused");
        assert_eq!(TlsProblem::of(&sqlx::Error::Io(refused)), None);
    }

    #[test]
    fn the_words_of_the_tls_stack_are_taken_for_what_they_mean() {
        let of = |text: &str| TlsProblem::of(&sqlx::Error::Io(std::io::Error::other(text.to_owned())));
        assert_eq!(of("invalid peer certificate: UnknownIssuer"), Some(TlsProblem::UnknownAuthority));
        assert_eq!(of("invalid peer certificate: Expired"), Some(TlsProblem::CertificateExpired));
        assert_eq!(of("invalid peer certificate: NotValidForName"), Some(TlsProblem::HostName));
    }
}
