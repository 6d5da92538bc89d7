//! A look at a broker's certificate: librdkafka says of a refused one only that it was refused.

use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use openssl::ssl::{HandshakeError, SslConnector, SslMethod};
use openssl::x509::{X509, X509VerifyResult};

use crate::connect::Problem;

/// Connects as librdkafka does, with the same trust, and tells why the certificate is not believed; `None` if it is, or if
/// the peer cannot be asked.
pub(crate) fn problem(server: &str, ca: Option<&Path>, timeout: Duration) -> Option<Problem> {
    let (host, port) = server.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = (host, port.parse().ok()?).to_socket_addrs().ok()?.next()?;
    let stream = TcpStream::connect_timeout(&address, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.set_write_timeout(Some(timeout)).ok()?;
    let mut connector = SslConnector::builder(SslMethod::tls()).ok()?;
    if let Some(ca) = ca {
        connector.set_ca_file(ca).ok()?;
    }
    match connector.build().connect(host, stream) {
        Ok(_) => None,
        Err(HandshakeError::Failure(handshake)) => {
            let certificate = handshake.ssl().peer_certificate();
            explain(handshake.ssl().verify_result(), certificate.as_deref(), host)
        }
        Err(_) => None,
    }
}

fn explain(result: X509VerifyResult, certificate: Option<&openssl::x509::X509Ref>, host: &str) -> Option<Problem> {
    // X509_V_ERR_… of openssl/x509_vfy.h.
    match result.as_raw() {
        0 => None,
        10 => Some(Problem::CertificateExpired { since: certificate.map_or_else(String::new, |c| c.not_after().to_string()) }),
        62 | 64 => Some(Problem::HostName {
            host: host.to_owned(),
            names: certificate.map(|c| names(&c.to_owned())).unwrap_or_default(),
        }),
        2 | 18 | 19 | 20 | 21 => Some(Problem::UnknownAuthority { reason: result.error_string().to_owned() }),
        _ => Some(Problem::Certificate { reason: result.error_string().to_owned() }),
    }
}

/// What a certificate is for.
fn names(certificate: &X509) -> Vec<String> {
    let mut names = Vec::new();
    for name in certificate.subject_alt_names().into_iter().flatten() {
        if let Some(dns) = name.dnsname() {
            names.push(dns.to_owned());
        } else if let Some(bytes) = name.ipaddress() {
            let ip = match bytes.len() {
                4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
                _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
            };
            names.extend(ip.map(|ip| ip.to_string()));
        }
    }
    names
}
