import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.time.Instant;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Kafka Streams doing what our jobs do, exactly once, its state in RocksDB.
 *
 * <p>One argument: JSON with {@code bootstrap}, {@code topics} (two), {@code records} to be read, {@code work} ({@code filter},
 * {@code pass}, {@code windows}), {@code by} (the column of the key, of windows), {@code folder} and {@code threads}. Says
 * {@code ready} when it runs and {@code done} when all is committed, a line each.
 */
public final class Opponent {
    private static final ObjectMapper JSON =
            new ObjectMapper().configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    private static final Serde<byte[]> BYTES = Serdes.ByteArray();
    private static final byte[] NOTHING = {0};

    /** A record of the input. */
    public static final class Row {
        public long id;
        public String key;
        public double value;
        public String at;
    }

    /** A record of the output of {@code filter}. */
    public record Doubled(long id, String key, double value, String at, double doubled) {}

    /** A result of a window so far. */
    public record Hits(String key, long window_start, long hits) {}

    private final JsonNode given;
    private final AtomicLong left;
    private final CountDownLatch over = new CountDownLatch(1);

    private Opponent(JsonNode given) {
        this.given = given;
        this.left = new AtomicLong(given.get("records").asLong());
    }

    public static void main(String[] arguments) throws Exception {
        new Opponent(JSON.readTree(arguments[0])).run();
    }

    private void run() throws InterruptedException {
        StreamsBuilder builder = new StreamsBuilder();
        switch (given.get("work").asText()) {
            case "filter" -> filter(builder);
            case "pass" -> pass(builder);
            case "windows" -> windows(builder);
            default -> throw new IllegalArgumentException("unknown work");
        }
        CountDownLatch runs = new CountDownLatch(1);
        try (KafkaStreams streams = new KafkaStreams(builder.build(), settings())) {
            streams.setUncaughtExceptionHandler(
                    error -> {
                        error.printStackTrace();
                        Runtime.getRuntime().halt(1);
                        return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
                    });
            streams.setStateListener(
                    (now, before) -> {
                        if (now == KafkaStreams.State.RUNNING) {
                            runs.countDown();
                        }
                    });
            streams.start();
            runs.await();
            System.out.println("ready");
            over.await();
            if (!streams.close(Duration.ofMinutes(2))) { // commits what is not committed
                throw new IllegalStateException("it did not end within two minutes");
            }
        }
        System.out.println("done");
    }

    private void filter(StreamsBuilder builder) {
        builder.stream(source(), Consumed.with(BYTES, json(Row.class)))
                .peek((key, row) -> count())
                .filter((key, row) -> row.id % 10 != 0)
                .mapValues(row -> new Doubled(row.id, row.key, row.value, row.at, row.value * 2))
                .to(target(), Produced.with(BYTES, json(Doubled.class)));
    }

    private void pass(StreamsBuilder builder) {
        builder.stream(source(), Consumed.with(BYTES, BYTES)).peek((key, value) -> count()).to(target());
    }

    /** How many records a key has in each minute. Rows may come in any order: a window takes them for a day. */
    private void windows(StreamsBuilder builder) {
        boolean byId = given.get("by").asText().equals("id");
        Consumed<byte[], Row> consumed =
                Consumed.with(BYTES, json(Row.class)).withTimestampExtractor(Opponent::happened);
        Materialized<String, Long, WindowStore<Bytes, byte[]>> counts = Materialized.as("counts");
        builder.stream(source(), consumed)
                .selectKey((key, row) -> byId ? Long.toString(row.id) : row.key)
                .mapValues(row -> NOTHING) // a count needs no more than the key and the time
                .groupByKey(Grouped.with(Serdes.String(), BYTES))
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofDays(1)))
                .aggregate(
                        () -> 0L,
                        (key, value, hits) -> {
                            count();
                            return hits + 1;
                        },
                        counts.withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream((key, hits) -> key)
                .map((key, hits) -> new KeyValue<>(
                        (byte[]) null, new Hits(key.key(), key.window().start(), hits)))
                .to(target(), Produced.with(BYTES, json(Hits.class)));
    }

    private String source() {
        return given.get("topics").get(0).asText();
    }

    private String target() {
        return given.get("topics").get(1).asText();
    }

    /** One record more has been worked on; the last one ends the program, which commits first. */
    private void count() {
        if (left.decrementAndGet() == 0) {
            over.countDown();
        }
    }

    private static long happened(ConsumerRecord<Object, Object> record, long before) {
        return Instant.parse(((Row) record.value()).at).toEpochMilli();
    }

    private Properties settings() {
        Properties found = new Properties();
        found.putAll(
                Map.of(
                        StreamsConfig.APPLICATION_ID_CONFIG, target() + "-streams",
                        StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, given.get("bootstrap").asText(),
                        StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2,
                        StreamsConfig.NUM_STREAM_THREADS_CONFIG, given.get("threads").asInt(),
                        StreamsConfig.STATE_DIR_CONFIG, given.get("folder").asText(),
                        StreamsConfig.REPLICATION_FACTOR_CONFIG, 1,
                        StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class,
                        StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArraySerde.class,
                        // Fewer and larger transactions, and fewer results of a window, than by default: both make it faster.
                        StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1000,
                        StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 64 * 1024 * 1024));
        found.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        found.put(StreamsConfig.producerPrefix("compression.type"), "lz4");
        return found;
    }

    private static <T> Serde<T> json(Class<T> type) {
        Serializer<T> write =
                (topic, value) -> {
                    try {
                        return JSON.writeValueAsBytes(value);
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                };
        Deserializer<T> read =
                (topic, bytes) -> {
                    try {
                        return JSON.readValue(bytes, type);
                    } catch (IOException error) {
                        throw new UncheckedIOException(error);
                    }
                };
        return Serdes.serdeFrom(write, read);
    }
}
