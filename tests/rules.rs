//! The rules of the project, checked by reading the sources and the pages. They need no server, so `scripts/check`
//! runs them.
//!
//! | file | what it is about |
//! |---|---|
//! | `tidy.rs` | layers, sizes, panics, citations |
//! | `circles.rs` | files that depend on each other in a cycle |
//! | `bounds.rs` | the table of `docs/internals/bounds.md` |
//! | `errors.rs` | the table of error codes in `docs/reference/errors.md` |
//! | `recipes.rs` | the recipes of `docs/internals/recipes.md` |

mod bounds;
mod circles;
mod errors;
mod recipes;
mod tidy;
