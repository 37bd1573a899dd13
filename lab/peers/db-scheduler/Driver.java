// Measures db-scheduler's one-time tasks on PostgreSQL; ../README.md has the method that all drivers share.
//
// db-scheduler's documented fast settings: the polling strategy lock-and-fetch with the limits of its README for high
// throughput (1.0 and 4.0), 20 threads, a polling interval of 1 ms (10 s by default), immediate execution (which helps
// tasks that are due as they are scheduled), `scheduleBatch` with the PostgreSQL driver's rewriting of batches. The server
// commits without waiting for the disk (`.ci/peers`): nothing else here is written to disk either.

import com.github.kagkarlsson.scheduler.Scheduler;
import com.github.kagkarlsson.scheduler.SchedulerClient;
import com.github.kagkarlsson.scheduler.serializer.Serializer;
import com.github.kagkarlsson.scheduler.task.SchedulableInstance;
import com.github.kagkarlsson.scheduler.task.TaskDescriptor;
import com.github.kagkarlsson.scheduler.task.TaskInstance;
import com.github.kagkarlsson.scheduler.task.helper.OneTimeTask;
import com.github.kagkarlsson.scheduler.task.helper.Tasks;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.function.IntUnaryOperator;

public class Driver {
    static final int PAYLOAD_BYTES = 128;
    static final int WARM_UP = 1000;
    static final int BATCH = 1000;
    static final int THREADS = 20;
    static final int POLL_MS = 1;
    static final Duration GIVE_UP = Duration.ofSeconds(30);

    static final TaskDescriptor<byte[]> DUE = TaskDescriptor.of("due", byte[].class);

    // Payloads are stored as they are: by default they would be wrapped by Java's serialization.
    static final Serializer AS_IT_IS = new Serializer() {
        @Override
        public byte[] serialize(Object data) {
            return (byte[]) data;
        }

        @Override
        public <T> T deserialize(Class<T> type, byte[] data) {
            return type.cast(data);
        }
    };

    // What db-scheduler's documentation has for PostgreSQL.
    static final String TABLE = """
        create table scheduled_tasks (
            task_name text not null,
            task_instance text not null,
            task_data bytea,
            execution_time timestamp with time zone not null,
            picked boolean not null,
            picked_by text,
            last_success timestamp with time zone,
            last_failure timestamp with time zone,
            consecutive_failures int,
            last_heartbeat timestamp with time zone,
            version bigint not null,
            priority smallint,
            primary key (task_name, task_instance)
        );
        create index execution_time_idx on scheduled_tasks (execution_time);
        create index last_heartbeat_idx on scheduled_tasks (last_heartbeat);
        """;

    // Nanoseconds since 1970; the fraction is as fine as the system's clock.
    static long nanos(Instant at) {
        return at.getEpochSecond() * 1_000_000_000L + at.getNano();
    }

    record Outcome(Duration insert, Instant base, long[] starts) {}

    // Inserts tasks, then lets a scheduler take them. `dueOf` tells how many ms after the first due a task is due.
    static Outcome run(HikariDataSource source, String phase, int count, Duration lead, IntUnaryOperator dueOf) throws Exception {
        var starts = new AtomicLongArray(count);
        var handled = new AtomicInteger();
        OneTimeTask<byte[]> task = Tasks.oneTime(DUE).execute((instance, context) -> {
            long at = nanos(Instant.now());
            int index = Integer.parseInt(new String(instance.getData(), StandardCharsets.US_ASCII).strip());
            // A task that comes twice counts once.
            if (starts.compareAndSet(index, 0, at)) {
                handled.incrementAndGet();
            }
        });
        var client = SchedulerClient.Builder.create(source, task).serializer(AS_IT_IS).build();
        Instant base = Instant.now().plus(lead).truncatedTo(ChronoUnit.SECONDS).plusSeconds(1);

        Instant began = Instant.now();
        for (int from = 0; from < count; from += BATCH) {
            List<SchedulableInstance<?>> batch = new ArrayList<>();
            for (int index = from; index < Math.min(from + BATCH, count); index++) {
                byte[] payload = String.format("%-" + PAYLOAD_BYTES + "d", index).getBytes(StandardCharsets.US_ASCII);
                var instance = new TaskInstance<>(DUE.getTaskName(), phase + "-" + index, payload);
                batch.add(SchedulableInstance.of(instance, base.plusMillis(dueOf.applyAsInt(index))));
            }
            client.scheduleBatch(batch);
        }
        Duration insert = Duration.between(began, Instant.now());
        if (Instant.now().isAfter(base.minusMillis(500))) {
            throw new IllegalStateException(count + " tasks took " + insert.toMillis() + " ms to insert: some were due before");
        }

        Scheduler scheduler = Scheduler.create(source, task)
            .serializer(AS_IT_IS)
            .threads(THREADS)
            .pollingInterval(Duration.ofMillis(POLL_MS))
            .pollUsingLockAndFetch(1.0, 4.0)
            .enableImmediateExecution()
            .build();
        scheduler.start();
        int seen = 0;
        Instant progress = base;
        while (handled.get() < count) {
            Thread.sleep(20);
            if (handled.get() > seen) {
                seen = handled.get();
                progress = Instant.now();
            }
            Instant last = progress.isAfter(base) ? progress : base;
            if (Instant.now().isAfter(last.plus(GIVE_UP))) {
                throw new IllegalStateException(seen + " of " + count + " tasks were handed over, then no more");
            }
        }
        scheduler.stop();
        long[] plain = new long[count];
        Arrays.setAll(plain, starts::get);
        return new Outcome(insert, base, plain);
    }

