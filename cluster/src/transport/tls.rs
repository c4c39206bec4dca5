//! Mutual TLS: both sides show a certificate that the cluster's own authority has signed.

use std::{io, path::PathBuf, sync::Arc};

use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        server::WebPkiClientVerifier,
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
