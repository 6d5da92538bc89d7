//! The shard of a key, against an independent computation.

use sha2::{Digest, Sha256};
use tracium_core::Expected;
use tracium_testkit::TestDatabase;

use super::{append, event, order, outbox};

fn shard_of(key: &str, shards: u32) -> i64 {
    let hash = Sha256::digest(key.as_bytes());
    i64::from(u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]) % shards)
}

#[tokio::test]
async fn a_keys_shard_is_the_head_of_its_sha256_modulo_the_shards() {
    let db = TestDatabase::new().await;
    // FIPS 180-4's own example: SHA-256("abc") = ba7816bf…
    assert_eq!(db.count("SELECT tracium.shard_of('abc', 256)::bigint").await, 0xbf);
    assert_eq!(db.count("SELECT tracium.shard_of('abc', 7)::bigint").await, i64::from(0xba78_16bf_u32 % 7));
    let long = "x".repeat(512);
    for key in ["abc", "o-1", "🧾", " ", "\\x00", "a\\b", long.as_str()] {
        for shards in [1_u32, 3, 8, 256] {
            let got: i16 = sqlx::query_scalar("SELECT tracium.shard_of($1, $2)")
                .bind(key)
                .bind(i32::try_from(shards).unwrap())
                .fetch_one(&db.pool)
                .await
                .unwrap();
            assert_eq!(i64::from(got), shard_of(key, shards), "{key:?} of {shards}");
        }
    }
}

#[tokio::test]
async fn events_lie_in_their_keys_shard() {
    let db = TestDatabase::with_shards(5).await;
    for n in 0..20 {
        append(&db.pool, &order(&format!("o-{n}")), Expected::New, &[event("order.created")]).await.unwrap();
    }
    for row in outbox(&db.pool).await {
        assert_eq!(i64::from(row.shard), shard_of(&row.partition_key, 5), "{row:?}");
    }
    let misplaced = "SELECT count(*) FROM tracium.outbox WHERE tableoid <> ('tracium.outbox_' || shard)::regclass";
    assert_eq!(db.count(misplaced).await, 0);
}

#[tokio::test]
async fn keys_spread_over_the_shards() {
    let db = TestDatabase::new().await;
    let counts: Vec<(i16, i64)> = sqlx::query_as(
        "SELECT tracium.shard_of('order-' || n, 8), count(*) FROM generate_series(1, 8000) n GROUP BY 1 ORDER BY 1",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    // 1,000 each; four standard deviations are 118.
    assert!(counts.len() == 8 && counts.iter().all(|(_, n)| (882..=1118).contains(n)), "{counts:?}");
}
