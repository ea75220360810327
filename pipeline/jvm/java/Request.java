package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.EOFException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.SparkEnv;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** Makes requests with the options of a catalogue, and asks a worker. */
final class Request {
    private static final String PYTHON = "python";

    final String python;
    private final Map<String, String> options;

    Request(Map<String, String> options) {
        this.options = new HashMap<>(options);
        String given = options.get(PYTHON);
        python = given != null ? given : pythonOfSpark();
    }

    private static String pythonOfSpark() {
        String variable = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
        return SparkEnv.get().conf().get("spark.pyspark.python", variable);
    }

    ObjectNode of(String operation) {
        ObjectNode made = Worker.JSON.createObjectNode();
        made.put("op", operation);
        made.set("options", Worker.JSON.valueToTree(options));
        return made;
    }

    ObjectNode of(String operation, String table) {
        return of(operation).put("table", table);
    }

    /** Ends a write. If the process is killed, another one finds what it has done, and goes on. */
    void commit(String operation, JsonNode plan, WriterCommitMessage[] messages) {
        ObjectNode request = Worker.JSON.createObjectNode().put("op", operation);
        request.set("commit", plan.get("commit"));
        ArrayNode texts = request.putArray("texts");
        for (WriterCommitMessage message : messages) {
            if (message != null) texts.add(message.toString());
        }
        try {
            ask(request);
        } catch (UncheckedIOException error) {
            if (!(error.getCause() instanceof EOFException)) throw error;
            ask(request);
        }
    }

    JsonNode ask(ObjectNode request) {
        try {
            return Worker.ask(python, request);
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }
}
