//! Every statement of this crate, named, with the invariant it keeps.

use tracium_core::Aggregate;

/// Aggregates as two arrays for UNNEST.
pub(crate) fn columns<'a>(aggregates: impl Iterator<Item = &'a Aggregate>) -> (Vec<&'a str>, Vec<&'a str>) {
    aggregates.map(|a| (a.aggregate_type.as_str(), a.aggregate_id.as_str())).unzip()
}

/// What a name in the database is; NULL for nothing.
pub(crate) const RELATION_KIND: &str = "SELECT (SELECT c.relkind::text FROM pg_class c WHERE c.oid = to_regclass($1))";

/// A view's documents of one epoch. A removed document keeps its row: its version must not fall back to nothing. Room
/// in the pages lets updates stay on theirs.
pub(crate) fn create_view_table(table: &str) -> String {
    format!(
        "CREATE TABLE {table} (
            aggregate_type text        NOT NULL,
            aggregate_id   text        NOT NULL,
            version        bigint      NOT NULL,
            doc            jsonb,
            updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (aggregate_type, aggregate_id)
        ) WITH (fillfactor = 80)"
    )
}

/// The name that readers use; it hides removed documents.
pub(crate) fn create_stable_view(view: &str, table: &str) -> String {
    format!(
        "CREATE VIEW {view} AS
         SELECT aggregate_type, aggregate_id, version, doc, updated_at FROM {table} WHERE doc IS NOT NULL"
    )
}

/// Document and version read together. OFFSET 0 keeps it a look-up per aggregate, see [`LOCK_LAST_SEEN`].
pub(crate) fn load_documents(table: &str) -> String {
    format!(
        "SELECT k.ordinal, d.version, d.doc
         FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (aggregate_type, aggregate_id, ordinal)
         CROSS JOIN LATERAL (
             SELECT version, doc::text AS doc FROM {table}
             WHERE aggregate_type = k.aggregate_type AND aggregate_id = k.aggregate_id OFFSET 0
         ) d"
    )
}

/// A version never falls.
pub(crate) fn store_documents(table: &str) -> String {
    format!(
        "INSERT INTO {table} AS d (aggregate_type, aggregate_id, version, doc, updated_at)
         SELECT n.aggregate_type, n.aggregate_id, n.version, n.doc::jsonb, clock_timestamp()
         FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS n (aggregate_type, aggregate_id, version, doc)
         ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE
         SET version = excluded.version, doc = excluded.doc, updated_at = excluded.updated_at
         WHERE d.version < excluded.version"
    )
}

/// One process at a time makes tables, for CREATE … IF NOT EXISTS is not safe against itself.
pub(crate) const LOCK_PREPARE: &str = "SELECT pg_advisory_xact_lock(hashtextextended('tracium.consumer.prepare', 0))";

/// The first start of an epoch writes its fingerprint; every later one has to match it.
pub(crate) const REGISTER: &str = "
    INSERT INTO tracium.projection (name, epoch, fingerprint, sink, state) VALUES ($1, $2, $3, $4, 'live')
    ON CONFLICT (name, epoch) DO NOTHING";

/// What the epoch was filled by.
pub(crate) const FINGERPRINT: &str = "SELECT fingerprint FROM tracium.projection WHERE name = $1 AND epoch = $2";

/// A connection that waits for a lock or runs a statement for too long ends by itself, also when its client is gone.
/// Plans are made anew for every statement: a plan that was kept from when the read model was empty scans all of a
/// grown one, until autovacuum looks at it.
pub(crate) const SET_SESSION: &str = "
    SELECT set_config('lock_timeout', $1, false), set_config('statement_timeout', $2, false),
           set_config('idle_in_transaction_session_timeout', $2, false), set_config('application_name', $3, false),
           set_config('plan_cache_mode', 'force_custom_plan', false)";

