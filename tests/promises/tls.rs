//! TLS to etcd: whom we trust, how we show ourselves, and what is said where either fails: one line with the endpoint, the
//! file and the reason; nothing is run.

use crate::harness::etcd::{ServerTls, free_port};
use crate::harness::tls::{self, Authority, Identity, Wanted};
use crate::harness::{Etcd, Meshlock, Proxy, bounded, directory, option, pass, refused, unique};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// A server with TLS that asks its clients for certificates of the same authority, or does not.
fn secure(authority: &Authority, clients: bool) -> Etcd {
    let server = authority.issue("server");
    let ca = authority.cert();
    let mut etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: clients.then_some(ca.as_path()),
    });
    let mut access = vec![option("--cacert", &ca)];
    if clients {
        let client = authority.issue("etcdctl");
        access.extend([option("--cert", &client.cert), option("--key", &client.key)]);
    }
    etcd.access(&access);
    etcd
}

#[test]
fn tls_works_with_the_servers_ca_and_a_clients_certificate() {
    let authority = Authority::new();
    let etcd = secure(&authority, true);
    let client = authority.issue("client");
    let files = [
        option("--cacert", &authority.cert()),
        option("--cert", &client.cert),
        option("--key", &client.key),
    ];
    Meshlock::run(&etcd, "tls").args(&files).finish().success();
    // Without a scheme TLS files mean TLS.
    Meshlock::run_at(etcd.address(), "tls").args(&files).finish().success();
    // And etcdctl's variables are understood as etcdctl does.
    Meshlock::run_at(etcd.endpoint(), "tls")
        .env("ETCDCTL_CACERT", authority.cert())
        .env("ETCDCTL_CERT", &client.cert)
        .env("ETCDCTL_KEY", &client.key)
        .finish()
        .success();
    etcd.assert_clean("tls");
    assert_eq!(etcd.keys("meshlock/log/tls/").len(), 3);
}

#[test]
fn a_relative_file_is_found_from_where_the_user_is() {
    let authority = Authority::new();
    let etcd = secure(&authority, false);
    let ca = authority.cert();
    Meshlock::run(&etcd, "tls")
        .current_dir(ca.parent().expect("a directory"))
        .args(["--cacert", "ca.pem"])
        .finish()
        .success();
}

/// A server that shows this certificate.
fn showing(identity: &Identity) -> Etcd {
    Etcd::start_tls(&ServerTls {
        cert: &identity.cert,
        key: &identity.key,
        clients: None,
    })
}

#[test]
fn a_server_that_cannot_be_trusted_is_not_talked_to() {
    let authority = Authority::new();
    let etcd = secure(&authority, false);
    let other = Authority::new().cert();
    refused(
        Meshlock::run(&etcd, "tls").args([option("--cacert", &other)]),
        78,
        &[
            &etcd.address(),
            "not signed by a CA in --cacert",
            &other.to_string_lossy(),
        ],
    );
    // The system's authorities do not know it either.
    refused(
        Meshlock::run(&etcd, "tls"),
        78,
        &[
            &etcd.address(),
            "not signed by a CA that this system trusts",
            "--cacert",
        ],
    );
}

#[test]
fn any_certificate_of_a_bundle_will_do() {
    let (authority, other) = (Authority::new(), Authority::new());
    let etcd = secure(&authority, false);
    let read = |authority: &Authority| fs::read_to_string(authority.cert()).expect("a certificate");
    let bundle = directory().join("bundle.pem");
    let text = format!("# Ours\n\n{}\nsubject=CN = b\r\n{}", read(&other), read(&authority));
    fs::write(&bundle, text).expect("a file");
    Meshlock::run(&etcd, "tls")
        .args([option("--cacert", &bundle)])
        .finish()
        .success();
}

#[test]
fn a_server_with_a_certificate_of_its_own_is_trusted_by_that() {
    let own = Authority::new().issue_itself(
        "own",
        &[
            "subjectAltName=IP:127.0.0.1",
            "basicConstraints=critical,CA:FALSE",
            "extendedKeyUsage=serverAuth",
        ],
    );
    let etcd = showing(&own);
    Meshlock::run(&etcd, "tls")
        .args([option("--cacert", &own.cert)])
        .finish()
        .success();
}

