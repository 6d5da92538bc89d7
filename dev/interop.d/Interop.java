import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.BitSet;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Utils;

/**
 * The Java side of dev/interop: reads with Kafka's own client what the relay has sent, and sends the same keys itself.
 *
 * <p>It is beside the scripts, not among the tests: it belongs to no build, and Java runs it from this file, with the
 * jars that the development broker has anyway (dev/kafka.sh run).
 *
 * <pre>
 *   Interop.java create TOPIC=PARTITIONS...
 *   Interop.java check EVENTS TOPIC=TWIN...   what the relay sent to TOPIC must be EVENTS; TWIN is for our own producer
 *   Interop.java delete TOPIC...
 * </pre>
 *
 * EVENTS has a line for each event, in the order of its key's versions: topic, key, version, event id, created_at and
 * payload, separated by tabs; key and payload are hexadecimal. The broker and the login come from the environment, as
 * `dev/kafka.sh env` prints it. One line for each check; exits with 1 if one of them failed.
 */
public class Interop {
    private static final Duration PATIENCE = Duration.ofSeconds(60);
    private static final int SHOWN = 5;

    private record Event(long version, String id, String createdAt, String payload) {}

    /** What differs, of which the first few are shown. */
    private static class Check {
        private static boolean failed;
        private final List<String> shown = new ArrayList<>();
        private long differences;

        void differs(String what) {
            differences++;
            if (shown.size() < SHOWN) {
                shown.add(what);
            }
        }

        void that(boolean fine, java.util.function.Supplier<String> otherwise) {
            if (!fine) {
                differs(otherwise.get());
            }
        }

        void report(String what) {
            System.out.println((differences == 0 ? "ok      " : "FAILED  ") + what);
            if (differences > 0) {
                failed = true;
                shown.forEach(line -> System.out.println("          " + line));
                if (differences > shown.size()) {
                    System.out.println("          and " + (differences - shown.size()) + " more");
                }
            }
        }
    }

    public static void main(String[] args) throws Exception {
        List<String> rest = Arrays.asList(args).subList(Math.min(1, args.length), args.length);
        switch (args.length == 0 ? "" : args[0]) {
            case "create" -> create(rest);
            case "check" -> check(Path.of(rest.get(0)), rest.subList(1, rest.size()));
            case "delete" -> {
                try (Admin admin = Admin.create(security())) {
                    admin.deleteTopics(rest).all().get();
                }
            }
            default -> {
                System.err.println("Interop.java create | check | delete, see its head");
                System.exit(2);
            }
        }
        System.exit(Check.failed ? 1 : 0);
    }

    private static void create(List<String> topics) throws Exception {
        try (Admin admin = Admin.create(security())) {
            List<NewTopic> wanted = new ArrayList<>();
            for (String topic : topics) {
                String[] parts = topic.split("=");
                wanted.add(new NewTopic(parts[0], Integer.parseInt(parts[1]), (short) 1));
            }
            admin.createTopics(wanted).all().get();
        }
    }

    /** TLS against the authority in a PEM file, the broker's name checked (Java's default), and SCRAM. */
    private static Properties security() {
        Properties p = new Properties();
        p.put("bootstrap.servers", env("TRACIUM_TEST_KAFKA_TLS_URL"));
        p.put("security.protocol", "SASL_SSL");
        p.put("ssl.truststore.type", "PEM");
        p.put("ssl.truststore.location", env("TRACIUM_TEST_TLS_DIR") + "/ca.pem");
        p.put("sasl.mechanism", "SCRAM-SHA-512");
        p.put(
                "sasl.jaas.config",
                String.format(
                        "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"%s\" password=\"%s\";",
                        env("TRACIUM_TEST_KAFKA_USER"), env("TRACIUM_TEST_KAFKA_PASSWORD")));
        return p;
    }

    private static String env(String name) {
        String value = System.getenv(name);
        if (value == null || value.isEmpty()) {
            System.err.println(name + " is not set");
            System.exit(2);
        }
        return value;
    }

