use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use super::{TestDatabase, binary, bootstrap, last_line, output, root, unique};

/// The header and the first flights of January.
async fn cut(lines: usize, to: &Path) {
    let unzipped = Command::new("gzip").arg("-dc").arg(root().join("examples/flights/data/flights-2013-01.csv.gz")).output();
    let text = String::from_utf8(unzipped.await.unwrap().stdout).unwrap();
    let cut: Vec<&str> = text.lines().take(lines + 1).collect();
    assert_eq!(cut.len(), lines + 1);
    std::fs::write(to, cut.join("\n") + "\n").unwrap();
}

struct Flights {
    db: TestDatabase,
    topic: String,
    csv: PathBuf,
    binary: PathBuf,
    _folder: tempfile::TempDir,
}

impl Flights {
    async fn new(flights: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let csv = folder.path().join("flights.csv");
        cut(flights, &csv).await;
        Self {
            db: TestDatabase::empty().await,
            topic: unique("flights"),
            csv,
            binary: binary("example-flights").await,
            _folder: folder,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(["run", "--json", "--database-url", &self.db.url, "--kafka", &bootstrap(), "--topic", &self.topic]);
        command.arg("--data").arg(&self.csv).args(args);
        command
    }

    /// The run's JSON, after the script that counts the CSV by itself has agreed with it.
    async fn run(&self, args: &[&str]) -> Value {
        let run = output(&mut self.command(args)).await;
        assert!(run.status.success());
        let result = self.csv.with_extension("json");
        std::fs::write(&result, &run.stdout).unwrap();
        let check = root().join("examples/flights/check/check.py");
        let compared = output(Command::new(check).arg("--compare").arg(&result).arg(&self.csv)).await;
        assert!(compared.status.success());
        last_line(&run)
    }
}

#[tokio::test]
async fn the_flights_agree_with_the_csv_though_the_consumer_is_killed_and_the_topic_read_twice() {
    let flights = Flights::new(1500).await;
    let first = flights.run(&["--kill-consumer", "2", "--again"]).await;
    assert_eq!((&first["kills"], &first["repeated"]), (&json!(2), &json!(0)));
    let appended = first["appended"].as_i64().unwrap();
    assert_eq!(flights.db.count("SELECT count(*) FROM tracium.event_store").await, appended);
    assert_eq!(first["again"]["changed"], json!(false));
    assert!(first["again"]["delivered"].as_i64().unwrap() >= 2 * appended, "{first}");

    // A second run over the same flights adds no event and changes no row.
    let second = flights.run(&[]).await;
    assert_eq!((&second["appended"], &second["repeated"]), (&json!(0), &json!(appended)));
    assert_eq!(second["digest"], first["digest"]);
    assert_eq!(flights.db.count("SELECT count(*) FROM tracium.outbox").await, appended);
}

#[tokio::test]
async fn a_read_model_that_lost_a_flight_is_noticed() {
    let flights = Flights::new(20).await;
    flights.run(&[]).await;
    let (scheduled, cancelled) = ("scheduled = scheduled - 1", "scheduled = scheduled + 1, cancelled = cancelled + 1");
    for (spoil, expected) in [(scheduled, "(19, 20, 20, 0, "), (cancelled, "(20, 20, 20, 1, ")] {
        flights.db.execute(&format!("UPDATE flights.carrier_month SET {spoil} WHERE carrier = 'UA'")).await;
        let run = output(&mut flights.command(&[])).await;
        assert_eq!(run.status.code(), Some(1));
        let text = String::from_utf8(run.stderr).unwrap();
        assert!(text.contains("the read models differ") && text.contains(&format!("are {expected}")), "{text}");
    }
}

#[tokio::test]
async fn what_cannot_be_reached_or_read_is_named() {
    let mut flights = Flights::new(1).await;
    let said = async |command: &mut Command| {
        let run = output(command).await;
        (run.status.code(), String::from_utf8(run.stderr).unwrap())
    };
    let (code, text) = said(flights.command(&["--kafka", "127.0.0.1:1"]).env("TRACIUM_KAFKA", "")).await;
    assert_eq!(code, Some(2), "given twice: {text}");

    let mut nowhere = Command::new(&flights.binary);
    nowhere.args(["run", "--kafka", "127.0.0.1:1", "--database-url", &flights.db.url, "--data"]).arg(&flights.csv);
    let (code, text) = said(&mut nowhere).await;
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("Kafka at 127.0.0.1:1 (--kafka) does not answer"), "{text}");

    let mut nowhere = Command::new(&flights.binary);
    nowhere.args(["run", "--kafka", &bootstrap(), "--database-url", "postgres://x@127.0.0.1:1/x", "--data"]).arg(&flights.csv);
    let (code, text) = said(&mut nowhere).await;
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("PostgreSQL at 127.0.0.1:1 (--database-url) does not answer"), "{text}");

    flights.csv = PathBuf::from("/nowhere.csv");
    let (code, text) = said(&mut flights.command(&[])).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot open /nowhere.csv; dev/flights-data fetches the data"), "{text}");
}