#[test]
fn what_is_wrong_with_a_servers_certificate_is_told() {
    let authority = Authority::new();
    let usual = Wanted::default;
    let issue = |name, wanted| authority.issue_as(name, wanted);
    let itself = authority.issue_itself("itself", &["subjectAltName=IP:127.0.0.1"]);
    let cases: Vec<(Identity, &[&str])> = vec![
        (
            issue(
                "expired",
                Wanted {
                    valid: ("20200101000000Z", "20200201000000Z"),
                    ..usual()
                },
            ),
            &["has expired at 2020-02-01T00:00:00Z", "clock"],
        ),
        (
            issue(
                "early",
                Wanted {
                    valid: ("20980101000000Z", "20990101000000Z"),
                    ..usual()
                },
            ),
            &["is not valid before 2098-01-01T00:00:00Z", "clock"],
        ),
        (
            authority.issue_for("elsewhere", "DNS:elsewhere.example,IP:10.0.0.1"),
            &[
                "is for elsewhere.example, 10.0.0.1, not for 127.0.0.1",
                "--tls-server-name",
            ],
        ),
        (
            authority.issue_for("nameless", ""),
            &["is for no name", "subjectAltName"],
        ),
        (
            issue(
                "client",
                Wanted {
                    usage: "clientAuth",
                    ..usual()
                },
            ),
            &["not for servers", "serverAuth"],
        ),
        (authority.issue_version_1("old"), &["version 1"]),
    ];
    for (identity, parts) in cases {
        let etcd = showing(&identity);
        refused(
            Meshlock::run(&etcd, "tls").args([option("--cacert", &authority.cert())]),
            78,
            &[&[etcd.address().as_str()], parts].concat(),
        );
    }
    // As etcd's --auto-tls makes them: not a kind that we know.
    let p521 = issue(
        "p521",
        Wanted {
            key: &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"],
            ..usual()
        },
    );
    let etcd = showing(&p521);
    refused(
        Meshlock::run(&etcd, "tls").args([option("--cacert", &authority.cert())]),
        78,
        &[&etcd.address(), "its key must be", "P-256 or P-384"],
    );
    let etcd = showing(&itself);
    refused(
        Meshlock::run(&etcd, "tls").args([option("--cacert", &itself.cert)]),
        78,
        &[&etcd.address(), "CA:TRUE"],
    );
}

#[test]
fn a_server_may_be_known_by_another_name_than_it_is_reached_by() {
    let authority = Authority::new();
    let etcd = showing(&authority.issue_for("elsewhere", "DNS:elsewhere.example"));
    let cacert = option("--cacert", &authority.cert());
    // And verify goes the same way.
    Meshlock::run(&etcd, "tls")
        .args([&cacert, "--tls-server-name=elsewhere.example"])
        .sh(&format!("{} verify", crate::harness::meshlock::binary().display()))
        .finish()
        .success();
    Meshlock::run(&etcd, "tls")
        .args([&cacert])
        .env("MESHLOCK_TLS_SERVER_NAME", "elsewhere.example")
        .finish()
        .success();
    refused(
        Meshlock::run(&etcd, "tls").args([&cacert, "--tls-server-name=127.0.0.1"]),
        78,
        &[&etcd.address(), "is for elsewhere.example, not for 127.0.0.1"],
    );
}

