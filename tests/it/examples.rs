//! The examples, run as a user runs them.

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use tokio::process::Command;
use tokio::sync::OnceCell;
use tracium_testkit::TestDatabase;
use tracium_testkit::kafka::{bootstrap, unique};

mod flights;
mod orders;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// An example's binary, built from what the sources say now: nothing to do where the whole workspace was.
async fn binary(name: &str) -> PathBuf {
    static BUILT: OnceCell<PathBuf> = OnceCell::const_new();
    let folder = BUILT.get_or_init(|| async {
        // …/target/debug/deps/it-…
        let folder = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--workspace", "--bins", "--quiet", "--locked", "--target-dir"]);
        cargo.arg(folder.parent().unwrap()).current_dir(root());
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        // What cargo tells a test of itself makes build scripts run again.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_")) {
            if name != "CARGO_HOME" && name != "CARGO_INCREMENTAL" {
                cargo.env_remove(name);
            }
        }
        assert!(cargo.status().await.unwrap().success());
        folder
    });
    folder.await.join(name)
}

/// Runs a command to its end, and shows what it said if a test fails.
#[allow(clippy::print_stdout, reason = "the test harness shows it only if the test fails")]
async fn output(command: &mut Command) -> Output {
    let output = command.kill_on_drop(true).output().await.unwrap();
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    output
}

/// The JSON object that a command prints as its last line.
fn last_line(output: &Output) -> Value {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap_or_default()).unwrap()
}
