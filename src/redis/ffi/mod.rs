//! Bindings of `extras.h`: names that redis-module's header lacks. See there.

#![allow(missing_docs, unreachable_pub)]

include!(concat!(env!("OUT_DIR"), "/extras.rs"));
