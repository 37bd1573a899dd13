// Consumes messages from a JetStream stream and drops repeats.
// Usage: node consumer.mjs nats://127.0.0.1:4222 STREAM COUNT    (ends after COUNT messages)

import { jetstream, jetstreamManager } from '@nats-io/jetstream';
import { connect } from '@nats-io/transport-node';

// Keys are remembered in the process here. With several consumers, keep them where the effect is: a column with a unique
// index, written in the same transaction.
const MAX_KEYS = 100_000;

const [url, stream, count] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const connection = await connect({ servers: url });
const manager = await jetstreamManager(connection);
await manager.consumers.add(stream, { durable_name: 'orders', ack_policy: 'explicit' });
const consumer = await jetstream(connection).consumers.get(stream, 'orders');

const seen = new Set();
const handle = (order) => console.log('cancelling order', order.order);

for await (const message of await consumer.consume({ max_messages: 100 })) {
  const key = message.headers.get('idempotency-key'); // the same key is the same message
  if (!seen.has(key)) {
    handle(message.json());
    seen.add(key);
    if (seen.size > MAX_KEYS) {
      seen.delete(seen.values().next().value);
    }
  }
  // Acknowledged after the effect: a crash in between repeats the message, it does not lose it.
  message.ack();
  if (seen.size >= count) {
    break;
  }
}
await connection.drain();
