//! The way of libFuzzer into the target `decoder`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| redislock_fuzz::decoder(data));
