//! Every statement of the relay, named, with the invariant it keeps.

/// Fence and settings of a batch, first statement of its transaction on connection 1. No row: the lease is not ours, publish
/// nothing. FOR KEY SHARE lets the refresh (other columns) pass and makes a successor (owner and term, a key) wait for the
/// end of the batch; FOR SHARE would deadlock with the refresh.
///
/// The settings keep the planner on the partial index of a table nobody has analysed. JIT is off because a disabled sort
/// that is still needed carries a cost that would start it.
pub(crate) const FENCE: &str = "
    SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
           set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), set_config('synchronous_commit', 'off', true)
    FROM tracium.relay_lease WHERE shard = $1 AND owner = $2 AND term = $3 FOR KEY SHARE";

/// One look without locks; only a hit opens a batch.
pub(crate) fn peek(shard: i16) -> String {
    format!("SELECT id FROM tracium.outbox_{shard} WHERE published_at IS NULL AND NOT held ORDER BY id LIMIT 1")
}

/// What a claimed row has; payload as it is sent.
const ROW: &str = "id, event_id, event_type, aggregate_type, aggregate_id, aggregate_version, previous_version, schema_version, \
    payload IS NOT NULL AS is_json, coalesce(payload_bytes, convert_to(payload::text, 'UTF8')) AS body, headers, created_at";

/// The oldest ids without locks, then those locked with SKIP LOCKED. A plain SKIP LOCKED would pass over a row that somebody
/// else has locked and return a later one of the same key; here the caller sees which were not locked. The running sum
/// bounds the payload read.
pub(crate) fn claim(shard: i16) -> String {
    claim_where(shard, "NOT held", "id", "")
}

/// As [`claim`], from the rows of one held (topic, key).
pub(crate) fn claim_held_key(shard: i16) -> String {
    claim_where(shard, "held", "id", "AND topic = $3 AND partition_key = $4")
}

/// As [`claim`], from the held rows of one topic, key by key in id order, without the keys held by themselves.
pub(crate) fn claim_held_topic(shard: i16) -> String {
    claim_where(shard, "held", "partition_key, id", "AND topic = $3 AND partition_key <> ALL ($4)")
}

fn claim_where(shard: i16, held: &str, order: &str, and: &str) -> String {
    format!(
        "WITH oldest AS MATERIALIZED (
             SELECT id, topic, partition_key, row_number() OVER (ORDER BY {order}) AS n,
                    sum(size) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) - size AS before
             FROM tracium.outbox_{shard} WHERE published_at IS NULL AND {held} {and} ORDER BY {order} LIMIT $1
         ), locked AS MATERIALIZED (
             SELECT {ROW} FROM tracium.outbox_{shard}
             WHERE id = ANY (ARRAY (SELECT id FROM oldest WHERE before < $2)) AND published_at IS NULL AND {held}
             FOR UPDATE SKIP LOCKED
         )
         SELECT oldest.n, oldest.topic, oldest.partition_key, locked.*
         FROM oldest LEFT JOIN locked ON locked.id = oldest.id WHERE oldest.before < $2"
    )
}

/// The mark: only in the claiming transaction, so a lost transaction marks nothing.
pub(crate) fn mark_published(shard: i16) -> String {
    format!(
        "UPDATE tracium.outbox_{shard} SET published_at = clock_timestamp(), published_by = 'relay', attempts = attempts + 1, held = false
         WHERE id = ANY ($1)"
    )
}

/// Rows of a held key leave the pending index.
pub(crate) fn mark_held(shard: i16) -> String {
    format!("UPDATE tracium.outbox_{shard} SET held = true WHERE id = ANY ($1) AND NOT held")
}

/// An attempt that failed, in words.
pub(crate) fn mark_failed(shard: i16) -> String {
    format!(
        "UPDATE tracium.outbox_{shard} o SET attempts = attempts + 1, last_error = f.cause
         FROM unnest($1::bigint[], $2::text[]) f (id, cause) WHERE o.id = f.id"
    )
}

/// Rows marked held whose key is not: a takeover puts them back. Cannot happen unless somebody changed held_key by hand.
pub(crate) fn sweep_held(shard: i16) -> String {
    format!(
        "UPDATE tracium.outbox_{shard} o SET held = false
         WHERE published_at IS NULL AND held AND NOT EXISTS (
             SELECT 1 FROM tracium.held_key h WHERE h.shard = {shard} AND h.topic = o.topic
                AND (h.partition_key IS NULL OR h.partition_key = o.partition_key))"
    )
}

/// Keeps a held key over a restart, on the database's clock.
pub(crate) const UPSERT_HELD_KEY: &str = "
    INSERT INTO tracium.held_key (shard, topic, partition_key, attempts, next_attempt_at, last_error)
    VALUES ($1, $2, $3, $4, clock_timestamp() + make_interval(secs => $5), $6)
    ON CONFLICT (shard, topic, partition_key) DO UPDATE
    SET attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at, last_error = excluded.last_error";

