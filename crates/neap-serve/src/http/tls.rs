//! Connections that nobody else can read: TLS 1.2 and 1.3, for all that the server speaks.
//!
//! Sessions are not resumed, so that a client costs memory only while it is connected.

use super::protocol::Protocol;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// Records of a connection, in and out, and the state of its keys.
pub const CONNECTION_BYTES: u64 = 96 << 10;

/// Of these, what is made of an answer before the client takes it.
pub const SENDING_BYTES: usize = 32 << 10;

/// Files in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate, and those between it and one that clients know.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl Tls {
    /// # Errors
    /// One line that names the file.
    pub fn acceptor(&self, protocol: Protocol) -> Result<TlsAcceptor, String> {
        let certificates = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| {
            let path = self.key.display();
            match is_encrypted(&self.key) {
                true => {
                    format!("the private key in {path} is encrypted: give one without a passphrase")
                }
                false => format!("no private key can be read from {path}: {e}"),
            }
        })?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| format!("TLS cannot be used: {e}"))?
            .with_no_client_auth()
            .with_single_cert(certificates, key);
        let mut config = config.map_err(|e| {
            format!(
                "{} and {} do not go together: {e}",
                self.certificate.display(),
                self.key.display()
            )
        })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![match protocol {
            Protocol::Http1 => b"http/1.1".to_vec(),
            Protocol::Http2 => b"h2".to_vec(),
        }];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// Whether a key is one that asks for a passphrase, which nobody can be asked for.
fn is_encrypted(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let marks = ["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"];
    marks.iter().any(|mark| text.contains(mark))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let cannot = |e| format!("no certificate can be read from {}: {e}", path.display());
    let all = CertificateDer::pem_file_iter(path).map_err(cannot)?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
    match all.is_empty() {
        true => Err(format!("there is no certificate in {}", path.display())),
        false => Ok(all),
    }
}
