//! Tests of the core as a whole; those of one file stand in it.
