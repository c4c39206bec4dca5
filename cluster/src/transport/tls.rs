//! Mutual TLS: both sides show a certificate that the cluster's own authority has signed. Certificates are renewed by new files in
//! the old ones' place: new connections use them a little later, without a restart.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig,
        client::Resumption,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
        server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
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

/// How often the files are looked at.
pub(super) const LOOK: Duration = Duration::from_secs(60);
/// A certificate that expires this soon is warned of.
const SOON: Duration = Duration::from_secs(14 * DAY);
const DAY: u64 = 86_400;

/// How this process secures its connections.
pub(super) struct Tls {
    files: TlsFiles,
    used: Mutex<Used>,
}

struct Used {
    loaded: Loaded,
    /// What the files held when they were last read, whether that could be used or not.
    read: u64,
    /// When it was last said what is wrong with the certificate.
    told: Option<Instant>,
}

impl Tls {
    pub(super) fn load(files: &TlsFiles) -> Result<Tls, TransportError> {
        let read = fingerprint(files);
        let used = Used { loaded: Loaded::load(files)?, read, told: None };
        let tls = Tls { files: files.clone(), used: Mutex::new(used) };
        tls.tell();
        Ok(tls)
    }

    /// For a connection from somebody else.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.used.lock().loaded.acceptor.clone()
    }

    /// For a connection to somebody else.
    pub(super) fn connector(&self) -> TlsConnector {
        self.used.lock().loaded.connector.clone()
    }

    /// Reads the files again if they have changed, and says what is wrong with the certificate. Files that cannot be used are
    /// left alone, as somebody may be replacing one after the other.
    pub(super) fn look(&self) {
        let read = fingerprint(&self.files);
        let has_changed = std::mem::replace(&mut self.used.lock().read, read) != read;
        match has_changed.then(|| Loaded::load(&self.files)) {
            None => {}
            Some(Ok(loaded)) => {
                let certificate = self.files.certificate.display();
                tracing::info!(%certificate, "the certificates have changed: new connections use them");
                let mut used = self.used.lock();
                (used.loaded, used.told) = (loaded, None);
            }
            Some(Err(error)) => tracing::warn!(%error, "the certificates have changed, but cannot be used"),
        }
        self.tell();
    }

    /// Says what is wrong with the certificate, once a day.
    fn tell(&self) {
        let mut used = self.used.lock();
        let now = UnixTime::now();
        let soon = UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()) + SOON);
        // Others may trust another authority, too, so this is no error.
        if let Some(problem) = used.loaded.problem(now).or_else(|| used.loaded.problem(soon))
            && used.told.is_none_or(|told| told.elapsed() >= Duration::from_secs(DAY))
        {
            used.told = Some(Instant::now());
            tracing::warn!(
                certificate = %self.files.certificate.display(),
                authority = %self.files.authority.display(),
                "others may not accept the certificate of this process: {problem}"
            );
        }
    }
}

/// What the files hold. The same as long as they cannot be read.
fn fingerprint(files: &TlsFiles) -> u64 {
    let mut hasher = DefaultHasher::new();
    for path in [&files.authority, &files.certificate, &files.key] {
        std::fs::read(path).ok().hash(&mut hasher);
    }
    hasher.finish()
}

/// What files hold that can be used.
struct Loaded {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    verifier: Arc<dyn ClientCertVerifier>,
    own: Vec<CertificateDer<'static>>,
}

impl Loaded {
    fn load(files: &TlsFiles) -> Result<Loaded, TransportError> {
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
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(&files.certificate, &error))?
            .with_client_cert_verifier(verifier.clone())
            .with_single_cert(own.clone(), key.clone_key())
            .map_err(|error| bad(&files.certificate, &error))?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(&files.certificate, &error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(own.clone(), key)
            .map_err(|error| bad(&files.certificate, &error))?;
        // Who resumes an earlier session shows no certificate again, and its time is not looked at.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        client.resumption = Resumption::disabled();
        let (acceptor, connector) =
            (TlsAcceptor::from(Arc::new(server)), TlsConnector::from(Arc::new(client)));
        Ok(Loaded { acceptor, connector, verifier, own })
    }

    /// Why somebody with this process's authority would not accept its certificate at a time.
    fn problem(&self, at: UnixTime) -> Option<String> {
        problem(&*self.verifier, &self.own, at)
    }
}

fn problem(
    verifier: &dyn ClientCertVerifier,
    certificates: &[CertificateDer<'_>],
    at: UnixTime,
) -> Option<String> {
    let (own, between) = certificates.split_first()?;
    match verifier.verify_client_cert(own, between, at).err()? {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            Some("it is of another authority".into())
        }
        Error::InvalidCertificate(reason) => Some(invalid(&reason)),
        error => Some(error.to_string()),
    }
}

/// What is wrong with a certificate, in the same words as long as that is the same.
fn invalid(reason: &CertificateError) -> String {
    match reason {
        CertificateError::ExpiredContext { not_after, .. } => {
            let days = UnixTime::now().as_secs().saturating_sub(not_after.as_secs()) / DAY;
            match not_after.as_secs() > UnixTime::now().as_secs() {
                true => format!("it expires within {} days", SOON.as_secs() / DAY),
                false => format!("it expired {days} days ago"),
            }
        }
        CertificateError::NotValidYetContext { not_before, .. } => {
            let days = not_before.as_secs().saturating_sub(UnixTime::now().as_secs()) / DAY;
            format!("it is valid only in {days} days")
        }
        reason => reason.to_string(),
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
        Some(Error::InvalidCertificate(reason)) => {
            format!("TLS: its certificate is not accepted: {}", invalid(reason))
        }
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
            problem(&*verifier, &[certificate.der().clone()], UnixTime::now())
        };
        assert_eq!(found(&ours, 4_000), None);
        assert_eq!(found(&theirs, 4_000).as_deref(), Some("it is of another authority"));
        let expired = found(&ours, 2_001).expect("it is over");
        assert!(expired.starts_with("it expired ") && expired.ends_with(" days ago"), "{expired}");
    }

    #[test]
    fn new_files_are_used_without_a_restart() {
        let mut parameters = CertificateParams::new(Vec::new()).expect("parameters");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = parameters.self_signed(&key).expect("a certificate");
        let issuer = Issuer::new(parameters, key);
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        let files = TlsFiles { authority: path("ca"), certificate: path("certificate"), key: path("key") };
        std::fs::write(&files.authority, root.pem()).expect("it can be written");
        let certify = || {
            let key = KeyPair::generate().expect("a key");
            let parameters = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
            (parameters.signed_by(&key, &issuer).expect("a certificate"), key)
        };
        let write = |path: &PathBuf, text: String| std::fs::write(path, text).expect("it can be written");
        let (first, key) = certify();
        write(&files.certificate, first.pem());
        write(&files.key, key.serialize_pem());
        let tls = Tls::load(&files).expect("they can be used");
        let own = || tls.used.lock().loaded.own.clone();
        let (second, key) = certify();
        // One after the other: they do not belong together meanwhile.
        write(&files.certificate, second.pem());
        tls.look();
        assert_eq!(own(), [first.der().clone()]);
        write(&files.key, key.serialize_pem());
        tls.look();
        assert_eq!(own(), [second.der().clone()]);
        std::fs::remove_file(&files.key).expect("it is there");
        tls.look();
        assert_eq!(own(), [second.der().clone()]);
    }
}
