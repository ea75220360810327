"""A queue of pictures and its worker; docs/guides/queues.md.

kelek worker run examples.thumbnails:queue --processes 2
"""

import os

import kelek

TABLES = os.environ.get("TABLES", "tcp://127.0.0.1:7100,tcp://127.0.0.1:7110")
queue = kelek.Queue(TABLES, "thumbnails", tuning=kelek.QueueTuning(tries=3, backoff_s=0.1))


@queue.worker
def thumbnail(job: kelek.Job) -> str:
    """Makes a picture small."""
    job.progress(0.5, "read")
    job.put("pictures", job.body["name"], b"small")  # Stored with the end of the job, or not.
    if job.body["name"] == "broken.jpg":
        raise ValueError("no picture")
    return f"small {job.body['name']}"
