//! Texts of the decoder: the same with guesses and without, in chats and from the start.

mod common;

use std::collections::HashMap;
use std::fs;

use anyhow::{Context, Result};
use candle_dynquant::ops::Precision;
use candle_dynquant_decoder::sampling::Sampling;
use candle_dynquant_decoder::{
    Chat, Decoder, Decoding, DraftModel, FinishReason, Folder, GenerationConfig, Generator, Message,
};
use candle_dynquant_support::{DECODERS as FAMILIES, repository};
use common::*;
use serde_json::{Value, json};

/// Messages of words, each after the word of its author.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}\
     {% if add_generation_prompt %}assistant {% endif %}";

/// A folder of one of the small random models, with a tokenizer of the words `w0`, `w1`, ...
fn folder(name: &str) -> Result<(tempfile::TempDir, Folder)> {
    let from = repository().join("assets/reference/decoders");
    let dir = tempfile::tempdir()?;
    let text = fs::read_to_string(from.join(format!("{name}.json")))?;
    let mut config: Value = serde_json::from_str(&text)?;
    config["max_position_embeddings"] = json!(512);
    if let Some(first) = config.pointer_mut("/rope_parameters/original_max_position_embeddings") {
        *first = json!(512);
    }
    fs::write(dir.path().join("config.json"), config.to_string())?;
    let file = from.join(format!("{name}.safetensors"));
    let mut tensors: HashMap<_, _> = candle_core::safetensors::load(file, CPU)?;
    tensors.retain(|name, _| !["ids", "logits"].contains(&name.as_str()));
    candle_core::safetensors::save(&tensors, dir.path().join("model.safetensors"))?;
    let words = (0..config["vocab_size"].as_u64().unwrap_or_default()).map(|id| {
        let author = ["system", "user", "assistant"].get(id as usize);
        (author.map_or(format!("w{id}"), ToString::to_string), json!(id))
    });
    let vocab: serde_json::Map<_, _> = words.collect();
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w3"},
    });
    fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string())?;
    fs::write(dir.path().join("chat_template.jinja"), TEMPLATE)?;
    let folder = Folder::open(dir.path(), None)?;
    Ok((dir, folder))
}

fn quantized(folder: &Folder, preset: &str, attention: Precision) -> Result<Decoder> {
    let mut decoder = folder.load()?;
    let spec = match (preset, attention) {
        ("none", Precision::Float32) => return Ok(decoder),
        ("none", _) => QConfigSpec::new(),
        (preset, _) => QConfigSpec::preset(preset)?.min_params(0),
    };
    quantize_dynamic(&mut decoder, &spec.kind(LayerKind::Attention, attention))?;
    Ok(decoder)
}

/// Generation with log probabilities.
fn logged(max_tokens: usize, sampling: Sampling, drafts: usize) -> GenerationConfig {
    GenerationConfig { max_tokens, sampling, seed: 5, log_probs: Some(2), drafts }
}

/// Tokens with the bits of their log probabilities.
type Logged = Vec<(u32, u64)>;

fn text(
    generator: &Generator<'_>,
    prompt: &[u32],
    config: &GenerationConfig,
) -> Result<(Logged, Option<FinishReason>, [usize; 2])> {
    let mut generation = generator.generate(prompt, config)?;
    let mut tokens = Vec::new();
    for piece in &mut generation {
        let piece = piece?;
        let log = piece.log_probs.map_or(0., |log| log.of_token);
        tokens.push((piece.token, log.to_bits()));
    }
    assert!(generation.next().is_none());
    Ok((tokens, generation.finish(), generation.guessed()))
}