/// A conflict must show the other transaction's committed row, so the level is not left to the server's default.
pub(crate) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// The batch's aggregates are locked before anything else is read, in key order, so that two transactions on the same
/// aggregates wait for each other and the second one sees what the first one did.
///
/// LATERAL with a lock is a look-up per aggregate, whatever the planner believes. A join read every aggregate of the
/// projection into a hash until the table was analysed: 420 ms a batch at 200,000 of them, against 26 ms.
pub(crate) const LOCK_LAST_SEEN: &str = "
    SELECT k.ordinal, l.version, l.event_id
    FROM (SELECT * FROM unnest($3::text[], $4::text[]) WITH ORDINALITY AS u (aggregate_type, aggregate_id, ordinal)
          ORDER BY ordinal) k
    CROSS JOIN LATERAL (
        SELECT version, event_id FROM tracium.last_seen
        WHERE projection = $1 AND epoch = $2 AND aggregate_type = k.aggregate_type AND aggregate_id = k.aggregate_id
        FOR UPDATE
    ) l";

/// Aggregates never seen get a row to be locked by; version 0 = nothing applied. In key order, as above.
pub(crate) const INSERT_LAST_SEEN: &str = "
    INSERT INTO tracium.last_seen (projection, epoch, aggregate_type, aggregate_id, version)
    SELECT $1, $2, k.aggregate_type, k.aggregate_id, 0
    FROM unnest($3::text[], $4::text[]) WITH ORDINALITY AS k (aggregate_type, aggregate_id, ordinal)
    ORDER BY k.ordinal
    ON CONFLICT DO NOTHING";

/// last_seen only rises. The rows are locked by now and do not move, so they are found by their place; see
/// [`LOCK_LAST_SEEN`] for why not by a join.
pub(crate) const RAISE_LAST_SEEN: &str = "
    UPDATE tracium.last_seen l SET version = n.version, event_id = n.event_id
    FROM (SELECT k.version, k.event_id,
                 (SELECT s.ctid FROM tracium.last_seen s WHERE s.projection = $1 AND s.epoch = $2
                     AND s.aggregate_type = k.aggregate_type AND s.aggregate_id = k.aggregate_id) AS place
          FROM unnest($3::text[], $4::text[], $5::bigint[], $6::uuid[]) AS k (aggregate_type, aggregate_id, version, event_id)) n
    WHERE l.ctid = n.place AND l.version < n.version";

/// Parking and retrying both hold the aggregate's row; where it is gone, the event applies normally. In key order.
pub(crate) const LOCK_QUARANTINE: &str = "
    SELECT k.ordinal, q.cause
    FROM (SELECT * FROM unnest($3::text[], $4::text[]) WITH ORDINALITY AS u (aggregate_type, aggregate_id, ordinal)
          ORDER BY ordinal) k
    CROSS JOIN LATERAL (
        SELECT cause FROM tracium.quarantine
        WHERE projection = $1 AND epoch = $2 AND aggregate_type = k.aggregate_type AND aggregate_id = k.aggregate_id
        FOR UPDATE
    ) q";

/// The first reason stays.
pub(crate) const INSERT_QUARANTINE: &str = "
    INSERT INTO tracium.quarantine (projection, epoch, aggregate_type, aggregate_id, reason, cause)
    SELECT $1, $2, k.aggregate_type, k.aggregate_id, k.reason, k.cause
    FROM unnest($3::text[], $4::text[], $5::text[], $6::text[]) AS k (aggregate_type, aggregate_id, reason, cause)
    ORDER BY k.aggregate_type, k.aggregate_id
    ON CONFLICT DO NOTHING";

/// Exact dedup by id: what comes back is new. A concurrent transaction with the same id is waited for.
pub(crate) const INSERT_PROCESSED: &str = "
    INSERT INTO tracium.processed_events (projection, epoch, event_id)
    SELECT $1, $2, k.event_id FROM unnest($3::uuid[]) AS k (event_id) ORDER BY k.event_id
    ON CONFLICT DO NOTHING
    RETURNING event_id";

