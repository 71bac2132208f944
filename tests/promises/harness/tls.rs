//! Certificates by openssl, sound and unsound.

use super::etcd::free_port;
use super::{clean, directory, eventually};
use std::fmt::Write as _;
use std::fs;
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

/// What a certificate says, and its key is.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// As openssl's subjectAltName; `""` for none.
    pub(crate) addresses: &'a str,
    /// As genpkey's arguments.
    pub(crate) key: &'a [&'a str],
    /// As openssl's extendedKeyUsage.
    pub(crate) usage: &'a str,
    /// From when to when, as YYYYMMDDHHMMSSZ.
    pub(crate) valid: (&'a str, &'a str),
}

pub(crate) const EC_P256: &[&str] = &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"];

/// For servers at 127.0.0.1, and for clients.
impl Default for Wanted<'_> {
    fn default() -> Self {
        Self {
            addresses: "IP:127.0.0.1,DNS:localhost",
            key: EC_P256,
            usage: "serverAuth,clientAuth",
            valid: ("20200101000000Z", "20990101000000Z"),
        }
    }
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
        authority.generate("ca", EC_P256);
        openssl(&[
            "req",
            "-x509",
            "-days",
            "2",
            "-subj",
            "/CN=meshlock's tests",
            "-key",
            &authority.path("ca.key"),
            "-out",
            &authority.path("ca.pem"),
        ]);
        fs::write(authority.path("index"), "").expect("a file");
        let directory = authority.directory.display();
        let text = format!(
            "[ca]\ndefault_ca=our\n[our]\ndatabase={directory}/index\nnew_certs_dir={directory}\nrand_serial=yes\n\
             default_md=sha256\nunique_subject=no\npolicy=any\n[any]\ncommonName=supplied\n"
        );
        fs::write(authority.path("cnf"), text).expect("a file");
        authority
    }

    pub(crate) fn cert(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// For clients, who are the user `name` where etcd asks for certificates, and for servers at 127.0.0.1.
    pub(crate) fn issue(&self, name: &str) -> Identity {
        self.issue_as(name, Wanted::default())
    }

    pub(crate) fn issue_for(&self, name: &str, addresses: &str) -> Identity {
        self.issue_as(
            name,
            Wanted {
                addresses,
                ..Wanted::default()
            },
        )
    }

    pub(crate) fn issue_as(&self, name: &str, wanted: Wanted<'_>) -> Identity {
        let path = |kind: &str| self.path(&format!("{name}.{kind}"));
        let mut extensions = format!("basicConstraints=CA:FALSE\nextendedKeyUsage={}\n", wanted.usage);
        if !wanted.addresses.is_empty() {
            writeln!(extensions, "subjectAltName={}", wanted.addresses).expect("text");
        }
        fs::write(path("ext"), extensions).expect("a file");
        self.generate(name, wanted.key);
        self.request(name);
        openssl(&[
            "ca",
            "-batch",
            "-notext",
            "-config",
            &self.path("cnf"),
            "-cert",
            &self.path("ca.pem"),
            "-keyfile",
            &self.path("ca.key"),
            "-startdate",
            wanted.valid.0,
            "-enddate",
            wanted.valid.1,
            "-extfile",
            &path("ext"),
            "-in",
            &path("csr"),
            "-out",
            &path("pem"),
        ]);
        Identity {
            cert: path("pem").into(),
            key: path("key").into(),
        }
    }

    /// Signed by itself, with openssl's extensions for that, such as CA:TRUE.
    pub(crate) fn issue_itself(&self, name: &str, extensions: &[&str]) -> Identity {
        let path = |kind: &str| self.path(&format!("{name}.{kind}"));
        self.generate(name, EC_P256);
        let (subject, key, cert) = (format!("/CN={name}"), path("key"), path("pem"));
        let mut arguments = vec![
            "req", "-x509", "-days", "2", "-subj", &subject, "-key", &key, "-out", &cert,
        ];
        for extension in extensions {
            arguments.extend(["-addext", extension]);
        }
        openssl(&arguments);
        Identity {
            cert: path("pem").into(),
            key: path("key").into(),
        }
    }

    /// Of X.509 version 1, which has no extensions, and no host names with them.
    pub(crate) fn issue_version_1(&self, name: &str) -> Identity {
        let path = |kind: &str| self.path(&format!("{name}.{kind}"));
        self.generate(name, EC_P256);
        self.request(name);
        let (ca, ca_key) = (self.path("ca.pem"), self.path("ca.key"));
        let (csr, cert) = (path("csr"), path("pem"));
        openssl(&[
            "x509",
            "-req",
            "-in",
            &csr,
            "-CA",
            &ca,
            "-CAkey",
            &ca_key,
            "-CAcreateserial",
            "-days",
            "2",
            "-out",
            &cert,
        ]);
        Identity {
            cert: cert.into(),
            key: path("key").into(),
        }
    }

    fn generate(&self, name: &str, kind: &[&str]) {
        let key = self.path(&format!("{name}.key"));
        openssl(&[&["genpkey", "-out", &key], kind].concat());
    }

    fn request(&self, name: &str) {
        let path = |kind: &str| self.path(&format!("{name}.{kind}"));
        let (subject, key, csr) = (format!("/CN={name}"), path("key"), path("csr"));
        openssl(&["req", "-new", "-subj", &subject, "-key", &key, "-out", &csr]);
    }

    fn path(&self, file: &str) -> String {
        self.directory.join(file).into_os_string().into_string().expect("text")
    }
}

/// The key once more in the older format of its kind: PKCS#1 for RSA, SEC1 for EC, with what openssl puts before it.
pub(crate) fn traditional(key: &Path, kind: &str) -> PathBuf {
    let old = key.with_extension("traditional");
    let (from, to) = (key.to_string_lossy(), old.to_string_lossy());
    let mut arguments = vec![kind, "-in", &from, "-out", &to];
    if kind == "rsa" {
        arguments.push("-traditional");
    }
    openssl(&arguments);
    old
}

/// An RSA key and its public half.
pub(crate) fn key_pair(private: &Path, public: &Path) {
    let (private, public) = (private.to_string_lossy(), public.to_string_lossy());
    openssl(&[
        "genpkey",
        "-algorithm",
        "RSA",
        "-pkeyopt",
        "rsa_keygen_bits:2048",
        "-out",
        &private,
    ]);
    openssl(&["rsa", "-in", &private, "-pubout", "-out", &public]);
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
