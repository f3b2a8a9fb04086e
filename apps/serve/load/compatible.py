"""The `openai` package, unchanged, against the server."""

import asyncio
import base64

import numpy
import openai


class Checks:
    """Checks of the package against a server: how many passed."""

    def __init__(self, port):
        self.options = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": "none", "max_retries": 0}
        self.client = openai.OpenAI(**self.options)
        self.done = 0

    def expect(self, what, condition):
        if not condition:
            raise SystemExit(f"openai: {what}")
        self.done += 1


def check(port, name, texts):
    """Raises where an answer is not what the package makes of OpenAI's; returns the number of checks."""
    checks = Checks(port)
    client, options, expect = checks.client, checks.options, checks.expect

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
    refused("more dimensions", openai.BadRequestError, f"expected 1 to {size}", dimensions=size + 1)
    refused("a text that is too long", openai.BadRequestError, "expected at most", input="word " * 2000)
    refused("an empty text", openai.BadRequestError, "empty", input="")

    async def concurrent():
        async with openai.AsyncOpenAI(**options) as client:
            create = client.embeddings.create
            return await asyncio.gather(*(create(model=name, input=text) for text in texts))

    together = [answer.data[0].embedding for answer in asyncio.run(concurrent())]
    expect("concurrent requests", together == [datum.embedding for datum in client.embeddings.create(model=name, input=texts).data])
    return checks.done


def check_generation(port, name, texts):
    """As `check`, of a server that generates texts."""
    checks = Checks(port)
    client, options, expect = checks.client, checks.options, checks.expect
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": texts[0]}]
    asked = {"model": name, "max_tokens": 24, "temperature": 0}

    def chat(**more):
        return client.chat.completions.create(messages=said, **asked | more)

    expect("one model", client.models.retrieve(name).id == name)
    whole = chat(logprobs=True, top_logprobs=3)
    choice = whole.choices[0]
    expect("a message", choice.message.role == "assistant" and choice.message.content)
    expect("the reason of the end", choice.finish_reason == "length")
    expect("usage", whole.usage.completion_tokens == 24 < whole.usage.total_tokens)
    content = choice.logprobs.content
    expect("log probabilities", "".join(token.token for token in content) == choice.message.content)
    expect("the most likely tokens", all(token.top_logprobs[0].logprob == token.logprob for token in content))

    parts = list(chat(logprobs=True, top_logprobs=3, stream=True, stream_options={"include_usage": True}))
    choices = [part.choices[0] for part in parts[:-1]]
    text = "".join(part.delta.content or "" for part in choices)
    expect("a stream", text == choice.message.content and choices[-1].finish_reason == "length")
    expect("its first part", choices[0].delta.role == "assistant" and len(choices) > 10)
    expect("its usage", parts[-1].usage == whole.usage and not parts[-1].choices)
    streamed = [token for part in choices for token in part.logprobs.content]
    expect("its log probabilities", streamed == content)
    stop = choice.message.content[5:12]
    expect("a stop string", chat(stop=[stop]).choices[0].message.content == choice.message.content.partition(stop)[0])
    drawn = [chat(temperature=1, seed=seed).choices[0].message.content for seed in (1, 1, 2)]
    expect("seeds", drawn[0] == drawn[1] != drawn[2])

    def complete(**more):
        return client.completions.create(**asked | more)

    both = complete(prompt=texts[:2], logprobs=2)
    expect("two prompts", [choice.index for choice in both.choices] == [0, 1])
    first = complete(prompt=texts[0], logprobs=2)
    expect("each as alone", first.choices[0] == both.choices[0])
    logs = first.choices[0].logprobs
    expect("offsets", [first.choices[0].text[at] for at in logs.text_offset] == [token[0] for token in logs.tokens])
    text = "".join(part.choices[0].text for part in complete(prompt=texts[0], stream=True))
    expect("a streamed completion", text == first.choices[0].text)

    def refused(what, kind, part, call):
        try:
            call()
        except kind as error:
            expect(f"{what}: {error}", part in f"{error} {error.code}")
        else:
            raise SystemExit(f"openai: {what}: expected {kind.__name__}")

    refused("two answers", openai.BadRequestError, "expected 1, got 2", lambda: chat(n=2))
    refused("a malformed tool", openai.BadRequestError, "missing field `function`", lambda: chat(tools=[{"type": "function"}]))
    refused("a long prompt", openai.BadRequestError, "context_length_exceeded", lambda: complete(prompt="word " * 20_000))
    refused("another model", openai.NotFoundError, "model_not_found", lambda: chat(model="gpt-5"))
    refused("embeddings", openai.BadRequestError, "generates texts", lambda: client.embeddings.create(model=name, input="a"))

    async def concurrent():
        async with openai.AsyncOpenAI(**options) as client:
            create = client.completions.create
            return await asyncio.gather(*(create(prompt=text, **asked) for text in texts))

    together = [answer.choices[0].text for answer in asyncio.run(concurrent())]
    expect("concurrent requests", together == [complete(prompt=text).choices[0].text for text in texts])
    return checks.done
