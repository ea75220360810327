package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/** A table without its name, which it gets with its rows (overwrites.py). */
final class KelekStagedTable extends KelekTable implements StagedTable {
    private final JsonNode found;

    KelekStagedTable(Request requests, String name, JsonNode found) {
        super(requests, name, found);
        this.found = found;
    }

    @Override
    public void commitStagedChanges() {
        requests.commit("commit_overwrite", found, new WriterCommitMessage[0]);
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
        return new CustomTaskMetric[0];
    }

    @Override
    public void abortStagedChanges() {
        requests.commit("abort_overwrite", found, new WriterCommitMessage[0]);
    }
}
