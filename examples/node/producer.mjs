// Puts tasks: one that may be cancelled, and many in a batch.
// Usage: node producer.mjs http://127.0.0.1:7171 COUNT

const [api, count] = [process.argv[2], Number(process.argv[3])];

/** Sends a request, and again after a 503: it took effect before that answer, or never will. */
async function call(method, path, body, type = 'application/json') {
  for (let attempt = 0; ; attempt += 1) {
    const headers = body ? { 'content-type': type } : {};
    const answer = await fetch(api + path, { method, body, headers, signal: AbortSignal.timeout(15_000) });
    if (answer.status !== 503 || attempt === 5) {
      return answer;
    }
    await new Promise((done) => setTimeout(done, 100 * 2 ** attempt));
  }
}

const task = (order, delay) => ({
  schedule: { in: delay },
  message: { destination: 'orders.cancel', payload: { order } },
});

// An order comes in, and is paid in time. The answer tells whether the cancel won.
const put = await call('PUT', '/v1/tasks/order-0.unpaid', JSON.stringify(task(0, '15m')));
if (!put.ok) {
  throw new Error(await put.text());
}
const paid = await (await call('DELETE', '/v1/tasks/order-0.unpaid')).json();
console.log('order-0:', paid.result ?? 'it was published already');

// Many orders at once: a line for each. An order that is put again starts its time anew.
const orders = Array.from({ length: count }, (_, n) => n + 1);
const lines = orders.map((n) => JSON.stringify({ id: `order-${n}.unpaid`, ...task(n, '1s') }));
const answer = await call('POST', '/v1/tasks:batch', lines.join('\n'), 'application/x-ndjson');
const answers = (await answer.text()).trim().split('\n').map((line) => JSON.parse(line));
for (const { id, error } of answers.filter((line) => line.error)) {
  console.error('not put:', id, error.detail);
}
// Beyond 1 MiB of answers the last line counts all further lines by result.
const counts = answers.at(-1).counts ?? {};
const counted = ['created', 'replaced', 'unchanged'].reduce((sum, result) => sum + (counts[result] ?? 0), 0);
console.log('put:', answers.filter((line) => line.result).length + counted);
