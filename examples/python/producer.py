"""Puts tasks: one that may be cancelled, and many in a batch.

Usage: producer.py http://127.0.0.1:7171 COUNT
"""

import json
import sys
import time

import requests

API, COUNT = sys.argv[1], int(sys.argv[2])
session = requests.Session()


def call(method, path, **options):
    """Sends a request, and again after a 503: it took effect before that answer, or never will."""
    for attempt in range(6):
        answer = session.request(method, API + path, timeout=15, **options)
        if answer.status_code != 503:
            return answer
        time.sleep(2**attempt / 10)
    return answer


def task(order, delay):
    return {
        "schedule": {"in": delay},
        "message": {"destination": "orders.cancel", "payload": {"order": order}},
    }


# An order comes in, and is paid in time. The answer tells whether the cancel won.
call("PUT", "/v1/tasks/order-0.unpaid", json=task(0, "15m")).raise_for_status()
paid = call("DELETE", "/v1/tasks/order-0.unpaid")
print("order-0:", paid.json().get("result", "it was published already"))

# Many orders at once: a line for each. An order that is put again starts its time anew.
lines = [json.dumps({"id": f"order-{n}.unpaid", **task(n, "1s")}) for n in range(1, COUNT + 1)]
answer = call(
    "POST",
    "/v1/tasks:batch",
    data="\n".join(lines).encode(),
    headers={"content-type": "application/x-ndjson"},
)
answer.raise_for_status()
answers = [json.loads(line) for line in answer.text.splitlines()]
for fault in (line for line in answers if "error" in line):
    print("not put:", fault.get("id"), fault["error"]["detail"], file=sys.stderr)
# Beyond 1 MiB of answers the last line counts all further lines by result.
counts = answers[-1].get("counts", {})
counted = sum(counts.get(result, 0) for result in ("created", "replaced", "unchanged"))
print("put:", sum("result" in line for line in answers) + counted)
