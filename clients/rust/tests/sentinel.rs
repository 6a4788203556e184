//! A primary with a password, which a sentinel watches.

mod common;

use std::time::Duration;

use common::{PATIENCE, Server};
use redislock_client::{Error, Locks};

#[tokio::test(flavor = "multi_thread")]
async fn the_primary_is_found_and_logged_in_to() {
    let primary = Server::start();
    primary.ask::<String>(&["ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all"]);
    let sentinel = Server::sentinel(&format!("sentinel monitor group 127.0.0.1 {} 1", primary.port));
    let locks = |login: &str| {
        Locks::builder()
            .sentinel([sentinel.url()], "group")
            .primary(login)
            .build()
            .unwrap()
            .lock("k")
            .wait(PATIENCE)
    };
    let guard = locks("redis://ann:secret@any").acquire().await.unwrap();
    assert!(primary.is_held("k"));
    guard.release().await.unwrap();
    let refused = locks("redis://ann:wrong@any").acquire().await.unwrap_err();
    assert!(matches!(refused, Error::LoginRefused { .. }), "{refused}");
    let other = Locks::builder().sentinel([sentinel.url()], "another").build().unwrap();
    let unknown = other.lock("k").wait(Duration::from_millis(50)).acquire().await.unwrap_err();
    assert!(matches!(unknown, Error::ConnectionFailed { .. }), "{unknown}");
    sentinel.ask::<String>(&["ACL", "SETUSER", "default", "resetpass", ">secret"]);
    let refused = locks("redis://ann:secret@any").acquire().await.unwrap_err();
    let told = refused.to_string();
    assert!(matches!(refused, Error::LoginRefused { .. }), "{refused:?}");
    assert!(told.starts_with("NOAUTH") && told.contains("redis://:password@host:port"), "{told}");
}
