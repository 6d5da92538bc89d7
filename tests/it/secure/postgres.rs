//! A PostgreSQL that asks for TLS and a password: the error names the URL's parameter.

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tracium_core::TlsProblem;
use tracium_testkit::database::with_database;
use tracium_testkit::{TestDatabase, ThrowawayCluster, secure};

use crate::cli::support::tracium;

async fn problem(url: &str) -> Option<TlsProblem> {
    let error = PgConnection::connect(url).await.expect_err("must be refused");
    TlsProblem::of(&error)
}

fn by_address(url: &str) -> String {
    url.replace("@localhost:", "@127.0.0.1:")
}

#[tokio::test]
async fn verify_full_lets_in_who_trusts_the_authority() {
    let database = TestDatabase::new().await;
    let mut connection = PgConnection::connect(&secure::postgres(&database.name)).await.unwrap();
    let tls: bool =
        sqlx::query_scalar("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetch_one(&mut connection).await.unwrap();
    assert!(tls);
    tracium(&["status"]).env("DATABASE_URL", secure::postgres(&database.name)).run().await.exits(0);
}

#[tokio::test]
async fn what_tls_refuses_is_told_apart() {
    let good = secure::postgres("postgres");
    assert_eq!(problem(&by_address(&good)).await, Some(TlsProblem::HostName));
    assert_eq!(problem(&good.replace("/ca.pem", "/other-ca.pem")).await, Some(TlsProblem::UnknownAuthority));
    let plain = good.split('?').next().unwrap();
    assert_eq!(problem(&format!("{plain}?sslmode=disable")).await, Some(TlsProblem::Demanded));
    let without = ThrowawayCluster::start().await.unwrap();
    assert_eq!(problem(&format!("{}?sslmode=require", without.url("postgres"))).await, Some(TlsProblem::NotOffered));
}

#[tokio::test]
async fn an_expired_certificate_is_told_apart() {
    let cluster = ThrowawayCluster::start().await.unwrap();
    let mut admin = PgConnection::connect(&cluster.url("postgres")).await.unwrap();
    for (file, setting) in [("expired.pem", "ssl_cert_file"), ("expired.key", "ssl_key_file")] {
        // The server's own user must own the key, and nobody else may read it.
        let text = std::fs::read_to_string(secure::tls_file(file)).unwrap().replace('\n', "\\n");
        let copy = format!("COPY (SELECT 1) TO PROGRAM 'umask 077; printf %b \"{text}\" > {file}'");
        sqlx::raw_sql(AssertSqlSafe(copy)).execute(&mut admin).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(format!("ALTER SYSTEM SET {setting} = '{file}'"))).execute(&mut admin).await.unwrap();
    }
    sqlx::raw_sql("ALTER SYSTEM SET ssl = on").execute(&mut admin).await.unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&mut admin).await.unwrap();
    let url = cluster.url("postgres").replace("127.0.0.1", "localhost");
    let url = format!("{url}?sslmode=verify-full&sslrootcert={}", secure::tls_file("ca.pem").display());
    let found = tracium_testkit::eventually("the server has reloaded", std::time::Duration::from_secs(20), || async {
        problem(&url).await.filter(|problem| *problem != TlsProblem::NotOffered)
    });
    assert_eq!(found.await, TlsProblem::CertificateExpired);
    tracium(&["status"]).env("DATABASE_URL", &url).run().await.exits(2).says("host in DATABASE_URL").says("expired");
}

#[tokio::test]
async fn the_command_line_names_the_parameter_and_the_setting() {
    let database = TestDatabase::new().await;
    let good = secure::postgres(&database.name);
    let run = |url: String| async move { tracium(&["status"]).env("DATABASE_URL", url).run().await };
    run(by_address(&good)).await.exits(2).says("host in DATABASE_URL").says("not for the host of the URL");
    run(good.replace("/ca.pem", "/other-ca.pem")).await.exits(2).says("sslrootcert in DATABASE_URL").says("no authority");
    run(good.replace("/ca.pem", "/no-ca.pem")).await.exits(2).says("sslrootcert in DATABASE_URL names").says("no-ca.pem");
    run(good.replace("verify-full", "disable")).await.exits(2).says("sslmode in DATABASE_URL").says("sslmode=verify-full");
}

#[tokio::test]
async fn a_wrong_password_names_the_setting_it_came_from_and_shows_nothing() {
    let database = TestDatabase::new().await;
    let url = with_database(&tracium_testkit::variable("TRACIUM_TEST_POSTGRES_TLS_URL"), &database.name);
    let (user, rest) = url.split_once("://").unwrap().1.split_once(':').unwrap();
    let (password, place) = rest.split_once('@').unwrap();
    let wrong = format!("postgres://{user}:never-seen-this@{place}");
    let failed = tracium(&["status"]).env("DATABASE_URL", &wrong).run().await;
    failed.exits(2).says("check user and password in DATABASE_URL").never_says("never-seen-this");

    // The password apart from the URL, by file, as platforms hand it out.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, format!("{password}\n")).unwrap();
    let bare = format!("postgres://{user}@{place}");
    tracium(&["status"]).env("DATABASE_URL", &bare).env("DATABASE_PASSWORD_FILE", &file).run().await.exits(0);
    std::fs::write(&file, "never-seen-this").unwrap();
    let failed = tracium(&["status"]).env("DATABASE_URL", &bare).env("DATABASE_PASSWORD_FILE", &file).run().await;
    failed.exits(2).says("refuses the login").says("DATABASE_PASSWORD_FILE").never_says("never-seen-this");
}
