#!/usr/bin/env python3
"""Tiny random encoders of each architecture, with the answers of sentence-transformers.

    python encoders.py [NAME..]

Needs torch==2.15.0 transformers==5.24.0 sentence-transformers==6.2.0. Writes a folder encoders/NAME
for each, as sentence-transformers saves it with weights in float16, and in it expected.json:
`texts`, and their `vectors` as `encode` gives them, `queries` and `documents` as `encode_query` and
`encode_document` do; of a classifier `logits`, of a reranker `query` and `scores`, and `true_logits`
where these are differences of logits; of a classifier of tokens `tokens` and `entities`, each with its beginning and
end in characters, its label and the score of it. From "electra" on they are made with sentence-transformers 6.1.0.dev0
(its source of 2026-08-21) and torch 2.9.1, from "splade-modernbert" on with sentence-transformers 6.2.0. All in float32, of the weights as they are stored.

transformers has no Jina BERT, and GTE without its scaled positions: these are written out here,
from the papers (arXiv 2108.12409 and 2310.19923; Su, "NTK-aware scaled RoPE", 2023) and the names
of the published weights.
"""

import json
import math
import shutil
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers as t
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.cross_encoder.modules import LogitScore
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    LayerNorm,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
)
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

HERE = Path(__file__).resolve().parent / "encoders"
WORDS = """
the a of and to in is was for on with as by at from it that are or an be this which not have
river city snow winter bread market train station book library garden tree apple bridge boat
harbour engine battery wire screen keyboard terminal editor window paper letter stamp road
mountain valley north south east west red green blue cold warm old new small large fast slow
open closed first last query passage answer question document search find lies runs falls grows
stands reads writes sells
""".split()
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
TEXTS = [
    "the river runs to the harbour",
    "snow falls on the old city in winter",
    "bread",
    "a small market sells apple and bread by the train station and the library is open",
    " ".join(WORDS),
    " ".join(WORDS[(7 * i + i * i) % len(WORDS)] for i in range(146)),
    "",
]
QUERIES = ["which city lies on the river", "bread"]
# `pad_token_id` is RoBERTa's everywhere.
SIZES = dict(
    vocab_size=112,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=152,
    pad_token_id=1,
    bos_token_id=0,
    eos_token_id=2,
    initializer_range=0.2,
)
DECODER = SIZES | dict(num_attention_heads=4, num_key_value_heads=2, head_dim=16)
GEMMA = DECODER | dict(
    num_hidden_layers=3,
    query_pre_attn_scalar=20,
    sliding_window=10,
    sliding_window_pattern=3,
    use_bidirectional_attention=True,
    rope_theta=10000.0,
    rope_local_base_freq=1000.0,
)
MODERN = SIZES | dict(num_hidden_layers=4, local_attention=10, cls_token_id=0, sep_token_id=2)
# The product from tables to layers is large enough to be quantized.
NARROW = SIZES | dict(embedding_size=32, hidden_size=48)
# Five passes through two groups of two layers.
ALBERT = NARROW | dict(num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2)
# As DeBERTa v3, with distances that share rows.
DEBERTA = SIZES | dict(
    relative_attention=True,
    position_buckets=8,
    max_relative_positions=40,
    pos_att_type=["p2c", "c2p"],
    share_att_key=True,
    norm_rel_ebd="layer_norm",
    position_biased_input=False,
    type_vocab_size=0,
)
# Heads that are wider together than the hidden size.
T5 = dict(
    vocab_size=112,
    d_model=32,
    d_kv=12,
    d_ff=64,
    num_layers=2,
    num_heads=4,
    relative_attention_num_buckets=8,
    relative_attention_max_distance=40,
    pad_token_id=1,
    eos_token_id=2,
)
EURO = DECODER | dict(rope_theta=2500.0, mlp_bias=True, attention_bias=True)
PROMPTS = {"query": "query the ", "document": "passage of a "}


def tokenizer(pair_type, ends=(True, True), cased=False, types=None):
    """Words to ids, `<s> .. </s>`, or only what `ends` says; the model is given token types if there are two."""
    vocab = {word: i for i, word in enumerate(SPECIAL + WORDS)}
    made = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    if not cased:
        made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    first, last = ("<s>:0 " if ends[0] else ""), (" </s>:0" if ends[1] else "")
    p = pair_type
    pair = f"{first}$A:0{last}{'' if p else last} $B:{p}{last.replace(':0', f':{p}')}"
    made.post_processor = processors.TemplateProcessing(
        single=f"{first}$A:0{last}",
        pair=pair,
        special_tokens=[(s, vocab[s]) for s in ("<s>", "</s>")],
    )
    return t.PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=152,
        model_input_names=["input_ids", "attention_mask"]
        + ["token_type_ids"] * (pair_type if types is None else types),
    )


