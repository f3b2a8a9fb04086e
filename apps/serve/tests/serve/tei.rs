//! The routes of text-embeddings-inference beyond `/embed` and `/predict`.

use std::sync::LazyLock;

use candle_dynquant_support::rows as table;
use dynquant_embed::{Encoder, Head, Input, SparseEmbedder, Task};
use serde_json::{Value, json};

use crate::formats::{floats, length};
use crate::models::{folder, serve, vectors};
use crate::process::{Reply, Server, copy_model};

static BERT: LazyLock<Encoder> = LazyLock::new(|| Encoder::open(&folder("bert"), None).unwrap());

fn refused(reply: &Reply, status: u16, kind: &str, message: &str) {
    reply.is(status, message);
    assert_eq!(reply.json()["error_type"], kind);
}

/// A field of each token.
fn each<'a>(tokens: &'a Value, field: &str) -> Vec<&'a Value> {
    let tokens = tokens.as_array().unwrap().iter();
    tokens.map(|token| &token[field]).collect()
}

/// The crate's numbers for the tokens of a text.
fn rows(text: &str) -> Vec<Vec<f32>> {
    let tokens = BERT.tokenizer.encode(Input::Text(text), None).unwrap();
    let task = Task { tokens: &tokens, head: Head::TokenEmbeddings };
    let flat = BERT.model.answer(&[task]).unwrap().concat();
    let rows: Vec<_> = flat.chunks_exact(BERT.config.hidden_size).map(<[f32]>::to_vec).collect();
    assert_eq!(rows.len(), tokens.len());
    rows
}

/// The weights of the crate, in text-embeddings-inference's format.
#[test]
fn embed_sparse() {
    let texts = ["snow falls on the old city", "bread"];
    // The latter has other embeddings, too, which `models` compares.
    for (name, pooling) in [("splade", "splade"), ("xlm-roberta", "cls, weightedmean")] {
        let server = serve(name, &[]);
        let expected = SparseEmbedder::open(folder(name)).unwrap();
        let expected = expected.embed(&texts).unwrap();
        assert!(!expected[0].ids.is_empty());
        let together = server.ok("/embed_sparse", &json!({"inputs": texts}));
        for (index, expected) in expected.iter().enumerate() {
            let got = &together[index];
            let ids: Vec<Value> = expected.ids.iter().map(|id| json!(id)).collect();
            assert_eq!(each(got, "index"), ids.iter().collect::<Vec<_>>());
            let values = each(got, "value").into_iter().map(|it| it.as_f64().unwrap() as f32);
            assert_eq!(values.collect::<Vec<_>>(), expected.weights);
            let alone = server.ok("/embed_sparse", &json!({"inputs": texts[index]}));
            assert_eq!(&alone[0], got);
        }
        assert_eq!(together.as_array().unwrap().len(), 2);
        let info = server.get("/info").json()["model_type"]["embedding"].clone();
        assert_eq!((&info["pooling"], &info["sparse"]), (&json!(pooling), &json!(true)));
    }
    let message = "the model has no sparse embeddings: it has neither the pooling splade nor the head of bge-m3";
    let reply = serve("bert", &[]).post("/embed_sparse", &json!({"inputs": "a"}));
    refused(&reply, 424, "Backend", message);
}

#[test]
fn embed_all() {
    let server = serve("bert", &[]);
    let texts = ["the river", "snow falls on the old city in winter"];
    let all = server.ok("/embed_all", &json!({"inputs": texts}));
    for (text, answer) in texts.iter().zip(all.as_array().unwrap()) {
        assert_eq!(vectors(answer), rows(text), "{text}");
    }
    let one = server.ok("/embed_all", &json!({"inputs": texts[0], "prompt_name": "query"}));
    assert_eq!(vectors(&one[0]), rows("query the the river"));
    let long = "river ".repeat(2000);
    let cut = server.ok("/embed_all", &json!({"inputs": long, "truncate": true}));
    let most = BERT.tokenizer.max_tokens();
    assert_eq!(cut[0].as_array().unwrap().len(), most);
    let reply = server.post("/embed_all", &json!({"inputs": long}));
    let message = format!("inputs: expected at most {most} tokens, got 2002");
    refused(&reply, 422, "Validation", &message);
}

/// An answer of rows can be many times as long as its request.
#[test]
fn bytes_of_an_answer() {
    let options = ["--max-body-bytes", "2000", "--max-bytes", "40000"];
    let server = serve("bert", &options);
    let texts = |count| json!({"inputs": vec!["the river runs"; count]});
    let size = BERT.config.hidden_size;
    server.ok("/embed_all", &texts(10));
    let reply = server.post("/embed_all", &texts(20));
    let message = format!(
        "inputs: expected texts whose answer has at most 40000 bytes (--max-bytes), got {}, about",
        20 * 5 * size * 20
    );
    refused(&reply, 422, "Validation", &message);
    server.ok("/embed", &texts(20));
    let reply = server.post("/tokenize", &json!({"inputs": "a ".repeat(900)}));
    reply.says(422, "(--max-bytes), got ");
    server.wait_for(&[("bytes_held", 0.)]);
}

