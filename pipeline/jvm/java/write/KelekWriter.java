package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.Channels;
import java.util.Base64;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.util.ArrowUtils;

/** Sends a task's rows to a Python process, which puts them. */
final class KelekWriter implements DataWriter<InternalRow> {
    private static final int ROWS_MAX = 16_384; // Of a batch.
    private static final int ROWS_STEP = 256; // Rows between two looks at their bytes.
    private static final long BYTES_MAX = 8 << 20; // The batch that reaches it is sent.

    private final Worker worker;
    private final BufferAllocator allocator;
    private final VectorSchemaRoot root;
    private final ArrowWriter rows;
    private final ArrowStreamWriter stream;
    private int count;
    private boolean isOver; // The worker has answered.

    /** In the words of Python. The driver may have this class from another loader. */
    private record Written(String text) implements WriterCommitMessage {
        @Override
        public String toString() {
            return text;
        }
    }

    KelekWriter(Worker worker, String operation, String writer, String arrow) throws IOException {
        this.worker = worker;
        Schema schema = Schema.deserializeMessage(ByteBuffer.wrap(Base64.getDecoder().decode(arrow)));
        allocator = ArrowUtils.rootAllocator().newChildAllocator("kelek", 0, Long.MAX_VALUE);
        root = VectorSchemaRoot.create(schema, allocator);
        rows = ArrowWriter.create(root);
        stream = new ArrowStreamWriter(root, null, Channels.newChannel(worker.out));
        worker.send(Worker.JSON.createObjectNode().put("op", operation).put("writer", writer));
        stream.start();
    }

    @Override
    public void write(InternalRow row) throws IOException {
        rows.write(row);
        count++;
        boolean isFull = count == ROWS_MAX
                || (count % ROWS_STEP == 0 && rows.sizeInBytes() >= BYTES_MAX);
        if (isFull) flush();
    }

    private void flush() throws IOException {
        rows.finish();
        count = 0;
        try {
            stream.writeBatch();
            worker.out.flush();
        } catch (IOException error) {
            throw worker.ended(error);
        }
        rows.reset();
        if (worker.in.available() > 0) answer(); // It reports an error before the end.
    }

    private JsonNode answer() throws IOException {
        isOver = true;
        return Worker.checked(worker.receive());
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
        if (count > 0) flush();
        try {
            stream.end();
            worker.out.flush();
        } catch (IOException error) {
            throw worker.ended(error);
        }
        JsonNode response = answer();
        worker.release();
        return new Written(response.path("text").asText());
    }

    @Override
    public void abort() {
        worker.close();
    }

    @Override
    public void close() {
        if (!isOver) worker.close();
        root.close();
        allocator.close();
    }
}