#[test]
fn every_usual_kind_of_key_is_taken() {
    let authority = Authority::new();
    let etcd = secure(&authority, true);
    let of = |name, key| {
        authority.issue_as(
            name,
            Wanted {
                key,
                ..Wanted::default()
            },
        )
    };
    let rsa = of("rsa", &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]);
    let ec = of("ec", tls::EC_P256);
    let p384 = of("p384", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"]);
    let ed25519 = of("ed25519", &["-algorithm", "ED25519"]);
    for (cert, key) in [
        (&rsa.cert, &rsa.key),
        (&rsa.cert, &tls::traditional(&rsa.key, "rsa")),
        (&ec.cert, &ec.key),
        (&ec.cert, &tls::traditional(&ec.key, "ec")),
        (&p384.cert, &p384.key),
        (&ed25519.cert, &ed25519.key),
    ] {
        Meshlock::run(&etcd, "tls")
            .args([
                option("--cacert", &authority.cert()),
                option("--cert", cert),
                option("--key", key),
            ])
            .finish()
            .success();
    }
    // Found out before anybody connects.
    let nobody = format!("https://127.0.0.1:{}", free_port());
    let p521 = of("p521", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"]);
    refused(
        Meshlock::run_at(nobody, "tls").args([option("--cert", &p521.cert), option("--key", &p521.key)]),
        78,
        &["--key", &p521.key.to_string_lossy(), "ECDSA (P-256 or P-384)"],
    );
}

#[test]
fn a_server_that_does_not_want_our_certificate_says_why() {
    let authority = Authority::new();
    let etcd = secure(&authority, true);
    let expired = authority.issue_as(
        "expired",
        Wanted {
            valid: ("20200101000000Z", "20200201000000Z"),
            ..Wanted::default()
        },
    );
    let early = authority.issue_as(
        "early",
        Wanted {
            valid: ("20900101000000Z", "20910101000000Z"),
            ..Wanted::default()
        },
    );
    let stranger = Authority::new().issue("stranger");
    let files = |identity: &Identity| vec![option("--cert", &identity.cert), option("--key", &identity.key)];
    let cacert = option("--cacert", &authority.cert());
    // In TLS 1.3 the answer comes after the handshake, when the first question is under way: whether it is heard must
    // not be a matter of chance.
    for _ in 0..8 {
        refused(
            Meshlock::run(&etcd, "tls").args([&cacert]),
            77,
            &[&etcd.address(), "it wants a client's certificate", "--cert"],
        );
        for (identity, why) in [
            (&stranger, "refuses our certificate"),
            (&expired, "which has expired at 2020-02-01T00:00:00Z"),
            (&early, "which is not valid before 2090-01-01T00:00:00Z"),
        ] {
            refused(
                Meshlock::run(&etcd, "tls").args([&cacert]).args(files(identity)),
                77,
                &[&etcd.address(), why, &identity.cert.to_string_lossy()],
            );
        }
    }
}

/// Puts the files beside the old ones and has one symbolic link point there, as Kubernetes does with a secret.
fn swap(mount: &Path, version: &str, cert: &[u8], key: &[u8]) {
    let files = mount.join(version);
    fs::create_dir(&files).expect("a directory");
    fs::write(files.join("tls.crt"), cert).expect("a file");
    fs::write(files.join("tls.key"), key).expect("a file");
    let link = mount.join("..data_tmp");
    symlink(version, &link).expect("a link");
    fs::rename(link, mount.join("..data")).expect("renamed");
}

#[test]
fn a_certificate_that_was_renewed_reaches_a_hold() {
    let (old, new) = (Authority::new(), Authority::new());
    let server = old.issue("server");
    let trusted = directory().join("trusted.pem");
    fs::copy(old.cert(), &trusted).expect("a copy");
    let mut etcd = Etcd::start_tls(&ServerTls {
        cert: &server.cert,
        key: &server.key,
        clients: Some(&trusted),
    });
    let mount = directory();
    let contents = |identity: &Identity| [&identity.cert, &identity.key].map(|file| fs::read(file).expect("a file"));
    let [cert, key] = contents(&old.issue("client"));
    swap(&mount, "..1", &cert, &key);
    for file in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{file}"), mount.join(file)).expect("a link");
        fs::set_permissions(
            mount.join("..1").join(file),
            std::os::unix::fs::PermissionsExt::from_mode(0o600),
        )
        .expect("a mode");
    }
    let mut holder = Meshlock::run(&etcd, "renewed")
        .args([
            option("--cacert", &old.cert()),
            option("--cert", &mount.join("tls.crt")),
            option("--key", &mount.join("tls.key")),
            "--ttl=14".to_owned(),
        ])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let renewed = new.issue("client");
    let [cert, key] = contents(&renewed);
    swap(&mount, "..2", &cert, &key);
    // From now on the old one is nothing to the server.
    fs::copy(new.cert(), &trusted).expect("a copy");
    let renewals = |etcd: &Etcd| etcd.metric("grpc_server_msg_received_total", "LeaseKeepAlive");
    etcd.restart();
    crate::harness::eventually("a renewal under the new certificate", || {
        crate::harness::so(renewals(&etcd) >= 2.0)
    });
    // One that is being written, or written wrongly, costs no lock.
    swap(&mount, "..3", b"-----BEGIN CERT", &key);
    etcd.restart();
    holder.wait_for_stderr("going on with what was read before");
    crate::harness::eventually("a renewal under the last one that was good", || {
        crate::harness::so(renewals(&etcd) >= 2.0)
    });
    let said = holder.finish().stdout("held\n").any_stderr().success();
    let complaint = format!("--cert \"{}\" cannot be used", mount.join("tls.crt").display());
    let lines: Vec<_> = said.stderr.lines().filter(|line| line.contains(&complaint)).collect();
    assert_eq!(lines.len(), 1, "{}", said.stderr);
    etcd.access(&[
        option("--cacert", &old.cert()),
        option("--cert", &renewed.cert),
        option("--key", &renewed.key),
    ]);
    etcd.assert_clean("renewed");
}

