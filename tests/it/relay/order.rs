//! Order, whatever the writers and operators do.

use tracium_core::{EventStore, Expected, Message, NewEvent, Outbox, Topic};
use tracium_testkit::{eventually, kafka};

use super::fixture::{SOON, Shop, assert_ordered, order};

#[tokio::test]
async fn case_w01_a_late_commit_is_published_after_its_commit_and_holds_up_nobody() {
    let shop = Shop::open(2).await;
    let relay = shop.start();
    let mut late = shop.pool().begin().await.unwrap();
    shop.append_in(&mut late, "late").await;
    shop.append("quick", 1).await;
    eventually("the quick one arrives while the late one is open", SOON, || async {
        (relay.metrics.published() == 1).then_some(())
    })
    .await;
    assert_eq!(shop.records().await.iter().map(|r| r.key_text()).collect::<Vec<_>>(), ["quick"]);
    late.commit().await.unwrap();
    shop.drained().await;
    assert_eq!(shop.records().await.len(), 2);
    relay.stop().await;
}

#[tokio::test]
async fn case_w02_order_is_the_versions_not_the_transactions() {
    let shop = Shop::open(1).await;
    // T1 has the lower transaction id and commits last, and its clock is behind.
    let mut t1 = shop.pool().begin().await.unwrap();
    let first: String = sqlx::query_scalar("SELECT pg_current_xact_id()::text").fetch_one(&mut *t1).await.unwrap();
    let mut t2 = shop.pool().begin().await.unwrap();
    shop.append_in(&mut t2, "k").await;
    t2.commit().await.unwrap();
    shop.append_in(&mut t1, "k").await;
    t1.commit().await.unwrap();
    let by_version = "SELECT count(*) FROM tracium.event_store WHERE version = 2 AND xid8 = ";
    assert_eq!(shop.db.count(&format!("{by_version}'{first}'::xid8")).await, 1, "version 2 is of the older transaction");
    shop.db.execute("UPDATE tracium.outbox SET created_at = created_at - interval '5 minutes' WHERE aggregate_version = 2").await;
    let relay = shop.start();
    shop.drained().await;
    relay.stop().await;
    let versions: Vec<_> = shop.records().await.iter().map(|r| r.version()).collect();
    assert_eq!(versions, [Some(1), Some(2)]);
}

#[tokio::test]
async fn case_w22_messages_without_a_version_arrive_in_commit_order() {
    let topic = kafka::create_topic("mails", 1).await;
    let shop = Shop::open(1).await;
    let relay = shop.start();
    for round in 0..5 {
        let message = |n: i32| {
            let event = NewEvent::json("mail.sent", &serde_json::json!(n)).unwrap();
            Message::new(Topic::new(topic.clone()).unwrap(), "ada", event)
        };
        let mut first = shop.pool().begin().await.unwrap();
        Outbox::publish(&mut first, &message(2 * round)).await.unwrap();
        // The second transaction began before the first commits; it waits for the key.
        let pool = shop.pool().clone();
        let second = message(2 * round + 1);
        let second = tokio::spawn(async move {
            let mut tx = pool.begin().await.unwrap();
            Outbox::publish(&mut tx, &second).await.unwrap();
            tx.commit().await.unwrap();
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually("the second publish waits", SOON, || async { (shop.db.count(waiting).await > 0).then_some(()) }).await;
        first.commit().await.unwrap();
        second.await.unwrap();
    }
    shop.drained().await;
    relay.stop().await;
    let payloads: Vec<_> = kafka::read_all(&topic).await.into_iter().map(|r| r.payload.unwrap()).collect();
    let expected: Vec<_> = (0..10).map(|n| n.to_string().into_bytes()).collect();
    assert_eq!(payloads, expected);
}

#[tokio::test]
async fn case_w23_a_key_waits_while_an_operator_has_its_oldest_row_open() {
    let shop = Shop::open(1).await;
    shop.append("k", 2).await;
    shop.append("other", 1).await;
    let mut operator = shop.pool().begin().await.unwrap();
    let touched =
        sqlx::query("UPDATE tracium.outbox SET last_error = 'looking' WHERE aggregate_id = 'k' AND aggregate_version = 1")
            .execute(&mut *operator)
            .await
            .unwrap();
    assert_eq!(touched.rows_affected(), 1);
    let relay = shop.start();
    eventually("the other key goes", SOON, || async { (relay.metrics.published() == 1).then_some(()) }).await;
    // k lies in a shard of its own or in the other's; give its shard a few looks.
    shop.append("other", 3).await;
    eventually("the other key goes on", SOON, || async { (relay.metrics.published() == 4).then_some(()) }).await;
    assert!(shop.records().await.iter().all(|r| r.key_text() == "other"), "v2 of k did not overtake v1");
    operator.commit().await.unwrap();
    shop.drained().await;
    relay.stop().await;
    let records = shop.records().await;
    assert_eq!(assert_ordered(&records), 0);
    assert_eq!(records.iter().filter(|r| r.key_text() == "k").count(), 2);
}

#[tokio::test]
async fn order_holds_with_many_writers_relays_killed_and_a_session_terminated() {
    let shop = Shop::open(6).await;
    let mut options = super::fixture::options();
    options.batch_size = 40;
    let writers = futures::future::join_all((0..4).map(|writer| {
        let shop = &shop;
        async move {
            for n in 0..60 {
                let mut tx = shop.pool().begin().await.unwrap();
                let id = format!("o-{}", (n * 7 + writer) % 25);
                shop.append_in(&mut tx, &id).await;
                match n % 9 {
                    0 => tx.rollback().await.unwrap(),
                    _ => tx.commit().await.unwrap(),
                }
            }
        }
    }));
    let faults = async {
        for n in 0..3 {
            let doomed = shop.start_with(options.clone());
            eventually("the relay is at work", SOON, || async {
                (doomed.metrics.published() >= 20 || shop.pending().await == 0).then_some(())
            })
            .await;
            if n == 1 {
                let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'tracium-relay'";
                shop.db.execute(terminate).await;
            }
            doomed.kill().await;
        }
    };
    tokio::join!(writers, faults);
    let relay = shop.start();
    shop.drained().await;
    relay.stop().await;
    let records = shop.records().await;
    let committed = shop.db.count("SELECT count(*) FROM tracium.event_store").await;
    let repeats = assert_ordered(&records);
    assert_eq!(records.len() - repeats, usize::try_from(committed).unwrap(), "every committed event, nothing else");
}

#[tokio::test]
async fn unpublished_events_leave_no_gap_for_consumers() {
    let shop = Shop::open(1).await;
    let event = || NewEvent::json("order.changed", &serde_json::json!({})).unwrap();
    let mut tx = shop.pool().begin().await.unwrap();
    let events = [event(), event().unpublished(), event(), event().unpublished()];
    EventStore::append(&mut tx, &order("k"), Expected::New, &events).await.unwrap();
    EventStore::append(&mut tx, &order("k"), Expected::Any, &[event()]).await.unwrap();
    tx.commit().await.unwrap();
    let relay = shop.start();
    shop.drained().await;
    relay.stop().await;
    let seen: Vec<_> =
        shop.records().await.iter().map(|r| (r.version().unwrap(), r.header("previous_version").unwrap().to_owned())).collect();
    assert_eq!(seen, [(1, "0".to_owned()), (3, "1".to_owned()), (5, "3".to_owned())]);
}