    private static void check(Path events, List<String> pairs) throws Exception {
        Map<String, Map<String, List<Event>>> expected = read(events);
        for (String pair : pairs) {
            String[] topics = pair.split("=");
            Map<String, List<Event>> keys = expected.getOrDefault(topics[0], Map.of());
            Map<String, Integer> placed = relayed(topics[0], keys);
            produced(topics[1], topics[0], keys, placed);
        }
    }

    private static Map<String, Map<String, List<Event>>> read(Path events) throws IOException {
        Map<String, Map<String, List<Event>>> expected = new LinkedHashMap<>();
        for (String line : Files.readAllLines(events)) {
            String[] f = line.split("\t", -1);
            expected.computeIfAbsent(f[0], t -> new LinkedHashMap<>())
                    .computeIfAbsent(f[1], k -> new ArrayList<>())
                    .add(new Event(Long.parseLong(f[2]), f[3], f[4], f[5]));
        }
        return expected;
    }

    /** Java's partition of a key, as its default partitioner computes it. */
    private static int partition(byte[] key, int partitions) {
        return Utils.toPositive(Utils.murmur2(key)) % partitions;
    }

    /** Checks what the relay sent; returns in which partition each key is. */
    private static Map<String, Integer> relayed(String topic, Map<String, List<Event>> keys) {
        Check place = new Check();
        Check content = new Check();
        Check order = new Check();
        Check time = new Check();
        Map<String, Integer> placed = new LinkedHashMap<>();
        Map<String, Integer> next = new LinkedHashMap<>();
        BitSet used = new BitSet();
        long repeats = 0;
        int partitions;
        List<ConsumerRecord<byte[], byte[]>> records;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            partitions = consumer.partitionsFor(topic).size();
            records = readAll(consumer, topic, partitions);
        }
        for (ConsumerRecord<byte[], byte[]> record : records) {
            String at = topic + "/" + record.partition() + "@" + record.offset() + " " + shown(record.key());
            String key = record.key() == null ? "" : HexFormat.of().formatHex(record.key());
            List<Event> events = keys.get(key);
            if (events == null) {
                content.differs(at + ": no event has this key");
                continue;
            }
            int wanted = partition(record.key(), partitions);
            place.that(record.partition() == wanted, () -> at + ": Java's partition is " + wanted);
            placed.put(key, record.partition());
            used.set(record.partition());

            // Seen already is a repeat, as at-least-once allows. What was not seen must be the next version.
            int seen = next.getOrDefault(key, 0);
            String version = header(record, "aggregate_version");
            int index = indexOf(events, version);
            if (index < 0 || index > seen) {
                order.differs(at + ": version " + version + " after " + (seen == 0 ? "none" : events.get(seen - 1).version()));
                continue;
            }
            if (index < seen) {
                repeats++;
            } else {
                next.put(key, seen + 1);
            }
            Event event = events.get(index);
            content.that(isUuid(header(record, "event_id")) && event.id().equals(header(record, "event_id")),
                    () -> at + ": event_id is " + header(record, "event_id") + ", not " + event.id());
            content.that(event.payload().equals(record.value() == null ? "" : HexFormat.of().formatHex(record.value())),
                    () -> at + ": another payload than was appended: " + shown(record.value()));
            String created = header(record, "created_at");
            time.that(event.createdAt().equals(created), () -> at + ": created_at is " + created + ", not " + event.createdAt());
            time.that(record.timestampType() == TimestampType.CREATE_TIME && millis(created) == record.timestamp(),
                    () -> at + ": timestamp " + record.timestamp() + " (" + record.timestampType() + ") at " + created);
        }
        keys.forEach((key, events) -> {
            int seen = next.getOrDefault(key, 0);
            content.that(seen == events.size(), () -> "key " + key + ": " + seen + " of " + events.size() + " events are there");
        });
        content.that(!keys.isEmpty(), () -> "no event was to be sent");
        place.that(used.cardinality() == partitions, () -> "only " + used.cardinality() + " partitions have records");

