//! Every input that is kept is tried again by the ordinary tests.

use std::fs;
use std::path::{Path, PathBuf};

/// The files of a target: its corpus, and its findings.
fn inputs(target: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let directories = ["corpus", "found"].map(|kind| root.join(kind).join(target));
    let entries = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn replay(target: &str, run: fn(&[u8])) {
    let inputs = inputs(target);
    assert!(inputs.len() >= 10, "{target} has only {} inputs", inputs.len());
    for path in inputs {
        let data = fs::read(&path).expect("a file");
        let lived = std::panic::catch_unwind(|| run(&data));
        assert!(lived.is_ok(), "{} is not lived through", path.display());
    }
}

#[test]
fn the_decoder_keeps_its_word_for_every_input_that_was_found() {
    replay("decoder", super::decoder::run);
}

#[test]
fn the_commands_keep_their_word_for_every_input_that_was_found() {
    replay("arguments", super::arguments::run);
}

#[test]
fn a_replica_keeps_its_word_for_every_input_that_was_found() {
    replay("records", super::records::run);
}

#[test]
fn the_core_keeps_its_word_for_every_input_that_was_found() {
    replay("step", crate::sim::generators::fuzz::run);
}
