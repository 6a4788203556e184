//! Versions of servers, and what they are known for.

use super::Finding;
use super::Level::Warning;
use super::facts::Facts;

const CHECK: &str = "server";
/// The versions that the module's tests run on: redis.conf.example and README name them too.
const TESTED: &[(&str, &[(u32, u32)])] =
    &[("Redis", &[(7, 0), (8, 0), (8, 6)]), ("Valkey", &[(8, 1), (9, 1)])];

/// A server that is known for a bug, or for none.
pub fn server(node: &Facts) -> Finding {
    if let Err(why) = &node.info {
        return Finding::refused(CHECK, &node.address, "INFO", why);
    }
    let (name, version) = match (node.field("valkey_version"), node.field("redis_version")) {
        (Some(version), _) => ("Valkey", version),
        (None, Some(version)) => ("Redis", version),
        (None, None) => return Finding::skipped(CHECK, "INFO shows no version"),
    };
    let text = format!("{} is {name} {version}", node.address);
    let Some(release) = release(version) else {
        return Finding::skipped(CHECK, text + ", a version that is not understood");
    };
    let has_strings = node.setting("redislock.legacy-strings") == Some("yes");
    if let Some((what, advice)) = bug(name, release, has_strings) {
        return Finding::new(Warning, CHECK, format!("{text}: {what}"), advice);
    }
    let is_tested = TESTED.iter().any(|(each, releases)| *each == name && releases.contains(&release));
    Finding::ok(CHECK, if is_tested { text } else { text + ", which the module is not tested on" })
}

/// The first two numbers of a version.
fn release(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A known bug of these versions: what happens, what to do, and where the page says more.
fn bug(
    name: &str,
    release: (u32, u32),
    has_strings: bool,
) -> Option<(&'static str, (&'static str, &'static str))> {
    match (name, release) {
        ("Valkey", (8, 1)) if has_strings => Some((
            "MOVE and COPY leave their client in another database while legacy-strings is on",
            ("Do not use them, or take Valkey 9.1", "docs/how-to/migrate.md#in-short"),
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_a_bug_are_known() {
        assert!(bug("Valkey", (8, 1), true).is_some() && bug("Valkey", (8, 1), false).is_none());
        for release in [(7, 0), (7, 4), (8, 0), (8, 6)] {
            assert!(bug("Redis", release, true).is_none(), "{release:?}");
        }
        assert!(bug("Valkey", (7, 2), true).is_none() && bug("Valkey", (9, 1), true).is_none());
    }

    #[test]
    fn releases_are_read() {
        assert_eq!(release("7.0.15"), Some((7, 0)));
        assert_eq!(release("255.255.255"), Some((255, 255)));
        assert_eq!(release("unstable"), None);
    }
}
