import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;

/**
 * Asks Kafka's assignors and Kafka's codec of the consumer protocol.
 *
 * "assign": reads cases as assignment_cases.py writes them, prints each with what Kafka makes of it.
 * "protocol": prints the bytes of the subscriptions and assignments of tests/proto/logs/test_consumer_protocol.py.
 */
public class GoldenAssignments {
    public static void main(String[] args) throws Exception {
        if (args[0].equals("assign"))
            assign();
        else
            protocol();
    }

    private static void assign() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            Map<String, Subscription> members = new HashMap<>();
            Map<String, String> userDataOf = new HashMap<>();
            for (int i = 2; i < fields.length; i++) {
                String[] said = fields[i].split(";", -1);
                List<TopicPartition> owned = pairs(said[3]);
                int generation = Integer.parseInt(said[4]);
                AbstractPartitionAssignor before = assignor(fields[0]);
                if (!owned.isEmpty())
                    before.onAssignment(new Assignment(owned), new ConsumerGroupMetadata("g", generation, "", Optional.empty()));
                ByteBuffer userData = before.subscriptionUserData(Set.of());
                userDataOf.put(said[0], hex(userData));
                if (fields[0].equals("sticky"))
                    owned = List.of();  // an eager member gave everything up before it joined
                Subscription subscription = new Subscription(items(said[2]), userData, owned, generation, Optional.empty());
                if (!said[1].isEmpty())
                    subscription.setGroupInstanceId(Optional.of(said[1]));
                members.put(said[0], subscription);
            }
            Map<String, Integer> counts = new HashMap<>();
            for (TopicPartition count : pairs(fields[1]))
                if (members.values().stream().anyMatch(member -> member.topics().contains(count.topic())))
                    counts.put(count.topic(), count.partition());
            List<String> parts = new ArrayList<>();
            new TreeMap<>(assignor(fields[0]).assign(counts, members)).forEach((member, partitions) -> {
                List<String> names = new ArrayList<>();
                partitions.forEach(p -> names.add(p.topic() + ":" + p.partition()));
                parts.add(member + ";" + String.join(",", names) + ";" + userDataOf.get(member));
            });
            out.append(line).append('\n').append(String.join("\t", parts)).append('\n');
        }
        System.out.print(out);
    }

    private static void protocol() {
        Map<String, Subscription> subscriptions = new LinkedHashMap<>();
        subscriptions.put("plain", new Subscription(List.of("orders")));
        subscriptions.put("full", new Subscription(
            List.of("orders", "flights", "données"), ByteBuffer.wrap(new byte[] {0, 0, 0, 7}),
            pairs("orders:1,flights:2,flights:0"), 7, Optional.of("rack-a")));
        subscriptions.put("nothing", new Subscription(List.of(), null, List.of(), -1, Optional.empty()));
        subscriptions.forEach((name, subscription) -> {
            for (short version = 0; version <= 3; version++)
                System.out.println("subscription " + name + " " + version + " "
                    + hex(ConsumerProtocol.serializeSubscription(subscription, version)));
        });
        Map<String, Assignment> assignments = new LinkedHashMap<>();
        assignments.put("plain", new Assignment(pairs("orders:0,orders:1")));
        assignments.put("full", new Assignment(
            pairs("orders:2,flights:0,orders:1,données:5"), ByteBuffer.wrap(new byte[] {1, 2, 3})));
        assignments.put("nothing", new Assignment(List.of()));
        assignments.forEach((name, assignment) -> {
            for (short version = 0; version <= 3; version++)
                System.out.println("assignment " + name + " " + version + " "
                    + hex(ConsumerProtocol.serializeAssignment(assignment, version)));
        });
    }

    private static AbstractPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static List<String> items(String text) {
        return text.isEmpty() ? List.of() : Arrays.asList(text.split(","));
    }

    private static List<TopicPartition> pairs(String text) {
        List<TopicPartition> pairs = new ArrayList<>();
        for (String item : items(text)) {
            int colon = item.lastIndexOf(':');
            pairs.add(new TopicPartition(item.substring(0, colon), Integer.parseInt(item.substring(colon + 1))));
        }
        return pairs;
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null)
            return "";
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
