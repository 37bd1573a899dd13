"""Uses a client that openapi-python-client generated from the document of an instance.

Usage: generated.py http://127.0.0.1:7171    (with the folder of the generated client in PYTHONPATH)
"""

import sys

from punctual_client import Client
from punctual_client.api.dead import list_dead
from punctual_client.api.tasks import cancel_task, get_task, put_task
from punctual_client.models import Task

client = Client(base_url=sys.argv[1])
body = Task.from_dict(
    {"schedule": {"in": "15m"}, "message": {"destination": "orders.cancel", "payload": {"order": 1}}}
)

put = put_task.sync("order-1.unpaid", client=client, body=body)
print("put:", put.result.value, put.due.isoformat())
print("dead:", len(list_dead.sync(client=client).items))
print("cancel:", cancel_task.sync("order-1.unpaid", client=client).result.value)
problem = get_task.sync("order-1.unpaid", client=client)
print("problem:", problem.status, problem.code.value, problem.detail)
wrong = put_task.sync("order-1.unpaid", client=client, body=Task.from_dict({"schedule": {"in": "soon"}, "message": {}}))
print("fault:", wrong.errors[0].pointer, wrong.errors[0].code.value)
