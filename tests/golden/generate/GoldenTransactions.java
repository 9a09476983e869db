import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Optional;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.SimpleRecord;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.CompletedTxn;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.ProducerAppendInfo;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.TransactionIndex;

/**
 * What Kafka's producer state and transaction index make of the histories of transaction_cases.py.
 *
 * For each line in, two lines out: the line, and with tabs between: the index file in hex; the first undecided offset
 * after each step, -1 for none; and for some ranges "from-to=producer:first,..." of the aborted transactions found.
 *
 * With "read FILE": prints the entries of an index file, one a line.
 */
public class GoldenTransactions {
    public static void main(String[] args) throws Exception {
        if (args.length > 1 && args[0].equals("read")) {
            TransactionIndex index = new TransactionIndex(0, new File(args[1]));
            index.sanityCheck();
            for (AbortedTxn each : index.allAbortedTxns())
                System.out.println(each.producerId() + " " + each.firstOffset() + " " + each.lastOffset() + " "
                    + each.lastStableOffset());
            return;
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(line);
            System.out.println(outcome(line));
        }
    }

    private static String outcome(String line) throws Exception {
        File directory = Files.createTempDirectory("golden").toFile();
        ProducerStateManager states = new ProducerStateManager(new TopicPartition("t", 0), directory, 900000,
            new ProducerStateManagerConfig(86400000, true), Time.SYSTEM);
        File file = new File(directory, "00000000000000000000.txnindex");
        TransactionIndex index = new TransactionIndex(0, file);
        List<String> undecided = new ArrayList<>();
        long offset = 0;
        for (String step : line.split(";")) {
            String[] words = step.split(" ");
            int count = 1;
            MemoryRecords records;
            if (words[0].equals("D") || words[0].equals("P")) {
                count = Integer.parseInt(words[words.length - 1]);
                SimpleRecord[] values = new SimpleRecord[count];
                for (int i = 0; i < count; i++)
                    values[i] = new SimpleRecord(1000L, null, ("value " + i).getBytes());
                records = words[0].equals("P")
                    ? MemoryRecords.withRecords(offset, Compression.NONE, 0, values)
                    : MemoryRecords.withTransactionalRecords(offset, Compression.NONE, Long.parseLong(words[1]),
                        Short.parseShort(words[2]), Integer.parseInt(words[3]), 0, values);
            } else {
                records = MemoryRecords.withEndTransactionMarker(offset, 1000L, 0, Long.parseLong(words[1]),
                    Short.parseShort(words[2]), new EndTransactionMarker(
                        words[0].equals("A") ? ControlRecordType.ABORT : ControlRecordType.COMMIT, 0));
            }
            for (RecordBatch batch : records.batches()) {
                if (!batch.hasProducerId())
                    continue;
                AppendOrigin origin = batch.isControlBatch() ? AppendOrigin.COORDINATOR : AppendOrigin.CLIENT;
                ProducerAppendInfo info = states.prepareUpdate(batch.producerId(), origin);
                Optional<CompletedTxn> completed = info.append(batch, Optional.of(new LogOffsetMetadata(offset)));
                states.update(info);
                if (completed.isPresent()) {
                    long stable = states.lastStableOffset(completed.get());
                    if (completed.get().isAborted)
                        index.append(new AbortedTxn(completed.get(), stable));
                    states.completeTxn(completed.get());
                }
            }
            offset += count;
            undecided.add(Long.toString(states.firstUndecidedOffset().orElse(-1)));
        }
        index.flush();
        List<String> found = new ArrayList<>();
        long end = states.firstUndecidedOffset().orElse(offset);
        for (long from = 0; from < end; from += 1 + end / 12)
            for (long to = from + 1; to <= end; to += 1 + end / 12) {
                List<String> aborted = new ArrayList<>();
                for (AbortedTxn each : index.collectAbortedTxns(from, to).abortedTransactions)
                    aborted.add(each.producerId() + ":" + each.firstOffset());
                found.add(from + "-" + to + "=" + String.join(",", aborted));
            }
        String bytes = file.exists() ? HexFormat.of().formatHex(Files.readAllBytes(file.toPath())) : "";
        return bytes + "\t" + String.join(" ", undecided) + "\t" + String.join(" ", found);
    }
}
