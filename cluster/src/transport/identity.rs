//! Whom a certificate speaks for. It names processes by URIs among its subject alternative names,
//! `carousel://CLUSTER/router/1`, `…/storage/2` or `…/frontend/3`, and its owner can be nobody else. A certificate without
//! such a name speaks for any front end, and for the others only where the cluster's description allows it.

use tokio_rustls::rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::message::{ProcessId, ProcessKind};

const SCHEME: &str = "carousel://";

/// The name of a process in certificates. A super process has that of its router.
pub(super) fn name_of(cluster: &str, process: ProcessId) -> String {
    let kind = match process.kind {
        ProcessKind::Router | ProcessKind::Super => "router",
        ProcessKind::Storage => "storage",
        ProcessKind::Client => "frontend",
    };
    format!("{SCHEME}{}/{kind}/{}", escaped(cluster), process.number)
}

/// As part of a URI: everything but letters, digits and `-._~` as `%` and two digits.
fn escaped(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// Why whoever has shown these certificates, its own first, is not the process of that name, if it is not.
pub(super) fn refusal(
    certificates: Option<&[CertificateDer<'_>]>,
    cluster: &str,
    process: ProcessId,
    unnamed: bool,
) -> Option<String> {
    let Some(own) = certificates.and_then(<[_]>::first) else {
        return Some("it has shown no certificate".into());
    };
    let certificate = match EndEntityCert::try_from(own) {
        Ok(certificate) => certificate,
        Err(error) => return Some(format!("its certificate cannot be read: {error}")),
    };
    let names: Vec<&str> = certificate.valid_uri_names().filter(|name| name.starts_with(SCHEME)).collect();
    let wanted = name_of(cluster, process);
    if names.contains(&wanted.as_str())
        || names.is_empty() && (unnamed || process.kind == ProcessKind::Client)
    {
        return None;
    }
    Some(match names.is_empty() {
        true => format!("its certificate names no process: that of {process} has to have the name {wanted}"),
        false => format!("its certificate is that of {}, not of {wanted}", names.join(" and ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_uris_whatever_the_cluster_is_called() {
        assert_eq!(name_of("prod", ProcessId::super_process(2)), "carousel://prod/router/2");
        assert_eq!(name_of("zoë/1", ProcessId::client(7)), "carousel://zo%C3%AB%2F1/frontend/7");
    }
}
