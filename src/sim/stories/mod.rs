//! Stories that a reader can check, and tests in small worlds.
//!
//! | file | what it is |
//! |---|---|
//! | `scenario.rs` | plays `testdata/*.txt`, one story a file |
//! | `wording.rs` | the words of the stories |
//! | `regression.rs` | bugs that the other tests found |
//! | `bounds.rs` | the bounds of a search for deadlocks, and of one step |
//! | `deadlocks.rs` | a small world full of deadlocks, against a brute-force search |
//! | `holder_lists.rs` | locks with dozens of holders |
//! | `views.rs` | the server's queries of the table |

mod bounds;
mod deadlocks;
mod holder_lists;
mod regression;
mod scenario;
mod views;
mod wording;
