//! The servers that the user means, and the login.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use redislock_client::Locks;
use redislock_client::redis::{Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates};

use crate::exit::Failure;
use crate::options::Server;

const FORMS: &str = "redis://[user@]host:port[/db], rediss://..., unix:///path, \
                     redis+sentinel://host:port,.../service[/db] or redis+cluster://host:port,...";
/// A longer password is a mistake: another file was named.
const LONGEST_PASSWORD: u64 = 4096;

/// The servers.
#[derive(Clone)]
pub enum Place {
    Single(ConnectionInfo),
    Sentinel { sentinels: Vec<ConnectionInfo>, service: String, primary: ConnectionInfo },
    Cluster(Vec<ConnectionInfo>),
}

impl Place {
    /// Reads the options. A password in a URL is accepted from the environment, which other users cannot see, and not
    /// from the command line.
    pub fn of(server: &Server, is_from_environment: bool) -> Result<Self, Failure> {
        let login = Login::of(server)?;
        let text = server.url.as_str();
        if !is_from_environment && has_password(text) {
            return Err(Failure::usage(
                "--url: a password there shows in the list of processes; use --password-file FILE",
            ));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong_url("it has no scheme"))?;
        let (scheme, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        match (scheme, kind) {
            ("redis" | "rediss", "") => Ok(Self::Single(login.info(text)?)),
            ("unix", "") | ("redis", "unix") => Ok(Self::Single(login.info(&format!("unix://{rest}"))?)),
            ("redis" | "rediss", "sentinel") => Self::sentinel(scheme, rest, &login),
            ("redis" | "rediss", "cluster") => {
                let (user, hosts) = rest.rsplit_once('@').unwrap_or(("", rest));
                let nodes = addresses(scheme, user, hosts.trim_end_matches('/'));
                Ok(Self::Cluster(nodes.iter().map(|node| login.info(node)).collect::<Result<_, _>>()?))
            }
            _ => Err(wrong_url("its scheme is unknown")),
        }
    }

    fn sentinel(scheme: &str, rest: &str, login: &Login) -> Result<Self, Failure> {
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (service, database) = path.split_once('/').unwrap_or((path, "0"));
        if service.is_empty() {
            return Err(wrong_url("the name of the service is missing behind the sentinels"));
        }
        let (user, hosts) = hosts.rsplit_once('@').unwrap_or(("", hosts));
        let at = if user.is_empty() { String::new() } else { format!("{user}@") };
        let primary = login.info(&format!("{scheme}://{at}primary/{database}"))?;
        // The password is for the primary; sentinels are asked without one.
        let without = Login { password: None, certificates: login.certificates.clone() };
        let sentinels = addresses(scheme, "", hosts);
        let sentinels = sentinels.iter().map(|sentinel| without.info(sentinel)).collect::<Result<_, _>>()?;
        Ok(Self::Sentinel { sentinels, service: service.to_owned(), primary })
    }

    /// The locks of these servers. Connects to none yet.
    pub fn locks(&self) -> Result<Locks, Failure> {
        let builder = match self.clone() {
            Self::Single(info) => Locks::builder().server(info),
            Self::Sentinel { sentinels, service, primary } => {
                Locks::builder().sentinel(sentinels, service).primary(primary)
            }
            Self::Cluster(nodes) => Locks::builder().cluster(nodes),
        };
        builder.build().map_err(|error| Failure::usage(format!("--url: {error}")))
    }
}

fn wrong_url(why: &str) -> Failure {
    Failure::usage(format!("--url: {why}; expected {FORMS}"))
}

fn addresses(scheme: &str, user: &str, hosts: &str) -> Vec<String> {
    let at = if user.is_empty() { String::new() } else { format!("{user}@") };
    hosts.split(',').map(|host| format!("{scheme}://{at}{host}")).collect()
}

/// Returns true if a URL contains a password: a colon between its scheme and the last @ of its authority.
fn has_password(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (authority, query) = rest.split_once(['/', '?']).unwrap_or((rest, ""));
    let in_query = query.split(['?', '&']).any(|word| word.starts_with("pass="));
    in_query || authority.rsplit_once('@').is_some_and(|(user, _)| user.contains(':'))
}

/// The parts of a connection besides its address.
struct Login {
    password: Option<String>,
    certificates: Option<TlsCertificates>,
}

impl Login {
    fn of(server: &Server) -> Result<Self, Failure> {
        let password = server.password_file.as_deref().map(read_password).transpose()?;
        let root_cert = server.cacert.as_deref().map(|path| read("--cacert", path)).transpose()?;
        let client_tls = match (&server.cert, &server.key) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read("--cert", cert)?, client_key: read("--key", key)? })
            }
            (None, None) => None,
            _ => return Err(Failure::usage("--cert, --key: expected both, or none")),
        };
        let has_any = root_cert.is_some() || client_tls.is_some();
        let certificates = has_any.then_some(TlsCertificates { client_tls, root_cert });
        Ok(Self { password, certificates })
    }

    fn info(&self, url: &str) -> Result<ConnectionInfo, Failure> {
        // The driver's errors name no part of the URL, and so no password.
        let mut info = url.into_connection_info().map_err(|error| {
            let text = error.to_string();
            // The kind of the error follows, which is for programs.
            wrong_url(text.split(" - ").next().unwrap_or(&text))
        })?;
        if url.starts_with("rediss://") {
            choose_provider();
        }
        if let Some(certificates) = self.certificates.clone() {
            if !url.starts_with("rediss://") {
                return Err(Failure::usage("--cacert, --cert and --key need a URL that begins with rediss"));
            }
            let client = Client::build_with_tls(info, certificates);
            let client =
                client.map_err(|error| Failure::usage(format!("--cacert, --cert, --key: {error}")))?;
            info = client.get_connection_info().clone();
        }
        if let Some(password) = &self.password {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        Ok(info)
    }
}

