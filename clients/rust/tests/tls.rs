//! Connections by TLS, with a certificate authority of one's own.
#![cfg(feature = "tls")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::{PATIENCE, Port, Server};
use redislock_client::redis::{Client, TlsCertificates};
use redislock_client::{Error, Locks, Loss};
use tokio::time::timeout;

const CONFIGURATION: &str = "[req]\ndistinguished_name = name\nx509_extensions = ours\n[name]\n\
    [ours]\nsubjectAltName = IP:127.0.0.1\nbasicConstraints = critical, CA:FALSE\n";

/// A certificate for 127.0.0.1 that signs itself, and its key; None without openssl.
fn new_certificate(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let [configuration, certificate, key] = ["cnf", "cert.pem", "key.pem"].map(|name| folder.join(name));
    fs::write(&configuration, CONFIGURATION).unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2"])
        .arg("-config")
        .arg(configuration)
        .arg("-out")
        .arg(&certificate)
        .arg("-keyout")
        .arg(&key)
        .output()
        .ok()?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some((certificate, key))
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_taken_waited_for_and_lost_by_tls() {
    let folder = tempfile::tempdir().unwrap();
    let Some((certificate, key)) = new_certificate(folder.path()) else {
        return println!("there is no openssl to make a certificate with");
    };
    let reserved = Port::reserve();
    let port = reserved.number;
    let (port_text, [cert_file, key_file]) =
        (port.to_string(), [&certificate, &key].map(|path| path.to_str().unwrap()));
    let files = ["--tls-cert-file", cert_file, "--tls-key-file", key_file, "--tls-auth-clients", "no"];
    let settings = [&["--tls-port", &port_text], &files[..]].concat();
    let Some(server) = Server::try_with(&settings) else {
        return println!("this server was built without TLS");
    };
    let address = format!("rediss://127.0.0.1:{port}");
    let root_cert = Some(fs::read(&certificate).unwrap());
    let client =
        Client::build_with_tls(&address[..], TlsCertificates { client_tls: None, root_cert }).unwrap();
    let locks = Locks::from(client);
    let guard = locks.many(["k", "l"]).wait(PATIENCE).acquire().await.unwrap();
    let waits = locks.lock("l").wait(Duration::from_millis(100)).acquire().await.unwrap_err();
    assert!(matches!(waits, Error::LockTimeout { .. }), "{waits}");
    server.ask::<i64>(&["DEL", "k"]);
    assert_eq!(timeout(PATIENCE, guard.lost()).await.unwrap(), Some(Loss::Push));
    // A client that trusts those that the system trusts. They are about 140 certificates, and a build without
    // optimizations may not have read them on a busy machine before the timeout of the connection.
    let usual = Locks::open(&address[..]).unwrap();
    let refused = usual.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err();
    assert!(matches!(refused, Error::ConnectionFailed { .. }), "{refused}");
    let plain = Locks::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let told = plain.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err().to_string();
    assert!(told.contains("is this a port for TLS?"), "{told}");
    // A client that trusts another certificate alone.
    let elsewhere = tempfile::tempdir().unwrap();
    let (other, _) = new_certificate(elsewhere.path()).expect("there is openssl");
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(fs::read(other).unwrap()) };
    let stranger = Locks::from(Client::build_with_tls(&address[..], certificates).unwrap());
    // A busy machine may be too slow for a single attempt.
    let mut tries_left = 40;
    let refused = loop {
        let refused = stranger.lock("k").wait(Duration::ZERO).acquire().await.unwrap_err();
        if tries_left == 0 || !refused.to_string().contains("took too long") {
            break refused;
        }
        tries_left -= 1;
    };
    assert!(
        matches!(&refused, Error::ConnectionFailed { message, .. } if message.contains("ertificate")),
        "{refused}"
    );
}
