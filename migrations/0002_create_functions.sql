-- The one code path of the write side, callable from any language. All are SECURITY DEFINER with a fixed search_path:
-- a writer needs no right on the tables themselves.
--
-- Errors carry an SQLSTATE of class TR and, as DETAIL, a JSON object with the data:
--   TR001 version conflict        {"aggregate_type","aggregate_id","expected","actual"}
--   TR002 event id reused         {"event_id"}
--         also 23505 on event_store_event_id_key: the same id in two aggregates at the same time
--   TR003 invalid input           {"field"}
--         also 22P02, 22P05, 22003, 22021, 22023: a value that PostgreSQL itself cannot read (a UUID, NUL, a number, base64)
--   TR004 topic carries the other kind of message   {"topic"}
--   TR005 no shards               run `tracium migrate`

-- shard = first 4 bytes of SHA-256(key in UTF-8), big-endian, mod n. Named and stable: every language has it, it works
-- under FIPS, and it does not change with PostgreSQL's major version as hashtext may.
CREATE FUNCTION tracium.shard_of(p_key text, p_shards integer) RETURNS smallint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = tracium, pg_temp AS $$
    SELECT (((get_byte(d, 0)::bigint << 24) | (get_byte(d, 1) << 16) | (get_byte(d, 2) << 8) | get_byte(d, 3)) % p_shards)::smallint
    FROM (SELECT sha256(convert_to(p_key, 'UTF8')) AS d) s
$$;

