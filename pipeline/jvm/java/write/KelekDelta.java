package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** UPDATE, MERGE, and DELETE with any condition: tasks tell the driver which rows they change. */
record KelekDelta(KelekTable table, RowLevelOperationInfo info) implements SupportsDelta {
    @Override
    public Command command() {
        return info.command();
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return table.newScanBuilder(options);
    }

    @Override
    public NamedReference[] rowId() {
        return table.key().stream().map(Expressions::column).toArray(NamedReference[]::new);
    }

    /** With each row comes its value as it was read: the commit compares it. */
    @Override
    public NamedReference[] requiredMetadataAttributes() {
        return new NamedReference[] {Expressions.column(KelekTable.OLD_ROW)};
    }

    @Override
    public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo write) {
        return new Builder(table, write);
    }

    private record Builder(KelekTable table, LogicalWriteInfo info) implements DeltaWriteBuilder {
        @Override
        public DeltaWrite build() {
            return new Delta(table, info);
        }
    }

    private static final class Delta implements DeltaWrite, DeltaBatchWrite {
        private final KelekTable table;
        private final LogicalWriteInfo info;
        private JsonNode plan;

        Delta(KelekTable table, LogicalWriteInfo info) {
            this.table = table;
            this.info = info;
        }

        @Override
        public DeltaBatchWrite toBatch() {
            return this;
        }

        @Override
        public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
            ObjectNode request = table.request("plan_delta");
            StructType key = info.rowIdSchema().orElseThrow();
            request.put("columns", info.schema().json()).put("key", key.json());
            request.set("write", Worker.JSON.valueToTree(info.options().asCaseSensitiveMap()));
            plan = table.requests.ask(request);
            return new Factory(
                    table.requests.python,
                    plan.get("writer").asText(),
                    plan.get("arrow").asText(),
                    key.size(),
                    info.schema().size());
        }

        @Override
        public void commit(WriterCommitMessage[] messages) {
            table.requests.commit("commit_delta", plan, messages);
        }

        @Override
        public void abort(WriterCommitMessage[] messages) {
            // The tasks have changed nothing; with atomic=off, what they have changed stays.
        }
    }

    private record Factory(String python, String writer, String arrow, int key, int columns)
            implements DeltaWriterFactory {
        @Override
        public DeltaWriter<InternalRow> createWriter(int partition, long task) {
            try {
                return new KelekDeltaWriter(
                        new KelekWriter(Worker.take(python), "delta", writer, arrow), key, columns);
            } catch (IOException error) {
                throw new UncheckedIOException(error.getMessage(), error);
            }
        }
    }
}
