package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalogCapability;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.TableChange.AddColumn;
import org.apache.spark.sql.connector.catalog.TableInfo;
import org.apache.spark.sql.connector.catalog.constraints.Constraint;
import org.apache.spark.sql.connector.catalog.constraints.PrimaryKey;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * kelek's named tables as a catalogue of Spark: spark.sql.catalog.NAME = kelek.spark.KelekCatalog.
 *
 * A name with dots, such as shop.orders, is the table orders in the namespace shop.
 */
public final class KelekCatalog implements StagingTableCatalog {
    private String name;
    private Request requests;

    @Override
    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
        requests = new Request(options.asCaseSensitiveMap());
    }

    @Override
    public String name() {
        return name;
    }

    @Override
    public Identifier[] listTables(String[] namespace) {
        ObjectNode request = requests.of("names");
        request.put("prefix", namespace.length == 0 ? "" : String.join(".", namespace) + ".");
        List<Identifier> found = new ArrayList<>();
        for (JsonNode table : requests.ask(request).get("names")) {
            String[] parts = table.asText().split("\\.", -1);
            String[] within = Arrays.copyOf(parts, parts.length - 1);
            found.add(Identifier.of(within, parts[parts.length - 1]));
        }
        return found.toArray(new Identifier[0]);
    }

    @Override
    public Table loadTable(Identifier ident) throws NoSuchTableException {
        return loaded(ident, requests.ask(requests.of("load", nameOf(ident))));
    }

    /** VERSION AS OF: the index or the name of a kept snapshot. */
    @Override
    public Table loadTable(Identifier ident, String version) throws NoSuchTableException {
        ObjectNode request = requests.of("load", nameOf(ident)).put("version", version);
        return loaded(ident, requests.ask(request));
    }

    /** TIMESTAMP AS OF: the newest kept snapshot that was taken then, in microseconds, or before. */
    @Override
    public Table loadTable(Identifier ident, long timestamp) throws NoSuchTableException {
        ObjectNode request = requests.of("load", nameOf(ident)).put("timestamp", timestamp);
        return loaded(ident, requests.ask(request));
    }

    @Override
    public Set<TableCatalogCapability> capabilities() {
        return Set.of(TableCatalogCapability.SUPPORT_TABLE_CONSTRAINT);
    }

    @Override
    public Table createTable(Identifier ident, TableInfo info) throws TableAlreadyExistsException {
        JsonNode found = requests.ask(described("create", ident, info));
        if (found.has("exists")) throw new TableAlreadyExistsException(ident);
        return new KelekTable(requests, name + "." + nameOf(ident), found);
    }

    @Override
    public StagedTable stageCreate(Identifier ident, TableInfo info)
            throws TableAlreadyExistsException {
        StagedTable found = staged(ident, info, "create");
        if (found == null) throw new TableAlreadyExistsException(ident);
        return found;
    }

    @Override
    public StagedTable stageReplace(Identifier ident, TableInfo info) throws NoSuchTableException {
        StagedTable found = staged(ident, info, "exchange");
        if (found == null) throw new NoSuchTableException(ident);
        return found;
    }

    @Override
    public StagedTable stageCreateOrReplace(Identifier ident, TableInfo info) {
        return staged(ident, info, "replace");
    }

    /** A table that gets its name at its commit; null: the name's table is there, or is not. */
    private StagedTable staged(Identifier ident, TableInfo info, String publish) {
        JsonNode found = requests.ask(described("stage", ident, info).put("publish", publish));
        if (!found.has("commit")) return null;
        return new KelekStagedTable(requests, name + "." + nameOf(ident), found);
    }

    private ObjectNode described(String operation, Identifier ident, TableInfo info) {
        if (info.partitions().length > 0) {
            throw new IllegalArgumentException(
                    "PARTITIONED BY: rows are in the order of the key, which is divided for tasks");
        }
        ObjectNode request = requests.of(operation, nameOf(ident));
        request.put("columns", info.schema().json());
        ArrayNode key = request.putArray("key");
        for (Constraint constraint : info.constraints()) {
            if (!(constraint instanceof PrimaryKey primary)) {
                throw new IllegalArgumentException("a table's only constraint is its PRIMARY KEY");
            }
            for (NamedReference column : primary.columns()) key.add(column.fieldNames()[0]);
        }
        request.set("properties", Worker.JSON.valueToTree(info.properties()));
        return request;
    }

    @Override
    public Table alterTable(Identifier ident, TableChange... changes) throws NoSuchTableException {
        StructType added = new StructType();
        for (TableChange change : changes) {
            boolean isPlain = change instanceof AddColumn column
                    && column.fieldNames().length == 1
                    && column.position() == null
                    && column.defaultValue() == null;
            if (!isPlain) {
                throw new UnsupportedOperationException(
                        "ALTER TABLE only adds columns, behind the others and without a default");
            }
            AddColumn column = (AddColumn) change;
            added = added.add(column.fieldNames()[0], column.dataType(), column.isNullable());
        }
        ObjectNode request = requests.of("add_columns", nameOf(ident));
        return loaded(ident, requests.ask(request.put("columns", added.json())));
    }

    @Override
    public boolean dropTable(Identifier ident) {
        return requests.ask(requests.of("drop", nameOf(ident))).get("done").asBoolean();
    }

    @Override
    public void renameTable(Identifier before, Identifier after)
            throws NoSuchTableException, TableAlreadyExistsException {
        ObjectNode request = requests.of("rename", nameOf(before)).put("name", nameOf(after));
        JsonNode found = requests.ask(request);
        if (found.has("missing")) throw new NoSuchTableException(before);
        if (found.has("exists")) throw new TableAlreadyExistsException(after);
    }

    private Table loaded(Identifier ident, JsonNode found) throws NoSuchTableException {
        if (found.has("missing")) throw new NoSuchTableException(ident);
        long index = found.path("index").asLong();
        String past = index == 0 ? "" : " as of " + index;
        return new KelekTable(requests, name + "." + nameOf(ident) + past, found);
    }

    private static String nameOf(Identifier ident) {
        String table = ident.name();
        return ident.namespace().length == 0
                ? table
                : String.join(".", ident.namespace()) + "." + table;
    }
}