#[test]
fn a_query_counts_for_each_of_its_texts() {
    let server = serve("reranker", &["--max-bytes", "2097152"]);
    let body = json!({"query": "river ".repeat(2000), "texts": vec!["a"; 200], "truncate": true});
    let expected = server.ok("/rerank", &body);
    // Another request holds half of the bytes.
    let head = "POST /rerank HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n";
    let other = server.connect(head.to_owned() + &" ".repeat(1_000_000));
    server.wait_until("half is held", |server| server.metric("bytes_held") > 900_000.);
    let message =
        "overloaded: expected at most 2097152 bytes of large requests at a time, got more";
    refused(&server.post("/rerank", &body), 429, "Overloaded", message);
    drop(other);
    server.wait_for(&[("bytes_held", 0.)]);
    assert_eq!(server.ok("/rerank", &body), expected);
}

#[test]
fn similarity() {
    let server = serve("bert", &[]);
    let sentences = ["snow falls", "the river runs to the harbour", "bread"];
    let inputs =
        json!({"source_sentence": "the river runs to the harbour", "sentences": sentences});
    let cosines = floats(&server.ok("/similarity", &json!({"inputs": inputs})));
    let embed = |texts: &[&str]| vectors(&server.ok("/embed", &json!({"inputs": texts})));
    let source = embed(&["the river runs to the harbour"]);
    for (cosine, vector) in cosines.iter().zip(embed(&sentences)) {
        let dot: f32 = source[0].iter().zip(&vector).map(|(a, b)| a * b).sum();
        assert!((cosine - dot).abs() < 1e-6, "{cosine} {dot}");
    }
    assert!((cosines[1] - 1.).abs() < 1e-6 && cosines[0] < 0.999);
    let behind =
        json!({"inputs": inputs, "parameters": {"prompt_name": "query", "truncate": true}});
    let behind = floats(&server.ok("/similarity", &behind));
    assert_ne!(behind[0], cosines[0]);

    for (source, sentences, status, kind, expected) in [
        ("a", &[][..], 400, "Empty", "inputs.sentences: expected at least one text, got none"),
        ("", &["a"], 400, "Empty", "inputs.source_sentence: expected a text, got an empty one"),
        ("a", &["a", ""], 400, "Empty", "inputs.sentences[1]: expected a text, got an empty one"),
        ("a", &["a"; 256], 422, "Validation", "inputs: expected at most 256 texts, got 257"),
    ] {
        let inputs = json!({"source_sentence": source, "sentences": sentences});
        refused(&server.post("/similarity", &json!({"inputs": inputs})), status, kind, expected);
    }
}

#[test]
fn rerank() {
    let server = serve("reranker-xlm-roberta", &[]);
    let texts = ["bread", "the river runs to the harbour", "snow falls"];
    let body =
        json!({"query": "which city lies on the river", "texts": texts, "return_text": true});
    let ranks = server.ok("/rerank", &body);
    let ranks = ranks.as_array().unwrap();
    let score = |rank: &Value| rank["score"].as_f64().unwrap();
    assert!(ranks.is_sorted_by(|a, b| score(a) >= score(b)));
    assert!(ranks.iter().all(|rank| (0. ..=1.).contains(&score(rank))));
    for rank in ranks {
        let index = rank["index"].as_u64().unwrap() as usize;
        assert_eq!(rank["text"], texts[index]);
    }
    let without = server.ok("/rerank", &json!({"query": "a", "texts": ["bread"]}));
    assert!(without[0].get("text").is_none());
    // The root route does what the model is made for.
    let root = server.ok("/", &body);
    assert_eq!(root.as_array().unwrap(), ranks);
    assert_eq!(server.ok("/invocations", &body), root);

    let ask = |query: &str, texts: &[&str]| {
        server.post("/rerank", &json!({"query": query, "texts": texts}))
    };
    for (query, texts, status, kind, expected) in [
        ("a", &[][..], 400, "Empty", "texts: expected at least one text, got none"),
        ("", &["a", ""], 400, "Empty", "texts[1]: expected a text, got an empty one"),
        ("a", &["a"; 257], 422, "Validation", "texts: expected at most 256 texts, got 257"),
    ] {
        refused(&ask(query, texts), status, kind, expected);
    }
    assert_eq!(ask("a", &[""]).status, 200);
    let long = "river ".repeat(600);
    ask(&long, &["a", "b"]).says(422, "texts[0]: expected at most ");
    for direction in ["left", "Right"] {
        let mut body = json!({"query": long, "texts": ["a", "b"], "truncate": true});
        body["truncation_direction"] = json!(direction);
        assert_eq!(server.ok("/rerank", &body).as_array().unwrap().len(), 2);
    }

    let reply = Server::start(&[]).post("/rerank", &body);
    refused(&reply, 424, "Backend", "not a reranker: the head has 35 classes, expected 1");
}

