use std::ffi::OsString;
use std::time::Duration;

use super::*;

fn load(file: &str, env: &[(&str, &str)], set: &[&str]) -> Outcome<Settings> {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("tracium.toml");
    std::fs::write(&path, file).expect("write");
    let args = ConfigArgs { config: Some(path), set: set.iter().map(|s| (*s).to_owned()).collect() };
    let env = env.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Settings::from_layers(Layers::read(&args, env)?)
}

fn refusal(file: &str, env: &[(&str, &str)], set: &[&str]) -> String {
    load(file, env, set).map(|s| format!("{s:?}")).expect_err("must be refused").render()
}

#[test]
fn flags_win_over_environment_over_file_over_default() {
    let file = "[relay]\nbatch_size = 1\nlease_ttl = \"20s\"\nlease_refresh = \"2s\"\n";
    let settings =
        load(file, &[("TRACIUM_RELAY__BATCH_SIZE", "2"), ("TRACIUM_RELAY__LEASE_REFRESH", "3s")], &["relay.batch_size=4"])
            .expect("valid");
    assert_eq!(settings.relay.batch_size, 4);
    assert_eq!(settings.relay.lease_refresh, Duration::from_secs(3));
    assert_eq!(settings.relay.lease_ttl, Duration::from_secs(20));
    assert_eq!(settings.relay.poll_min, RelayOptions::default().poll_min);
}

#[test]
fn the_origin_of_a_value_is_the_setting_that_gave_it() {
    let file = "database_url = \"postgres://file/d\"\n[relay.kafka]\nbootstrap_servers = \"a:1\"\n";
    let settings = load(file, &[("DATABASE_URL", "postgres://env/d")], &[]).expect("valid");
    let database = settings.database().expect("named");
    assert_eq!((database.value.as_str(), database.origin.as_str()), ("postgres://env/d", "DATABASE_URL"));
    assert!(
        settings.origins.of("relay.kafka.bootstrap_servers").starts_with("relay.kafka.bootstrap_servers in /"),
        "{:?}",
        settings.origins
    );
    let settings = load("", &[("TRACIUM_KAFKA", "b:2")], &[]).expect("valid");
    assert_eq!(
        (settings.relay.kafka.bootstrap_servers.as_str(), settings.origins.of("relay.kafka.bootstrap_servers").as_str()),
        ("b:2", "TRACIUM_KAFKA")
    );
}

#[test]
fn an_unknown_key_is_refused_with_its_name_its_place_and_the_nearest_known_one() {
    let text = refusal("[relay]\nbatchsize = 5\n", &[], &[]);
    assert!(text.contains("unknown setting relay.batchsize (set by relay.batchsize in /"), "{text}");
    assert!(text.contains("tracium.toml") && text.contains("did you mean relay.batch_size?"), "{text}");

    let text = refusal("", &[("TRACIUM_RELAY__LEASE_TLL", "3s")], &[]);
    assert!(text.contains("relay.lease_tll (set by TRACIUM_RELAY__LEASE_TLL)"), "{text}");
    assert!(text.contains("did you mean relay.lease_ttl?"), "{text}");

    let text = refusal("", &[("TRACIUM_RELEY__BATCH_SIZE", "3")], &[]);
    assert!(text.contains("unknown setting reley (set by TRACIUM_RELEY__BATCH_SIZE)"), "{text}");
    assert!(text.contains("did you mean relay?"), "{text}");

    let text = refusal("[relay.kafka]\nbootstrap = \"a:1\"\n", &[], &[]);
    assert!(text.contains("unknown setting relay.kafka.bootstrap "), "{text}");

    let text = refusal("", &[], &["relay.pol_max=1s"]);
    assert!(text.contains("(set by --set relay.pol_max)") && text.contains("did you mean relay.poll_max?"), "{text}");
}

#[test]
fn a_value_of_the_wrong_kind_is_refused_with_the_setting_that_gave_it() {
    let text = refusal("", &[("TRACIUM_RELAY__BATCH_SIZE", "many")], &[]);
    assert!(text.contains("TRACIUM_RELAY__BATCH_SIZE") && text.contains("many"), "{text}");
    let text = refusal("[relay]\nlease_ttl = \"soon\"\n", &[], &[]);
    assert!(text.contains("relay.lease_ttl in /"), "{text}");
    let text = refusal("[relay\n", &[], &[]);
    assert!(text.contains("is not TOML"), "{text}");
    let text = refusal("[relay]\nbatch_size = 0\n", &[], &[]);
    assert!(text.contains("relay.batch_size"), "{text}");
}

#[test]
fn a_text_setting_may_look_like_a_number() {
    let settings = load("", &[("TRACIUM_RELAY__KAFKA__PROPERTIES__CLIENT_RACK", "12345")], &[]).expect("valid");
    assert_eq!(settings.relay.kafka.properties.get("client.rack").map(String::as_str), Some("12345"));
}

#[test]
fn librdkafka_properties_may_be_written_with_or_without_quotes() {
    let file = "[relay.kafka.properties]\nlinger.ms = 5\n\"compression.type\" = \"zstd\"\n";
    let settings = load(file, &[], &["relay.kafka.properties.client.id=c"]).expect("valid");
    let properties: Vec<_> = settings.relay.kafka.properties.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(properties, ["client.id=c", "compression.type=zstd", "linger.ms=5"]);
}

#[test]
fn a_secret_may_be_read_from_a_file() {
    let directory = tempfile::tempdir().expect("directory");
    let path = directory.path().join("url");
    std::fs::write(&path, "postgres://u:from-a-file@h/d\n").expect("write");
    let settings = load("", &[("DATABASE_URL_FILE", path.to_str().expect("text"))], &[]).expect("valid");
    assert_eq!(settings.database().expect("named").value, "postgres://u:from-a-file@h/d");
    let text = refusal("", &[("DATABASE_URL_FILE", "/nowhere/url")], &[]);
    assert!(text.contains("/nowhere/url") && text.contains("DATABASE_URL_FILE"), "{text}");
}

#[test]
fn variables_of_tests_and_of_other_programs_are_let_alone() {
    load("", &[("TRACIUM_TEST_KAFKA_URL", "x"), ("TRACIUM_BIN", "x"), ("PATH", "x"), ("TRACIUM_LOG", "debug")], &[])
        .expect("valid");
}

#[test]
fn a_missing_database_says_how_to_name_one() {
    let text = load("", &[], &[]).expect("valid").database().expect_err("none").render();
    assert!(text.contains("DATABASE_URL"), "{text}");
}

#[test]
fn the_variables_of_the_development_stack_are_no_settings() {
    let dev = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../dev");
    let mut names = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(dev).expect("dev/") {
        let Ok(text) = std::fs::read_to_string(entry.expect("entry").path()) else { continue };
        let words = text.split(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_');
        names.extend(words.filter(|word| word.starts_with("TRACIUM_") && !word.ends_with('_')).map(str::to_owned));
    }
    // settings, which some scripts set
    names.retain(|name| name != "TRACIUM_KAFKA" && !name.contains("__"));
    assert!(names.len() > 8, "{names:?}");
    for name in names {
        load("", &[(&name, "5")], &[]).unwrap_or_else(|error| panic!("{name}: {}", error.render()));
    }
}