-- The topic rule: the aggregate type with an s, `order` → `orders`; a type that ends in s keeps its name.
CREATE FUNCTION tracium.topic_of(p_aggregate_type text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT CASE WHEN right(p_aggregate_type, 1) = 's' THEN p_aggregate_type ELSE p_aggregate_type || 's' END
$$;

CREATE FUNCTION tracium.fail(p_code text, p_message text, p_detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = p_code, MESSAGE = p_message, DETAIL = p_detail::text;
END $$;

-- 512 bytes: the limit of a document id in Elasticsearch, the narrowest place an id goes to.
CREATE FUNCTION tracium.check_name(p_field text, p_value text, p_pattern text) RETURNS void
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
BEGIN
    IF p_value IS NULL OR p_value = '' THEN
        PERFORM fail('TR003', format('%s is empty', p_field), jsonb_build_object('field', p_field));
    ELSIF p_pattern IS NOT NULL AND p_value !~ p_pattern THEN
        PERFORM fail('TR003', format('%s %L does not match %s', p_field, left(p_value, 100), p_pattern), jsonb_build_object('field', p_field));
    ELSIF octet_length(p_value) > 512 THEN
        PERFORM fail('TR003', format('%s is %s bytes long, the limit is 512', p_field, octet_length(p_value)), jsonb_build_object('field', p_field));
    END IF;
END $$;

-- Kafka's own rule for a topic.
CREATE FUNCTION tracium.check_topic(p_topic text) RETURNS void
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
BEGIN
    PERFORM check_name('topic', p_topic, '^[a-zA-Z0-9._-]{1,249}$');
    IF p_topic IN ('.', '..') THEN
        PERFORM fail('TR003', format('topic %L is not a name Kafka takes', p_topic), '{"field":"topic"}');
    END IF;
END $$;

-- Headers that the relay could not read would stop their key, so they are refused here: an object of texts, or an array
-- of ["name", "text" | null | {"base64": "..."}]. The names that the envelope writes itself are not free.
CREATE FUNCTION tracium.check_headers(p_headers jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
DECLARE v_name jsonb; v_value jsonb; v_text text;
BEGIN
    IF jsonb_typeof(p_headers) NOT IN ('array', 'object') THEN
        PERFORM fail('TR003', 'headers are neither an array of [name, value] pairs nor an object', '{"field":"headers"}');
    END IF;
    FOR v_name, v_value IN
        SELECT to_jsonb(key), value FROM jsonb_each(CASE jsonb_typeof(p_headers) WHEN 'object' THEN p_headers END)
        UNION ALL
        SELECT CASE WHEN jsonb_typeof(pair) = 'array' AND jsonb_array_length(pair) = 2 THEN pair -> 0 END, pair -> 1
        FROM jsonb_array_elements(CASE jsonb_typeof(p_headers) WHEN 'array' THEN p_headers END) AS x (pair)
    LOOP
        v_text := v_name #>> '{}';
        IF jsonb_typeof(v_name) IS DISTINCT FROM 'string' OR v_text = '' THEN
            PERFORM fail('TR003', format('header %s is not a pair of a name and a value', coalesce(v_name, v_value)), '{"field":"headers"}');
        ELSIF v_text LIKE 'tracium-%' OR v_text IN ('event_id', 'event_type', 'aggregate_type', 'aggregate_id',
                'aggregate_version', 'previous_version', 'schema_version', 'created_at') THEN
            PERFORM fail('TR003', format('header %L is written by Tracium; choose another name', v_text), '{"field":"headers"}');
        ELSIF jsonb_typeof(v_value) = 'object' AND jsonb_typeof(v_value -> 'base64') = 'string' THEN
            PERFORM decode(v_value ->> 'base64', 'base64');
        ELSIF jsonb_typeof(v_value) NOT IN ('string', 'null') THEN
            PERFORM fail('TR003', format('header %L is neither a text nor null nor {"base64": "..."}', v_text), '{"field":"headers"}');
        END IF;
    END LOOP;
END $$;

-- What append and publish ask of an event alike.
CREATE FUNCTION tracium.check_event(p_event_type text, p_schema_version integer, p_payload jsonb, p_payload_bytes bytea, p_headers jsonb)
RETURNS void
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
BEGIN
    PERFORM check_name('event type', p_event_type, '^[A-Za-z][A-Za-z0-9_.-]{0,199}$');
    IF p_schema_version < 1 THEN
        PERFORM fail('TR003', format('schema version %s is not 1 or more', p_schema_version), '{"field":"schema_version"}');
    ELSIF p_payload IS NOT NULL AND p_payload_bytes IS NOT NULL THEN
        PERFORM fail('TR003', 'an event has a JSON payload or bytes, not both', '{"field":"payload"}');
    ELSIF p_headers IS NOT NULL THEN
        PERFORM check_headers(p_headers);
    END IF;
END $$;

CREATE FUNCTION tracium.shard_count() RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = tracium, pg_temp AS $$
DECLARE v_shards integer;
BEGIN
    SELECT value::integer INTO v_shards FROM setting WHERE name = 'shards';
    IF v_shards IS NULL THEN
        PERFORM fail('TR005', 'the outbox has no shards: run `tracium migrate`', '{}');
    END IF;
    RETURN v_shards;
END $$;

-- Locks the head of (topic, key) and so orders unversioned messages by commit.
CREATE FUNCTION tracium.lock_key(p_topic text, p_key text) RETURNS void
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
BEGIN
    PERFORM 1 FROM key_head WHERE topic = p_topic AND partition_key = p_key FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO key_head (topic, partition_key) VALUES (p_topic, p_key) ON CONFLICT DO NOTHING;
        PERFORM 1 FROM key_head WHERE topic = p_topic AND partition_key = p_key FOR UPDATE;
    END IF;
END $$;

-- The topic of an aggregate type, registering both on first use. Returns whether the topic also carries messages
-- without a version. ON CONFLICT DO UPDATE, not a read: it waits for a concurrent first use, and under REPEATABLE READ
-- it fails with 40001 rather than trust an old snapshot.
CREATE FUNCTION tracium.route_of(p_aggregate_type text, OUT o_topic text, OUT o_mixed boolean)
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        -- An old snapshot may not know a new topic or flag; locking the rows fails with 40001 where it does not.
        PERFORM 1 FROM route r WHERE r.aggregate_type = p_aggregate_type FOR SHARE;
        PERFORM 1 FROM topic t WHERE t.name = (SELECT r.topic FROM route r WHERE r.aggregate_type = p_aggregate_type) FOR SHARE;
    END IF;
    SELECT r.topic, t.unversioned INTO o_topic, o_mixed
    FROM route r LEFT JOIN topic t ON t.name = r.topic AND t.versioned WHERE r.aggregate_type = p_aggregate_type;
    IF FOUND AND (o_topic IS NULL OR o_mixed IS NOT NULL) THEN
        RETURN;
    END IF;
    INSERT INTO route AS r (aggregate_type, topic) VALUES (p_aggregate_type, topic_of(p_aggregate_type))
        ON CONFLICT (aggregate_type) DO UPDATE SET topic = r.topic RETURNING r.topic INTO o_topic;
    IF o_topic IS NOT NULL THEN
        INSERT INTO topic AS t (name, versioned, unversioned) VALUES (o_topic, true, false)
            ON CONFLICT (name) DO UPDATE SET versioned = true RETURNING t.unversioned INTO o_mixed;
    END IF;
END $$;

-- Appends events to one aggregate: event store, outbox and head, in the caller's transaction.
--
-- p_expected: NULL any version, 0 a new aggregate, n exactly version n.
-- p_events: a JSON array of {"event_id", "event_type", "schema_version" (1), "payload" | "payload_base64" | neither (a
-- tombstone), "headers", "metadata", "publish" (true)}.
-- Returns one row an event in version order. A repeat with the same ids and the same content returns the first result.
--
-- enable_seqscan off: a connection keeps the plans it made when the store was empty, a scan of the whole table, until
-- autovacuum looks at it, a minute and many thousand events later. Everything here is found by an index.
CREATE FUNCTION tracium.append(
    p_aggregate_type text, p_aggregate_id text, p_expected bigint, p_events jsonb,
    OUT event_id uuid, OUT version bigint, OUT recorded_at timestamptz, OUT repeated boolean
) RETURNS SETOF record
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tracium, pg_temp SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_count   integer;
    v_version bigint;
    v_published bigint;
    v_ids     uuid[];
    v_known   integer;
    v_same    integer;
    v_route   record;
    v_shard   smallint;
    v_xid     xid8;
    v_now     timestamptz;
BEGIN
    PERFORM check_name('aggregate type', p_aggregate_type, '^[a-z][a-z0-9_-]{0,99}$');
    PERFORM check_name('aggregate id', p_aggregate_id, NULL);
    IF jsonb_typeof(p_events) IS DISTINCT FROM 'array' OR jsonb_array_length(p_events) = 0 THEN
        PERFORM fail('TR003', 'events: a JSON array of at least one event is needed', '{"field":"events"}');
    END IF;
    v_count := jsonb_array_length(p_events);

    -- Before any id is drawn or flag read: the relay's floor and tracium.allow_messages wait for this lock.
    -- ONLY: a lock on each shard's table as well would leave PostgreSQL's fast path.
    LOCK TABLE ONLY outbox IN ROW EXCLUSIVE MODE;

    -- Before any head: a type's first append holds its route until it commits, and who waits for that with a head in
    -- hand deadlocks with a transaction that goes on to that head.
    v_route := route_of(p_aggregate_type);

    -- Then the head. What is read under its lock is committed.
    SELECT s.version, s.published_version INTO v_version, v_published FROM stream s
        WHERE s.aggregate_type = p_aggregate_type AND s.aggregate_id = p_aggregate_id FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO stream (aggregate_type, aggregate_id, version, published_version)
            VALUES (p_aggregate_type, p_aggregate_id, 0, 0) ON CONFLICT DO NOTHING;
        SELECT s.version, s.published_version INTO v_version, v_published FROM stream s
            WHERE s.aggregate_type = p_aggregate_type AND s.aggregate_id = p_aggregate_id FOR UPDATE;
    END IF;

    SELECT array_agg((e ->> 'event_id')::uuid ORDER BY n) INTO v_ids FROM jsonb_array_elements(p_events) WITH ORDINALITY x (e, n);
    IF array_position(v_ids, NULL) IS NOT NULL THEN
        PERFORM fail('TR003', 'event_id is missing: every event needs a UUID', '{"field":"event_id"}');
    ELSIF (SELECT count(DISTINCT i) FROM unnest(v_ids) i) < v_count THEN
        PERFORM fail('TR002', 'an event id is given twice in one call',
            (SELECT jsonb_build_object('event_id', i) FROM unnest(v_ids) i GROUP BY i HAVING count(*) > 1 LIMIT 1));
    END IF;

    SELECT count(*) INTO v_known FROM event_store s WHERE s.event_id = ANY (v_ids);
    IF v_known > 0 THEN
        -- A repeat after an unknown COMMIT, or an id used for something else.
        SELECT count(*), min(s.version) INTO v_same, v_version
        FROM jsonb_array_elements(p_events) WITH ORDINALITY x (e, n) JOIN event_store s ON s.event_id = v_ids[n]
        WHERE s.aggregate_type = p_aggregate_type AND s.aggregate_id = p_aggregate_id
          AND s.event_type = e ->> 'event_type' AND s.schema_version = coalesce((e ->> 'schema_version')::integer, 1)
          AND s.payload IS NOT DISTINCT FROM e -> 'payload'
          AND s.payload_bytes IS NOT DISTINCT FROM decode(e ->> 'payload_base64', 'base64')
          AND s.headers IS NOT DISTINCT FROM nullif(e -> 'headers', 'null');
        IF v_same = v_count AND v_known = v_count THEN
            RETURN QUERY SELECT s.event_id, s.version, s.recorded_at, true FROM event_store s
                WHERE s.event_id = ANY (v_ids) ORDER BY s.version;
            RETURN;
        END IF;
        PERFORM fail('TR002', 'an event id was already used for another event or aggregate',
            (SELECT jsonb_build_object('event_id', s.event_id) FROM event_store s WHERE s.event_id = ANY (v_ids) LIMIT 1));
    END IF;

    IF p_expected IS NOT NULL AND p_expected <> v_version THEN
        PERFORM fail('TR001', format('version conflict: %s %L is at version %s, expected %s', p_aggregate_type, p_aggregate_id, v_version, p_expected),
            jsonb_build_object('aggregate_type', p_aggregate_type, 'aggregate_id', p_aggregate_id, 'expected', p_expected, 'actual', v_version));
    END IF;

    IF v_route.o_topic IS NOT NULL AND v_route.o_mixed THEN
        PERFORM lock_key(v_route.o_topic, p_aggregate_id);
    END IF;
    v_shard := shard_of(p_aggregate_id, shard_count());
    v_xid := pg_current_xact_id();
    v_now := clock_timestamp();

    -- The ids are drawn in the outer query, over rows already in version order.
    RETURN QUERY
    WITH e AS MATERIALIZED (
        SELECT v_ids[n] AS event_id, v_version + n AS version, e ->> 'event_type' AS event_type,
               coalesce((e ->> 'schema_version')::integer, 1) AS schema_version,
               CASE WHEN coalesce((e ->> 'publish')::boolean, true) THEN v_route.o_topic END AS topic,
               e -> 'payload' AS payload, decode(e ->> 'payload_base64', 'base64') AS payload_bytes,
               nullif(e -> 'headers', 'null') AS headers, nullif(e -> 'metadata', 'null') AS metadata
        FROM jsonb_array_elements(p_events) WITH ORDINALITY x (e, n) ORDER BY n
    ), checked AS (
        SELECT check_event(e.event_type, e.schema_version, e.payload, e.payload_bytes, e.headers) FROM e
    ), stored AS (
        INSERT INTO event_store (event_id, aggregate_type, aggregate_id, version, event_type, schema_version, topic,
                                 payload, payload_bytes, headers, metadata, xid8, recorded_at)
        SELECT e.event_id, p_aggregate_type, p_aggregate_id, e.version, e.event_type, e.schema_version, e.topic,
               e.payload, e.payload_bytes, e.headers, e.metadata, v_xid, v_now
        FROM e, (SELECT count(*) FROM checked) c ORDER BY e.version
        RETURNING event_store.event_id, event_store.version
    ), queued AS (
        INSERT INTO outbox (id, event_id, aggregate_type, aggregate_id, aggregate_version, previous_version, event_type,
                            schema_version, topic, partition_key, payload, payload_bytes, size, headers, shard, created_at)
        SELECT nextval('tracium.outbox_id_seq'), o.event_id, p_aggregate_type, p_aggregate_id, o.version, o.previous_version, o.event_type,
               o.schema_version, o.topic, p_aggregate_id, o.payload, o.payload_bytes,
               coalesce(octet_length(o.payload_bytes), octet_length(o.payload::text), 0), o.headers, v_shard, v_now
        FROM (SELECT e.*, lag(e.version, 1, v_published) OVER (ORDER BY e.version) AS previous_version
              FROM e WHERE e.topic IS NOT NULL ORDER BY e.version) o
        RETURNING aggregate_version
    ), head AS (
        UPDATE stream s SET version = v_version + v_count,
            published_version = coalesce((SELECT max(aggregate_version) FROM queued), v_published)
        WHERE s.aggregate_type = p_aggregate_type AND s.aggregate_id = p_aggregate_id
    )
    SELECT stored.event_id, stored.version, v_now, false FROM stored ORDER BY stored.version;
END $$;

-- Publishes one message that belongs to no event-sourced aggregate. Not idempotent: a repeat is a duplicate with the
-- same event id. Its order is the commit order per (topic, key), unless p_ordered is false.
CREATE FUNCTION tracium.publish(
    p_topic text, p_key text, p_event_id uuid, p_event_type text, p_schema_version integer DEFAULT 1,
    p_payload jsonb DEFAULT NULL, p_payload_bytes bytea DEFAULT NULL, p_headers jsonb DEFAULT NULL, p_ordered boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tracium, pg_temp SET enable_seqscan = off AS $$
DECLARE
    v_topic   topic;
    v_id      bigint;
    v_headers jsonb := nullif(p_headers, 'null');
BEGIN
    PERFORM check_topic(p_topic);
    PERFORM check_name('partition key', p_key, NULL);
    IF p_event_id IS NULL THEN
        PERFORM fail('TR003', 'event_id is missing: every message needs a UUID', '{"field":"event_id"}');
    END IF;
    PERFORM check_event(p_event_type, p_schema_version, p_payload, p_payload_bytes, v_headers);
    LOCK TABLE ONLY outbox IN ROW EXCLUSIVE MODE;
    SELECT * INTO v_topic FROM topic WHERE name = p_topic;
    IF NOT FOUND THEN
        INSERT INTO topic AS t (name, versioned, unversioned) VALUES (p_topic, false, true)
            ON CONFLICT (name) DO UPDATE SET name = t.name RETURNING * INTO v_topic;
    END IF;
    IF NOT v_topic.unversioned THEN
        PERFORM fail('TR004', format('topic %L carries the events of aggregates; to mix in messages without a version run SELECT tracium.allow_messages(%L)', p_topic, p_topic),
            jsonb_build_object('topic', p_topic));
    END IF;
    IF p_ordered IS NOT FALSE THEN
        PERFORM lock_key(p_topic, p_key);
    END IF;
    INSERT INTO outbox (event_id, event_type, schema_version, topic, partition_key, payload, payload_bytes, size, headers, shard, created_at)
    VALUES (p_event_id, p_event_type, coalesce(p_schema_version, 1), p_topic, p_key, p_payload, p_payload_bytes,
            coalesce(octet_length(p_payload_bytes), octet_length(p_payload::text), 0), v_headers,
            shard_of(p_key, shard_count()), clock_timestamp())
    RETURNING id INTO v_id;
    RETURN v_id;
END $$;

-- What waits for writers and then looks must see what they wrote: the snapshot has to be the statement's, not the
-- transaction's.
CREATE FUNCTION tracium.check_fresh_snapshot(p_what text) RETURNS void
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        PERFORM fail('TR003', format('%s needs a READ COMMITTED transaction', p_what), '{"field":"isolation"}');
    END IF;
END $$;

-- Sends an aggregate type's events to another topic than the rule's, or (NULL) nowhere. Before the type's first event:
-- moving a live type would split an aggregate over two topics, and no order holds across topics.
CREATE FUNCTION tracium.set_route(p_aggregate_type text, p_topic text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tracium, pg_temp AS $$
DECLARE v_topic text;
BEGIN
    PERFORM check_name('aggregate type', p_aggregate_type, '^[a-z][a-z0-9_-]{0,99}$');
    IF p_topic IS NOT NULL THEN
        PERFORM check_topic(p_topic);
    END IF;
    PERFORM check_fresh_snapshot('set_route');
    -- Waits for the appends under way: one of them may be the type's first.
    LOCK TABLE ONLY outbox IN SHARE ROW EXCLUSIVE MODE;
    SELECT topic INTO v_topic FROM route WHERE aggregate_type = p_aggregate_type;
    IF FOUND AND v_topic IS NOT DISTINCT FROM p_topic THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT 1 FROM stream WHERE aggregate_type = p_aggregate_type) THEN
        PERFORM fail('TR003', format('aggregate type %L already has events; its topic can only be set before the first', p_aggregate_type),
            jsonb_build_object('field', 'aggregate type'));
    END IF;
    INSERT INTO route AS r (aggregate_type, topic) VALUES (p_aggregate_type, p_topic)
        ON CONFLICT (aggregate_type) DO UPDATE SET topic = excluded.topic;
    -- The topic too, so that the type's first append finds both committed and holds up no other.
    DELETE FROM topic t WHERE t.name = v_topic AND NOT t.unversioned AND NOT EXISTS (SELECT 1 FROM route r WHERE r.topic = t.name);
    IF p_topic IS NOT NULL THEN
        INSERT INTO topic AS t (name, versioned, unversioned) VALUES (p_topic, true, false)
            ON CONFLICT (name) DO UPDATE SET versioned = true;
    END IF;
END $$;

-- Lets a topic of aggregates carry messages of tracium.publish too. Waits for the writers under way, so that no append
-- goes on without the key lock.
CREATE FUNCTION tracium.allow_messages(p_topic text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = tracium, pg_temp AS $$
BEGIN
    PERFORM check_topic(p_topic);
    LOCK TABLE ONLY outbox IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO topic AS t (name, versioned, unversioned) VALUES (p_topic, false, true)
        ON CONFLICT (name) DO UPDATE SET unversioned = true;
END $$;

-- Makes the shard tables and lease rows 0 … n-1. The number is fixed once: changing it moves keys between shards.
CREATE FUNCTION tracium.create_shards(p_shards integer) RETURNS void
LANGUAGE plpgsql SET search_path = tracium, pg_temp AS $$
DECLARE v_now integer;
BEGIN
    IF p_shards NOT BETWEEN 1 AND 256 THEN
        PERFORM fail('TR003', format('shards: %s is not between 1 and 256', p_shards), '{"field":"shards"}');
    END IF;
    LOCK TABLE setting IN SHARE ROW EXCLUSIVE MODE;
    SELECT value::integer INTO v_now FROM setting WHERE name = 'shards';
    IF v_now = p_shards THEN
        RETURN;
    ELSIF v_now IS NOT NULL THEN
        PERFORM fail('TR003', format('shards: the outbox has %s, changing it to %s is not supported', v_now, p_shards), '{"field":"shards"}');
    END IF;
    FOR i IN 0 .. p_shards - 1 LOOP
        -- Autovacuum by rows changed, not by a share of a table that only grows; fillfactor leaves the mark room.
        EXECUTE format('CREATE TABLE tracium.outbox_%s PARTITION OF tracium.outbox FOR VALUES IN (%s)
            WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000,
                  autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)', i, i);
        EXECUTE format('GRANT SELECT, UPDATE, DELETE ON tracium.outbox_%s TO tracium_relay', i);
        EXECUTE format('GRANT SELECT ON tracium.outbox_%s TO tracium_viewer', i);
    END LOOP;
    INSERT INTO relay_lease (shard) SELECT generate_series(0, p_shards - 1);
    INSERT INTO setting (name, value) VALUES ('shards', p_shards::text);
END $$;
