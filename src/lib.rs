#![allow(dead_code)]
//! x
pub mod lock;
