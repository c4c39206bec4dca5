//! Mutual TLS: both sides show a certificate that the cluster's own authority has signed.

use std::{io, path::PathBuf, sync::Arc};

use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
        server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    },
};

use super::TransportError;

/// PEM files of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates of the authority that signs the certificates of all processes.
    pub authority: PathBuf,
    /// This process's certificate, with the host that others reach it at among its names.
    pub certificate: PathBuf,
    /// The key to the certificate.
    pub key: PathBuf,
}

/// How this process secures its connections.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) acceptor: TlsAcceptor,
    pub(super) connector: TlsConnector,
}

impl Tls {
    pub(super) fn load(files: &TlsFiles) -> Result<Tls, TransportError> {
        let bad = |path: &PathBuf, reason: &dyn std::fmt::Display| TransportError::Tls {
            path: path.clone(),
            reason: reason.to_string(),
        };
        let certificates = |path: &PathBuf| {
            let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            match read {
                Ok(found) if found.is_empty() => Err(bad(path, &"it holds no certificate")),
                Ok(found) => Ok(found),
                Err(error) => Err(bad(path, &error)),
            }
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.authority)? {
            roots.add(certificate).map_err(|error| bad(&files.authority, &error))?;
        }
        let roots = Arc::new(roots);
        let own = certificates(&files.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| bad(&files.key, &error))?;

        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| bad(&files.authority, &error))?;
        // Others may trust another authority, too, so this is no error.
        if let Some(problem) = problem(&*verifier, &own) {
            tracing::warn!(
                certificate = %files.certificate.display(),
                authority = %files.authority.display(),
                "others may not accept the certificate of this process: {problem}"
            );
        }
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(&files.certificate, &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(own.clone(), key.clone_key())
            .map_err(|error| bad(&files.certificate, &error))?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(&files.certificate, &error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(own, key)
            .map_err(|error| bad(&files.certificate, &error))?;
        Ok(Tls {
            acceptor: TlsAcceptor::from(Arc::new(server)),
            connector: TlsConnector::from(Arc::new(client)),
        })
    }
}

/// Why somebody with this process's authority would not accept certificates.
fn problem(verifier: &dyn ClientCertVerifier, certificates: &[CertificateDer<'_>]) -> Option<String> {
    let (own, between) = certificates.split_first()?;
    match verifier.verify_client_cert(own, between, UnixTime::now()).err()? {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some("it is of another authority".into())
        }
        Error::InvalidCertificate(reason) => Some(reason.to_string()),
        error => Some(error.to_string()),
    }
}

/// Why TLS cannot be used with the other side of a connection.
pub(super) fn failure(error: &io::Error) -> String {
    let reason = error.get_ref().and_then(|reason| reason.downcast_ref());
    match reason {
        Some(Error::InvalidMessage(_)) => "it does not speak TLS, this process does".into(),
        Some(Error::NoCertificatesPresented) => "TLS: it has shown no certificate".into(),
        // The second where two authorities have the same name.
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            "TLS: its certificate is of no authority that this process trusts".into()
        }
        Some(Error::InvalidCertificate(reason)) => format!("TLS: its certificate is not accepted: {reason}"),
        Some(Error::AlertReceived(
            alert @ (AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied),
        )) => format!("TLS: it does not accept the certificate of this process (alert {alert:?})"),
        Some(Error::AlertReceived(alert)) => format!("TLS: it does not go on (alert {alert:?})"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "TLS: the connection was closed".into(),
        _ => format!("TLS: {error}"),
    }
}

/// The name that the certificate of whoever listens at `address` (host:port) must have.
pub(super) fn server_name(address: &str) -> Result<ServerName<'static>, String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(host.to_owned()).map_err(|error| format!("'{host}' in no certificate: {error}"))
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn what_others_will_not_accept_is_known_at_once() {
        let authority = || {
            let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
            authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let key = KeyPair::generate().expect("a key");
            let certificate = authority.self_signed(&key).expect("a certificate");
            (certificate, Issuer::new(authority, key))
        };
        let (root, ours) = authority();
        let (_, theirs) = authority();
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).expect("a root");
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.expect("a verifier");
        let found = |issuer: &Issuer<'static, KeyPair>, until: i32| {
            let key = KeyPair::generate().expect("a key");
            let mut parameters = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
            parameters.not_after = date_time_ymd(until, 1, 1);
            let certificate = parameters.signed_by(&key, issuer).expect("a certificate");
            problem(&*verifier, &[certificate.der().clone()])
        };
        assert_eq!(found(&ours, 4_000), None);
        assert_eq!(found(&theirs, 4_000).as_deref(), Some("it is of another authority"));
        let expired = found(&ours, 2_001).expect("it is over");
        assert!(expired.contains("expired"), "{expired}");
    }
}
