"""Describes batches to schemathesis: one value per line, each with the schema in `x-item-schema`."""

import json

import schemathesis

NDJSON = "application/x-ndjson"


@schemathesis.hook
def before_load_schema(context, raw_schema):
    batch = raw_schema["paths"]["/v1/tasks:batch"]["post"]
    for content in (batch["requestBody"]["content"], batch["responses"]["200"]["content"]):
        kind = content[NDJSON]
        kind["schema"] = {"type": "array", "items": kind["x-item-schema"]}
        kind["example"] = [json.loads(line) for line in kind["example"].splitlines()]


@schemathesis.serializer(NDJSON)
def write(context, value):
    lines = value if isinstance(value, list) else [value]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@schemathesis.deserializer(NDJSON)
def read(context, response):
    return [json.loads(line) for line in response.content.split(b"\n") if line]
