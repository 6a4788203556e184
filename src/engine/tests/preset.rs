//! Settings: their defaults, the arguments that `loadmodule` takes, and the result.

use crate::engine::settings::{Number, Settings};
use crate::lock::confirm::Rule;
use crate::lock::table::Limits;

/// The settings after these arguments.
fn loaded(text: &str) -> Result<Settings, String> {
    let settings = Settings::new();
    let args: Vec<&[u8]> = text.split_whitespace().map(str::as_bytes).collect();
    settings.take_load_arguments(&args).map(|()| settings)
}

fn with(text: &str) -> Settings {
    loaded(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn unset_settings_have_their_defaults() {
    let settings = Settings::new();
    assert!(settings.in_words().starts_with("max-lease 3600000, max-wait 0, "), "{}", settings.in_words());
    assert_eq!(settings.limits(), Limits::default());
    assert_eq!(
        (settings.confirm_word(), settings.confirms(), settings.confirm_rule()),
        ("local", false, None)
    );
    assert!(!settings.allows_eviction() && !settings.has_legacy_strings() && !settings.is_leaving());
    let bounds = settings.bounds();
    assert_eq!((bounds.lease_ms_max, bounds.wait_ms_max), (3_600_000, None));
    assert_eq!((settings.token_lead_us_max(), settings.confirm_timeout_ms()), (60_000_000, 1_000));
    assert_eq!(settings.check(), Ok(()));
    assert_eq!(Settings::default().in_words(), settings.in_words());
}

#[test]
fn arguments_are_names_and_values() {
    let settings = with(
        "max-lease 500 MAX-WAIT 700 max-waiters-per-lock 3 max-waiters 4 max-holders 5 max-token-lead 6 quarantine 7 \
         group-size 8 confirm-timeout 9 top-contended 10 allow-eviction YES legacy-strings yes leaving yes confirm ALL",
    );
    assert_eq!(settings.limits(), Limits::of(3, 4, 5));
    assert_eq!(
        (settings.token_lead_us_max(), settings.quarantine_ms(), settings.group_size()),
        (6_000, 7, 8)
    );
    assert_eq!((settings.confirm_timeout_ms(), settings.top_contended()), (9, 10));
    assert!(settings.allows_eviction() && settings.has_legacy_strings() && settings.is_leaving());
    let bounds = settings.bounds();
    assert_eq!((bounds.lease_ms_max, bounds.wait_ms_max), (7, Some(700)), "a quarantine bounds a lease");
    assert_eq!(with("max-lease 500 quarantine 700").bounds().lease_ms_max, 500);
    assert!(!with("leaving no").is_leaving());
}

#[test]
fn each_argument_has_its_range() {
    // What they are is compared with docs/reference/settings.md (tests/python/test_settings.py).
    for Number { name, min, max, .. } in Settings::new().numbers() {
        let name = name.to_str().expect("a name");
        for value in [min, max] {
            assert!(with(&format!("{name} {value}")).in_words().contains(&format!("{name} {value}")));
        }
        let wrong = format!("loadmodule argument {name} must be an integer from {min} to {max}");
        for value in [(min - 1).to_string(), (max + 1).to_string(), "x".to_owned()] {
            assert_eq!(loaded(&format!("{name} {value}")).err(), Some(wrong.clone()), "{value}");
        }
    }
}

#[test]
fn what_is_wrong_with_an_argument_is_said() {
    for (text, wrong) in [
        ("leaving maybe", "loadmodule argument leaving must be yes or no"),
        ("confirm some", "loadmodule argument confirm must be local, all or majority"),
        ("what 1", "loadmodule argument what is not a setting of redislock"),
        (
            "redislock.quarantine 5",
            "loadmodule argument redislock.quarantine is not a setting of redislock; write quarantine",
        ),
        ("max-lease 500 Max-Lease 600", "loadmodule argument max-lease is given twice"),
        ("max-lease 500 quarantine", "loadmodule argument quarantine needs a value"),
    ] {
        assert_eq!(loaded(text).err().as_deref(), Some(wrong), "{text}");
    }
}

#[test]
fn confirmations_need_a_group_and_a_quarantine_and_no_strings() {
    let check =
        |text: &str| with(text).check().err().unwrap_or_default().split(", ").next().map(str::to_owned);
    let group = "redislock.confirm all and majority need redislock.group-size";
    let quarantine = "redislock.confirm all and majority need redislock.quarantine";
    assert_eq!(check("confirm all quarantine 7").as_deref(), Some(group));
    assert_eq!(check("confirm majority group-size 3").as_deref(), Some(quarantine));
    assert_eq!(check("confirm majority group-size 3 quarantine 7").as_deref(), Some(""));
    assert_eq!(check("confirm local").as_deref(), Some(""));
    let strings = "redislock.legacy-strings must be no where redislock.confirm is all or majority: no replica confirms a string";
    assert_eq!(check("confirm all group-size 3 quarantine 7 legacy-strings yes").as_deref(), Some(strings));
    assert_eq!(check("legacy-strings yes").as_deref(), Some(""));
}

#[test]
fn what_confirms_follows_from_the_size_of_the_group() {
    let rule = |text: &str| (with(text).confirm_word(), with(text).confirm_rule());
    assert_eq!(rule("confirm all group-size 3"), ("all", Some(Rule::All { replicas: 2 })));
    assert_eq!(rule("confirm all"), ("all", Some(Rule::All { replicas: 0 })));
    let majority = |replicas| Some(Rule::Majority { replicas, stable_ms: 17 });
    assert_eq!(rule("confirm majority group-size 3 quarantine 7"), ("majority", majority(1)));
    assert_eq!(rule("confirm majority group-size 4 quarantine 7"), ("majority", majority(2)));
    let settings = with("confirm majority quarantine 7");
    assert_eq!((settings.confirm(), settings.stable_ms(), settings.confirms()), (2, 17, true));
}
