//! Stories that a reader can check, and tests in small worlds.
//!
//! | file | what it is |
//! |---|---|
//! | `scenario.rs` | plays `testdata/*.txt`, one story a file |
//! | `wording.rs` | the words of the stories |
//! | `regression.rs` | bugs that the others found |
//! | `bounds.rs` | how far a search for deadlocks goes |
//! | `deadlocks.rs` | a small world full of deadlocks, against a search by brute force |
//! | `holder_lists.rs` | locks with dozens of holders |
//! | `views.rs` | what the server asks the table |

mod bounds;
mod deadlocks;
mod holder_lists;
mod regression;
mod scenario;
mod views;
mod wording;