/// A query with 100 passages is computed in few batches, and takes one place of a request.
#[test]
fn passages_are_computed_together() {
    let server = serve("reranker", &["--max-batch-tokens", "600"]);
    let texts: Vec<String> = (0..100).map(|i| format!("{}bread", "river ".repeat(i % 9))).collect();
    let body = json!({"query": "which city lies on the river", "texts": texts});
    assert_eq!(server.ok("/rerank", &body).as_array().unwrap().len(), 100);
    assert_eq!(server.metric("texts_total"), 100.);
    let batches = server.metric("batch_texts_count");
    assert!(batches < 20., "{batches}");
    let tokens = server.metric("tokens_total");
    let small = server.metric("batch_tokens_bucket{le=\"1024.0\"}");
    assert_eq!((small, tokens > 600.), (batches, true), "{tokens}");
    // The limit of the queue applies to all routes.
    let reply = serve("reranker", &["--queue", "40"]).post("/rerank", &body);
    refused(&reply, 422, "Validation", "texts: expected at most 40 texts, got 100");
}

#[test]
fn tokenize_and_decode() {
    let server = serve("bert", &[]);
    let text = "the river é runs";
    let tokens = server.ok("/tokenize", &json!({"inputs": [text, "bread"]}));
    let first = tokens[0].as_array().unwrap();
    let ids = each(&tokens[0], "id");
    let encoded = BERT.tokenizer.encode(Input::Text(text), None).unwrap();
    assert_eq!(json!(ids), json!(encoded.ids()));
    let token = |index: usize, text: &str, span: Option<[usize; 2]>| {
        let [start, stop] = [0, 1].map(|end| span.map(|span| span[end]));
        let (id, special) = (ids[index], span.is_none());
        json!({"id": id, "text": text, "special": special, "start": start, "stop": stop})
    };
    assert_eq!(first[0], token(0, "<s>", None));
    assert_eq!(first[2], token(2, "river", Some([4, 9])));
    assert_eq!(first[3], token(3, "é", Some([10, 12])));

    let bare = json!({"inputs": "river", "add_special_tokens": false, "prompt_name": "query"});
    let bare = server.ok("/tokenize", &bare);
    assert_eq!(each(&bare[0], "text"), ["query", "the", "river"]);
    // More tokens than the model takes, to be counted.
    let long = server.ok("/tokenize", &json!({"inputs": "river ".repeat(700)}));
    assert_eq!(long[0].as_array().unwrap().len(), 702);

    let decode = |body: Value| server.ok("/decode", &body);
    let ids = server.ok("/tokenize", &json!({"inputs": "the river runs"}));
    let ids = each(&ids[0], "id");
    assert_eq!(decode(json!({"ids": ids})), json!(["the river runs"]));
    let whole = json!({"ids": [ids, [ids[1]]], "skip_special_tokens": false});
    assert_eq!(decode(whole), json!(["<s> the river runs </s>", "the"]));

    let cases = r#"
/tokenize | {"inputs": []} | inputs: expected at least one text, got none
/tokenize | {"inputs": ["a", ""]} | inputs[1]: expected a text, got an empty one
/decode | {"ids": [[1], []]} | ids[1]: expected a text, got an empty one
/decode | {"ids": []} | ids: expected a text, got an empty one
"#;
    for [path, body, message] in table(cases) {
        refused(&server.post_text(path, body), 400, "Empty", message);
    }
    let unknown = r#"
/tokenize | {"inputs": "a", "truncate": true} | truncate: not supported: expected no such field, got true
/decode | {"ids": [5], "foo": 1} | foo: not supported: expected no such field, got 1
/similarity | {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "prompt_name": "query"} | prompt_name: not supported
/similarity | {"inputs": {"source_sentence": "a", "sentences": ["b"], "c": 1}} | inputs.c: not supported
/tokenize | ["a", false, null] | the body: expected JSON for this route
/decode | [[1, 2]] | the body: expected JSON for this route
/embed | {"inputs": "a", "echo": true, "echo": null} | duplicate field `echo`
"#;
    for [path, body, message] in table(unknown) {
        let reply = server.post_text(path, body);
        assert!(reply.status >= 400 && reply.message().contains(message), "{body}: {}", reply.body);
    }
    let most = BERT.config.vocab_size;
    let message = format!("ids[1]: expected token ids below {most}, got 4000000000");
    let reply = server.post("/decode", &json!({"ids": [[1], [4_000_000_000u32]]}));
    refused(&reply, 422, "Validation", &message);
    assert_eq!(server.post("/tokenize", &json!({"inputs": vec!["a"; 257]})).status, 422);
}

