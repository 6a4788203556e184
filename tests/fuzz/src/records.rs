//! The way of libFuzzer into the target `records`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| redislock_fuzz::records(data));
