package kelek.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/** A part of a read, in texts that only Python understands. */
record KelekPartition(String reader, String part) implements InputPartition {}
