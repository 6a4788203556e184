//! The rules of the project, checked by reading the sources and the pages. They need no server, so `scripts/check`
//! runs them.
//!
//! | file | what it is about |
//! |---|---|
//! | `tidy.rs` | layers, sizes, panics, citations |
//! | `circles.rs` | files that depend on each other in a cycle |
//! | `bounds.rs` | the table of `docs/internals/bounds.md` |
//! | `errors.rs` | the table of error codes in `docs/reference/errors.md` |
//! | `error_codes_of_clients.rs` | what clients make of each code, by that table |
//! | `settings.rs` | the settings in the source, in `docs/reference/settings.md` and in `redis.conf.example` |
//! | `recipes.rs` | the recipes of `docs/internals/recipes.md` |

mod bounds;
mod circles;
mod error_codes_of_clients;
mod errors;
mod recipes;
mod settings;
mod tidy;
