"""Consumes messages from a RabbitMQ queue and drops repeats.

Usage: consumer.py amqp://127.0.0.1:5672 QUEUE COUNT    (ends after COUNT different messages, at most 100 000)
"""

import collections
import json
import sys

import pika

# Keys are remembered in the process here. With several consumers, keep them where the effect is: a column with a unique
# index, written in the same transaction.
MAX_KEYS = 100_000

url, queue, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen = collections.OrderedDict()


def handle(order):
    print("cancelling order", order["order"], flush=True)


def receive(channel, delivery, properties, body):
    key = properties.message_id  # the same key is the same message
    if key not in seen:
        handle(json.loads(body))
        seen[key] = None
        if len(seen) > MAX_KEYS:
            seen.popitem(last=False)
    # Acknowledged after the effect: a crash in between repeats the message, it does not lose it.
    channel.basic_ack(delivery.delivery_tag)
    if len(seen) >= count:
        channel.stop_consuming()


connection = pika.BlockingConnection(pika.URLParameters(url))
channel = connection.channel()
channel.queue_declare(queue, durable=True)
channel.basic_qos(prefetch_count=100)
channel.basic_consume(queue, receive)
channel.start_consuming()
connection.close()
