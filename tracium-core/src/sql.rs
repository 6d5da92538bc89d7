//! Every statement of this crate, named, with the invariant it keeps.

/// The one code path of the write side: see `migrations/0002_create_functions.sql`.
pub(crate) const APPEND: &str = "SELECT event_id, version, recorded_at, repeated FROM tracium.append($1, $2, $3, $4::jsonb)";

/// Draws the id under the key's lock, so that id order is commit order per (topic, key).
pub(crate) const PUBLISH: &str = "SELECT tracium.publish($1, $2, $3, $4, $5, $6::jsonb, $7, $8, $9)";

/// By version, after a version: what a fold still needs.
pub(crate) const LOAD: &str = "
    SELECT event_id, event_type, version, schema_version, recorded_at, payload::text AS payload, payload_bytes, headers
    FROM tracium.event_store
    WHERE aggregate_type = $1 AND aggregate_id = $2 AND version > $3
    ORDER BY version";

/// Whether the schema is there at all.
pub(crate) const SETTINGS_EXIST: &str = "SELECT to_regclass('tracium.setting') IS NOT NULL";

/// The schema's version, and the oldest binary it still serves.
pub(crate) const SCHEMA_VERSION: &str = "
    SELECT coalesce(max(value::integer) FILTER (WHERE name = 'schema'), 0),
           coalesce(max(value::integer) FILTER (WHERE name = 'oldest_binary'), 0),
           max(value::integer) FILTER (WHERE name = 'shards')
    FROM tracium.setting";

/// Makes the shard tables; the same number again changes nothing.
pub(crate) const CREATE_SHARDS: &str = "SELECT tracium.create_shards($1)";

/// sqlx's own table of migrations, for a database that is set up by the printed script.
pub(crate) const CREATE_SCHEMA_MIGRATION: &str = "CREATE TABLE tracium.schema_migration (
    version        bigint      NOT NULL CONSTRAINT schema_migration_pkey PRIMARY KEY,
    description    text        NOT NULL,
    installed_on   timestamptz NOT NULL DEFAULT now(),
    success        boolean     NOT NULL,
    checksum       bytea       NOT NULL,
    execution_time bigint      NOT NULL
);
";
