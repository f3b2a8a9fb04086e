//! Guesses: several tokens of a text are checked in one step, and the text is that of a token a step.

use std::fs;
use std::path::Path;
use std::thread::scope;

use serde_json::{Value, json};

use crate::generate::{ASSETS, COMPLETIONS, content, serve, write_model};
use crate::process::command;

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

#[test]
fn guesses_change_no_text() {
    for preset in ["int8", "int4", "none", "pytorch"] {
        let plain = serve(&["--preset", preset, "--drafts", "0"]);
        let expected: Vec<Value> =
            (0..16).map(|number| plain.ok(COMPLETIONS, &request(number))).collect();
        assert_eq!(plain.metric("dynquant_drafted_tokens_total"), 0.);
        for drafts in ["8", "40"] {
            let server = serve(&["--preset", preset, "--drafts", drafts]);
            let check = |number: usize| {
                let answer = server.ok(COMPLETIONS, &request(number));
                let case = format!("{preset}, {drafts}, {number}");
                assert_eq!(content(&answer), content(&expected[number]), "{case}");
            };
            (0..16).for_each(check);
            // Of many texts at a time each has fewer guesses.
            scope(|scope| {
                for number in 0..16 {
                    scope.spawn(move || check(number));
                }
            });
            let counts = ["drafted", "accepted", "generated"]
                .map(|name| server.metric(&format!("dynquant_{name}_tokens_total")));
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
    const DIR: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/draft_model");
    write_model(DIR, "");
    let config = Path::new(DIR).join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let other = text.replace("\"rope_theta\": 10000.0", "\"rope_theta\": 100.0");
    fs::write(&config, other).unwrap();
    let plain = serve(&["--drafts", "0"]);
    let expected: Vec<Value> =
        (0..16).map(|number| plain.ok(COMPLETIONS, &request(number))).collect();
    for (draft, is_same) in [(ASSETS, true), (DIR, false)] {
        // Prompts are longer than the pieces in which they are read.
        let options = ["--drafts", "16", "--prefill-tokens", "7"];
        let server = serve(&[&["--draft-model", draft], &options[..]].concat());
        let check = |number: usize| {
            let answer = server.ok(COMPLETIONS, &request(number));
            assert_eq!(content(&answer), content(&expected[number]), "{draft} {number}");
        };
        (0..16).for_each(check);
        scope(|scope| {
            for number in 0..16 {
                scope.spawn(move || check(number));
            }
        });
        let [drafted, accepted] = ["drafted", "accepted"]
            .map(|name| server.metric(&format!("dynquant_{name}_tokens_total")));
        assert!(accepted > 100., "{draft} {accepted}");
        assert_eq!(accepted == drafted, is_same, "{accepted} of {drafted}");
    }
    let refused = |options: &[&str], expected: &str| {
        let output = command().args(options).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && error.contains(expected), "{error}");
    };
    let shares = ["--model", ASSETS, "--draft-model", DIR, "--preset", "pytorch"];
    refused(&shares, "--draft-model: expected a model in which");
    refused(&["--draft-model", DIR], "--draft-model: expected a decoder in --model");
    fs::write(&config, text.replace("\"vocab_size\": 1024", "\"vocab_size\": 1025")).unwrap();
    refused(&["--model", ASSETS, "--draft-model", DIR], "--draft-model");
}