#[test]
fn a_text_is_the_same_with_guesses_and_without() -> Result<()> {
    let penalized =
        Sampling { repetition_penalty: 1.1, frequency_penalty: 0.2, ..Sampling::default() };
    let drawn = Sampling { temperature: 0.3, top_k: 3, top_p: 0.9, ..Sampling::default() };
    let mut right = [0; 3];
    for (name, preset) in FAMILIES
        .into_iter()
        .flat_map(|name| ["none", "int8", "int4", "int8_groups"].map(|preset| (name, preset)))
    {
        let (_dir, folder) = folder(name)?;
        for attention in [Precision::Float32, Precision::BFloat16, Precision::Int8] {
            let decoder = quantized(&folder, preset, attention)?;
            let generator = Generator::new(&decoder, &folder)?;
            assert!(generator.has_independent_rows());
            let prompt: Vec<u32> = [7, 8, 9, 10, 11].repeat(4);
            for (index, sampling) in [Sampling::default(), drawn, penalized].into_iter().enumerate()
            {
                let config = |drafts| logged(150, sampling, drafts);
                let (expected, finish, guessed) = text(&generator, &prompt, &config(0))?;
                assert_eq!(guessed, [0; 2]);
                for drafts in [1, 3, 8, usize::MAX] {
                    let (tokens, end, guessed) = text(&generator, &prompt, &config(drafts))?;
                    let case = format!("{name} {preset} {attention} {sampling:?} {drafts}");
                    assert_eq!(tokens, expected, "{case}");
                    assert_eq!(end, finish, "{case}");
                    right[index] += guessed[1];
                }
            }
        }
    }
    // Guesses were checked, with each way of drawing.
    assert!(right.iter().all(|count| *count > 100), "{right:?}");
    Ok(())
}

/// A model that guesses for itself is right, another one changes nothing: also near the most tokens,
/// beyond its positions, in chats, and where a guessed token ends the text.
#[test]
fn a_text_is_the_same_with_a_model_that_guesses() -> Result<()> {
    let drawn =
        Sampling { temperature: 0.8, top_k: 20, repetition_penalty: 1.1, ..Sampling::default() };
    let [mut right, mut wrong] = [0; 2];
    for (index, name) in FAMILIES.into_iter().enumerate() {
        let (_dir, mut folder) = folder(name)?;
        let (_dir, mut other) = self::folder(FAMILIES[(index + 1) % FAMILIES.len()])?;
        other.config.max_position_embeddings = 60;
        let quantized = |folder| quantized(folder, "int8", Precision::Float32);
        let decoder = quantized(&folder)?;
        let same = DraftModel::new(quantized(&folder)?, &folder, &folder)?;
        let other = DraftModel::new(quantized(&other)?, &other, &folder)?;
        for (sampling, max_tokens) in [(Sampling::default(), 90), (drawn, 90), (drawn, 2)] {
            let prompt: Vec<u32> = (5..30).collect();
            let config = |drafts| logged(max_tokens, sampling, drafts);
            // The second time a token of the first text ends the text.
            for _ in 0..2 {
                let plain = Generator::new(&decoder, &folder)?;
                let expected = text(&plain, &prompt, &config(0))?;
                for (draft, drafts) in [(&same, 1), (&same, 8), (&other, 3), (&other, 100)] {
                    let generator = Generator::new(&decoder, &folder)?.with_draft(draft);
                    let (tokens, finish, guessed) = text(&generator, &prompt, &config(drafts))?;
                    let case = format!("{name} {sampling:?} {drafts}");
                    assert_eq!((&tokens, finish), (&expected.0, expected.1), "{case}");
                    if std::ptr::eq(draft, &same) {
                        assert!(guessed[0] == guessed[1], "{case}: {guessed:?}");
                        right += guessed[1];
                    } else {
                        wrong += guessed[0] - guessed[1];
                    }
                    let [mut chat, mut plain] = [&generator, &plain].map(Chat::new);
                    for question in ["w9 w10", "w11"] {
                        let chats = [(&mut chat, drafts), (&mut plain, 0)];
                        let answers = chats.map(|(chat, drafts)| -> Result<Vec<_>> {
                            chat.say(question, &config(drafts))?
                                .map(|piece| Ok(piece?.token))
                                .collect()
                        });
                        let [a, b] = answers;
                        assert_eq!(a?, b?, "{case}");
                    }
                }
                folder.ends.extend(expected.0.get(40).map(|(token, _)| *token));
            }
            folder.ends.truncate(folder.ends.len().min(1));
        }
    }
    assert!(right > 1000 && wrong > 1000, "{right} {wrong}");
    let (dir, small) = folder("llama")?;
    let file = dir.path().join("tokenizer.json");
    fs::write(&file, fs::read_to_string(&file)?.replace("\"w9\"", "\"v9\""))?;
    let renamed = Folder::open(dir.path(), None)?;
    let bytes = Folder::open(&repository().join("assets/decoder"), None)?;
    for (draft, expected) in [(&bytes, "vocab_size 61, as"), (&renamed, "the tokens of")] {
        let [of_draft, of_small] = [draft, &small].map(|folder| folder.path.display().to_string());
        let parts = [&*of_draft, &of_small, expected];
        assert_chain(DraftModel::new(draft.load()?, draft, &small), &parts);
    }
    Ok(())
}

