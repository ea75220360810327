"""A worker of the queue drills.

    python -m kelek.tests.clients.queue.drill_worker URLS QUEUE FOLDER TTL_S PREFETCH

It appends a line `JOB ATTEMPT` to FOLDER/PID at the begin of each job, and puts a key
JOB/PID/ATTEMPT into the table `effects` with the end. Bodies:

    poison   the worker kills itself
    hold     it creates FOLDER/held and waits until FOLDER/go exists
    others   a pause of so many ms
"""

import os
import signal
import sys
import threading
from pathlib import Path

import kelek

EFFECTS = "effects"


def main() -> None:
    urls, name, folder, ttl_s, prefetch = sys.argv[1:]
    tuning = kelek.QueueTuning(
        tries=3, backoff_s=0.1, worker_ttl_s=float(ttl_s), prefetch_max=int(prefetch)
    )
    path = Path(folder)
    pause = threading.Event()
    with (
        kelek.Queue(urls, name, tuning=tuning) as queue,
        (path / str(os.getpid())).open("a", buffering=1) as done,
    ):

        @queue.worker
        def work(job: kelek.Job) -> None:
            done.write(f"{job.id} {job.attempt}\n")
            job.put(EFFECTS, f"{job.id}/{os.getpid()}/{job.attempt}", b"")
            if job.body == "poison":
                os.kill(os.getpid(), signal.SIGKILL)
            elif job.body == "hold":
                (path / "held").touch()
                while not (path / "go").exists():
                    pause.wait(0.02)
            else:
                pause.wait(job.body / 1000)

        queue.run()
        print(queue.counters["lost"], flush=True)


if __name__ == "__main__":
    main()
