//! A look at a broker's certificate: librdkafka says of a refused one only that it was refused.

use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use openssl::ssl::{SslConnector, SslMethod, SslVerifyMode};
use openssl::x509::{X509Ref, X509StoreContextRef};

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
    // The certificate is at hand only while it is being judged.
    let found = Arc::new(Mutex::new(None));
    let (keep, asked) = (Arc::clone(&found), host.to_owned());
    connector.set_verify_callback(SslVerifyMode::PEER, move |good, context| {
        if !good {
            let problem = explain(context, &asked);
            keep.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(problem);
        }
        good
    });
    // Trusted after all, or the peer hung up: then there is nothing to tell.
    let _ = connector.build().connect(host, stream);
    found.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn explain(context: &X509StoreContextRef, host: &str) -> Problem {
    let certificate = context.current_cert();
    let reason = context.error().error_string().to_owned();
    // X509_V_ERR_… of openssl/x509_vfy.h.
    match context.error().as_raw() {
        10 => Problem::CertificateExpired { since: certificate.map_or_else(String::new, |c| c.not_after().to_string()) },
        62 | 64 => Problem::HostName { host: host.to_owned(), names: certificate.map(names).unwrap_or_default() },
        2 | 18 | 19 | 20 | 21 => Problem::UnknownAuthority { reason },
        _ => Problem::Certificate { reason },
    }
}

/// What a certificate is for.
fn names(certificate: &X509Ref) -> Vec<String> {
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
