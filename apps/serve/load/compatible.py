"""The `openai` package, unchanged, against the server."""

import asyncio
import base64

import numpy
import openai


def check(port, name, texts):
    """Raises where an answer is not what the package makes of OpenAI's; returns the number of checks."""
    options = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "none", "max_retries": 0}
    client = openai.OpenAI(**options)
    done = 0

    def expect(what, condition):
        nonlocal done
        if not condition:
            raise SystemExit(f"openai: {what}")
        done += 1

    def refused(what, kind, part, **arguments):
        try:
            client.embeddings.create(**{"model": name, "input": texts[0]} | arguments)
        except kind as error:
            expect(f"{what}: {error}", part in f"{error} {error.code}")
        else:
            raise SystemExit(f"openai: {what}: expected {kind.__name__}")

    expect("the list of models", [model.id for model in client.models.list()] == [name])
    expect("one model", client.models.retrieve(name).object == "model")
    one = client.embeddings.create(model=name, input=texts[0])
    vector = numpy.array(one.data[0].embedding, dtype=numpy.float32)
    expect("the length of an embedding", abs(float(numpy.linalg.norm(vector)) - 1) < 1e-4)
    expect("usage", one.usage.prompt_tokens == one.usage.total_tokens > 2)
    size = len(vector)

    # By default the package asks for base64 and decodes it.
    floats = client.embeddings.create(model=name, input=texts, encoding_format="float", dimensions=size)
    expect("the order of a list", [datum.index for datum in floats.data] == list(range(len(texts))))
    expect("float and base64", numpy.array_equal(numpy.float32(floats.data[0].embedding), vector))
    coded = client.embeddings.create(model=name, input=texts[0], encoding_format="base64")
    coded = numpy.frombuffer(base64.b64decode(coded.data[0].embedding), dtype="<f4")
    expect("base64 as it comes", numpy.array_equal(coded, vector))
    ids = client.embeddings.create(model=name, input=[[101, 2023, 102], [101, 102]])
    expect("token ids", len(ids.data) == 2 and ids.usage.total_tokens == 5)

    refused("another model", openai.NotFoundError, "model_not_found", model="text-embedding-3-small")
    refused("other dimensions", openai.BadRequestError, f"expected {size}", dimensions=size - 1)
    refused("a text that is too long", openai.BadRequestError, "expected at most", input="word " * 2000)
    refused("an empty text", openai.BadRequestError, "empty", input="")

    async def concurrent():
        async with openai.AsyncOpenAI(**options) as client:
            create = client.embeddings.create
            return await asyncio.gather(*(create(model=name, input=text) for text in texts))

    together = [answer.data[0].embedding for answer in asyncio.run(concurrent())]
    expect("concurrent requests", together == [datum.embedding for datum in client.embeddings.create(model=name, input=texts).data])
    return done