    // By nearest rank: a lateness that did occur.
    static String percentile(long[] sorted, double percent) {
        int rank = Math.max((int) Math.ceil(percent / 100 * sorted.length), 1);
        return String.format(Locale.ROOT, "%.3f", sorted[rank - 1] / 1e6);
    }

    static String version() throws Exception {
        var properties = new Properties();
        try (var file = Scheduler.class.getResourceAsStream("/META-INF/maven/com.github.kagkarlsson/db-scheduler/pom.properties")) {
            properties.load(file);
        }
        return properties.getProperty("version");
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int at = 0; at + 1 < arguments.length; at += 2) {
            options.put(arguments[at], arguments[at + 1]);
        }
        int tasks = Integer.parseInt(options.get("--tasks"));
        int rate = Integer.parseInt(options.get("--rate"));
        int seconds = Integer.parseInt(options.get("--seconds"));

        var config = new HikariConfig();
        config.setJdbcUrl(options.get("--server"));
        config.addDataSourceProperty("reWriteBatchedInserts", "true");
        config.setMaximumPoolSize(THREADS + 5);
        try (var source = new HikariDataSource(config)) {
            try (var connection = source.getConnection(); var statement = connection.createStatement()) {
                statement.execute(TABLE);
            }
            Outcome warm = run(source, "warm", WARM_UP, Duration.ofSeconds(2), index -> 0);
            // Twice what inserting took while all was cold, and time for the scheduler to start.
            long perTask = 2 * warm.insert().toNanos() / WARM_UP;

            Outcome herd = run(source, "herd", tasks, Duration.ofSeconds(3).plusNanos(perTask * tasks), index -> 0);
            long took = Arrays.stream(herd.starts()).max().getAsLong() - nanos(herd.base());

            IntUnaryOperator steadyDue = index -> (int) (index * 1000L / rate);
            int count = rate * seconds;
            Outcome steady = run(source, "steady", count, Duration.ofSeconds(3).plusNanos(perTask * count), steadyDue);
            long[] late = new long[count];
            Arrays.setAll(late, index -> steady.starts()[index] - nanos(steady.base().plusMillis(steadyDue.applyAsInt(index))));
            Arrays.sort(late);

            System.out.printf(Locale.ROOT,
                "{\"peer\":\"db-scheduler\",\"version\":\"%s\",\"settings\":\"%s\","
                    + "\"inserts_per_s\":%d,\"throughput_per_s\":%d,"
                    + "\"lateness_ms\":{\"p50\":%s,\"p90\":%s,\"p99\":%s,\"p99.9\":%s,\"max\":%s,\"min\":%s},"
                    + "\"tasks\":%d,\"rate\":%d,\"seconds\":%d,\"payload_bytes\":%d}%n",
                version(),
                "lock-and-fetch 1.0 4.0, polled every " + POLL_MS + " ms, " + THREADS + " threads, scheduleBatch of " + BATCH,
                Math.round(tasks * 1e9 / herd.insert().toNanos()),
                Math.round(tasks * 1e9 / took),
                percentile(late, 50), percentile(late, 90), percentile(late, 99), percentile(late, 99.9),
                percentile(late, 100), percentile(late, 0),
                tasks, rate, seconds, PAYLOAD_BYTES);
        }
    }
}
