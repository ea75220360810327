package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Reads the rows of a partition: an Arrow IPC stream of a Python process. */
final class KelekReader implements PartitionReader<ColumnarBatch> {
    // By these the tasks of a query find their snapshot (pipeline/table/snapshot.py).
    private static final String[] PROPERTIES = {
        "spark.sql.execution.id", "spark.app.id", "spark.driver.host", "spark.driver.port"
    };

    private final Worker worker;
    private final BufferAllocator allocator;
    private final ArrowStreamReader stream;
    private ColumnarBatch batch;
    private boolean isOver; // The worker has sent all.

    KelekReader(Worker worker, KelekPartition partition) throws IOException {
        this.worker = worker;
        ObjectNode request = Worker.JSON.createObjectNode();
        request.put("op", "read").put("reader", partition.reader()).put("part", partition.part());
        request.set("task", task());
        JsonNode response;
        try {
            worker.send(request);
            response = worker.receive();
        } catch (IOException error) {
            worker.close();
            throw error;
        }
        if (response.has("error")) worker.release();
        Worker.checked(response);
        allocator = ArrowUtils.rootAllocator().newChildAllocator("kelek", 0, Long.MAX_VALUE);
        stream = new ArrowStreamReader(worker.in, allocator);
    }

    private static ObjectNode task() {
        ObjectNode found = Worker.JSON.createObjectNode();
        TaskContext task = TaskContext.get();
        if (task == null) return found;
        for (String name : PROPERTIES) {
            String value = task.getLocalProperty(name);
            if (value == null) value = SparkEnv.get().conf().get(name, null);
            if (value != null) found.put(name, value);
        }
        return found;
    }

    @Override
    public boolean next() throws IOException {
        boolean loaded;
        try {
            loaded = !isOver && stream.loadNextBatch();
        } catch (IOException error) {
            throw worker.ended(error);
        }
        if (loaded) {
            VectorSchemaRoot root = stream.getVectorSchemaRoot();
            if (batch == null) {
                ColumnVector[] columns = root.getFieldVectors().stream()
                        .map(ArrowColumnVector::new)
                        .toArray(ColumnVector[]::new);
                batch = new ColumnarBatch(columns);
            }
            batch.setNumRows(root.getRowCount());
        } else if (!isOver) {
            isOver = true;
            Worker.checked(worker.receive()); // An error that ended the rows.
        }
        return loaded;
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    @Override
    public void close() throws IOException {
        try {
            if (!isOver) stop();
        } finally {
            stream.close(false);
            allocator.close();
            if (isOver) worker.release();
            else worker.close();
        }
    }

    /** Leaves the other rows: the worker ends the stream, and is free again. */
    private void stop() {
        try {
            worker.send(Worker.JSON.createObjectNode().put("op", "stop"));
            while (stream.loadNextBatch()) {
                // What was on its way.
            }
            worker.receive();
            isOver = true;
        } catch (IOException error) {
            // The worker has ended, or ends now; the rows so far are right.
        }
    }
}
