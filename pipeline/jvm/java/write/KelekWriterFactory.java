package kelek.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;

/** Makes writers in executors. The texts are Python's. */
record KelekWriterFactory(String python, String operation, String writer, String arrow)
        implements DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
        try {
            return new KelekWriter(Worker.take(python), operation, writer, arrow);
        } catch (IOException error) {
            throw new UncheckedIOException(error.getMessage(), error);
        }
    }
}