#[test]
fn nothing_is_guessed_where_a_token_depends_on_others() -> Result<()> {
    let (_dir, mut folder) = folder("llama")?;
    folder.ends.clear();
    for preset in ["pytorch", "onnxruntime"] {
        let mut decoder = folder.load()?;
        quantize_dynamic(&mut decoder, &QConfigSpec::preset(preset)?.min_params(0))?;
        let generator = Generator::new(&decoder, &folder)?;
        assert!(!generator.has_independent_rows(), "{preset:?}");
        let config = GenerationConfig { max_tokens: 60, ..GenerationConfig::default() };
        let (tokens, _, guessed) = text(&generator, &[7, 8, 7, 8, 7, 8], &config)?;
        assert_eq!((tokens.len(), guessed), (60, [0; 2]), "{preset:?}");
    }
    Ok(())
}

#[test]
fn texts_end_at_end_tokens_and_at_the_most_tokens() -> Result<()> {
    let (_dir, mut folder) = folder("llama")?;
    folder.ends.clear();
    let decoder = quantized(&folder, "int8", Precision::Float32)?;
    let prompt = [7, 8, 9, 7, 8, 9, 7, 8, 9];
    let config = |max_tokens| GenerationConfig { max_tokens, ..GenerationConfig::default() };
    let generator = Generator::new(&decoder, &folder)?;
    let (all, finish, _) = text(&generator, &prompt, &config(40))?;
    assert_eq!((all.len(), finish), (40, Some(FinishReason::Length)));
    for most in [0, 1, 2, 3, 17] {
        let (tokens, finish, _) = text(&generator, &prompt, &config(most))?;
        assert_eq!(tokens, all[..most]);
        assert_eq!(finish, Some(FinishReason::Length));
    }
    // The positions of the model end a text, too.
    let (tokens, finish, _) = text(&generator, &prompt, &config(usize::MAX))?;
    assert_eq!((tokens.len(), finish), (512 - 9, Some(FinishReason::Length)));
    for wrong in [vec![], vec![7; 512]] {
        let expected = format!("prompt: expected 1 to 511 tokens, got {}", wrong.len());
        assert_eq!(assert_fails(generator.generate(&wrong, &config(1)), &[]), expected);
    }
    // Each token ends the text where it comes first, whether it was guessed or not.
    for end in all.iter().map(|(token, _)| *token) {
        folder.ends = vec![end];
        let generator = Generator::new(&decoder, &folder)?;
        let (tokens, finish, _) = text(&generator, &prompt, &config(40))?;
        let first = all.iter().position(|(token, _)| *token == end);
        assert_eq!(Some(tokens.len()), first);
        assert_eq!(finish, Some(FinishReason::Stop));
    }
    Ok(())
}