/// Original bytes, once per place and content, in the order of arrival: ids are that order. The lengths keep a null
/// apart from an empty value, and one part from the next.
pub(crate) const INSERT_DEAD_LETTERS: &str = "
    INSERT INTO tracium.dead_letter (projection, epoch, aggregate_type, aggregate_id, version, event_id, class, cause,
        topic, \"partition\", \"offset\", key, payload, headers, timestamp_ms, parked, digest)
    SELECT $1, $2, k.aggregate_type, k.aggregate_id, k.version, k.event_id, 'poison', k.cause,
        k.topic, k.part, k.off, k.key, k.payload, k.headers::jsonb, k.timestamp_ms, k.parked,
        sha256(convert_to(concat_ws(',', coalesce(octet_length(k.key), -1), coalesce(octet_length(k.payload), -1), k.headers), 'UTF8')
            || coalesce(k.key, '') || coalesce(k.payload, ''))
    FROM unnest($3::text[], $4::text[], $5::bigint[], $6::uuid[], $7::text[], $8::text[], $9::integer[], $10::bigint[],
        $11::bytea[], $12::bytea[], $13::text[], $14::bigint[], $15::boolean[]) WITH ORDINALITY
        AS k (aggregate_type, aggregate_id, version, event_id, cause, topic, part, off, key, payload, headers,
              timestamp_ms, parked, ordinal)
    ORDER BY k.ordinal
    ON CONFLICT ON CONSTRAINT dead_letter_origin_key DO NOTHING";

/// What `status` shows, in the transaction of the effect, so that it never runs ahead of it.
pub(crate) const SAVE_PROGRESS: &str = "
    INSERT INTO tracium.projection_progress AS p (projection, epoch, topic, \"partition\", next_offset, end_offset, applied,
        duplicates, event_time, updated_at)
    SELECT $1, $2, k.topic, k.part, k.next_offset, k.end_offset, k.applied, k.duplicates, k.event_time, clock_timestamp()
    FROM unnest($3::text[], $4::integer[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::timestamptz[])
        AS k (topic, part, next_offset, end_offset, applied, duplicates, event_time)
    ORDER BY k.topic, k.part
    ON CONFLICT (projection, epoch, topic, \"partition\") DO UPDATE
    SET next_offset = excluded.next_offset, end_offset = excluded.end_offset, applied = p.applied + excluded.applied,
        duplicates = p.duplicates + excluded.duplicates, event_time = coalesce(excluded.event_time, p.event_time),
        updated_at = excluded.updated_at";

/// An event that fails is undone alone.
pub(crate) const SAVEPOINT: &str = "SAVEPOINT tracium_event";

/// Constraints deferred to the commit are checked here, where the event that breaks them is known.
pub(crate) const CHECK_CONSTRAINTS: &str = "SET CONSTRAINTS ALL IMMEDIATE";

/// See [`SAVEPOINT`].
pub(crate) const RELEASE: &str = "RELEASE SAVEPOINT tracium_event";

/// See [`SAVEPOINT`].
pub(crate) const ROLLBACK_TO: &str = "ROLLBACK TO SAVEPOINT tracium_event";

/// One row a projection. Lag in seconds is the age of the last event applied, where events are waiting.
pub(crate) const STATUS: &str = "
    SELECT p.name, p.epoch, p.sink, p.state, g.lag_events, g.applied, g.duplicates,
        CASE WHEN g.lag_events > 0 THEN greatest(extract(epoch FROM clock_timestamp() - g.event_time), 0) ELSE 0 END::float8,
        (SELECT count(*) FROM tracium.quarantine q WHERE q.projection = p.name AND q.epoch = p.epoch),
        (SELECT count(*) FROM tracium.dead_letter d WHERE d.projection = p.name AND d.epoch = p.epoch)
    FROM tracium.projection p,
    LATERAL (SELECT coalesce(sum(greatest(end_offset - next_offset, 0)), 0)::bigint AS lag_events,
                    coalesce(sum(applied), 0)::bigint AS applied, coalesce(sum(duplicates), 0)::bigint AS duplicates,
                    min(event_time) FILTER (WHERE end_offset > next_offset) AS event_time
             FROM tracium.projection_progress g WHERE g.projection = p.name AND g.epoch = p.epoch) g
    ORDER BY p.name, p.epoch";
