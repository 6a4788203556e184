//! The recipes of docs/how-to/frameworks-rust.md run as they stand, each as a program of its own.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{PATIENCE, Server, cargo, eventually, signal, write_package};

/// A program that runs; it is killed at the end of the test.
struct Program {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Program {
    fn start(target: &Path, name: &str) -> Self {
        let mut command = Command::new(target.join("debug").join(name));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Asks it to end; what else it prints, if it ends well.
    fn stop(mut self) -> String {
        signal(self.child.id(), "TERM");
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        self.child.wait().unwrap();
    }
}

/// Pays an invoice at this address: the connection, over which the response comes.
fn pay(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request =
        "POST /invoices/42/pay HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

fn response(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipes_run_as_they_stand() {
    let (server, page) = (
        Server::start(),
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/frameworks-rust.md"))
            .unwrap(),
    );
    let recipe = |part: &str| {
        let (name, rest) = part.split_once(".rs -->\n```rust\n").unwrap();
        let text = rest
            .split("```")
            .next()
            .unwrap()
            .replace("127.0.0.1:6379", &format!("127.0.0.1:{}", server.port));
        (format!("recipe-{name}"), text.replace("127.0.0.1:8080", "127.0.0.1:0"))
    };
    let recipes: BTreeMap<_, _> = page.split("<!-- ").skip(1).map(recipe).collect();
    assert_eq!(recipes.keys().collect::<Vec<_>>(), ["recipe-axum", "recipe-worker"]);
    let folder = tempfile::tempdir().unwrap();
    write_package(folder.path(), "recipes", Path::new(env!("CARGO_MANIFEST_DIR")), &recipes);
    // The crates that were compiled for the tests are used again.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    cargo(folder.path(), target, &["build", "--quiet", "--offline", "--bins"]);
    axum_answers_ends_waits_and_stops(&server, Program::start(target, "recipe-axum")).await;
    one_worker_does_the_job_and_is_not_stopped_in_its_middle(&server, target);
}

async fn axum_answers_ends_waits_and_stops(server: &Server, mut program: Program) {
    let address = program.line().replace("listens at ", "");
    let paid = response(pay(&address));
    assert!(paid.starts_with("HTTP/1.1 200 OK") && paid.contains("paid with token "), "{paid}");
    let locks = server.locks();
    let guard = locks.lock("invoice:42").acquire().await.unwrap();
    let refused = response(pay(&address));
    assert!(refused.starts_with("HTTP/1.1 423 Locked"), "{refused}");
    let gone = pay(&address);
    eventually("it waits", || server.waiters("invoice:42") == 1).await;
    drop(gone);
    eventually("its wait ends", || server.waiters("invoice:42") == 0).await;
    let last = pay(&address);
    eventually("it waits", || server.waiters("invoice:42") == 1).await;
    let stopping = std::thread::spawn(|| program.stop());
    guard.release().await.unwrap();
    let paid = response(last);
    assert!(paid.starts_with("HTTP/1.1 200 OK") || paid.starts_with("HTTP/1.1 423 Locked"), "{paid}");
    assert_eq!(stopping.join().unwrap(), "");
    assert!(!server.is_held("invoice:42"));
}

fn one_worker_does_the_job_and_is_not_stopped_in_its_middle(server: &Server, target: &Path) {
    let mut first = Program::start(target, "recipe-worker");
    assert_eq!(first.line(), "writes the report");
    let mut second = Program::start(target, "recipe-worker");
    assert_eq!(second.line(), "another machine does it");
    assert_eq!(first.stop(), "has written the report\n");
    assert_eq!(second.stop(), "");
    assert!(server.is_held("report"), "for the rest of its minute");
}
