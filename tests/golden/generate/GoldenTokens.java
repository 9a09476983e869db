import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.NameCallback;
import javax.security.auth.callback.PasswordCallback;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.authenticator.CredentialCache;
import org.apache.kafka.common.security.scram.ScramCredential;
import org.apache.kafka.common.security.scram.ScramExtensionsCallback;
import org.apache.kafka.common.security.scram.internals.ScramMechanism;
import org.apache.kafka.common.security.scram.internals.ScramSaslClient;
import org.apache.kafka.common.security.scram.internals.ScramSaslServer;
import org.apache.kafka.common.security.scram.internals.ScramServerCallbackHandler;
import org.apache.kafka.common.security.token.delegation.DelegationToken;
import org.apache.kafka.common.security.token.delegation.TokenInformation;
import org.apache.kafka.common.security.token.delegation.internals.DelegationTokenCache;
import org.apache.kafka.server.DelegationTokenManager;
import org.apache.kafka.server.config.DelegationTokenManagerConfigs;

/** Kafka's client logs in to Kafka's server by delegation tokens. Prints key, id, mechanism, HMAC and the messages. */
public class GoldenTokens {
    private static final String[] KEYS = {"k", "a key that all nodes share", "schlüssel, ключ", "k".repeat(200)};

    public static void main(String[] args) throws Exception {
        for (String key : KEYS)
            for (ScramMechanism mechanism : ScramMechanism.values())
                for (int i = 0; i < 4; i++)
                    System.out.println(login(key, Uuid.randomUuid().toString(), mechanism));
    }

    private static String login(String key, String tokenId, ScramMechanism mechanism) throws Exception {
        DelegationTokenCache cache = new DelegationTokenCache(ScramMechanism.mechanismNames());
        AbstractConfig config = new AbstractConfig(
            DelegationTokenManagerConfigs.CONFIG_DEF, Map.of("delegation.token.secret.key", key), false);
        DelegationTokenManager manager = new DelegationTokenManager(new DelegationTokenManagerConfigs(config), cache);
        KafkaPrincipal alice = new KafkaPrincipal("User", "alice");
        TokenInformation known = new TokenInformation(tokenId, alice, List.of(), 1, 3, 2);
        DelegationToken token = manager.getDelegationToken(known);
        manager.updateToken(token);

        ScramServerCallbackHandler users = new ScramServerCallbackHandler(
            new CredentialCache().createCache(mechanism.mechanismName(), ScramCredential.class), cache);
        users.configure(Map.of(), mechanism.mechanismName(), List.of());
        ScramSaslServer server = new ScramSaslServer(mechanism, Map.of(), users);
        ScramSaslClient client = new ScramSaslClient(mechanism, callbacks -> {
            for (Callback callback : callbacks) {
                if (callback instanceof NameCallback name) name.setName(tokenId);
                if (callback instanceof PasswordCallback password)
                    password.setPassword(token.hmacAsBase64String().toCharArray());
                if (callback instanceof ScramExtensionsCallback more) more.extensions(Map.of("tokenauth", "true"));
            }
        });
        byte[] first = client.evaluateChallenge(new byte[0]);
        byte[] challenge = server.evaluateResponse(first);
        byte[] last = client.evaluateChallenge(challenge);
        byte[] verifier = server.evaluateResponse(last);
        client.evaluateChallenge(verifier);
        if (!client.isComplete() || !server.isComplete() || !server.getAuthorizationID().equals("alice"))
            throw new AssertionError("Kafka's own login failed");
        return String.join(
            "\t", key, tokenId, mechanism.mechanismName(), token.hmacAsBase64String(),
            text(first), text(challenge), text(last), text(verifier));
    }

    private static String text(byte[] message) {
        return new String(message, StandardCharsets.UTF_8);
    }
}
