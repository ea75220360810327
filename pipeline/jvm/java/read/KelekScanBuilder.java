package kelek.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.StringJoiner;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.aggregate.AggregateFunc;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.aggregate.Count;
import org.apache.spark.sql.connector.expressions.aggregate.CountStar;
import org.apache.spark.sql.connector.expressions.aggregate.Max;
import org.apache.spark.sql.connector.expressions.aggregate.Min;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/** Takes what a query needs, and asks Python which of it the read can do. */
final class KelekScanBuilder
        implements SupportsPushDownV2Filters,
                SupportsPushDownRequiredColumns,
                SupportsPushDownAggregates,
                SupportsPushDownLimit {
    private static final long WHOLE_BYTES_MAX = 1L << 30; // A task counts them in a second or two.
    private static final int LIMIT_MAX = 100_000; // One task reads so many rows in no time.

    private final KelekTable table;
    private final ObjectNode request;
    private StructType schema;
    private Predicate[] pushed = {};
    private String range = "all keys";

    KelekScanBuilder(KelekTable table, ObjectNode request) {
        this.table = table;
        this.request = request;
        schema = table.schema();
        request.putArray("predicates");
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        if (predicates.length == 0) return predicates;
        ArrayNode all = Filters.of(predicates);
        ObjectNode question = table.request("push");
        question.set("predicates", all);
        JsonNode answer = table.requests.ask(question);
        List<Predicate> used = new ArrayList<>();
        List<Predicate> left = new ArrayList<>();
        ArrayNode sent = request.putArray("predicates");
        for (int place = 0; place < predicates.length; place++) {
            if (!answer.get("exact").get(place).asBoolean()) left.add(predicates[place]);
            if (!answer.get("used").get(place).asBoolean()) continue;
            used.add(predicates[place]);
            sent.add(all.get(place));
        }
        pushed = used.toArray(new Predicate[0]);
        range = answer.get("text").asText();
        return left.toArray(new Predicate[0]);
    }

    @Override
    public Predicate[] pushedPredicates() {
        return pushed;
    }

    @Override
    public void pruneColumns(StructType required) {
        schema = required;
    }

    /** One task counts a small table: without a shuffle, and with all cores of its machine. */
    @Override
    public boolean supportCompletePushDown(Aggregation aggregation) {
        if (names(aggregation) == null) return false;
        if (!request.has("whole")) { // It must not change, and a table may grow meanwhile.
            JsonNode found = table.requests.ask(request.deepCopy().put("op", "estimate"));
            long size = found.path("bytes").asLong(Long.MAX_VALUE);
            request.put("whole", size <= WHOLE_BYTES_MAX);
        }
        return request.get("whole").asBoolean();
    }

    /** Spark asks this only if the read does all filters. */
    @Override
    public boolean pushAggregation(Aggregation aggregation) {
        List<String> names = names(aggregation);
        if (names == null) return false;
        StructType made = new StructType();
        DataType key = table.schema().apply(table.key().get(0)).dataType();
        for (int place = 0; place < names.size(); place++) {
            String title = aggregation.aggregateExpressions()[place].toString();
            made = made.add(title, names.get(place).equals("count") ? DataTypes.LongType : key);
        }
        request.set("aggregates", Worker.JSON.valueToTree(names));
        schema = made;
        return true;
    }

    /** The names of aggregates in requests; null: the read cannot do them. */
    private List<String> names(Aggregation aggregation) {
        if (aggregation.groupByExpressions().length > 0) return null;
        List<String> names = new ArrayList<>();
        for (AggregateFunc function : aggregation.aggregateExpressions()) {
            String name = nameOf(function);
            if (name == null) return null;
            names.add(name);
        }
        return names;
    }

    /** The name in requests; null: the read cannot do it. */
    private String nameOf(AggregateFunc function) {
        if (function instanceof CountStar) return "count";
        if (function instanceof Count count && !count.isDistinct()) {
            return isKey(count.column(), table.key().size()) ? "count" : null;
        }
        if (function instanceof Min min && isKey(min.column(), 1)) return "min";
        return function instanceof Max max && isKey(max.column(), 1) ? "max" : null;
    }

    /** Whether it is one of the first columns of the key, which are never null. */
    private boolean isKey(Expression expression, int columns) {
        if (!(expression instanceof NamedReference reference)) return false;
        String[] names = reference.fieldNames();
        return names.length == 1 && table.key().subList(0, columns).contains(names[0]);
    }

    @Override
    public boolean pushLimit(int limit) {
        if (limit > LIMIT_MAX || request.has("aggregates")) return false;
        request.put("limit", limit);
        return true;
    }

    @Override
    public Scan build() {
        request.put("columns", schema.json());
        StringJoiner text = new StringJoiner(", ", table.name() + " [", "]");
        text.add(range);
        if (request.has("aggregates")) text.add(String.join(", ", schema.fieldNames()));
        if (request.has("limit")) text.add("limit " + request.get("limit"));
        return new KelekScan(table, request, schema, text.toString());
    }
}