/// In the transaction that finds no held row of the key left, with no other batch of the shard open.
pub(crate) const DELETE_HELD_KEY: &str =
    "DELETE FROM tracium.held_key WHERE shard = $1 AND topic = $2 AND partition_key IS NOT DISTINCT FROM $3";

/// The held keys of a shard at takeover; the delay is relative, so clocks need not agree.
pub(crate) const LOAD_HELD_KEYS: &str = "
    SELECT topic, partition_key, attempts, greatest(0, extract(epoch FROM next_attempt_at - clock_timestamp()))::float8, last_error
    FROM tracium.held_key WHERE shard = $1";

/// Connection 2: the leases still hold, and the WAL is flushed past every row claimed before this statement began, so that
/// a crash cannot take back what is sent next. The message itself carries nothing; a commit that wrote nothing would flush
/// nothing. One statement serves every batch that waits.
pub(crate) const CONFIRM_AND_FLUSH: &str = "
    SELECT l.shard FROM unnest($1::smallint[], $2::bigint[]) w (shard, term)
    JOIN tracium.relay_lease l ON l.shard = w.shard AND l.owner = $3 AND l.term = w.term AND l.expires_at > clock_timestamp(),
    LATERAL (SELECT pg_logical_emit_message(true, 'tracium', '') WHERE l.shard IS NOT NULL OFFSET 0) flush (lsn) WHERE flush.lsn IS NOT NULL";

/// Connection 2: the only writer of a held lease. A lease that is no longer ours gets no row.
pub(crate) const REFRESH: &str = "
    UPDATE tracium.relay_lease l SET expires_at = clock_timestamp() + make_interval(secs => $4)
    FROM unnest($1::smallint[], $2::bigint[]) w (shard, term)
    WHERE l.shard = w.shard AND l.owner = $3 AND l.term = w.term
    RETURNING l.shard";

/// Says "I am here" and forgets who is not.
pub(crate) const UPSERT_MEMBER: &str = "
    WITH gone AS (DELETE FROM tracium.relay_member WHERE expires_at < clock_timestamp() AND owner <> $1)
    INSERT INTO tracium.relay_member (owner, started_at, expires_at, binary_version)
    VALUES ($1, clock_timestamp(), clock_timestamp() + make_interval(secs => $2), $3)
    ON CONFLICT (owner) DO UPDATE SET expires_at = excluded.expires_at";

/// Members that are here.
pub(crate) const LIVE_MEMBERS: &str =
    "SELECT owner FROM tracium.relay_member WHERE expires_at >= clock_timestamp() ORDER BY owner";

/// Takes the member out at a clean stop.
pub(crate) const DELETE_MEMBER: &str = "DELETE FROM tracium.relay_member WHERE owner = $1";

/// All leases, without locks.
pub(crate) const LEASES: &str =
    "SELECT shard, owner, expires_at <= clock_timestamp() AS expired FROM tracium.relay_lease ORDER BY shard";

/// Waits for the holder's open batch (its KEY SHARE), up to lock_timeout, then looks at the clock again: `now()` would have
/// frozen while the statement waited.
pub(crate) const LOCK_LEASE: &str = "
    SELECT term FROM tracium.relay_lease
    WHERE shard = $1 AND (owner IS NULL OR expires_at <= clock_timestamp()) FOR UPDATE";

/// The takeover: a new term. Under the lock above.
pub(crate) const TAKE_LEASE: &str = "
    UPDATE tracium.relay_lease SET owner = $2, term = term + 1, expires_at = clock_timestamp() + make_interval(secs => $3)
    WHERE shard = $1 AND (owner IS NULL OR expires_at <= clock_timestamp())
    RETURNING term";

/// Hands a lease back at a clean stop, after the last batch. The term stays; the next holder raises it.
pub(crate) const RELEASE_LEASE: &str = "
    UPDATE tracium.relay_lease SET owner = NULL, expires_at = clock_timestamp() WHERE shard = $1 AND owner = $2 AND term = $3";

/// Depth by shard, from the two partial indexes.
pub(crate) const STATS: &str = "
    SELECT l.shard, l.owner, l.term, greatest(0, extract(epoch FROM l.expires_at) - extract(epoch FROM clock_timestamp()))::float8 AS expires_in_s,
           coalesce(p.pending, 0) AS pending, p.oldest
    FROM tracium.relay_lease l
    LEFT JOIN (SELECT shard, count(*) AS pending, extract(epoch FROM clock_timestamp() - min(created_at))::float8 AS oldest
               FROM tracium.outbox WHERE published_at IS NULL GROUP BY shard) p ON p.shard = l.shard
    ORDER BY l.shard";

/// Held keys, and those that need an operator.
pub(crate) const HELD_STATS: &str = "SELECT count(*), count(*) FILTER (WHERE attempts >= $1) FROM tracium.held_key";
