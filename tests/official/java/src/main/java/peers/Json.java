package peers;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.util.Properties;

/** JSON lines, with which a program and its test talk. */
final class Json {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private Json() {
    }

    static JsonNode parse(String text) throws JsonProcessingException {
        return MAPPER.readTree(text);
    }

    /** Writes one line at once: several threads report. */
    static void report(Object line) {
        try {
            var text = MAPPER.writeValueAsString(line);
            synchronized (System.out) {
                System.out.println(text);
                System.out.flush();
            }
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Returns the versions of Java and of the SDK. */
    static String versions() {
        return "Java " + System.getProperty("java.version") + version("azure-messaging-eventhubs")
            + version("azure-messaging-eventhubs-checkpointstore-blob");
    }

    private static String version(String name) {
        try (InputStream file = Json.class.getResourceAsStream("/" + name + ".properties")) {
            var properties = new Properties();
            properties.load(file);
            return ", " + name + " " + properties.getProperty("version");
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }
}
