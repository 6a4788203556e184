//! The way of libFuzzer into the target `step`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| redislock_fuzz::step(data));
