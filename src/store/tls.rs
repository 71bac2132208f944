//! From TLS files to what a connection is made with, so that what cannot be used is known before anybody connects.
//! Connects to nobody; what a server makes of our certificate is `fault`'s affair.

use super::certificate::{common_name, validity};
use super::files::{Kept, Unusable};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::sync::Arc;
use std::time::SystemTime;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{self, ClientConfig, InconsistentKeys, RootCertStore};

/// The TLS files and what was in them when they were read.
#[derive(Clone, Default)]
pub struct Tls {
    /// `None`: the system's roots, read when they are needed.
    pub cacert: Option<Kept>,
    /// The client's certificate and key.
    pub identity: Option<(Kept, Kept)>,
    /// What the servers' certificates must be for, if not for the host in the endpoint.
    pub server_name: Option<ServerName<'static>>,
    /// What [`check`](Self::check) has made of them, for the first connection.
    pub made: Option<Arc<ClientConfig>>,
}

impl Tls {
    /// # Errors
    /// Where a file has not what it should have, or certificate and key do not belong together.
    pub fn check(&mut self) -> Result<(), Unusable> {
        match &self.cacert {
            Some(_) => self.made = Some(self.config()?),
            // Without the system's roots, whose reading takes longer than all the rest.
            None => drop(self.with_roots(RootCertStore::empty())?),
        }
        Ok(())
    }

    /// The user that our certificate names, where etcd goes by that.
    pub fn common_name(&self) -> Option<String> {
        let (cert, _) = self.identity.as_ref()?;
        common_name(certificates(cert).ok()?.first()?)
    }

    /// From when to when our certificate is valid.
    pub(super) fn validity(&self) -> Option<[SystemTime; 2]> {
        let (cert, _) = self.identity.as_ref()?;
        validity(certificates(cert).ok()?.first()?)
    }

    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, Unusable> {
        let roots = match &self.cacert {
            Some(file) => roots_in(file)?,
            None => system_roots()?,
        };
        self.with_roots(roots).map(Arc::new)
    }

    fn with_roots(&self, roots: RootCertStore) -> Result<ClientConfig, Unusable> {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Unusable(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let (chain, private) = (certificates(cert)?, private_key(key)?);
                let usable = provider.key_provider.load_private_key(private).map_err(|_| {
                    key.unusable("the key is of a kind that cannot be used: make one of ECDSA (P-256 or P-384), Ed25519 or RSA (2048 bits or more)")
                })?;
                let ours = CertifiedKey::new(chain, usable);
                match ours.keys_match() {
                    Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
                    Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
                        return Err(Unusable(format!("{cert} and {key} do not belong together")));
                    }
                    Err(error) => return Err(cert.unusable(&error.to_string())),
                }
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(ours)))
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Whoever restarts has forgotten us, and room for others is room for nothing: each shows its certificate anew.
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

/// A configuration that trusts nobody, to see whether somebody shows a certificate.
pub(super) fn trusting_nobody() -> Result<ClientConfig, Unusable> {
    Tls::default().with_roots(RootCertStore::empty())
}

/// A bundle may hold some that nobody can read, as Go allows too.
fn roots_in(file: &Kept) -> Result<RootCertStore, Unusable> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(certificates(file)?) {
        (0, _) => Err(file.unusable("it has no certificate that can be read")),
        _ => Ok(roots),
    }
}

fn system_roots() -> Result<RootCertStore, Unusable> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs) {
        (0, _) => Err(Unusable(
            "this system has no certificates to check the servers against: give the servers' CA by --cacert".to_owned(),
        )),
        _ => Ok(roots),
    }
}

/// An empty or DER file would be taken for no certificates at all, and every server then be refused as unknown.
fn certificates(file: &Kept) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&file.contents).collect();
    match found {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(file.unusable(&format!("it has no certificate in PEM format{}", instead(file)))),
    }
}

fn private_key(file: &Kept) -> Result<PrivateKeyDer<'static>, Unusable> {
    if file.contents.windows(9).any(|window| window == b"ENCRYPTED") {
        return Err(file.unusable("the key is encrypted, and nobody is there to type the passphrase"));
    }
    PrivateKeyDer::from_pem_slice(&file.contents)
        .map_err(|_| file.unusable(&format!("it has no private key in PEM format{}", instead(file))))
}

/// What a file has that does not have what it should.
fn instead(file: &Kept) -> &'static str {
    let first = <(SectionKind, Vec<u8>)>::pem_slice_iter(&file.contents)
        .flatten()
        .next();
    match first.map(|(kind, _)| kind) {
        Some(SectionKind::Certificate) => ", but a certificate",
        Some(SectionKind::RsaPrivateKey | SectionKind::PrivateKey | SectionKind::EcPrivateKey) => ", but a private key",
        Some(SectionKind::PublicKey) => ", but a public key",
        Some(SectionKind::Csr) => ", but a request for one",
        _ if file.contents.is_empty() => ": it is empty",
        _ => "",
    }
}
