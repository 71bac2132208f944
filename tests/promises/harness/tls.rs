//! Certificates by openssl, sound and unsound.

use super::etcd::free_port;
use super::{clean, directory, eventually};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

/// Who issues certificates.
pub(crate) struct Authority {
    directory: PathBuf,
}

/// A certificate and its private key, both PEM.
pub(crate) struct Identity {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// A server that speaks TLS, and says nothing in it.
pub(crate) struct Mute {
    child: Child,
    port: u16,
}

impl Mute {
    pub(crate) fn start(identity: &Identity) -> Self {
        let port = free_port();
        let child = clean("openssl")
            .args(["s_server", "-quiet", "-alpn", "h2", "-accept", &port.to_string()])
            .arg("-cert")
            .arg(&identity.cert)
            .arg("-key")
            .arg(&identity.key)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl");
        eventually("openssl listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        Self { child, port }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let authority = Self { directory: directory() };
        openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=meshlock's tests",
            "-keyout",
            &authority.path("ca.key"),
            "-out",
            &authority.path("ca.pem"),
        ]);
        authority
    }

    pub(crate) fn cert(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// For servers at 127.0.0.1 and for clients, who are the user `name` where etcd asks for certificates.
    pub(crate) fn issue(&self, name: &str) -> Identity {
        self.issue_for(name, "IP:127.0.0.1,DNS:localhost")
    }

    pub(crate) fn issue_for(&self, name: &str, addresses: &str) -> Identity {
        let path = |kind: &str| self.path(&format!("{name}.{kind}"));
        let extensions = format!("subjectAltName={addresses}\nextendedKeyUsage=serverAuth,clientAuth\n");
        std::fs::write(path("ext"), extensions).expect("a file");
        openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            &format!("/CN={name}"),
            "-keyout",
            &path("key"),
            "-out",
            &path("csr"),
        ]);
        openssl(&[
            "x509",
            "-req",
            "-in",
            &path("csr"),
            "-CA",
            &self.path("ca.pem"),
            "-CAkey",
            &self.path("ca.key"),
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            &path("ext"),
            "-out",
            &path("pem"),
        ]);
        Identity {
            cert: path("pem").into(),
            key: path("key").into(),
        }
    }

    fn path(&self, file: &str) -> String {
        self.directory.join(file).into_os_string().into_string().expect("text")
    }
}

/// The key once more, behind a password.
pub(crate) fn encrypted(key: &Path) -> PathBuf {
    let encrypted = key.with_extension("encrypted");
    openssl(&[
        "pkcs8",
        "-topk8",
        "-passout",
        "pass:secret",
        "-in",
        &key.to_string_lossy(),
        "-out",
        &encrypted.to_string_lossy(),
    ]);
    encrypted
}

/// The certificate in another encoding.
pub(crate) fn der(cert: &Path) -> PathBuf {
    let der = cert.with_extension("der");
    openssl(&[
        "x509",
        "-in",
        &cert.to_string_lossy(),
        "-outform",
        "DER",
        "-out",
        &der.to_string_lossy(),
    ]);
    der
}

fn openssl(arguments: &[&str]) {
    let output = clean("openssl").args(arguments).output().expect("openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