#[test]
fn tls_to_a_plain_port_and_plain_to_a_tls_port_are_told() {
    let etcd = Etcd::shared();
    refused(
        Meshlock::run_at(format!("https://{}", etcd.address()), unique("tls")),
        78,
        &[&etcd.address(), "it does not speak TLS: use http://"],
    );
    let authority = Authority::new();
    let etcd = secure(&authority, false);
    // The server hangs up without a word: that TLS is the cause can only be guessed, and is.
    let said = bounded(Meshlock::run_at(format!("http://{}", etcd.address()), unique("tls")))
        .any_stderr()
        .any_code([69, 78]);
    assert!(
        said.stderr.contains(&etcd.address()) && said.stderr.contains("https"),
        "{}",
        said.stderr
    );
}

#[test]
fn a_waiter_sits_out_a_proxy_that_hangs_up_on_tls() {
    let authority = Authority::new();
    let etcd = secure(&authority, false);
    let cacert = option("--cacert", &authority.cert());
    let mut holder = Meshlock::run(&etcd, "proxied")
        .args([&cacert])
        .stdin(Stdio::piped())
        .sh("echo held; read -r _; exit 0")
        .start();
    holder.wait_for_stdout("held");
    let port = etcd.address().rsplit(':').next().and_then(|port| port.parse().ok());
    let proxy = Proxy::to(port.expect("a port"));
    let endpoint = proxy.endpoint().replace("http:", "https:");
    let mut waiter = Meshlock::run_at(endpoint, "proxied").args([&cacert]).start();
    waiter.wait_for_stderr("held by");
    proxy.hang_up();
    waiter.wait_for_stderr("trying again");
    // A waiter looks at the queue each 10 s.
    pass(Duration::from_secs(11));
    proxy.heal();
    waiter.wait_for_stderr("answers again");
    holder.finish().stdout("held\n").success();
    waiter.finish().any_stderr().success();
}

#[test]
fn tls_files_are_checked_before_anything_connects() {
    let authority = Authority::new();
    let (client, another) = (authority.issue("client"), authority.issue("another"));
    let files = directory();
    let empty = files.join("empty");
    fs::write(&empty, "").expect("a file");
    let ca = authority.cert();
    let missing = files.join("missing");
    let (der, encrypted) = (tls::der(&ca), tls::encrypted(&client.key));
    let cases: Vec<(Vec<String>, &Path)> = vec![
        (vec![option("--cacert", &missing)], &missing),
        (vec![option("--cacert", &empty)], &empty),
        (vec![option("--cacert", &files)], &files),
        (vec![option("--cacert", &der)], &der),
        (vec![option("--cacert", &client.key)], &client.key),
        (
            vec![option("--cert", &client.cert), option("--key", &encrypted)],
            &encrypted,
        ),
        (
            vec![option("--cert", &client.cert), option("--key", &client.cert)],
            &client.cert,
        ),
        (
            vec![option("--cert", &client.cert), option("--key", &missing)],
            &missing,
        ),
        (
            vec![option("--cert", &client.cert), option("--key", &another.key)],
            &another.key,
        ),
    ];
    // Nobody is there to connect to.
    let nobody = format!("https://127.0.0.1:{}", free_port());
    for (options, named) in cases {
        refused(
            Meshlock::run_at(&nobody, "tls").args(&options),
            78,
            &[&named.display().to_string()],
        );
    }
    for (half, other) in [("--cert", "key"), ("--key", "cert")] {
        refused(
            Meshlock::run_at(&nobody, "tls")
                .args([option(half, if half == "--cert" { &client.cert } else { &client.key })]),
            78,
            &[other],
        );
    }
}
