//! Pictures on `/v1/embeddings`, beside texts of the same space.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use dynquant_embed::{Embedder, ImageEmbedder, Picture, normalized};
use serde_json::{Value, json};

use crate::process::{ASSETS, Server};

fn folder(name: &str) -> String {
    format!("{ASSETS}/reference/images/{name}")
}

fn uri(name: &str) -> (Vec<u8>, String) {
    let bytes = std::fs::read(folder("pictures") + "/" + name).unwrap();
    let data = BASE64_STANDARD.encode(&bytes);
    (bytes, format!("data:image/png;base64,{data}"))
}

fn vector(entry: &Value) -> Vec<f32> {
    serde_json::from_value(entry["embedding"].clone()).unwrap()
}

#[test]
fn pictures_and_texts_have_the_library_s_vectors() {
    let clip = folder("clip");
    let server = Server::start(&["--model", &clip]);
    let (wide, wide_uri) = uri("wide.png");
    let (gray, gray_uri) = uri("gray.png");
    let pictures = ImageEmbedder::open(&clip).unwrap();
    let embed =
        |bytes: &[u8]| normalized(pictures.embed(&[Picture::Bytes(bytes)]).unwrap().remove(0));
    let text = "a photo of a cat";
    let of_text = Embedder::open(&clip).unwrap().embed(&[text]).unwrap();
    let of_text = normalized(of_text.concat());

    let input = json!([{"image": wide_uri}, {"text": text}, {"image": gray_uri}, {"text": text}]);
    let answer = server.ok("/v1/embeddings", &json!({"input": input}));
    let data = answer["data"].as_array().unwrap();
    let expected = [embed(&wide), of_text.clone(), embed(&gray), of_text];
    for (index, (entry, expected)) in data.iter().zip(&expected).enumerate() {
        assert_eq!(entry["index"], index);
        assert_eq!(&vector(entry), expected, "{index}");
    }
    assert_eq!(data.len(), 4);

    assert!(answer["usage"]["prompt_tokens"].as_u64() > Some(2 * pictures.tokens() as u64));
}

#[test]
fn folders_without_texts_have_the_library_s_vectors() {
    let files = ["wide.png", "gray.png"].map(uri);
    let items = files.each_ref().map(|(_, uri)| json!({"image": uri}));
    for name in ["clip-vision", "dinov2", "dinov2-registers", "siglip-vision"] {
        let folder = folder(name);
        let server = Server::start(&["--model", &folder]);
        let pictures = ImageEmbedder::open(&folder).unwrap();
        let embed =
            |items: &[Value]| server.ok("/v1/embeddings", &json!({"input": items, "model": name}));
        for (index, (bytes, _)) in files.iter().enumerate() {
            let expected = pictures.embed(&[Picture::Bytes(bytes)]).unwrap().remove(0);
            let (all, alone) = (embed(&items), embed(&items[index..=index]));
            let got = [&all["data"][index], &alone["data"][0]].map(vector);
            assert_eq!(got, [normalized(expected.clone()), normalized(expected)]);
        }
        let info = server.get("/info").json()["model_type"].to_string();
        assert_eq!(info, r#"{"embedding":{"inputs":["image"]}}"#);
        let refused = |path: &str, body: Value| {
            let reply = server.post(path, &body);
            let message = "the model takes no texts: it has embeddings of pictures";
            assert!(reply.status >= 400 && reply.message() == message, "{path}");
        };
        let mixed = json!([items[0], {"text": "a"}]);
        refused("/v1/embeddings", json!({"input": mixed}));
        refused("/v1/embeddings", json!({"input": items, "prompt_name": "a"}));
        refused("/embed", json!({"inputs": "a"}));
    }
}

#[test]
fn mistakes_name_the_picture() {
    let clip = folder("clip");
    let server = Server::start(&["--model", &clip]);
    let (_, good) = uri("wide.png");
    for (input, expected) in [
        (
            json!([{"image": good}, {"image": "https://example.org/a.png"}]),
            "input[1].image: expected a data URI, data:image/png;base64,.., got a URL: the server fetches none",
        ),
        (
            json!([{"image": "data:image/png;base64,@"}]),
            "input[0].image: expected base64 behind the comma",
        ),
        (
            json!([{"image": "data:image/png;base64,aGVsbG8="}]),
            "input[0].image: expected a PNG, JPEG or WebP picture",
        ),
        (json!([{"image": good, "text": "a"}]), "input[0]: expected either a text or an image"),
        (json!([{"image": good, "crop": 1}]), "input[0].crop: not supported"),
        (json!([{"image": good}, {"text": ""}]), "input[1]: expected a text, got an empty one"),
        (json!([7, {"image": good}]), "expected a string, a list of strings"),
    ] {
        server.post("/v1/embeddings", &json!({"input": input})).says(400, expected);
    }
    let other = Server::start(&[]);
    let reply = other.post("/v1/embeddings", &json!({"input": [{"image": good}]}));
    reply.says(400, "no embeddings of pictures");
}