def randomize(model, seed):
    """Norms and biases that are not what they begin with; weights that float16 holds."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            parameter.copy_(parameter.half().float())
    return model.eval()


def to_half(folder):
    for path in folder.rglob("*.safetensors"):
        save_file(
            {k: v.half() for k, v in load_file(path).items()}, path, metadata={"format": "pt"}
        )


def write(folder, expected):
    rounded = json.loads(json.dumps(expected), parse_float=lambda x: float(f"{float(x):.8g}"))
    (folder / "expected.json").write_text(json.dumps(rounded))
    for name in ("README.md", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    for path in folder.rglob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text())) + "\n")


def edit(folder, change, drop=(), file="config.json"):
    path = folder / file
    config = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop} | change
    path.write_text(json.dumps(config, sort_keys=True) + "\n")


def embedder(
    name,
    model,
    seed,
    modules,
    pair_type=0,
    ends=(True, True),
    prompts=PROMPTS,
    before=lambda model: None,
):
    """A folder of a model with the modules behind it."""
    folder = HERE / name
    torch.manual_seed(seed)
    randomize(model, seed)
    with tempfile.TemporaryDirectory() as dir:
        model.save_pretrained(dir)
        tokenizer(pair_type, ends).save_pretrained(dir)
        transformer = Transformer(dir)
    before(transformer.auto_model)
    size = model.config.hidden_size
    sentence = SentenceTransformer(
        modules=[transformer] + [randomize(make(size), seed + 1) for make in modules],
        prompts=prompts,
        device="cpu",
    )
    vectors = lambda encode, texts: encode(texts, convert_to_numpy=True).tolist()
    expected = dict(
        texts=TEXTS,
        vectors=vectors(sentence.encode, TEXTS),
        questions=QUERIES,
        queries=vectors(sentence.encode_query, QUERIES),
        documents=vectors(sentence.encode_document, TEXTS),
    )
    shutil.rmtree(folder, ignore_errors=True)
    sentence.save(str(folder), create_model_card=False)
    to_half(folder)
    write(folder, expected)
    return folder


def classifier(name, model, seed, pair_type=0, ends=(True, True)):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    made = tokenizer(pair_type, ends)
    randomize(model, seed).save_pretrained(folder)
    made.save_pretrained(folder)
    logits = []
    for text in TEXTS:
        inputs = made([text], return_tensors="pt")
        inputs = {k: v for k, v in inputs.items() if k != "token_type_ids"}
        with torch.no_grad():
            logits.append(model(**inputs).logits[0].tolist())
    to_half(folder)
    write(folder, dict(texts=TEXTS, logits=logits))


NAMED = dict(num_labels=4, id2label={0: "O", 1: "B-PER", 2: "I-PER", 3: "LOC"}, label2id={"O": 0, "B-PER": 1, "I-PER": 2, "LOC": 3})
NAMES = [
    "the river runs to the harbour",
    "Frau Müller sells bread by the train station, the old city 🏔 and Zürich",
    "🏔️ snow",
    " ".join(WORDS * 2),
]


def letters():
    """Bytes to ids, of which several are a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizer(0)
    whole = made._tokenizer
    whole.model = models.BPE({word: i for i, word in enumerate(SPECIAL + alphabet)}, [], unk_token="<unk>")
    whole.normalizer = None
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return made


def namer(name, model, seed, made=None):
    """A classifier of tokens; offsets are in characters, logits of all tokens in text order."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    made = made or tokenizer(0)
    randomize(model, seed).save_pretrained(folder)
    made.save_pretrained(folder)
    made.model_max_length = 152
    pipe = lambda strategy: t.pipeline(
        "token-classification", model=model, tokenizer=made, aggregation_strategy=strategy, device="cpu", ignore_labels=[]
    )
    plain, simple = pipe("none"), pipe("simple")
    tokens = [[[it["start"], it["end"], it["entity"], float(it["score"])] for it in plain(text)] for text in NAMES]
    entities = [
        [[it["start"], it["end"], it["entity_group"], float(it["score"])] for it in simple(text) if it["entity_group"] != "O"]
        for text in NAMES
    ]
    to_half(folder)
    write(folder, dict(texts=NAMES, tokens=tokens, entities=entities))


def reranker(name, model, seed, pair_type, types=None, **options):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as dir:
        randomize(model, seed).save_pretrained(dir)
        tokenizer(pair_type, types=types).save_pretrained(dir)
        cross = CrossEncoder(dir, device="cpu", **options)
    texts = TEXTS[:5]
    scores = cross.predict([(QUERIES[0], text) for text in texts]).tolist()
    cross.save_pretrained(str(folder))
    to_half(folder)
    write(folder, dict(query=QUERIES[0], texts=texts, scores=scores))


def lower_case(seed):
    """Texts in capitals for a tokenizer of small letters, vectors that are cut, and settings as releases before 6
    write them; the folder is read again."""
    model = t.BertModel(t.BertConfig(**SIZES), add_pooling_layer=False)
    folder = embedder("lower-case", model, seed, [pooling("mean"), normalize], 1)
    tokenizer(1, cased=True).save_pretrained(folder)
    settings = dict(max_seq_length=20, do_lower_case=True)
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    edit(folder, dict(truncate_dim=16), file="config_sentence_transformers.json")
    sentence = SentenceTransformer(str(folder), device="cpu", model_kwargs=dict(dtype="float32"))
    texts = [text.title() for text in TEXTS]
    questions = [text.upper() for text in QUERIES]
    expected = dict(
        texts=texts,
        vectors=sentence.encode(texts).tolist(),
        questions=questions,
        queries=sentence.encode_query(questions).tolist(),
        documents=sentence.encode_document(texts).tolist(),
    )
    write(folder, expected)


def modular(name, model, seed, modules, **options):
    """A reranker of modules, with a prompt before each query."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as dir:
        randomize(model, seed).save_pretrained(dir)
        tokenizer(0).save_pretrained(dir)
        transformer = Transformer(dir)
    behind = [randomize(make(model.config.hidden_size), seed + 1) for make in modules]
    cross = CrossEncoder(modules=[transformer] + behind, device="cpu", **options)
    texts = TEXTS[:6]
    scores = cross.predict([(QUERIES[0], text) for text in texts], batch_size=1).tolist()
    cross.save_pretrained(str(folder))
    to_half(folder)
    write(folder, dict(query=QUERIES[0], texts=texts, scores=scores))


