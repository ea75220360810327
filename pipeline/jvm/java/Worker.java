package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.spark.api.python.PythonUtils;

/**
 * A Python process that talks to kelek's servers (pipeline/jvm). Requests and responses are JSON
 * behind their size (4 bytes); rows travel between them as Arrow IPC streams.
 *
 * An idle worker waits for the next task: a start takes 0.5 s. It ends when its input closes, so
 * all end with this JVM.
 */
final class Worker implements Closeable {
    static final ObjectMapper JSON = new ObjectMapper();
    private static final int IDLE_MAX = Runtime.getRuntime().availableProcessors() + 1;
    private static final int WORDS_MAX = 30; // Lines of stderr that an error shows.
    private static final int RESPONSE_BYTES_MAX = 64 << 20;
    private static final long END_S = 5;
    private static final Set<String> OF_INPUT = // Classes in Python: the query is wrong.
            Set.of("OptionError", "SchemaError", "TableSchemaError", "ValueError");
    private static final Map<String, Deque<Worker>> IDLE = new HashMap<>();

    final DataInputStream in;
    final DataOutputStream out;
    private final String python;
    private final Process process;
    private final Thread listener;
    private final Deque<String> words = new ArrayDeque<>();

    private Worker(String python) throws IOException {
        this.python = python;
        ProcessBuilder builder = new ProcessBuilder(python, "-m", "kelek.pipeline.jvm");
        Map<String, String> environment = builder.environment();
        String paths = environment.getOrDefault("PYTHONPATH", "");
        String spark = PythonUtils.sparkPythonPath();
        environment.put("PYTHONPATH", paths.isEmpty() ? spark : paths + File.pathSeparator + spark);
        String snapshots = System.getProperty("kelek.snapshots");
        if (snapshots != null) environment.put("KELEK_SNAPSHOTS", snapshots);
        process = builder.start();
        in = new DataInputStream(process.getInputStream());
        out = new DataOutputStream(new BufferedOutputStream(process.getOutputStream(), 1 << 16));
        listener = new Thread(this::listen, "kelek-worker-" + process.pid());
        listener.setDaemon(true);
        listener.start();
    }

    /** An idle worker, or a new one. */
    static Worker take(String python) throws IOException {
        for (Worker worker; (worker = idle(python)) != null; worker.close()) {
            if (worker.answers()) return worker;
        }
        return new Worker(python);
    }

    private static Worker idle(String python) {
        synchronized (IDLE) {
            Deque<Worker> idle = IDLE.get(python);
            return idle == null ? null : idle.poll();
        }
    }

    /** Whether it still runs. The JVM may notice later that a process was killed. */
    private boolean answers() {
        try {
            send(JSON.createObjectNode().put("op", "ping"));
            receive();
            return true;
        } catch (IOException error) {
            return false;
        }
    }

    /** Makes the worker available to others. It must have answered all requests. */
    void release() {
        synchronized (IDLE) {
            Deque<Worker> idle = IDLE.computeIfAbsent(python, name -> new ArrayDeque<>());
            if (process.isAlive() && idle.size() < IDLE_MAX) {
                idle.push(this);
                return;
            }
        }
        close();
    }

    /** One request and its response, by any worker. */
    static JsonNode ask(String python, ObjectNode request) throws IOException {
        Worker worker = take(python);
        JsonNode response;
        try {
            worker.send(request);
            response = worker.receive();
        } catch (IOException error) {
            worker.close();
            throw error;
        }
        worker.release();
        return checked(response);
    }

    void send(ObjectNode request) throws IOException {
        byte[] data = JSON.writeValueAsBytes(request);
        try {
            out.writeInt(data.length);
            out.write(data);
            out.flush();
        } catch (IOException error) {
            throw ended(error);
        }
    }

    /** The next response. The caller looks for `error` in it: checked(). */
    JsonNode receive() throws IOException {
        int size;
        try {
            size = in.readInt();
            if (size >= 0 && size <= RESPONSE_BYTES_MAX) {
                byte[] data = new byte[size];
                in.readFully(data);
                return JSON.readTree(data);
            }
        } catch (IOException error) {
            throw ended(error);
        }
        throw new IOException(name() + "announced a response of " + Integer.toUnsignedString(size)
                + " bytes, at most are " + RESPONSE_BYTES_MAX + ": its start must print nothing to"
                + " standard output");
    }

    /** Throws the error that a response reports; its text says what to do. */
    static JsonNode checked(JsonNode response) throws IOException {
        if (!response.has("error")) return response;
        String text = response.get("error").asText();
        // Of these classes, as the driver may not know one of ours when a task fails.
        if (OF_INPUT.contains(response.path("kind").asText())) {
            throw new IllegalArgumentException(text);
        }
        throw new IOException(text);
    }

    /** The error for a worker that has ended, with its last words. */
    IOException ended(IOException error) {
        String how = "was closed";
        try {
            if (process.waitFor(END_S, TimeUnit.SECONDS)) {
                how = "ended with " + process.exitValue();
                listener.join(1000 * END_S);
            }
        } catch (InterruptedException interrupt) {
            Thread.currentThread().interrupt();
        }
        String text;
        synchronized (words) {
            text = String.join("\n", words);
        }
        EOFException found = new EOFException(name() + how + (text.isEmpty() ? "" : ":\n" + text));
        found.initCause(error);
        return found;
    }

    private String name() {
        return "kelek's Python process " + process.pid() + " (" + python + ") ";
    }

    private void listen() {
        try (BufferedReader lines = new BufferedReader(
                new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8))) {
            for (String line; (line = lines.readLine()) != null; ) {
                System.err.println(line);
                synchronized (words) {
                    words.add(line);
                    if (words.size() > WORDS_MAX) words.remove();
                }
            }
        } catch (IOException error) {
            // The process was killed.
        }
    }

    @Override
    public void close() {
        process.destroyForcibly();
    }
}
