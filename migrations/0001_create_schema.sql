-- Tracium: event store, outbox, relay leases and consumer state, all in schema tracium.
--
-- Runs by `tracium migrate`. PostgreSQL 15 or newer. Shard tables are made by `tracium.create_shards(n)`, which
-- `tracium migrate --shards N` calls after the migrations.

CREATE SCHEMA IF NOT EXISTS tracium;

-- ---------------------------------------------------------------------------------------------------------------
-- Settings. One row a name; `shards` is written by create_shards, `oldest_binary` by a migration that breaks
-- binaries built for an older schema (expand, then contract).
CREATE TABLE tracium.setting (
    name  text NOT NULL CONSTRAINT setting_pkey PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO tracium.setting (name, value) VALUES ('oldest_binary', '1');

-- ---------------------------------------------------------------------------------------------------------------
-- Write side

-- The head of every aggregate. append locks it before it reads anything else: that lock is what makes id order
-- version order.
CREATE TABLE tracium.stream (
    aggregate_type    text   NOT NULL,
    aggregate_id      text   NOT NULL,
    version           bigint NOT NULL,
    published_version bigint NOT NULL,
    CONSTRAINT stream_pkey PRIMARY KEY (aggregate_type, aggregate_id)
);

CREATE TABLE tracium.event_store (
    position       bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (CACHE 1),
    event_id       uuid        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    version        bigint      NOT NULL,
    event_type     text        NOT NULL,
    schema_version integer     NOT NULL,
    topic          text,                        -- NULL: the event stays in the store, it is not published
    payload        jsonb,                       -- payload and payload_bytes both NULL: a tombstone
    payload_bytes  bytea,
    headers        jsonb,
    metadata       jsonb,
    xid8           xid8        NOT NULL,
    recorded_at    timestamptz NOT NULL,
    CONSTRAINT event_store_pkey PRIMARY KEY (position),
    CONSTRAINT event_store_event_id_key UNIQUE (event_id),
    CONSTRAINT event_store_version_key UNIQUE (aggregate_type, aggregate_id, version),
    CONSTRAINT event_store_payload_check CHECK (payload IS NULL OR payload_bytes IS NULL)
);

-- CACHE 1: a cached range would let one session draw a higher id before another draws a lower one.
CREATE SEQUENCE tracium.outbox_id_seq AS bigint CACHE 1;

CREATE TABLE tracium.outbox (
    id                bigint      NOT NULL DEFAULT nextval('tracium.outbox_id_seq'),
    event_id          uuid        NOT NULL,
    aggregate_type    text,                     -- NULL with aggregate_version for a message of tracium.publish
    aggregate_id      text,
    aggregate_version bigint,
    previous_version  bigint,
    event_type        text        NOT NULL,
    schema_version    integer     NOT NULL,
    topic             text        NOT NULL,
    partition_key     text        NOT NULL,
    payload           jsonb,
    payload_bytes     bytea,
    size              integer     NOT NULL,     -- bytes of the payload as sent
    headers           jsonb,
    shard             smallint    NOT NULL,
    created_at        timestamptz NOT NULL,
    published_at      timestamptz,
    attempts          integer     NOT NULL DEFAULT 0,
    held              boolean     NOT NULL DEFAULT false,
    last_error        text,
    published_by      text,
    CONSTRAINT outbox_pkey PRIMARY KEY (id, shard),
    CONSTRAINT outbox_payload_check CHECK (payload IS NULL OR payload_bytes IS NULL)
) PARTITION BY LIST (shard);
ALTER SEQUENCE tracium.outbox_id_seq OWNED BY tracium.outbox.id;

-- Claims read this index alone; a row leaves it when it is published or held, so its size is the backlog's.
CREATE INDEX outbox_pending_idx ON tracium.outbox (id) WHERE published_at IS NULL AND NOT held;
-- A held key's rows are sent only from here.
CREATE INDEX outbox_held_idx ON tracium.outbox (topic, partition_key, id) WHERE published_at IS NULL AND held;

-- Locked by tracium.publish before it draws an id, so that id order is commit order per (topic, key). Rows, not
-- advisory locks: those run out of shared memory at some 20,000 keys a transaction.
CREATE TABLE tracium.key_head (
    topic         text NOT NULL,
    partition_key text NOT NULL,
    CONSTRAINT key_head_pkey PRIMARY KEY (topic, partition_key)
);

-- Where an aggregate type's events go. The first append of a type writes the rule's answer; tracium.route sets it.
CREATE TABLE tracium.route (
    aggregate_type text NOT NULL CONSTRAINT route_pkey PRIMARY KEY,
    topic          text                          -- NULL: the type's events stay in the store
);

-- What a topic carries. Both: append takes the key_head lock too.
CREATE TABLE tracium.topic (
    name        text    NOT NULL CONSTRAINT topic_pkey PRIMARY KEY,
    versioned   boolean NOT NULL,
    unversioned boolean NOT NULL
);

-- ---------------------------------------------------------------------------------------------------------------
-- Relay

-- The lease is the truth about who may publish a shard. Changing the owner or the term changes a key of
-- relay_lease_fence_key, so it waits for the FOR KEY SHARE that every open batch holds; a refresh changes other
-- columns and passes.
CREATE TABLE tracium.relay_lease (
    shard         smallint    NOT NULL CONSTRAINT relay_lease_pkey PRIMARY KEY,
    owner         text,
    term          bigint      NOT NULL DEFAULT 0,
    expires_at    timestamptz NOT NULL DEFAULT '-infinity',
    suspect_first bigint,
    suspect_last  bigint,
    starts        integer     NOT NULL DEFAULT 0,
    CONSTRAINT relay_lease_fence_key UNIQUE (shard, owner, term)
);

CREATE TABLE tracium.relay_member (
    owner          text        NOT NULL CONSTRAINT relay_member_pkey PRIMARY KEY,
    started_at     timestamptz NOT NULL,
    expires_at     timestamptz NOT NULL,
    binary_version text        NOT NULL
);

-- A (topic, key) that failed: its rows wait, all others go on. partition_key NULL: the cause is the topic's.
CREATE TABLE tracium.held_key (
    shard           smallint    NOT NULL,
    topic           text        NOT NULL,
    partition_key   text,
    attempts        integer     NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    last_error      text        NOT NULL,
    held_since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT held_key_key UNIQUE NULLS NOT DISTINCT (shard, topic, partition_key)
);

-- ---------------------------------------------------------------------------------------------------------------
-- Consumer. May live in a database of its own: nothing here refers to the tables above.

CREATE TABLE tracium.projection (
    name        text        NOT NULL,
    epoch       integer     NOT NULL,
    fingerprint text        NOT NULL,
    sink        text        NOT NULL,
    state       text        NOT NULL CONSTRAINT projection_state_check CHECK (state IN ('live', 'building', 'retired')),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT projection_pkey PRIMARY KEY (name, epoch)
);

-- One row an aggregate, not one an event. version 0: locked by a first batch, nothing applied yet.
CREATE TABLE tracium.last_seen (
    projection     text   NOT NULL,
    epoch          integer NOT NULL,
    aggregate_type text   NOT NULL,
    aggregate_id   text   NOT NULL,
    version        bigint NOT NULL,
    event_id       uuid,
    CONSTRAINT last_seen_pkey PRIMARY KEY (projection, epoch, aggregate_type, aggregate_id)
) WITH (fillfactor = 70);

-- Exact dedup of events without a version.
CREATE TABLE tracium.processed_events (
    projection   text        NOT NULL,
    epoch        integer     NOT NULL,
    event_id     uuid        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT processed_events_pkey PRIMARY KEY (projection, epoch, event_id)
);

-- An aggregate that stands still. Parking and retrying both hold its row FOR UPDATE.
CREATE TABLE tracium.quarantine (
    projection     text        NOT NULL,
    epoch          integer     NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    reason         text        NOT NULL CONSTRAINT quarantine_reason_check CHECK (reason IN ('gap', 'forked', 'poison')),
    cause          text        NOT NULL,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT quarantine_pkey PRIMARY KEY (projection, epoch, aggregate_type, aggregate_id)
);

-- What could not be applied, in its original bytes, and the later events of its aggregate parked behind it.
CREATE TABLE tracium.dead_letter (
    id             bigint      NOT NULL GENERATED ALWAYS AS IDENTITY CONSTRAINT dead_letter_pkey PRIMARY KEY,
    projection     text        NOT NULL,
    epoch          integer     NOT NULL,
    aggregate_type text,
    aggregate_id   text,
    version        bigint,
    event_id       uuid,
    class          text        NOT NULL,
    cause          text        NOT NULL,
    topic          text        NOT NULL,
    "partition"    integer     NOT NULL,
    "offset"       bigint      NOT NULL,
    key            bytea,
    payload        bytea,
    headers        jsonb       NOT NULL,
    timestamp_ms   bigint,
    attempts       integer     NOT NULL DEFAULT 1,
    parked         boolean     NOT NULL,         -- true: nothing wrong with it but what stands before it
    digest         bytea       NOT NULL,         -- sha256 of key, headers and payload: a re-created topic re-uses offsets
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT dead_letter_origin_key UNIQUE (projection, epoch, topic, "partition", "offset", digest)
);
CREATE INDEX dead_letter_aggregate_idx ON tracium.dead_letter (projection, epoch, aggregate_type, aggregate_id, id);

-- What a consumer reports of a partition, written in the transaction of the effect.
CREATE TABLE tracium.projection_progress (
    projection  text        NOT NULL,
    epoch       integer     NOT NULL,
    topic       text        NOT NULL,
    "partition" integer     NOT NULL,
    next_offset bigint      NOT NULL,
    end_offset  bigint      NOT NULL,
    applied     bigint      NOT NULL,
    duplicates  bigint      NOT NULL,
    event_time  timestamptz,
    updated_at  timestamptz NOT NULL,
    CONSTRAINT projection_progress_pkey PRIMARY KEY (projection, epoch, topic, "partition")
);
