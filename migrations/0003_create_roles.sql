-- Roles are the cluster's, not the database's: another database may have made them, or be making them now.
DO $$
DECLARE v_role text;
BEGIN
    FOREACH v_role IN ARRAY ARRAY['app_writer', 'tracium_relay', 'tracium_consumer', 'tracium_viewer'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = v_role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
    END LOOP;
END $$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tracium FROM PUBLIC;
REVOKE ALL ON SCHEMA tracium FROM PUBLIC;
GRANT USAGE ON SCHEMA tracium TO app_writer, tracium_relay, tracium_consumer, tracium_viewer;

-- A writer goes through append and publish, and reads what an aggregate is rebuilt from.
GRANT EXECUTE ON FUNCTION tracium.append, tracium.publish TO app_writer;
GRANT SELECT ON tracium.event_store, tracium.stream, tracium.setting, tracium.route TO app_writer;

-- The relay reads and marks the outbox; it cannot write an event.
GRANT SELECT ON tracium.setting, tracium.outbox, tracium.outbox_id_seq TO tracium_relay;
GRANT SELECT, UPDATE ON tracium.relay_lease TO tracium_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON tracium.relay_member, tracium.held_key TO tracium_relay;

GRANT SELECT ON tracium.setting TO tracium_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON tracium.projection, tracium.last_seen, tracium.processed_events,
    tracium.quarantine, tracium.dead_letter, tracium.projection_progress TO tracium_consumer;

GRANT SELECT ON ALL TABLES IN SCHEMA tracium TO tracium_viewer;

-- What a binary checks on start.
INSERT INTO tracium.setting (name, value) VALUES ('schema', '3');
