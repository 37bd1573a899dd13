"""Tasks of Celery whose `eta` and `countdown` wait in punctual.

Worker: CELERY_BROKER=amqp://127.0.0.1:5672 celery --app celery_shop worker
Usage:  CELERY_BROKER=amqp://127.0.0.1:5672 celery_shop.py
"""

import os
import time
from datetime import datetime, timedelta, timezone

import celery


class Delayed(celery.Task):
    """Sends what has a time to the exchange `punctual`, under the name of its queue."""

    def apply_async(self, args=None, kwargs=None, **options):
        if options.get("eta") or options.get("countdown"):
            queue = options.pop("queue", "celery")
            options.update(exchange="punctual", exchange_type="topic", routing_key=queue)
        return super().apply_async(args, kwargs, **options)


app = celery.Celery("celery_shop", broker=os.environ["CELERY_BROKER"], task_cls=Delayed)
app.conf.task_ignore_result = True


@app.task(bind=True, name="shop.cancel", max_retries=1)
def cancel(self, order, due):
    print(f"cancel order {order}: {(time.time() - due) * 1000:.0f} ms late", flush=True)
    if order == 2 and self.request.retries == 0:
        raise self.retry(args=(order, time.time() + 1), countdown=1)


if __name__ == "__main__":
    now = time.time()
    eta = datetime.fromtimestamp(now + 2, timezone.utc)
    cancel.apply_async((1, now + 3), countdown=3)
    cancel.apply_async((2, now + 2), eta=eta)
    cancel.apply_async((3, now + 2.5), eta=datetime.fromtimestamp(now + 2.5, timezone(timedelta(hours=2))))
    cancel.delay(4, now)
