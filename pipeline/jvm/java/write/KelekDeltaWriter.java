package kelek.spark;

import java.io.IOException;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * Sends the rows that a task changes to a Python process: what happens, the key, the value as it
 * was read, and the new row (deltas.py).
 */
final class KelekDeltaWriter implements DeltaWriter<InternalRow> {
    private static final byte DELETED = 1;
    private static final byte UPDATED = 2;
    private static final byte INSERTED = 3;

    private final KelekWriter writer;
    private final InternalRow noKey;
    private final InternalRow noValue = new GenericInternalRow(1);
    private final InternalRow noRow;
    private final GenericInternalRow change = new GenericInternalRow(1);
    private final JoinedRow[] joined = {new JoinedRow(), new JoinedRow(), new JoinedRow()};

    KelekDeltaWriter(KelekWriter writer, int key, int columns) {
        this.writer = writer;
        noKey = new GenericInternalRow(key);
        noRow = new GenericInternalRow(columns);
    }

    @Override
    public void delete(InternalRow value, InternalRow key) throws IOException {
        send(DELETED, key, value, noRow);
    }

    @Override
    public void update(InternalRow value, InternalRow key, InternalRow row) throws IOException {
        send(UPDATED, key, value, row);
    }

    @Override
    public void insert(InternalRow row) throws IOException {
        send(INSERTED, noKey, noValue, row);
    }

    private void send(byte kind, InternalRow key, InternalRow value, InternalRow row)
            throws IOException {
        change.update(0, kind);
        InternalRow first = joined[0].apply(change, key);
        writer.write(joined[2].apply(joined[1].apply(first, value), row));
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
        return writer.commit();
    }

    @Override
    public void abort() {
        writer.abort();
    }

    @Override
    public void close() {
        writer.close();
    }
}
