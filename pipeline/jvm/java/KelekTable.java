package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsDeleteV2;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A table, with the columns that it had when the query was analysed. */
class KelekTable
        implements SupportsRead,
                SupportsWrite,
                SupportsDeleteV2,
                SupportsRowLevelOperations,
                SupportsMetadataColumns {
    static final String OLD_ROW = "_kelek_row"; // As deltas.py has it.

    final Request requests;
    private final JsonNode found; // By tables.py; requests have its handle again.
    private final String name;
    private final StructType schema;
    private final List<String> key;

    KelekTable(Request requests, String name, JsonNode found) {
        this.requests = requests;
        this.name = name;
        this.found = found;
        schema = StructType.fromDDL(found.get("columns").asText());
        key = List.of(Worker.JSON.convertValue(found.get("key"), String[].class));
    }

    /** A request about the table as it was when this object was made. */
    ObjectNode request(String operation) {
        return Worker.JSON.createObjectNode()
                .put("op", operation)
                .put("handle", found.get("handle").asText());
    }

    List<String> key() {
        return key;
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public StructType schema() {
        return schema;
    }

    @Override
    public Map<String, String> properties() {
        return Map.of("key", String.join(",", key), "number", found.get("number").asText());
    }

    @Override
    public Set<TableCapability> capabilities() {
        return EnumSet.of(
                TableCapability.BATCH_READ,
                TableCapability.BATCH_WRITE,
                TableCapability.TRUNCATE,
                TableCapability.OVERWRITE_BY_FILTER,
                TableCapability.OVERWRITE_DYNAMIC);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        ObjectNode request = request("plan");
        request.set("read", Worker.JSON.valueToTree(options.asCaseSensitiveMap()));
        return new KelekScanBuilder(this, request);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new KelekWrite(this, info);
    }

    @Override
    public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
        return () -> new KelekDelta(this, info);
    }

    @Override
    public MetadataColumn[] metadataColumns() {
        return new MetadataColumn[] {new OldRow()};
    }

    /** The value of a row in bytes, by which a statement finds that another has changed it. */
    private record OldRow() implements MetadataColumn {
        @Override
        public String name() {
            return OLD_ROW;
        }

        @Override
        public DataType dataType() {
            return DataTypes.BinaryType;
        }
    }

    @Override
    public boolean canDeleteWhere(Predicate[] predicates) {
        ObjectNode request = request("push");
        request.set("predicates", Filters.of(predicates));
        for (JsonNode exact : requests.ask(request).get("exact")) {
            if (!exact.asBoolean()) return false;
        }
        return true;
    }

    @Override
    public void deleteWhere(Predicate[] predicates) {
        ObjectNode request = request("delete");
        request.set("predicates", Filters.of(predicates));
        requests.ask(request);
    }

    @Override
    public boolean truncateTable() {
        deleteWhere(new Predicate[0]);
        return true;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof KelekTable table && found.equals(table.found);
    }

    @Override
    public int hashCode() {
        return found.hashCode();
    }
}
