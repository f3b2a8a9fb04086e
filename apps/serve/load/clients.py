"""The clients of text-embeddings-inference, unchanged, against three servers: of a model of embeddings, a
reranker and a classifier. Each answer is compared with what the same request gets without the package."""

import asyncio
import json
import urllib.request

import numpy
import openai
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference


class Checks:
    """Checks of a package: how many passed."""

    def __init__(self, package):
        self.package = package
        self.done = 0

    def expect(self, what, condition):
        if not condition:
            raise SystemExit(f"{self.package}: {what}")
        self.done += 1

    def same(self, what, got, expected):
        got, expected = numpy.float32(got), numpy.float32(expected)
        self.expect(f"{what}: {got} {expected}", numpy.array_equal(got, expected))


def url(port, path=""):
    return f"http://127.0.0.1:{port}{path}"


def post(port, path, body):
    request = urllib.request.Request(url(port, path), json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def check(embedder, reranker, classifier, texts):
    """Raises where a package makes something else of an answer; returns the checks of each package."""
    return {
        "huggingface_hub": check_huggingface(embedder, classifier, texts),
        "langchain": check_langchain(embedder, texts),
        "llama_index": check_llama_index(embedder, reranker, texts),
        "openai": check_openai(embedder, texts),
    }


def check_huggingface(port, classifier, texts):
    checks = Checks("huggingface_hub")
    # The root answers as /embed: the package adds no path to an address.
    client = InferenceClient(model=url(port))
    long = "river " * 2000
    for more in (
        {},
        {"normalize": False},
        {"prompt_name": "query"},
        {"dimensions": 8},
        {"truncate": True, "truncation_direction": "left"},
    ):
        text = f"{texts[0]} {long}" if "truncate" in more else texts[0]
        got = client.feature_extraction(text, **more)
        checks.same(f"feature_extraction {more}", got, post(port, "/embed", {"inputs": text} | more))
    checks.same("a list", client.feature_extraction(texts), post(port, "/embed", {"inputs": texts}))
    cosines = InferenceClient(model=url(port, "/similarity")).sentence_similarity(texts[0], other_sentences=texts)
    inputs = {"source_sentence": texts[0], "sentences": texts}
    checks.same("sentence_similarity", cosines, post(port, "/similarity", {"inputs": inputs}))
    checks.expect("a sentence is similar to itself", abs(cosines[0] - 1) < 1e-6)
    for what, more, part in (
        ("an unknown prompt", {"prompt_name": "title"}, "expected one of"),
        ("too many dimensions", {"dimensions": 4000}, "expected 1 to"),
    ):
        try:
            client.feature_extraction(texts[0], **more)
        except HfHubHTTPError as error:
            checks.expect(f"{what}: {error}", error.response.status_code == 422 and part in error.response.text)
        else:
            raise SystemExit(f"huggingface_hub: {what}: expected a refusal")
    best = InferenceClient(model=url(classifier)).text_classification(texts[0])
    of_predict = post(classifier, "/predict", {"inputs": texts[0]})[0]
    checks.expect("text_classification", (best.label, best.score) == (of_predict["label"], of_predict["score"]))

    async def concurrent():
        async with AsyncInferenceClient(model=url(port)) as client:
            return await asyncio.gather(*(client.feature_extraction(text) for text in texts))

    together = numpy.concatenate(asyncio.run(concurrent()))
    checks.same("concurrent requests", together, post(port, "/embed", {"inputs": texts}))
    return checks.done


def check_langchain(port, texts):
    checks = Checks("langchain")
    embeddings = HuggingFaceEndpointEmbeddings(model="org/bert", model_kwargs={"truncate": True})
    # The class takes no address, but its clients may be set.
    embeddings.client = InferenceClient(model=url(port))
    embeddings.async_client = AsyncInferenceClient(model=url(port))
    expected = post(port, "/embed", {"inputs": texts})
    checks.same("embed_documents", embeddings.embed_documents(texts), expected)
    checks.same("embed_query", embeddings.embed_query(texts[1]), expected[1])
    checks.same("aembed_documents", asyncio.run(embeddings.aembed_documents(texts)), expected)
    embeddings.model_kwargs = {"prompt_name": "query"}
    behind = post(port, "/embed", {"inputs": texts[0], "prompt_name": "query"})
    checks.same("a prompt", embeddings.embed_query(texts[0]), behind[0])
    return checks.done


def check_llama_index(port, reranker, texts):
    checks = Checks("llama_index")
    embedding = TextEmbeddingsInference(model_name="bert", base_url=url(port), embed_batch_size=5)
    expected = post(port, "/embed", {"inputs": texts})
    checks.same("get_text_embedding_batch", embedding.get_text_embedding_batch(texts), expected)
    checks.same("get_text_embedding", embedding.get_text_embedding(texts[1]), expected[1])
    checks.same("get_query_embedding", embedding.get_query_embedding(texts[2]), expected[2])
    together = asyncio.run(embedding.aget_text_embedding_batch(texts))
    checks.same("aget_text_embedding_batch", together, expected)

    nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in texts]
    best = TextEmbeddingInference(top_n=3, base_url=url(reranker)).postprocess_nodes(nodes, query_str="which city")
    ranks = post(reranker, "/rerank", {"query": "which city", "texts": texts})[:3]
    checks.expect("the best texts", [node.text for node in best] == [texts[rank["index"]] for rank in ranks])
    checks.expect("their scores", [node.score for node in best] == [rank["score"] for rank in ranks])
    return checks.done


def check_openai(port, texts):
    checks = Checks("openai")
    client = openai.OpenAI(base_url=url(port, "/v1"), api_key="none", max_retries=0)
    for size in (1, 8, 32):
        expected = post(port, "/embed", {"inputs": texts, "dimensions": size})
        for more in ({}, {"encoding_format": "float"}):
            got = client.embeddings.create(model="bert", input=texts, dimensions=size, **more)
            got = [datum.embedding for datum in got.data]
            checks.same(f"{size} dimensions {more}", got, expected)
    behind = client.embeddings.create(model="bert", input=texts[0], extra_body={"prompt_name": "query"})
    expected = post(port, "/embed", {"inputs": texts[0], "prompt_name": "query"})
    checks.same("a prompt", behind.data[0].embedding, expected[0])
    for size in (0, 33):
        try:
            client.embeddings.create(model="bert", input=texts[0], dimensions=size)
        except openai.BadRequestError as error:
            checks.expect(f"{size} dimensions: {error}", "expected 1 to 32" in str(error))
        else:
            raise SystemExit(f"openai: {size} dimensions: expected a refusal")
    return checks.done
