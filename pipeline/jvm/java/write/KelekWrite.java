package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * A write of rows. Each task puts its rows, and a repeated task puts the same keys again. Rows that
 * replace others wait for the commit (overwrites.py).
 */
final class KelekWrite
        implements SupportsOverwriteV2, SupportsDynamicOverwrite, Write, BatchWrite {
    private final KelekTable table;
    private final LogicalWriteInfo info;
    private Predicate[] overwritten; // The rows that go; null: none.
    private JsonNode plan;

    KelekWrite(KelekTable table, LogicalWriteInfo info) {
        this.table = table;
        this.info = info;
    }

    @Override
    public WriteBuilder overwrite(Predicate[] predicates) {
        // Spark asks for that also when it fills a staged table, which is empty.
        if (!(table instanceof KelekStagedTable)) overwritten = predicates;
        return this;
    }

    /** A table has no partitions, so these are all rows. */
    @Override
    public WriteBuilder overwriteDynamicPartitions() {
        return overwrite(new Predicate[0]);
    }

    @Override
    public Write build() {
        return this;
    }

    @Override
    public BatchWrite toBatch() {
        return this;
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
        ObjectNode request = table.request(overwritten == null ? "plan_write" : "plan_overwrite");
        request.put("columns", info.schema().json());
        request.set("write", Worker.JSON.valueToTree(info.options().asCaseSensitiveMap()));
        if (overwritten != null) request.set("predicates", Filters.of(overwritten));
        plan = table.requests.ask(request);
        return new KelekWriterFactory(
                table.requests.python,
                plan.path("op").asText("write"),
                plan.get("writer").asText(),
                plan.get("arrow").asText());
    }

    @Override
    public void commit(WriterCommitMessage[] messages) {
        if (overwritten != null) table.requests.commit("commit_overwrite", plan, messages);
    }

    @Override
    public void abort(WriterCommitMessage[] messages) {
        // Rows that were put stay: the repeated write puts the same keys. Others were not put yet.
        if (overwritten != null) {
            table.requests.commit("abort_overwrite", plan, new WriterCommitMessage[0]);
        }
    }
}
