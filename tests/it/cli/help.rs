//! Help is part of the contract: what it says is compared with `help/*.txt`. `TRACIUM_TEST_UPDATE=1` writes them anew.

use std::path::PathBuf;

use super::support::tracium;

const COMMANDS: [&[&str]; 14] = [
    &[],
    &["demo"],
    &["migrate"],
    &["relay"],
    &["relay", "run"],
    &["status"],
    &["outbox"],
    &["outbox", "stats"],
    &["bench"],
    &["bench", "relay"],
    &["bench", "consume"],
    &["bench", "append"],
    &["config"],
    &["config", "show"],
];

#[tokio::test]
async fn every_help_is_as_it_was() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("it/cli/help");
    let mut changed = Vec::new();
    for command in COMMANDS {
        let args: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        let help = tracium(&args).run().await;
        help.exits(0);
        let path = folder.join(format!("{}.txt", [&["tracium"], command].concat().join("-")));
        if std::env::var_os("TRACIUM_TEST_UPDATE").is_some() {
            std::fs::write(&path, &help.stdout).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        if expected != help.stdout {
            changed.push(format!("--- {} says now:\n{}", path.display(), help.stdout));
        }
    }
    assert!(
        changed.is_empty(),
        "{}\nif that is meant: TRACIUM_TEST_UPDATE=1 cargo test -p tracium-tests every_help",
        changed.concat()
    );
}

#[tokio::test]
async fn every_command_shows_an_example_and_hides_what_is_not_for_people() {
    for command in COMMANDS.into_iter().filter(|c| !c.is_empty() && !matches!(c, ["relay"] | ["outbox"] | ["config"])) {
        let args: Vec<&str> = command.iter().copied().chain(["--help"]).collect();
        let help = tracium(&args).run().await;
        assert!(help.stdout.contains("Example"), "{args:?}: {}", help.stdout);
        for hidden in ["--plant", "--until-stdin-closes", "demo-consumer", "bench consumer"] {
            help.never_says(hidden);
        }
    }
}

#[tokio::test]
async fn wrong_usage_exits_2_and_points_to_help() {
    tracium(&["demmo"]).run().await.exits(2).says("'demo'");
    tracium(&["demo", "--events", "many"]).run().await.exits(2).says("--help");
    tracium(&[]).run().await.exits(2).says("Usage: tracium");
}
