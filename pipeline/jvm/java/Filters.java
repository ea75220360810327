package kelek.spark;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HexFormat;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.GeneralScalarExpression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.unsafe.types.UTF8String;

/** Spark's predicates as JSON; Python decides what a read can do of them (filters.py). */
final class Filters {
    private Filters() {}

    static ArrayNode of(Predicate[] predicates) {
        ArrayNode found = Worker.JSON.createArrayNode();
        for (Predicate predicate : predicates) found.add(of(predicate));
        return found;
    }

    private static ObjectNode of(Expression expression) {
        ObjectNode made = Worker.JSON.createObjectNode();
        if (expression instanceof NamedReference reference) {
            made.set("column", Worker.JSON.valueToTree(reference.fieldNames()));
        } else if (expression instanceof Literal<?> literal) {
            made.put("type", literal.dataType().catalogString());
            made.put("value", text(literal.value()));
        } else if (expression instanceof GeneralScalarExpression scalar) {
            made.put("op", scalar.name());
            ArrayNode inner = made.putArray("args");
            for (Expression child : scalar.children()) inner.add(of(child));
        }
        return made;
    }

    /** A value as Spark keeps it: text and bytes in hexadecimal, times as numbers. */
    private static String text(Object value) {
        if (value == null) return null;
        if (value instanceof UTF8String text) return HexFormat.of().formatHex(text.getBytes());
        if (value instanceof byte[] bytes) return HexFormat.of().formatHex(bytes);
        return value.toString();
    }
}
