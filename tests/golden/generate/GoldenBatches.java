import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MemoryRecordsBuilder;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.TimestampType;

/**
 * Writes the golden batches with Apache Kafka's own classes, or reads batches back with them.
 *
 * <p>{@code write <directory>}: reads what cases_as_text.py prints, writes {@code <case>.<compression>.java.bin}.
 * {@code read <file>...}: prints each file's batches in the same text form, for comparison.
 */
public final class GoldenBatches {
    private static byte[] bytes(String hex) {
        return hex.equals("-") ? null : HexFormat.of().parseHex(hex);
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) return "-";
        byte[] raw = new byte[buffer.remaining()];
        buffer.duplicate().get(raw);
        return HexFormat.of().formatHex(raw);
    }

    public static void main(String[] args) throws Exception {
        if (args[0].equals("write")) {
            write(Path.of(args[1]));
        } else {
            for (int i = 1; i < args.length; i++) read(Path.of(args[i]));
        }
    }

    private static void write(Path directory) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String[] batch = null;
        List<String[]> records = new ArrayList<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            if (fields[0].equals("batch")) {
                if (batch != null) finish(directory, batch, records);
                batch = fields;
                records.clear();
            } else {
                records.add(fields);
            }
        }
        finish(directory, batch, records);
    }

    private static void finish(Path directory, String[] batch, List<String[]> records) throws Exception {
        long baseOffset = Long.parseLong(batch[3]);
        int leaderEpoch = Integer.parseInt(batch[4]);
        long producerId = Long.parseLong(batch[5]);
        short producerEpoch = Short.parseShort(batch[6]);
        MemoryRecords made;
        if (batch[10].equals("-")) {
            boolean appendTime = !batch[9].equals("-");
            MemoryRecordsBuilder builder = MemoryRecords.builder(
                ByteBuffer.allocate(1 << 20), (byte) 2, Compression.of(CompressionType.forName(batch[2])).build(),
                appendTime ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME, baseOffset,
                appendTime ? Long.parseLong(batch[9]) : -1L, producerId, producerEpoch, Integer.parseInt(batch[7]),
                Boolean.parseBoolean(batch[8]), leaderEpoch);
            for (String[] r : records) {
                Header[] headers = new Header[(r.length - 4) / 2];
                for (int i = 0; i < headers.length; i++)
                    headers[i] = new RecordHeader(
                        new String(bytes(r[4 + 2 * i]), StandardCharsets.UTF_8), bytes(r[5 + 2 * i]));
                builder.append(Long.parseLong(r[1]), bytes(r[2]), bytes(r[3]), headers);
            }
            made = builder.build();
        } else {
            String[] control = batch[10].split(":");
            EndTransactionMarker marker = new EndTransactionMarker(
                control[0].equals("commit") ? ControlRecordType.COMMIT : ControlRecordType.ABORT,
                Integer.parseInt(control[1]));
            made = MemoryRecords.withEndTransactionMarker(
                baseOffset, Long.parseLong(records.get(0)[1]), leaderEpoch, producerId, producerEpoch, marker);
        }
        byte[] raw = new byte[made.sizeInBytes()];
        made.buffer().duplicate().get(raw);
        Files.write(directory.resolve(batch[1] + "." + batch[2] + ".java.bin"), raw);
    }

    private static void read(Path file) throws Exception {
        for (MutableRecordBatch b : MemoryRecords.readableRecords(ByteBuffer.wrap(Files.readAllBytes(file))).batches()) {
            b.ensureValid();
            String control = "-";
            if (b.isControlBatch()) {
                EndTransactionMarker marker = EndTransactionMarker.deserialize(b.iterator().next());
                control = marker.controlType().name().toLowerCase() + ":" + marker.coordinatorEpoch();
            }
            System.out.println(String.join("\t", "batch", file.getFileName().toString().split("\\.")[0],
                b.compressionType().name, "" + b.baseOffset(), "" + b.partitionLeaderEpoch(), "" + b.producerId(),
                "" + b.producerEpoch(), "" + b.baseSequence(), "" + b.isTransactional(),
                b.timestampType() == TimestampType.LOG_APPEND_TIME ? "" + b.maxTimestamp() : "-", control));
            for (Record r : b) {
                StringBuilder out = new StringBuilder("record\t" + r.timestamp() + "\t" + hex(r.key()) + "\t" + hex(r.value()));
                for (Header h : r.headers()) {
                    byte[] value = h.value();
                    out.append("\t").append(hex(ByteBuffer.wrap(h.key().getBytes(StandardCharsets.UTF_8))));
                    out.append("\t").append(hex(value == null ? null : ByteBuffer.wrap(value)));
                }
                System.out.println(out);
            }
        }
    }
}