/// Chooses the cryptography of rustls: without a choice it panics.
fn choose_provider() {
    // It fails if it was chosen before.
    drop(rustls::crypto::ring::default_provider().install_default());
}

fn read(option: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path)
        .map_err(|error| Failure::usage(format!("{option}: cannot read {}: {error}", path.display())))
}

/// Returns true if systemd has put this file into the folder of the service's credentials, which only the
/// service can enter. There an access list lets the service's user read a file, and shows as a permission of
/// the group.
fn is_credential(path: &Path) -> bool {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY");
    folder.is_some_and(|folder| !folder.is_empty() && path.parent() == Some(Path::new(&folder)))
}

fn read_password(path: &Path) -> Result<String, Failure> {
    let wrong = |why: String| Failure::usage(format!("--password-file: {}: {why}", path.display()));
    let about = fs::metadata(path).map_err(|error| wrong(error.to_string()))?;
    if !about.is_file() {
        return Err(wrong("expected a regular file".to_owned()));
    }
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 && !is_credential(path) {
        return Err(wrong(format!("others may read it (mode {mode:03o}); run chmod 600")));
    }
    if about.size() > LONGEST_PASSWORD {
        return Err(wrong(format!("expected at most {LONGEST_PASSWORD} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    let password = text.strip_suffix('\n').unwrap_or(&text);
    let password = password.strip_suffix('\r').unwrap_or(password);
    if password.is_empty() {
        return Err(wrong("expected the password on its first line".to_owned()));
    }
    if password.contains('\n') {
        return Err(wrong("expected one line".to_owned()));
    }
    Ok(password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> Server {
        Server { url: url.to_owned(), password_file: None, cacert: None, cert: None, key: None }
    }

    fn refused(url: &str) -> String {
        Place::of(&server(url), false).err().map(|error| error.message).unwrap_or_default()
    }

    #[test]
    fn urls_name_one_server_sentinels_or_a_cluster() {
        let place = |url: &str| Place::of(&server(url), false).unwrap();
        let Place::Single(info) = place("redis://ann@127.0.0.1:7000/3") else { panic!() };
        assert_eq!((info.redis_settings().username(), info.redis_settings().db()), (Some("ann"), 3));
        assert!(matches!(place("unix:///run/redis.sock"), Place::Single(_)));
        let Place::Sentinel { sentinels, service, primary } =
            place("redis+sentinel://ann@a:26379,b:26380/mymaster/2")
        else {
            panic!()
        };
        assert_eq!((sentinels.len(), service.as_str(), primary.redis_settings().db()), (2, "mymaster", 2));
        assert_eq!(primary.redis_settings().username(), Some("ann"));
        assert_eq!(sentinels[1].addr().to_string(), "b:26380");
        let Place::Cluster(nodes) = place("redis+cluster://a:7000,[::1]:7001") else { panic!() };
        assert_eq!(nodes.len(), 2);
        assert!(matches!(place("rediss://127.0.0.1:7000"), Place::Single(_)));
    }

    #[test]
    fn wrong_urls_are_refused_with_their_form() {
        for url in [
            "",
            "localhost",
            "127.0.0.1:6379",
            "redsi://host",
            "http://host",
            "redis://",
            "redis://host:port",
            "redis+sentinel://host:26379",
            "redis+cluster://",
            "redis+cluster://a,",
            "redis://host/database",
        ] {
            let message = refused(url);
            assert!(message.starts_with("--url: ") && message.contains("redis://"), "{url:?}: {message:?}");
        }
    }

    #[test]
    fn passwords_on_the_command_line_are_refused() {
        for url in [
            "redis://:secret@host",
            "redis://ann:secret@host:1/2",
            "redis+cluster://ann:secret@a,b",
            "redis+sentinel://:secret@a/service",
            "unix:///path?pass=secret",
            "redis://ann:se@cret@host",
        ] {
            let message = refused(url);
            assert!(message.contains("--password-file") && !message.contains("secret"), "{url}: {message}");
        }
        assert!(Place::of(&server("redis://:secret@host"), true).is_ok());
    }
}