        String what = topic + ": " + records.size() + " records of " + keys.size() + " keys in " + partitions + " partitions";
        content.report(what + ": event_id and payload are what was appended, none is missing; " + repeats + " sent twice");
        place.report(topic + ": the relay's partition of each key is Java's murmur2");
        order.report(topic + ": aggregate_version of each key has no gap and no step back");
        time.report(topic + ": the timestamp is header created_at, to the millisecond");
        return placed;
    }

    private static int indexOf(List<Event> events, String version) {
        for (int i = 0; i < events.size(); i++) {
            if (Long.toString(events.get(i).version()).equals(version)) {
                return i;
            }
        }
        return -1;
    }

    /** Sends each key by a Java producer as it is by default, which must take the partition that the relay took. */
    private static void produced(String topic, String relayed, Map<String, List<Event>> keys, Map<String, Integer> placed)
            throws Exception {
        Properties p = security();
        p.put("key.serializer", ByteArraySerializer.class.getName());
        p.put("value.serializer", ByteArraySerializer.class.getName());
        Check same = new Check();
        int partitions;
        Map<String, Future<RecordMetadata>> sent = new LinkedHashMap<>();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(p)) {
            partitions = producer.partitionsFor(topic).size();
            for (String key : keys.keySet()) {
                sent.put(key, producer.send(new ProducerRecord<>(topic, HexFormat.of().parseHex(key), new byte[] {'j'})));
            }
            producer.flush();
        }
        for (Map.Entry<String, Future<RecordMetadata>> one : sent.entrySet()) {
            byte[] key = HexFormat.of().parseHex(one.getKey());
            int java = one.getValue().get().partition();
            Integer ours = placed.get(one.getKey());
            same.that(ours != null && ours == java, () -> shown(key) + ": the Java producer's is " + java + ", the relay's " + ours);
        }
        same.report(topic + ": a Java producer put " + sent.size() + " keys where the relay did in " + relayed + ", of "
                + partitions + " partitions");
    }

    private static KafkaConsumer<byte[], byte[]> consumer() {
        Properties p = security();
        p.put("key.deserializer", ByteArrayDeserializer.class.getName());
        p.put("value.deserializer", ByteArrayDeserializer.class.getName());
        p.put("isolation.level", "read_committed");
        p.put("enable.auto.commit", "false");
        return new KafkaConsumer<>(p);
    }

    /** All that is in the topic now; in each partition in the order of its offsets. */
    private static List<ConsumerRecord<byte[], byte[]>> readAll(
            KafkaConsumer<byte[], byte[]> consumer, String topic, int partitions) {
        List<TopicPartition> all = new ArrayList<>();
        for (int i = 0; i < partitions; i++) {
            all.add(new TopicPartition(topic, i));
        }
        consumer.assign(all);
        consumer.seekToBeginning(all);
        Map<TopicPartition, Long> ends = consumer.endOffsets(all);
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        Instant end = Instant.now().plus(PATIENCE);
        while (all.stream().anyMatch(tp -> consumer.position(tp) < ends.get(tp))) {
            if (Instant.now().isAfter(end)) {
                throw new IllegalStateException(topic + " could not be read within " + PATIENCE.toSeconds() + " s");
            }
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        return records;
    }

    private static String header(ConsumerRecord<byte[], byte[]> record, String name) {
        var header = record.headers().lastHeader(name);
        return header == null || header.value() == null ? null : new String(header.value(), StandardCharsets.UTF_8);
    }

    private static boolean isUuid(String text) {
        try {
            return text != null && UUID.fromString(text).toString().equals(text);
        } catch (IllegalArgumentException e) {
            return false;
        }
    }

    private static long millis(String createdAt) {
        try {
            return createdAt == null ? -1 : Instant.parse(createdAt).toEpochMilli();
        } catch (java.time.format.DateTimeParseException e) {
            return -1;
        }
    }

    private static String shown(byte[] bytes) {
        return bytes == null ? "null"
                : "'" + new String(bytes, StandardCharsets.UTF_8) + "' (" + HexFormat.of().formatHex(bytes) + ")";
    }
}
