use super::*;

const LIMITS: Limits = Limits { batch_size: 3, batch_bytes: 1 << 20, linger: Duration::ZERO, buffer_bytes: 1 << 20 };

fn intake(limits: Limits, partitions: i32) -> Arc<Intake> {
    let intake = Arc::new(Intake::new(limits));
    intake.assign((0..partitions).map(|n| ("t".to_owned(), n)));
    intake
}

fn push(intake: &Intake, partition: i32, offsets: std::ops::Range<i64>) {
    let partition = intake.partition("t", partition).unwrap();
    intake.push(offsets.map(|offset| Record::empty(&partition, offset)).collect::<Vec<_>>());
}

fn offsets(batch: &[Record]) -> Vec<(i32, i64)> {
    batch.iter().map(|r| (r.partition.number, r.offset)).collect()
}

fn part(n: i32) -> (String, i32) {
    ("t".to_owned(), n)
}

#[tokio::test]
async fn batches_come_in_order_and_within_their_size() {
    let intake = intake(LIMITS, 1);
    push(&intake, 0, 0..4);
    assert_eq!(offsets(&intake.next().await.unwrap().unwrap()), [(0, 0), (0, 1), (0, 2)]);
    assert_eq!(offsets(&intake.next().await.unwrap().unwrap()), [(0, 3)]);
}

#[tokio::test]
async fn an_offset_is_handed_out_once_and_only_after_it_is_confirmed() {
    let intake = intake(LIMITS, 1);
    push(&intake, 0, 0..2);
    let mut batch = intake.next().await.unwrap().unwrap();
    let in_flight = intake.begin(&mut batch);
    assert_eq!(intake.to_commit(), []);
    intake.confirm(&batch);
    drop(in_flight);
    assert_eq!(intake.to_commit(), [("t".into(), 0, 2)]);
    assert_eq!(intake.to_commit(), []);
}

#[tokio::test]
async fn a_revoke_drops_what_is_buffered_and_keeps_the_other_partitions() {
    let intake = intake(LIMITS, 2);
    push(&intake, 0, 0..2);
    push(&intake, 1, 0..1);
    assert_eq!(intake.release(&[part(0)], Duration::ZERO), []);
    assert!(intake.partition("t", 0).is_none());
    assert_eq!(offsets(&intake.next().await.unwrap().unwrap()), [(1, 0)]);
}

#[tokio::test]
async fn a_revoke_waits_for_the_batch_in_flight_and_hands_out_its_offsets() {
    let intake = intake(LIMITS, 1);
    push(&intake, 0, 0..2);
    let mut batch = intake.next().await.unwrap().unwrap();
    let in_flight = intake.begin(&mut batch).unwrap();
    let revoke = std::thread::spawn({
        let intake = intake.clone();
        move || intake.release(&[part(0)], Duration::from_secs(60))
    });
    // the revoke has begun when the partition is no longer owned
    while batch[0].partition.ownership.load(Relaxed) == Ownership::OWNED {
        std::thread::yield_now();
    }
    intake.confirm(&batch);
    drop(in_flight);
    assert_eq!(revoke.join().unwrap(), [("t".into(), 0, 2)]);
}

#[tokio::test]
async fn what_is_confirmed_after_the_revokes_deadline_is_never_handed_out() {
    let intake = intake(LIMITS, 1);
    push(&intake, 0, 0..2);
    let mut batch = intake.next().await.unwrap().unwrap();
    let in_flight = intake.begin(&mut batch);
    assert_eq!(intake.release(&[part(0)], Duration::ZERO), []);
    intake.confirm(&batch);
    drop(in_flight);
    intake.assign([part(0)]);
    assert_eq!(intake.to_commit(), [], "the new assignment knows nothing of the old one");
}

#[tokio::test]
async fn a_retry_leaves_out_what_was_given_back_meanwhile() {
    let intake = intake(LIMITS, 2);
    push(&intake, 0, 0..1);
    push(&intake, 1, 0..1);
    let mut batch = intake.next().await.unwrap().unwrap();
    drop(intake.begin(&mut batch));
    intake.release(&[part(0)], Duration::ZERO);
    // assigned again, it is delivered again: the old record must not run beside the new one
    intake.assign([part(0)]);
    assert!(intake.begin(&mut batch).is_some());
    assert_eq!(offsets(&batch), [(1, 0)]);
    intake.release(&[part(1)], Duration::ZERO);
    assert!(intake.begin(&mut batch).is_none(), "nothing is left of it");
}

#[tokio::test]
async fn a_full_buffer_pauses_until_it_is_half_empty_and_the_batch_in_hand_counts() {
    let size = Record::empty(&Arc::new(Partition::new("t".into(), 0)), 0).size();
    let intake = intake(Limits { buffer_bytes: 4 * size, ..LIMITS }, 1);
    assert_eq!(intake.pressure(), Pressure { pause: vec![], resume: vec![("t".into(), 0)] }, "a new assignment is told");
    push(&intake, 0, 0..4);
    assert_eq!(intake.pressure().pause, [("t".into(), 0)]);
    assert_eq!(intake.pressure(), Pressure::default(), "told once");
    intake.next().await.unwrap().unwrap();
    assert_eq!(intake.pressure(), Pressure::default(), "three are in the worker's hand");
    intake.put_down();
    assert_eq!(intake.pressure().resume, [("t".into(), 0)]);
}

#[tokio::test]
async fn a_failure_of_the_source_ends_the_worker() {
    let intake = intake(LIMITS, 1);
    push(&intake, 0, 0..1);
    intake.fail(ConsumerError::NoProjection);
    assert!(intake.is_closed());
    assert!(matches!(intake.next().await, Err(ConsumerError::NoProjection)));
    assert!(intake.next().await.unwrap().is_none());
}