#[test]
fn prompts() {
    let plain = serve("bert", &[]);
    let embed = |server: &Server, body: Value| server.ok("/embed", &body)[0].clone();
    let behind = embed(&plain, json!({"inputs": "query the river"}));
    assert_eq!(embed(&plain, json!({"inputs": "river", "prompt_name": "query"})), behind);
    let of_openai = json!({"input": "river", "prompt_name": "query"});
    assert_eq!(plain.ok("/embeddings", &of_openai)["data"][0]["embedding"], behind);
    assert_eq!(plain.ok("/v1/embeddings", &of_openai)["usage"]["total_tokens"], 5);
    // Ids become characters after a prompt.
    let ids = plain.ok("/tokenize", &json!({"inputs": "river"}));
    let ids = each(&ids[0], "id");
    assert_eq!(embed(&plain, json!({"inputs": ids, "prompt_name": "query"})), behind);
    let reply = plain.post("/embed", &json!({"inputs": "a", "prompt_name": "title"}));
    let message = "prompt_name: expected one of \"document\", \"query\", got \"title\"";
    refused(&reply, 422, "Validation", message);

    for options in [["--default-prompt-name", "query"], ["--default-prompt", "query the "]] {
        let server = serve("bert", &options);
        assert_eq!(embed(&server, json!({"inputs": "river"})), behind);
        assert_eq!(server.ok("/", &json!({"inputs": "river", "prompt_name": null}))[0], behind);
        let documents = json!({"inputs": "river", "prompt_name": "document"});
        assert_eq!(embed(&server, documents.clone()), embed(&plain, documents));
        let tokens = server.ok("/tokenize", &json!({"inputs": "river"}));
        assert_eq!(tokens[0].as_array().unwrap().len(), 5);
    }
}

#[test]
fn the_default_prompt_of_a_folder() {
    let dir = copy_model("bert", "default-prompt-of-server");
    let prompts = r#"{"default_prompt_name": "all", "prompts": {"all": "green ", "none": ""}}"#;
    std::fs::write(format!("{dir}/config_sentence_transformers.json"), prompts).unwrap();
    let server = Server::start(&["--model", &dir]);
    let embed = |body: Value| server.ok("/embed", &body);
    let default = embed(json!({"inputs": "tree"}));
    assert_eq!(default, embed(json!({"inputs": "green tree", "prompt_name": "none"})));
    assert_ne!(default, embed(json!({"inputs": "tree", "prompt_name": "none"})));
    // Classes are computed from the text without the prompt.
    let classes = server.ok("/predict", &json!({"inputs": "tree"}));
    assert_eq!(classes, Server::start(&[]).ok("/predict", &json!({"inputs": "tree"})));
}

#[test]
fn dimensions() {
    let server = serve("modernbert", &[]);
    let whole = floats(&server.ok("/embed", &json!({"inputs": "river", "normalize": false}))[0]);
    let raw = json!({"inputs": "river", "normalize": false, "dimensions": 12});
    let raw = floats(&server.ok("/embed", &raw)[0]);
    assert_eq!(raw, whole[..12]);
    let cut = floats(&server.ok("/embed", &json!({"inputs": "river", "dimensions": 12}))[0]);
    assert!((length(&cut) - 1.).abs() < 1e-6 && cut.len() == 12);
    let length = length(&raw);
    assert!(cut.iter().zip(&raw).all(|(cut, raw)| (cut * length - raw).abs() < 1e-5));
    for got in [0, 33] {
        let reply = server.post("/embed", &json!({"inputs": "river", "dimensions": got}));
        let message = format!("dimensions: expected 1 to 32, which the model has, got {got}");
        refused(&reply, 422, "Validation", &message);
    }
}

#[test]
fn info_and_health() {
    let type_of = |name: &str| {
        let server = serve(name, &[]);
        assert_eq!(server.get("/ping").status, 200);
        assert_eq!(server.get("/").status, 200);
        server.get("/info").json()["model_type"].clone()
    };
    for (name, pooling) in [("qwen3", "last_token"), ("bert", "mean")] {
        let expected = json!({"pooling": pooling, "sparse": false, "inputs": ["text"]});
        assert_eq!(type_of(name), json!({"embedding": expected}));
    }
    let classes = json!({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}});
    assert_eq!(type_of("reranker"), json!({"reranker": classes}));
    assert!(type_of("classes-gte")["classifier"]["id2label"]["2"].is_string());
}