#[test]
fn a_chat_keeps_what_was_read_and_answers_as_from_the_start() -> Result<()> {
    for (name, preset) in
        FAMILIES.into_iter().flat_map(|name| ["int8", "pytorch"].map(|preset| (name, preset)))
    {
        let (_dir, mut folder) = folder(name)?;
        folder.ends.clear();
        let decoder = quantized(&folder, preset, Precision::Float32)?;
        let generator = Generator::new(&decoder, &folder)?;
        let config = GenerationConfig { max_tokens: 30, ..GenerationConfig::default() };
        let mut chat = Chat::new(&generator);
        chat.messages.push(Message::new("system", "w9 w10"));
        let mut messages = chat.messages.clone();
        for (turn, (question, tokens)) in
            [("w5 w6", 30), ("w7", 4), ("w5 w6 w8", 30)].into_iter().enumerate()
        {
            messages.push(Message::new("user", question));
            let prompt = folder.texts.chat(&messages, true)?;
            let mut expected = String::new();
            for piece in generator.generate(&prompt, &config)?.take(tokens) {
                expected.push_str(&piece?.text);
            }
            let mut reply = chat.say(question, &config)?;
            for piece in reply.by_ref().take(tokens) {
                piece?;
            }
            assert_eq!(reply.text(), expected, "{name} {preset} {turn}");
            let [all, kept] = reply.prompt_tokens();
            assert_eq!(all, prompt.len());
            assert_eq!(kept > 0, turn > 0 && preset == "int8", "{name} {turn}");
            // The second answer is dropped before its end.
            assert_eq!(reply.finish().is_some(), tokens == 30);
            drop(reply);
            messages.push(Message::new("assistant", &expected));
            let contents = |messages: &[Message]| {
                messages.iter().map(|message| message.content.clone()).collect::<Vec<_>>()
            };
            assert_eq!(contents(&chat.messages), contents(&messages));
        }
        let long = "w5 ".repeat(600);
        assert!(chat.say(&long, &config).is_err());
        assert_eq!(chat.messages.len(), messages.len());
        assert_eq!(chat.say("w5", &config)?.count(), 30);
    }
    Ok(())
}

/// Bytes that are no characters fail no text, and the text before them stays.
#[test]
fn bytes_that_are_no_characters_are_marked() -> Result<()> {
    let path = repository().join("assets/reference/decoders/gguf_granite.gguf");
    let texts = Folder::open(&path, None)?.texts;
    let byte = |byte: u8| {
        let token = texts.tokenizer.token_to_id(&format!("<0x{byte:02X}>"));
        token.context("no such byte")
    };
    let letter = texts.encode("the")?;
    let mut decoding = Decoding::default();
    for (byte_of, expected) in [(0xc3, ""), (0xa9, "é"), (0xe2, ""), (0xc3, "")] {
        assert_eq!(decoding.step(&texts, byte(byte_of)?)?, expected);
    }
    let mut rest = String::new();
    for token in letter {
        rest += &decoding.step(&texts, token)?;
    }
    assert_eq!(rest.trim_start_matches('\u{fffd}').trim(), "the");
    assert_eq!(rest.matches('\u{fffd}').count(), 2);
    // Without an end the marks come after a while.
    let waiting = (0..200).map(|_| decoding.step(&texts, byte(0xe2)?));
    let shown: String = waiting.collect::<Result<_>>()?;
    assert_eq!(shown.matches('\u{fffd}').count(), 192);
    Ok(())
}

/// Characters of several tokens come with their last token.
#[test]
fn pieces_are_whole_characters() -> Result<()> {
    let folder = Folder::open(&repository().join("assets/decoder"), None)?;
    let decoder = quantized(&folder, "int8", Precision::Float32)?;
    let generator = Generator::new(&decoder, &folder)?;
    let prompt = folder.texts.prompt("In the beginning")?;
    let mut generation = generator.generate(&prompt, &GenerationConfig::default())?;
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for piece in generation.by_ref() {
        let piece = piece?;
        text.push_str(&piece.text);
        tokens.push(piece.token);
    }
    let all = [&prompt[..], &tokens].concat();
    let decoded = folder.texts.tokenizer.decode(&all, true).map_err(anyhow::Error::msg)?;
    assert!(decoded.ends_with(&text), "{text:?}");
    Ok(())
}
