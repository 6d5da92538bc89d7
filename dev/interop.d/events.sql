-- What dev/interop sends: three events of each key, the same 2,000 keys to both topics.
--   psql -v wide=TOPIC -v narrow=TOPIC -f events.sql
-- The keys are the same in every run, so that a failure can be repeated.

CREATE TABLE keys AS
SELECT DISTINCT key FROM (
    SELECT md5('key ' || n)::uuid::text FROM generate_series(1, 600) n
    UNION ALL SELECT 'order-' || n FROM generate_series(1, 400) n
    -- murmur2 takes four bytes at a time, then what is left: all short lengths
    UNION ALL SELECT chr(n) FROM generate_series(32, 126) n
    UNION ALL SELECT left(md5(n::text), length) FROM generate_series(1, 45) n, generate_series(2, 5) length
    UNION ALL SELECT left(repeat(md5(n::text), 16), 3 * n) FROM generate_series(10, 170) n
    -- Bytes of 0x80 and more, which are negative in Java, at all places of the four. A key is UTF-8.
    UNION ALL SELECT left('abc', shift) || chr(n) || right('xyz', n % 4)
        FROM generate_series(128, 2047, 19) n, generate_series(0, 3) shift
    UNION ALL SELECT left('abc', n % 4) || chr(19968 + 61 * n) || chr(228) FROM generate_series(0, 119) n
    UNION ALL SELECT left('abc', n % 4) || repeat(chr(127744 + n), 1 + n % 5) FROM generate_series(0, 119) n
    UNION ALL VALUES ('ä'), ('漢'), ('漢字'), ('Straße 1'), (' '), (E'\n'), (E'\x01'), ('ä' || repeat('ü', 255))
) all_kinds (key);

SELECT tracium.set_route('wide', :'wide'), tracium.set_route('narrow', :'narrow');

-- In rounds, so that between two events of a key there are those of others.
CREATE FUNCTION send(versions int) RETURNS void LANGUAGE sql AS $$
    SELECT count(*) FROM keys CROSS JOIN (VALUES ('wide'), ('narrow')) t (aggregate_type)
    CROSS JOIN LATERAL tracium.append(aggregate_type, key, NULL, (
        SELECT jsonb_agg(jsonb_build_object('event_id', gen_random_uuid(), 'event_type', aggregate_type || '.changed',
            'payload', jsonb_build_object('key', key, 'n', n, 'note', 'leave it with the neighbour, please, the bell is broken')))
        FROM generate_series(1, versions) n))
$$;
SELECT send(2);
SELECT send(1);

-- What must be in the topics, for Interop.java.
CREATE VIEW expected AS
SELECT topic, encode(convert_to(aggregate_id, 'UTF8'), 'hex') AS key, version, event_id,
       to_char(recorded_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS created_at,
       encode(convert_to(payload::text, 'UTF8'), 'hex') AS payload
FROM tracium.event_store ORDER BY aggregate_type, aggregate_id, version;
