package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.types.StructType;

/** A read of a table, or of a part of it. Equal scans give equal rows within a query. */
final class KelekScan implements SupportsReportStatistics, Batch {
    private static final long ROW_BYTES = 8; // Of a row beside its columns.

    private final KelekTable table;
    private final ObjectNode request;
    private final StructType schema;
    private final String text;
    private Statistics statistics;

    KelekScan(KelekTable table, ObjectNode request, StructType schema, String text) {
        this.table = table;
        this.request = request;
        this.schema = schema;
        this.text = text;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        return text;
    }

    @Override
    public ColumnarSupportMode columnarSupportMode() {
        return ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public Statistics estimateStatistics() {
        if (statistics == null) {
            JsonNode found = table.requests.ask(request.deepCopy().put("op", "estimate"));
            long rows = found.path("rows").asLong();
            long size = rows * (ROW_BYTES + schema.defaultSize());
            statistics = new Estimate(OptionalLong.of(size), OptionalLong.of(rows));
        }
        return statistics;
    }

    private record Estimate(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {}

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        JsonNode plan = table.requests.ask(request.deepCopy().put("op", "plan"));
        List<InputPartition> found = new ArrayList<>();
        for (JsonNode part : plan.get("partitions")) {
            found.add(new KelekPartition(plan.get("reader").asText(), part.asText()));
        }
        return found.toArray(new InputPartition[0]);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new KelekReaderFactory(table.requests.python);
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof KelekScan scan && request.equals(scan.request);
    }

    @Override
    public int hashCode() {
        return request.hashCode();
    }
}
