//! Guesses: several tokens of a text are checked in one step, and the text is that of a token a step.

use std::thread::scope;

use serde_json::{Value, json};

use crate::generate::{COMPLETIONS, content, serve};
use crate::process::{ASSETS, change, copy_model, failure};

/// A prompt that repeats `tokens`, and options that differ by its number.
fn request(number: usize) -> Value {
    let tokens: Vec<usize> = (0..3 + number % 4).map(|i| 10 + 7 * i + number).collect();
    let sampled = [
        json!({"temperature": 0}),
        json!({"temperature": 0.6, "top_p": 0.8}),
        json!({"temperature": 0, "frequency_penalty": 0.3}),
        json!({"temperature": 0.3, "repetition_penalty": 1.1, "stop": "the"}),
    ];
    let mut body = sampled[number % 4].clone();
    body["prompt"] = json!(tokens.repeat(5));
    body["max_tokens"] = json!([1, 2, 90, 150][number / 4 % 4]);
    body["seed"] = json!(number);
    body["logprobs"] = json!(3);
    body
}

/// The texts of a server that guesses nothing.
fn expected(options: &[&str]) -> Vec<String> {
    let server = serve(&[options, &["--drafts", "0"]].concat());
    let texts = (0..16).map(|number| content(&server.ok(COMPLETIONS, &request(number))));
    let texts = texts.collect();
    assert_eq!(server.metric("drafted_tokens_total"), 0.);
    texts
}

/// Checks the texts, alone and many at a time, of which each has fewer guesses; returns the numbers
/// of drafted, accepted and generated tokens.
fn check(options: &[&str], expected: &[String]) -> [f64; 3] {
    let server = serve(options);
    let check = |number: usize| {
        let answer = server.ok(COMPLETIONS, &request(number));
        assert_eq!(content(&answer), expected[number], "{options:?}, {number}");
    };
    (0..16).for_each(check);
    scope(|scope| (0..16).for_each(|number| drop(scope.spawn(move || check(number)))));
    ["drafted", "accepted", "generated"].map(|name| server.metric(&format!("{name}_tokens_total")))
}

#[test]
fn guesses_change_no_text() {
    for preset in ["int8", "int4", "none", "pytorch"] {
        let expected = expected(&["--preset", preset]);
        for drafts in ["8", "40"] {
            let counts = check(&["--preset", preset, "--drafts", drafts], &expected);
            let is_checked = preset != "pytorch";
            assert_eq!(counts[1] > 100., is_checked, "{preset}: {counts:?}");
            assert!(counts[1] <= counts[0] && counts[1] < counts[2], "{counts:?}");
        }
    }
}

/// A model that guesses changes no text either: the same model is always right, and one with another
/// base of positions is not.
#[test]
fn a_draft_model_changes_no_text() {
    let (model, other) = (format!("{ASSETS}/decoder"), copy_model("decoder", "draft_model"));
    let theta = |number: &str| format!("\"rope_theta\": {number}");
    change(&other, "config.json", &theta("10000.0"), &theta("100.0"));
    let expected = expected(&[]);
    for (draft, is_same) in [(&model, true), (&other, false)] {
        // Prompts are longer than the pieces in which they are read.
        let options = ["--draft-model", draft, "--drafts", "16", "--prefill-tokens", "7"];
        let [drafted, accepted, _] = check(&options, &expected);
        assert!(accepted > 100., "{draft} {accepted}");
        assert_eq!(accepted == drafted, is_same, "{accepted} of {drafted}");
    }
    let refused = |options: &[&str], expected: &str| {
        let error = failure(&[&["--draft-model", &other], options].concat());
        assert!(error.contains(expected), "{error}");
    };
    let shares = ["--model", &model, "--preset", "pytorch"];
    refused(&shares, "--draft-model: expected a model in which");
    refused(&[], "--draft-model: expected a decoder in --model");
    change(&other, "config.json", &theta("100.0"), &theta("10000.0"));
    change(&other, "config.json", "\"vocab_size\": 1024", "\"vocab_size\": 1025");
    refused(&["--model", &model], "--draft-model");
}
