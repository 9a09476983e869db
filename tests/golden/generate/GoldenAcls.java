import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.math.BigInteger;
import java.net.InetAddress;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/** Asks Kafka's StandardAuthorizer. Reads sets as acl_cases.py writes them, prints each with its answers in hex. */
public class GoldenAcls {
    private static final String[] NAMES = {"a", "ab", "abc", "abd", "b", "hardcode"};
    private static final byte[] TYPES = {2, 3, 5};

    record Caller(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "KAFKA"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return ""; }
        public int correlationId() { return 0; }
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            System.out.println(line);
            System.out.println(answers(line.split("\t", -1)));
        }
    }

    private static String answers(String[] fields) throws Exception {
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.configure(Map.of(
            "super.users", "User:root", "allow.everyone.if.no.acl.found", fields[0].equals("1") ? "true" : "false"));
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        authorizer.completeInitialLoad();
        for (int i = 1; i < fields.length; i++)
            authorizer.addAcl(Uuid.randomUuid(), entry(fields[i].split("\\|", -1)));
        StringBuilder bits = new StringBuilder("1");
        for (String user : new String[] {"root", "a", "b"})
            for (String host : new String[] {"10.0.0.1", "10.0.0.2"}) {
                Caller caller = new Caller(new KafkaPrincipal("User", user), InetAddress.getByName(host));
                for (byte operation = 3; operation <= 15; operation++)
                    for (byte type : TYPES) {
                        for (String name : NAMES)
                            bits.append(asked(authorizer, caller, operation, type, name) ? '1' : '0');
                        bits.append(authorizer.authorizeByResourceType(caller, AclOperation.fromCode(operation),
                            ResourceType.fromCode(type)) == AuthorizationResult.ALLOWED ? '1' : '0');
                    }
            }
        authorizer.close();
        return new BigInteger(bits.toString(), 2).toString(16);
    }

    private static boolean asked(StandardAuthorizer authorizer, Caller caller, byte operation, byte type, String name) {
        ResourcePattern resource = new ResourcePattern(ResourceType.fromCode(type), name, PatternType.LITERAL);
        Action action = new Action(AclOperation.fromCode(operation), resource, 1, false, false);
        return authorizer.authorize(caller, List.of(action)).get(0) == AuthorizationResult.ALLOWED;
    }

    private static StandardAcl entry(String[] said) {
        return new StandardAcl(ResourceType.fromCode(Byte.parseByte(said[0])), said[1],
            PatternType.fromCode(Byte.parseByte(said[2])), said[3], said[4],
            AclOperation.fromCode(Byte.parseByte(said[5])), AclPermissionType.fromCode(Byte.parseByte(said[6])));
    }
}