# Words, since the tokenizer knows no others; a system message, like that of Qwen3-Reranker, is a prompt.
CHAT = """
{{- messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("search") }} query
{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }} document
{{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}
{%- if add_generation_prompt %} the answer is {% endif %}
"""


def scorer(name, model, seed, true, false):
    """A reranker that writes texts: the score is by how much one word is likelier than another as the next one."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as dir:
        randomize(model, seed).save_pretrained(dir)
        made = tokenizer(0)
        made.chat_template = CHAT
        made.padding_side = "left"
        made.save_pretrained(dir)
        message = dict(method="forward", method_output_name="logits")
        transformer = Transformer(
            dir,
            transformer_task="text-generation",
            modality_config=dict(text=message, message=message | dict(format="flat")),
            module_output_name="causal_logits",
            processing_kwargs=dict(chat_template=dict(add_generation_prompt=True)),
        )
    ids = [made.convert_tokens_to_ids(word) for word in (true, false)]
    pairs = [(QUERIES[0], text) for text in TEXTS]
    predict = lambda score, **options: (
        CrossEncoder(modules=[transformer, score], device="cpu", **options).predict(pairs, batch_size=1).tolist()
    )
    logits = dict(activation_fn=torch.nn.Identity())
    expected = dict(query=QUERIES[0], texts=TEXTS, true_logits=predict(LogitScore(ids[0]), **logits))
    cross = CrossEncoder(
        modules=[transformer, LogitScore(*ids)],
        prompts=dict(find="find the right document"),
        default_prompt_name="find",
        device="cpu",
    )
    expected["scores"] = cross.predict(pairs, batch_size=1).tolist()
    cross.save_pretrained(str(folder))
    to_half(folder)
    write(folder, expected)


def ntk(theta, factor):
    """The angles of GTE's scaled positions, in place of the model's own."""

    def change(model):
        rotary = model.rotary_emb
        dim = 2 * rotary.inv_freq.numel()
        powers = torch.arange(0, dim, 2).float() / dim
        rotary.inv_freq = (theta * factor) ** -powers / factor ** (2 / dim)

    return change


class Jina(torch.nn.Module):
    """Jina BERT v2: scores less a slope times the distance, gated products; names as published."""

    HIDDEN, HEADS = 48, 6

    def __init__(self):
        super().__init__()
        h, inner = self.HIDDEN, SIZES["intermediate_size"]
        linear, norm = torch.nn.Linear, lambda: torch.nn.LayerNorm(h, eps=1e-12)
        embeddings = dict(
            word_embeddings=torch.nn.Embedding(112, h),
            token_type_embeddings=torch.nn.Embedding(2, h),
            LayerNorm=norm(),
        )
        self.embeddings = torch.nn.ModuleDict(embeddings)
        layer = lambda: torch.nn.ModuleDict(
            {
                "attention": torch.nn.ModuleDict(
                    {
                        "self": torch.nn.ModuleDict(
                            {n: linear(h, h) for n in ("query", "key", "value")}
                        ),
                        "output": torch.nn.ModuleDict(dict(dense=linear(h, h), LayerNorm=norm())),
                    }
                ),
                "mlp": torch.nn.ModuleDict(
                    dict(
                        gated_layers=linear(h, 2 * inner, bias=False),
                        wo=linear(inner, h),
                        layernorm=norm(),
                    )
                ),
            }
        )
        self.encoder = torch.nn.ModuleDict(dict(layer=torch.nn.ModuleList([layer(), layer()])))

    def forward(self, ids):
        heads, n = self.HEADS, len(ids)
        xs = (
            self.embeddings["word_embeddings"](ids)
            + self.embeddings["token_type_embeddings"].weight[0]
        )
        xs = self.embeddings["LayerNorm"](xs)
        # Six heads: four slopes of four heads, then the first and the third of eight.
        slopes = [2.0 ** (-8 * (i + 1) / 4) for i in range(4)] + [
            2.0 ** (-8 * (i + 1) / 8) for i in (0, 2)
        ]
        distance = (torch.arange(n)[:, None] - torch.arange(n)[None]).abs()
        bias = -torch.tensor(slopes)[:, None, None] * distance
        for layer in self.encoder["layer"]:
            attention, mlp = layer["attention"], layer["mlp"]
            split = lambda name: attention["self"][name](xs).reshape(n, heads, -1).transpose(0, 1)
            q, k, v = split("query"), split("key"), split("value")
            weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + bias, -1)
            context = (weights @ v).transpose(0, 1).reshape(n, -1)
            xs = attention["output"]["LayerNorm"](attention["output"]["dense"](context) + xs)
            gate, value = mlp["gated_layers"](xs).chunk(2, -1)
            xs = mlp["layernorm"](mlp["wo"](F.gelu(gate) * value) + xs)
        return xs


def jina(seed):
    config = SIZES | dict(
        hidden_size=Jina.HIDDEN,
        num_attention_heads=Jina.HEADS,
        model_type="bert",
        architectures=["JinaBertForMaskedLM"],
        position_embedding_type="alibi",
        feed_forward_type="geglu",
        emb_pooler="mean",
        layer_norm_eps=1e-12,
        type_vocab_size=2,
        hidden_act="gelu",
    )
    written("jina", Jina(), seed, 1, config)


def written(name, model, seed, pair_type, config):
    """A folder of a model that is written out here."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1_Pooling").mkdir(parents=True)
    torch.manual_seed(seed)
    model = randomize(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.copy_((torch.randn_like(parameter) * 0.2).half().float())
    save_file(
        {k: v.half().clone() for k, v in model.state_dict().items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    made = tokenizer(pair_type)
    made.save_pretrained(folder)
    with torch.no_grad():
        vectors = [model(torch.tensor(made(text).input_ids)).mean(0).tolist() for text in TEXTS]
    (folder / "config.json").write_text(json.dumps(config, sort_keys=True))
    modules = [
        dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
        for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    mean = dict(
        word_embedding_dimension=config.get("hidden_size", config.get("n_embd")),
        pooling_mode_cls_token=False,
        pooling_mode_mean_tokens=True,
    )
    (folder / "1_Pooling/config.json").write_text(json.dumps(mean))
    write(folder, dict(texts=TEXTS, vectors=vectors))


def static(name, seed, modules, table):
    """A table of words, from which vectors are made without special tokens."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(seed)
    weights = torch.randn(112, 32).half().float()
    made = StaticEmbedding(tokenizer(0)._tokenizer, embedding_weights=weights)
    sentence = SentenceTransformer(modules=[made, *modules], prompts=PROMPTS, device="cpu")
    texts = [text for text in TEXTS if text]
    expected = dict(
        texts=texts,
        vectors=sentence.encode(texts).tolist(),
        questions=QUERIES,
        queries=sentence.encode_query(QUERIES).tolist(),
        documents=sentence.encode_document(texts).tolist(),
    )
    sentence.save(str(folder), create_model_card=False)
    to_half(folder)
    path = folder / "model.safetensors"
    save_file({table: load_file(path)["embedding.weight"]}, path)
    write(folder, expected)
    return folder


def model2vec(seed):
    """With the names and files of model2vec, whose `config.json` nothing reads."""
    folder = static("model2vec", seed, [Normalize()], "embeddings")
    (folder / "config.json").write_text(json.dumps(dict(model_type="model2vec", normalize=True)) + "\n")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "."
    (folder / "modules.json").write_text(json.dumps(modules) + "\n")


def splade(name, model, seed, **options):
    """A sparse encoder; of its weights those above 0."""
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as dir:
        randomize(model, seed).save_pretrained(dir)
        tokenizer(0).save_pretrained(dir)
        transformer = Transformer(dir, transformer_task="fill-mask")
    sparse = SparseEncoder(modules=[transformer, SpladePooling(**options)], prompts=PROMPTS, device="cpu")
    rows = lambda encode, texts: encode(texts, convert_to_sparse_tensor=False).tolist()
    expected = dict(
        texts=TEXTS,
        vectors=rows(sparse.encode, TEXTS),
        questions=QUERIES,
        queries=rows(sparse.encode_query, QUERIES),
        documents=rows(sparse.encode_document, TEXTS),
    )
    sparse.save(str(folder), create_model_card=False)
    to_half(folder)
    write(folder, expected)
    return folder


def lexical(seed):
    """The sparse head of bge-m3 beside "xlm-roberta", by the formula of FlagEmbedding, written out: the greatest
    weight of each token by its vector, without special tokens."""
    folder = HERE / "xlm-roberta"
    model = t.AutoModel.from_pretrained(folder, dtype="float32")
    linear = randomize(torch.nn.Linear(32, 1), seed)
    with torch.no_grad():
        # About half of the tokens have a weight.
        linear.weight.mul_(4)
        linear.bias.fill_(1)
    made = t.AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        inputs = made([text], return_tensors="pt")
        with torch.no_grad():
            weights = torch.relu(linear(model(**inputs).last_hidden_state[0])).flatten().tolist()
        row = [0.0] * 112
        for token, weight in zip(inputs.input_ids[0].tolist(), weights):
            row[token] = max(row[token], weight if token > 3 else 0.0)
        rows.append(row)
    assert any(map(any, rows))
    half = linear.half().state_dict()
    save_file(half, folder / "sparse_linear.safetensors")
    torch.save(half, folder / "sparse_linear.pt")
    (folder / "lexical.json").write_text(json.dumps(rows) + "\n")


def older_splade(seed):
    """With the module's name in releases before 5.4, and their settings."""
    folder = splade("splade-roberta", roberta(t.RobertaForMaskedLM, t.RobertaConfig), seed, pooling_strategy="sum")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["type"] = "sentence_transformers.sparse_encoder.models.MLMTransformer"
    modules[1]["type"] = "sentence_transformers.sparse_encoder.models.SpladePooling"
    (folder / "modules.json").write_text(json.dumps(modules) + "\n")
    settings = dict(max_seq_length=152, do_lower_case=False)
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings) + "\n")


def pooling(*modes, **options):
    return lambda size: Pooling(size, pooling_mode=modes, **options)


def dense(inputs, outputs, activation, bias=True, **options):
    return lambda _: Dense(inputs, outputs, bias=bias, activation_function=activation, **options)


def normalize(_):
    return Normalize()


def gte(seed):
    config = t.GteConfig(**SIZES, type_vocab_size=1, rope_theta=10000.0)
    folder = embedder(
        "gte", t.GteModel(config), seed, [pooling("cls"), normalize], before=ntk(10000.0, 4.0)
    )
    edit(
        folder,
        dict(
            model_type="new",
            architectures=["NewModel"],
            position_embedding_type="rope",
            rope_theta=10000.0,
            rope_scaling=dict(type="ntk", factor=4.0),
            pack_qkv=True,
            layer_norm_type="layer_norm",
        ),
        ["rope_parameters"],
    )


def nomic(seed):
    config = t.NomicBertConfig(**SIZES, rope_theta=1000.0)
    folder = embedder(
        "nomic",
        t.NomicBertModel(config),
        seed,
        [pooling("mean"), normalize],
        pair_type=1,
        prompts={"query": "search query ", "document": "search document "},
    )
    published = dict(
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_inner=64,
        n_positions=152,
        rotary_emb_base=1000,
        rotary_emb_fraction=1.0,
        activation_function="swiglu",
        layer_norm_epsilon=1e-12,
        qkv_proj_bias=False,
        mlp_fc1_bias=False,
        mlp_fc2_bias=False,
        prenorm=False,
        use_rms_norm=False,
        rotary_emb_interleaved=False,
        architectures=["NomicBertModel"],
    )
    edit(
        folder,
        published,
        [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "rope_parameters",
            "layer_norm_eps",
            "hidden_act",
            "head_dim",
        ],
    )


class NomicMoe(torch.nn.Module):
    """The second version of Nomic BERT, whose experts transformers lacks: GELU without gates; in every second layer the
    two best of a softmax over experts, each gelu(x w1^T) w2, summed by their shares, and a bias; names as published."""

    EXPERTS, LAYERS = 4, 2

    def __init__(self):
        super().__init__()
        h, inner = SIZES["hidden_size"], SIZES["intermediate_size"]
        linear, norm, parts = torch.nn.Linear, lambda: torch.nn.LayerNorm(h), lambda **all: torch.nn.ModuleDict(all)
        self.embeddings = parts(word_embeddings=torch.nn.Embedding(112, h), token_type_embeddings=torch.nn.Embedding(1, h))
        self.emb_ln = norm()

        def mlp(is_mixture):
            if not is_mixture:
                return parts(fc1=linear(h, inner), fc2=linear(inner, h))
            experts = parts(mlp=torch.nn.Module())
            for name in ("w1", "w2"):
                experts["mlp"].register_parameter(name, torch.nn.Parameter(torch.empty(self.EXPERTS * inner, h)))
            experts.register_parameter("bias", torch.nn.Parameter(torch.zeros(h)))
            return parts(router=parts(layer=linear(h, self.EXPERTS, bias=False)), experts=experts)

        layers = [
            parts(attn=parts(Wqkv=linear(h, 3 * h), out_proj=linear(h, h)), norm1=norm(), mlp=mlp(i % 2 == 1), norm2=norm())
            for i in range(self.LAYERS)
        ]
        self.encoder = parts(layers=torch.nn.ModuleList(layers))

    def forward(self, ids):
        n, heads = len(ids), SIZES["num_attention_heads"]
        xs = self.emb_ln(self.embeddings["word_embeddings"](ids) + self.embeddings["token_type_embeddings"].weight[0])
        dim = xs.shape[1] // heads
        angles = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        cos, sin = [torch.cat([part, part], -1) for part in (angles.cos(), angles.sin())]
        turn = lambda x: x * cos + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * sin
        for layer in self.encoder["layers"]:
            q, k, v = layer["attn"]["Wqkv"](xs).reshape(n, 3, heads, dim).permute(1, 2, 0, 3)
            context = torch.softmax(turn(q) @ turn(k).transpose(1, 2) / math.sqrt(dim), -1) @ v
            xs = layer["norm1"](layer["attn"]["out_proj"](context.transpose(0, 1).reshape(n, -1)) + xs)
            mlp = layer["mlp"]
            if "router" in mlp:
                shares, chosen = mlp["router"]["layer"](xs).softmax(-1).topk(2, -1)
                w1, w2 = [getattr(mlp["experts"]["mlp"], name).view(self.EXPERTS, -1, xs.shape[1]) for name in ("w1", "w2")]
                ys = torch.zeros_like(xs)
                for row in range(n):
                    for share, expert in zip(shares[row], chosen[row]):
                        ys[row] += share * (F.gelu(xs[row] @ w1[expert].T) @ w2[expert])
                ys = ys + mlp["experts"].bias
            else:
                ys = mlp["fc2"](F.gelu(mlp["fc1"](xs)))
            xs = layer["norm2"](ys + xs)
        return xs


def nomic_moe(seed):
    config = dict(
        model_type="nomic_bert",
        architectures=["NomicBertModel"],
        vocab_size=112,
        n_embd=32,
        n_layer=NomicMoe.LAYERS,
        n_head=4,
        n_inner=64,
        n_positions=152,
        type_vocab_size=1,
        layer_norm_epsilon=1e-05,
        activation_function="gelu",
        rotary_emb_base=10000,
        rotary_emb_fraction=1.0,
        rotary_emb_interleaved=False,
        rotary_scaling_factor=None,
        qkv_proj_bias=True,
        mlp_fc1_bias=True,
        mlp_fc2_bias=True,
        prenorm=False,
        num_experts=NomicMoe.EXPERTS,
        moe_every_n_layers=2,
        moe_top_k=2,
        moe_normalize_expert_weights=False,
        moe_impl="megablocks",
        moe_resid_pdrop=0.0,
        router_aux_loss_coef=0.1,
        expert_choice_router=False,
        num_shared_experts=0,
        ffn_div=1,
        pad_token_id=1,
    )
    model = NomicMoe()
    # An outlier: see "deberta".
    model.encoder["layers"][0]["norm1"].weight.data[0].mul_(4)
    written("nomic-moe", model, seed, 0, config)


JINA = SIZES | dict(type_vocab_size=1, rope_theta=20000.0)


def jina_v3(seed):
    """Jina embeddings v3 as published: adapters of two tasks as torch's parametrizations, and no sentence_bert_config.json.
    transformers has the model without adapters; with them, W of a product is W + alpha / rank * B A, and W of a table
    W + alpha / rank * A B (LoRA, arXiv 2106.09685; Jina's modeling_lora.py)."""
    tasks = {"retrieval.query": "query the ", "text-matching": ""}
    rank, alpha = 2, 3.0
    folder = embedder("jina-v3-lora", t.JinaEmbeddingsV3Model(t.JinaEmbeddingsV3Config(**JINA)), seed, [pooling("mean"), normalize], prompts=tasks)
    path = folder / "model.safetensors"
    base, published = load_file(path), {}
    folded = {task: {} for task in tasks}
    torch.manual_seed(seed + 2)
    for name, weight in base.items():
        if weight.dim() == 1:
            published["roberta." + name] = weight
            continue
        rows, columns = weight.shape
        is_table = "embeddings" in name
        shapes = [(rows, rank), (rank, columns)] if is_table else [(rank, columns), (rows, rank)]
        a, b = [(torch.randn(len(tasks), *shape) * 0.3).half() for shape in shapes]
        place = "roberta." + name.removesuffix("weight") + "parametrizations.weight."
        published |= {place + "original": weight, place + "0.lora_A": a, place + "0.lora_B": b}
        for i, task in enumerate(tasks):
            left, right = (a, b) if is_table else (b, a)
            folded[task][name] = weight.float() + alpha / rank * left[i].float() @ right[i].float()
    expected = json.loads((folder / "expected.json").read_text())
    expected = {key: expected[key] for key in ("texts", "vectors")} | dict(tasks={})
    for task, weights in folded.items():
        save_file({name: weights.get(name, weight.float()) for name, weight in base.items()}, path, metadata={"format": "pt"})
        sentence = SentenceTransformer(str(folder), device="cpu", model_kwargs=dict(dtype="float32"))
        expected["tasks"][task] = sentence.encode(TEXTS, prompt_name=task).tolist()
    save_file(published, path, metadata={"format": "pt"})
    change = dict(
        model_type="xlm-roberta",
        architectures=["XLMRobertaModel"],
        position_embedding_type="rotary",
        rotary_emb_base=20000.0,
        lora_adaptations=list(tasks),
        lora_rank=rank,
        lora_alpha=alpha,
        lora_dropout_p=0.0,
        lora_main_params_trainable=False,
        load_trained_adapters=True,
        matryoshka_dimensions=[16, 32],
        task_instructions=tasks,
        truncate_dim=None,
        use_flash_attn=True,
        use_reentrant=False,
        emb_pooler=None,
    )
    edit(folder, change, ["rope_parameters"])
    edit(folder, dict(prompts=tasks), file="config_sentence_transformers.json")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0] |= dict(type="custom_st.Transformer", kwargs=["task"])
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").unlink()
    write(folder, expected)


def modernbert(seed):
    """Under the keys of the published models."""
    folder = embedder(
        "modernbert", t.ModernBertModel(t.ModernBertConfig(**MODERN)), seed, [pooling("cls")]
    )
    edit(
        folder,
        dict(global_attn_every_n_layers=3, global_rope_theta=160000.0, local_rope_theta=10000.0),
        ["layer_types", "rope_parameters"],
    )


def gemma3(seed):
    """Likewise."""
    behind = [
        pooling("mean"),
        dense(32, 48, torch.nn.Identity(), False),
        dense(48, 24, torch.nn.Identity(), False),
        normalize,
    ]
    folder = embedder("gemma3", t.Gemma3TextModel(t.Gemma3TextConfig(**GEMMA)), seed, behind)
    edit(
        folder,
        dict(rope_theta=10000.0, rope_local_base_freq=1000.0),
        ["rope_parameters", "sliding_window_pattern", "_sliding_window_pattern"],
    )


def distil(kind, labels):
    config = t.DistilBertConfig(
        vocab_size=112,
        dim=32,
        n_layers=2,
        n_heads=4,
        hidden_dim=64,
        max_position_embeddings=152,
        pad_token_id=1,
        initializer_range=0.2,
        num_labels=labels,
    )
    return kind(config)


def roberta(kind, config, **options):
    return kind(config(**SIZES | dict(max_position_embeddings=154, type_vocab_size=1), **options))


MADE = {
    "bert": lambda s: embedder(
        "bert",
        t.BertModel(t.BertConfig(**SIZES), add_pooling_layer=False),
        s,
        [pooling("mean"), normalize],
        1,
    ),
    "xlm-roberta": lambda s: embedder(
        "xlm-roberta",
        roberta(t.XLMRobertaModel, t.XLMRobertaConfig),
        s,
        [pooling("cls", "weightedmean", include_prompt=False), lambda size: LayerNorm(2 * size)],
    ),
    "distilbert": lambda s: embedder(
        "distilbert",
        distil(t.DistilBertModel, 2),
        s,
        [pooling("max", "mean_sqrt_len_tokens"), dense(64, 40, torch.nn.Tanh())],
    ),
    "mpnet": lambda s: embedder(
        "mpnet",
        t.MPNetModel(
            t.MPNetConfig(**SIZES | dict(max_position_embeddings=154)), add_pooling_layer=False
        ),
        s,
        [pooling("mean", include_prompt=False), normalize],
    ),
    "modernbert": modernbert,
    "nomic": nomic,
    "gte": gte,
    "jina": jina,
    "qwen3": lambda s: embedder(
        "qwen3",
        t.Qwen3Model(t.Qwen3Config(**DECODER)),
        s,
        [pooling("lasttoken"), normalize],
        ends=(False, True),
    ),
    "gemma3": gemma3,
    "reranker": lambda s: reranker(
        "reranker", t.BertForSequenceClassification(t.BertConfig(**SIZES, num_labels=1)), s, 1
    ),
    "reranker-xlm-roberta": lambda s: reranker(
        "reranker-xlm-roberta",
        roberta(t.XLMRobertaForSequenceClassification, t.XLMRobertaConfig, num_labels=1),
        s,
        0,
        activation_fn=torch.nn.Identity(),
    ),
    "classes-roberta": lambda s: classifier(
        "classes-roberta",
        roberta(t.RobertaForSequenceClassification, t.RobertaConfig, num_labels=3),
        s,
    ),
    "classes-distilbert": lambda s: classifier(
        "classes-distilbert", distil(t.DistilBertForSequenceClassification, 3), s
    ),
    "classes-modernbert": lambda s: classifier(
        "classes-modernbert",
        t.ModernBertForSequenceClassification(
            t.ModernBertConfig(**MODERN, num_labels=3, classifier_pooling="mean")
        ),
        s,
    ),
    "classes-qwen3": lambda s: classifier(
        "classes-qwen3",
        t.Qwen3ForSequenceClassification(t.Qwen3Config(**DECODER, num_labels=3)),
        s,
        ends=(False, True),
    ),
    "classes-gte": lambda s: classifier(
        "classes-gte", t.GteForSequenceClassification(t.GteConfig(**SIZES, num_labels=3)), s
    ),
    "reranker-qwen3": lambda s: scorer(
        "reranker-qwen3",
        t.Qwen3ForCausalLM(t.Qwen3Config(**DECODER, tie_word_embeddings=True)),
        s,
        "open",
        "closed",
    ),
    "lower-case": lower_case,
    # The tokenizer makes token types, which the model is not given.
    "reranker-types": lambda s: reranker(
        "reranker-types", t.BertForSequenceClassification(t.BertConfig(**SIZES, num_labels=1)), s, 1, types=0
    ),
    # As the Ettin rerankers.
    "reranker-modules": lambda s: modular(
        "reranker-modules",
        t.ModernBertModel(t.ModernBertConfig(**MODERN)),
        s,
        [
            pooling("mean", include_prompt=False),
            dense(32, 24, torch.nn.GELU(), False),
            lambda size: LayerNorm(24),
            dense(24, 1, torch.nn.Identity(), module_output_name="scores"),
        ],
        prompts=dict(find="find the answer "),
        default_prompt_name="find",
        activation_fn=torch.nn.Identity(),
    ),
    "electra": lambda s: embedder(
        "electra", t.ElectraModel(t.ElectraConfig(**NARROW)), s, [pooling("cls"), normalize], 1
    ),
    "classes-electra": lambda s: classifier(
        "classes-electra", t.ElectraForSequenceClassification(t.ElectraConfig(**NARROW, num_labels=3)), s
    ),
    "albert": lambda s: embedder(
        "albert", t.AlbertModel(t.AlbertConfig(**ALBERT)), s, [pooling("mean"), normalize], 1
    ),
    "classes-albert": lambda s: classifier(
        "classes-albert", t.AlbertForSequenceClassification(t.AlbertConfig(**ALBERT, num_labels=3)), s
    ),
    # The norm before the products has an outlier, since only such norms can be equalized.
    "deberta": lambda s: embedder(
        "deberta",
        t.DebertaV2Model(t.DebertaV2Config(**DEBERTA)),
        s,
        [pooling("mean"), normalize],
        before=lambda model: model.encoder.layer[0].attention.output.LayerNorm.weight.data[0].mul_(4),
    ),
    "reranker-deberta": lambda s: reranker(
        "reranker-deberta", t.DebertaV2ForSequenceClassification(t.DebertaV2Config(**DEBERTA, num_labels=1)), s, 1
    ),
    # As DeBERTa v2: each distance has a row, its vectors have products, and there are tables as in BERT.
    "classes-deberta": lambda s: classifier(
        "classes-deberta",
        t.DebertaV2ForSequenceClassification(
            t.DebertaV2Config(
                **SIZES,
                relative_attention=True,
                max_relative_positions=24,
                pos_att_type="c2p|p2c",
                type_vocab_size=2,
                num_labels=3,
            )
        ),
        s,
    ),
    # As sentence-t5, of T5 1.1.
    "t5": lambda s: embedder(
        "t5",
        t.T5EncoderModel(t.T5Config(**T5, feed_forward_proj="gated-gelu")),
        s,
        [pooling("mean"), dense(32, 24, torch.nn.Identity(), False), normalize],
        ends=(False, True),
    ),
    "t5-relu": lambda s: embedder(
        "t5-relu",
        t.T5EncoderModel(t.T5Config(**T5 | dict(relative_attention_num_buckets=32, relative_attention_max_distance=128))),
        s,
        [pooling("mean")],
        ends=(False, True),
    ),
    "eurobert": lambda s: embedder("eurobert", t.EuroBertModel(t.EuroBertConfig(**EURO)), s, [pooling("mean"), normalize]),
    "classes-eurobert": lambda s: classifier(
        "classes-eurobert", t.EuroBertForSequenceClassification(t.EuroBertConfig(**EURO, num_labels=3)), s
    ),
    "static": lambda s: static("static", s, [], "embedding.weight"),
    "model2vec": model2vec,
    "splade": lambda s: splade("splade", t.BertForMaskedLM(t.BertConfig(**SIZES)), s, pooling_strategy="max"),
    "splade-distilbert": lambda s: splade(
        "splade-distilbert", distil(t.DistilBertForMaskedLM, 2), s, activation_function="log1p_relu"
    ),
    "splade-roberta": older_splade,
    "splade-modernbert": lambda s: splade(
        "splade-modernbert", t.ModernBertForMaskedLM(t.ModernBertConfig(**MODERN, classifier_bias=True)), s
    ),
    "lexical": lexical,
    "tokens-bert": lambda s: namer("tokens-bert", t.BertForTokenClassification(t.BertConfig(**SIZES, **NAMED)), s),
    "tokens-distilbert": lambda s: namer("tokens-distilbert", distil(t.DistilBertForTokenClassification, 4), s),
    "tokens-deberta": lambda s: namer(
        "tokens-deberta", t.DebertaV2ForTokenClassification(t.DebertaV2Config(**DEBERTA, **NAMED)), s
    ),
    "tokens-modernbert": lambda s: namer(
        "tokens-modernbert",
        t.ModernBertForTokenClassification(t.ModernBertConfig(**MODERN | dict(vocab_size=264), **NAMED)),
        s,
        letters(),
    ),
    "tokens-qwen3": lambda s: namer(
        "tokens-qwen3", t.Qwen3ForTokenClassification(t.Qwen3Config(**DECODER, **NAMED)), s, tokenizer(0, (False, True))
    ),
    "jina-v3": lambda s: embedder(
        "jina-v3",
        t.JinaEmbeddingsV3Model(t.JinaEmbeddingsV3Config(**JINA), add_pooling_layer=False),
        s,
        [pooling("mean"), normalize],
    ),
    "jina-v3-lora": jina_v3,
    "nomic-moe": nomic_moe,
}


def main():
    for seed, (name, make) in enumerate(MADE.items()):
        if not sys.argv[1:] or name in sys.argv[1:]:
            make(100 * (seed + 1))
            print(name)


if __name__ == "__main__":
    main()
